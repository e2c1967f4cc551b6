"""``input_output_aliases`` on the GPU, where XLA does not always give an input and its output the same memory.

From jaxlib 0.11.1 on, XLA may call a handler on a part of a larger array instead of on a copy of this part
(https://github.com/openxla/xla/pull/43831). The output is then another array, without the values of the input.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from cuda.bindings import driver as cuda

from .driver import check
from .launchable import Launchable
from .plan import Copy, Pointer


def on_outputs(launchable: Launchable) -> Launchable:
    """Return *launchable* with the addresses of aliased inputs replaced by the addresses of their outputs."""
    if not launchable.aliases:
        return launchable
    launch, prepare = launchable.launch, launchable.prepare

    def launch_shared(stream: int, addresses: Sequence[int]) -> None:
        return launch(stream, _shared(launchable, addresses))

    def prepare_shared(stream: int, addresses: Sequence[int]) -> Callable[[], None]:
        assert prepare is not None
        return prepare(stream, _shared(launchable, addresses))

    return dataclasses.replace(launchable, launch=launch_shared, prepare=None if prepare is None else prepare_shared)


def copies(launchable: Launchable) -> tuple[Copy, ...]:
    """Return the steps that copy inputs to their outputs, before the work. Replays skip copies to the same address."""
    sizes = [array.nbytes for array in launchable.arrays]
    return tuple(Copy(Pointer(number), Pointer(output), sizes[number]) for number, output in _pairs(launchable))


def with_copies(launchable: Launchable) -> Launchable:
    """Return *launchable* with a *launch* that does the `copies` and then the work, for calls through Python."""
    if not launchable.aliases:
        return launchable
    shared = on_outputs(launchable)

    def launch(stream: int, addresses: Sequence[int]) -> None:
        for number, output in _pairs(launchable):
            nbytes = launchable.arrays[number].nbytes
            if nbytes and addresses[number] != addresses[output]:
                check(cuda.cuMemcpyDtoDAsync(addresses[output], addresses[number], nbytes, stream))
        shared.launch(stream, addresses)

    return dataclasses.replace(launchable, launch=launch)


def _pairs(launchable: Launchable) -> list[tuple[int, int]]:
    """Return the numbers of each aliased input and of its output, counted among all arrays."""
    inputs = sum(array.source == "input" for array in launchable.arrays)
    return [(number, inputs + output) for number, output in launchable.aliases]


def _shared(launchable: Launchable, addresses: Sequence[int]) -> list[int]:
    found = list(addresses)
    for number, output in _pairs(launchable):
        found[number] = addresses[output]
    return found
