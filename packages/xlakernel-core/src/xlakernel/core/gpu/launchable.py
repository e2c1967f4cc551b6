"""What a backend says of a call on the GPU: a function that launches the work, and what is known of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

from ..ffi.registry import Recipe
from .plan import Array

#: ``launch(stream, addresses)``: launch everything on the stream with this handle, on arrays at these addresses.
LaunchFunction = Callable[[int, Sequence[int]], None]
#: ``prepare(stream, addresses)``: return a function that does what `LaunchFunction` does.
PrepareFunction = Callable[[int, Sequence[int]], Callable[[], None]]


@dataclasses.dataclass(frozen=True)
class Launchable:
    """What a call does on the GPU, for arrays of given shapes and dtypes.

    Attributes:
      name: the target's name, which must identify what is launched.
      label: the kernel's or function's name, for messages.
      place: file and line of its definition, for messages.
      arrays: the inputs of a call, then its outputs, without batch dimensions; *launch* is given their addresses.
      launch: launches the work. It runs in the context of the device, several times when it is recorded.
      prepare: makes arrays and whatever else *launch* needs, and may not be made inside a stream capture; then it is
        what is recorded, and does the same.
      record: whether to record it: True, or an error; False: run it through Python each time; "auto": what works.
      recording: entered around all recordings; it keeps what is freed inside from being used again.
      unused: ``unused(sizes, position)``: which bytes of parameter *position* of a kernel, given the sizes of all its
        parameters, it never reads, by where their 8-byte words begin: libraries leave there what was in memory before.
      closed_over: where to look for device arrays that the work uses besides its arguments: functions, containers.
      shared_mem: bytes of dynamic shared memory that *probe*'s kernels are to be allowed, on each device.
      probe: launches the same kernels with little shared memory, so that they can be found; None: nothing to allow.
      aliased: the outputs that share an input's memory, which it may leave as they are.
      recipe: how the target is made in another process; None: it cannot be.
    """

    name: str
    label: str
    place: str
    arrays: tuple[Array, ...]
    launch: LaunchFunction
    prepare: PrepareFunction | None = None
    record: bool | Literal["auto"] = True
    recording: Callable[[], AbstractContextManager[Any]] = nullcontext
    unused: Callable[[Sequence[int], int], Collection[int]] = lambda sizes, position: ()
    closed_over: Sequence[Any] = ()
    shared_mem: int = 0
    probe: LaunchFunction | None = None
    aliased: frozenset[int] = frozenset()
    recipe: Callable[[], Recipe] | None = None
