"""``input_output_aliases`` on the GPU, where XLA does not always give an input and its output the same memory.

From jaxlib 0.11.1 on, XLA calls a handler on slices of larger arrays in place of copies of them
(https://github.com/openxla/xla/pull/43831); the output is then another array, without the values of the input.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from cuda.bindings import driver as cuda

from .driver import check
from .launchable import Launchable


def with_aliases(launchable: Launchable) -> Launchable:
    """Return *launchable* with work that begins with the copies of inputs to their outputs.

    It is launched on the memory of the output in place of the input's. Nothing is copied where both are the same.
    """
    if not launchable.aliases:
        return launchable
    prepare = launchable.prepare

    def launch(stream: int, addresses: Sequence[int]) -> None:
        _copy(launchable, stream, addresses)
        return launchable.launch(stream, _shared(launchable, addresses))

    def prepare_copies(stream: int, addresses: Sequence[int]) -> Callable[[], None]:
        assert prepare is not None
        work = prepare(stream, _shared(launchable, addresses))

        def run() -> None:
            _copy(launchable, stream, addresses)
            work()

        return run

    return dataclasses.replace(launchable, launch=launch, prepare=None if prepare is None else prepare_copies)


def _pairs(launchable: Launchable) -> list[tuple[int, int]]:
    """Return the numbers of each input and its output among the arrays."""
    inputs = sum(array.source == "input" for array in launchable.arrays)
    return [(number, inputs + output) for number, output in launchable.aliases]


def _copy(launchable: Launchable, stream: int, addresses: Sequence[int]) -> None:
    for number, output in _pairs(launchable):
        nbytes = launchable.arrays[number].nbytes
        if nbytes and addresses[number] != addresses[output]:
            check(cuda.cuMemcpyDtoDAsync(addresses[output], addresses[number], nbytes, stream))


def _shared(launchable: Launchable, addresses: Sequence[int]) -> list[int]:
    found = list(addresses)
    for number, output in _pairs(launchable):
        found[number] = addresses[output]
    return found
