"""A launch on the CPU as data: the code that Warp calls, its argument structs, and the pointers in the structs.

As on a GPU, Warp packs the arguments, and not this package: Warp records a launch on made-up addresses, without running
the kernel. The comparison of two recordings on different addresses shows which 8-byte words of the structs are
pointers, and to which arrays.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from .._internals import code, compilation, launches
from .._internals.lock import lock
from .._internals.recognition import Unrecognised
from .launch import WarpLaunch

_WORD = 8
# Made-up addresses: that of the first array, the distance between two arrays, and the distance by which the first array
# moves from one recording to the next. Each further array moves farther, so that the distance identifies the array.
_FIRST, _APART, _MOVED = 1 << 44, 1 << 40, 1 << 30


@dataclasses.dataclass(frozen=True)
class Layout:
    """Places in the structs that a native entry is called with. The structs are stored one after the other.

    Attributes:
      structs: the offset of each struct.
      nbytes: the size of all structs together.
      pointers: (offset, number of the array) of each word that points to the beginning of an array.
    """

    structs: tuple[int, ...]
    nbytes: int
    pointers: tuple[tuple[int, int], ...]


@dataclasses.dataclass(frozen=True)
class Recorded:
    """A launch that Warp recorded.

    Attributes:
      launch: Warp's object, which owns the code.
      entry: address of the code.
      layout: places in the structs.
      data: the structs' bytes, with zeros in place of pointers.
      content: a key of the code.
    """

    launch: Any
    entry: int
    layout: Layout
    data: bytes
    content: str

    @property
    def form(self) -> str:
        """Layout and bytes as a text, equal for two recordings of the same launch."""
        return f"{self.layout} {self.data.hex()}"


def record(launch: WarpLaunch) -> Recorded:
    """Have Warp record a launch; raise `Unrecognised` if the recording is not as expected."""
    return compilation.retry_while_defined(launch.kernel.module, lambda: _record(launch))


def _record(launch: WarpLaunch) -> Recorded:
    places = [_FIRST + number * _APART for number in range(len(launch.arrays))]
    moved = [place + (number + 1) * _MOVED for number, place in enumerate(places)]
    with lock:  # without it, another thread could make Warp hash the module again
        first, second = launch.recorded(places), launch.recorded(moved)
        content = code.content(launch.kernel, launch.block_on("cpu"))
    entry = launches.native_entry(second)
    if launches.native_entry(first) != entry:
        raise Unrecognised("the native entry differs between launches")
    offsets, joined = _join(launches.structs(first))
    again, other = _join(launches.structs(second))
    if offsets != again or len(joined) != len(other):
        raise Unrecognised("the structs differ between launches")
    pointers = _pointers(joined, other, list(zip(places, moved, strict=True)))
    for offset, _ in pointers:
        joined[offset : offset + _WORD] = bytes(_WORD)
    return Recorded(second, entry, Layout(offsets, len(joined), pointers), bytes(joined), content)


def _join(structs: Sequence[bytes]) -> tuple[tuple[int, ...], bytearray]:
    """Return the offsets of structs, and all of them one after the other, each aligned to 16 bytes."""
    joined, offsets = bytearray(), []
    for struct in structs:
        offsets.append(len(joined))
        joined += struct
        joined += bytes(-len(joined) % (2 * _WORD))
    return tuple(offsets), joined


def _pointers(one: bytearray, other: bytearray, moves: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Return the offset and array number of each pointer; *moves* are each array's addresses in *one* and *other*."""
    numbers = {move: number for number, move in enumerate(moves)}
    found = []
    for offset in range(0, len(one), _WORD):
        words = tuple(int.from_bytes(data[offset : offset + _WORD], "little") for data in (one, other))
        if words[0] == words[1]:
            continue
        if words not in numbers:
            raise Unrecognised("a word that is not a pointer differs between launches")
        found.append((offset, numbers[words]))
    return tuple(found)
