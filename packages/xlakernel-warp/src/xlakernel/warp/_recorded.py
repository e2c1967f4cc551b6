"""A launch on the CPU as data: what Warp calls, with which structs, and which words of these are pointers.

As on a GPU, nobody computes here what Warp passes to a kernel: Warp packs it, for a launch that is recorded and not
run, on made-up addresses. Doing that twice shows which words are pointers into which array.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from . import _inside
from ._launch import WarpLaunch

_WORD = 8
# Where nothing is; apart by more than any array has, and from recording to recording by another distance for each.
_FIRST, _APART, _MOVED = 1 << 44, 1 << 40, 1 << 30


@dataclasses.dataclass(frozen=True)
class Layout:
    """Where things are in what a native entry is called with, one struct behind the other.

    Attributes:
      structs: where each struct begins.
      nbytes: of all of them.
      pointers: (where, number of the array) of each word that points to an array's begin.
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
      layout: of its structs.
      data: their bytes, with nothing where pointers are.
    """

    launch: Any
    entry: int
    layout: Layout
    data: bytes

    @property
    def form(self) -> dict[str, Any]:
        """What two launches of the same arrays have in common if they are recorded alike, made of what JSON has."""
        pointers = [list(pointer) for pointer in self.layout.pointers]
        return {"structs": list(self.layout.structs), "pointers": pointers, "data": self.data.hex()}


def record(launch: WarpLaunch) -> Recorded:
    """Have Warp record a launch.

    Raises:
      Unrecognised: if it is not as expected.
      CompileError: if Warp refuses the kernel.
      LaunchError: if Warp refuses the launch.
    """
    return _inside.undisturbed(launch.kernel.module, lambda: _record(launch))


def _record(launch: WarpLaunch) -> Recorded:
    places = [_FIRST + number * _APART for number in range(len(launch.arrays))]
    moved = [place + (number + 1) * _MOVED for number, place in enumerate(places)]
    first, second = launch.recorded(places), launch.recorded(moved)
    entry = _inside.native_entry(second)
    if _inside.native_entry(first) != entry:
        raise _inside.Unrecognised("the native entry differs from launch to launch")
    starts, joined = _join(_inside.structs(first))
    again, other = _join(_inside.structs(second))
    if starts != again or len(joined) != len(other):
        raise _inside.Unrecognised("the structs differ from launch to launch")
    pointers = _pointers(joined, other, list(zip(places, moved, strict=True)))
    for where, _ in pointers:
        joined[where : where + _WORD] = bytes(_WORD)
    layout = Layout(starts, len(joined), pointers)
    return Recorded(second, entry, layout, bytes(joined))


def _join(structs: Sequence[bytes]) -> tuple[tuple[int, ...], bytearray]:
    joined, starts = bytearray(), []
    for struct in structs:
        starts.append(len(joined))
        joined += struct
        joined += bytes(-len(joined) % (2 * _WORD))
    return tuple(starts), joined


def _pointers(one: bytearray, other: bytearray, moves: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    numbers = {move: number for number, move in enumerate(moves)}
    found = []
    for where in range(0, len(one), _WORD):
        words = tuple(int.from_bytes(data[where : where + _WORD], "little") for data in (one, other))
        if words[0] == words[1]:
            continue
        if words not in numbers:
            raise _inside.Unrecognised("a word that is no pointer changes from launch to launch")
        found.append((where, numbers[words]))
    return tuple(found)
