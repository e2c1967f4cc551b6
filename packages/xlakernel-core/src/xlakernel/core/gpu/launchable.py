"""A backend's description of a call on the GPU: the function that launches the work, and its properties."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

from ..ffi.registry import Recipe
from .plan import Array

#: ``launch(stream, addresses)``: launch everything on the stream with this handle, on arrays at these addresses.
LaunchFunction = Callable[[int, Sequence[int]], None]
#: ``prepare(stream, addresses)``: return a function that launches everything on that stream, on those arrays.
PrepareFunction = Callable[[int, Sequence[int]], Callable[[], None]]


@dataclasses.dataclass(frozen=True)
class Launchable:
    """The work of a call on the GPU, for arrays of given shapes and dtypes.

    Attributes:
      name: the target's name; different work must have different names.
      own: suffix of the name for a handler that runs the work through Python. Such a handler uses the objects of one
        launchable, so launchables of equal code need different names.
      label: the kernel's or function's name, for messages.
      place: file and line of its definition, for messages.
      arrays: the inputs of a call, then its outputs, without batch dimensions; *launch* is called with their addresses.
      launch: launches the work, in the context of the device; called several times for a recording.
      prepare: makes the objects that cannot be made inside a stream capture, and returns the function to record. That
        function does the same as *launch*. None: *launch* itself is recorded.
      record: True: record the work, or raise; False: run it through Python at each call; "auto": record it if possible.
      recording: returns a context manager around all recordings. In this context, freed memory is not allocated again.
      unused: ``unused(sizes, position)`` returns, for a kernel with parameters of these sizes, the offsets of the
        8-byte words in parameter *position* that the kernel never reads. Libraries leave these words uninitialised.
      closed_over: functions and containers to search for device arrays that the work uses besides its arguments.
      aliases: pairs of numbers of an input and an output. The output begins with the values of the input, and need not
        be written; *launch* is called with the address of the output for both.
      recipe: returns the recipe that makes the target in another process; None: another process cannot make it.
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
    aliases: tuple[tuple[int, int], ...] = ()
    recipe: Callable[[], Recipe] | None = None
    own: str = ""
