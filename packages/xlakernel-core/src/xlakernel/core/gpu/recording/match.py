"""Comparison of two recordings: 8 bytes that changed with an array's address are a pointer; the rest must be equal."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal

from ...errors import RecordingError
from ..launchable import Launchable
from ..plan import Address, Copy, Fill, Launch, Plan, Pointer, Step
from .addresses import Ranges
from .closure import Closure, DeviceArray
from .graph import Capture

_FIELDS = {
    Launch: ("kernel", "handle", "grid", "block", "shared_mem", "offsets", "attributes"),
    Fill: ("value", "itemsize", "width", "height", "pitch"),
    Copy: ("width", "height", "depth", "source_pitch", "source_height", "destination_pitch", "destination_height"),
}
_TITLES = {Launch: "kernel", Fill: "fill", Copy: "copy"}


@dataclasses.dataclass(frozen=True)
class Recording:
    """One recording: its steps, and the memory that their addresses lie in.

    Attributes:
      capture: the steps.
      ranges: the addresses of the arrays, and of temporary memory (`addresses.temporary`).
      allocations: for each address in GPU memory, begin, size and number of the allocation that contains it.
    """

    capture: Capture
    ranges: Ranges
    allocations: dict[int, tuple[int, int, int]]


class StructMismatch(RecordingError):
    """Two recordings differ inside a struct that is a parameter. A further recording may agree with one of them.

    The reason is that libraries leave some bytes of a struct uninitialised: padding, and fields that the kernel sets.
    """


def match(one: Recording, two: Recording, launchable: Launchable, device: int) -> tuple[Plan, Any]:
    """Return the plan of two recordings on different addresses, and the device arrays to keep alive for the plan.

    Raises:
      StructMismatch: if they differ inside a struct.
      RecordingError: if they differ elsewhere, or if a pointer's memory may be freed before a replay.
    """
    matching = _Matching(one, two, launchable)
    steps = matching.steps()
    bound = matching.kept or not (one.capture.portable and two.capture.portable)
    plan = Plan(launchable.arrays, steps, tuple(matching.scratch), device if bound else None)
    return plan, [found.owner for found in matching.kept]


class _Matching:
    def __init__(self, one: Recording, two: Recording, launchable: Launchable) -> None:
        self.one, self.two = one, two
        self.launchable = launchable
        self.arrays, self.label = launchable.arrays, launchable.label
        self.scratch: list[int] = []
        self.kept: list[DeviceArray] = []
        self._blocks: dict[Any, int] = {}  # numbers of scratch blocks, by the block's numbers in both recordings
        self._known: list[DeviceArray] | None = None

    def steps(self) -> tuple[Step, ...]:
        first, second = self.one.capture.steps, self.two.capture.steps
        if [type(step) for step in first] != [type(step) for step in second]:
            raise self._differs(f"{_count(first)} the first time and {_count(second)} the second")
        return tuple(self._step(number) for number in range(len(first)))

    def _step(self, number: int) -> Step:
        first, second = self.one.capture.steps[number], self.two.capture.steps[number]
        what = f"{_TITLES[type(first)]} {number}"
        if isinstance(first, Launch):
            what += f" ({first.kernel})"
        for name in _FIELDS[type(first)]:
            before, after = getattr(first, name), getattr(second, name)
            if before != after:
                if name == "handle":
                    raise self._differs(f"{what} is compiled anew each time. Define and compile kernels outside of it")
                raise self._differs(f"{what} has {name.replace('_', ' ')} {before} and then {after}")
        if isinstance(first, Launch):
            assert isinstance(second, Launch)
            return self._launch(number, first, second, what)
        changes: dict[str, Any] = {
            side: self._address(getattr(first, side), getattr(second, side), what)
            for side in ("source", "destination")
            if hasattr(first, side)
        }
        return dataclasses.replace(first, **changes)

    def _launch(self, number: int, first: Launch, second: Launch, what: str) -> Launch:
        pointers: list[tuple[int, Pointer]] = []
        sizes = self.one.capture.sizes[number]
        for position, (offset, size) in enumerate(zip(first.offsets, sizes, strict=True)):
            end, unused = offset + size, self.launchable.unused(sizes, position)
            for at in range(offset, end, 8):
                words = [step.parameters[at : min(at + 8, end)] for step in (first, second)]
                where = f"parameter {position} of {what}"
                try:
                    found = self._word(words[0], words[1], where, in_struct=size > 8)
                except RecordingError:
                    if at - offset not in unused:  # a word that the kernel never reads may hold an old pointer
                        raise
                else:
                    pointers += [] if found is None else [(at, found)]
        return dataclasses.replace(first, pointers=tuple(pointers))

    def _word(self, first: bytes, second: bytes, where: str, *, in_struct: bool) -> Pointer | None:
        """Return the pointer in a word of a parameter; None if the word is the same in both recordings."""
        before, after = (int.from_bytes(word, "little") for word in (first, second))
        found = self._pointer(before, after, where, in_struct=in_struct) if len(first) == 8 else None
        if found is None and before != after:
            raise self._differs(f"{where} is {before:#x} and then {after:#x}", in_struct=in_struct)
        return found

    def _address(self, first: int, second: int, what: str) -> Address:
        found = self._pointer(first, second, f"an address of {what}", in_struct=False)
        if found is None and first != second:
            raise self._differs(f"an address of {what} is {first:#x} and then {second:#x}")
        if found is None and _place(self.one, first) is None:  # an address of the host, whose memory may be freed
            raise RecordingError(
                f"{self.label} cannot be recorded: an address of {what} is {first:#x}, which is in no memory of the "
                "GPU; only fills and copies within the device can be replayed."
            )
        return first if found is None else found

    def _pointer(self, first: int, second: int, where: str, *, in_struct: bool) -> Pointer | None:
        """Return the pointer in a word, relative to its block; None for a fixed address or another value."""
        one, two = _place(self.one, first), _place(self.two, second)
        if one is None and two is None:
            return None
        if one is not None and two is not None and (one.kind, one.offset, one.size) == (two.kind, two.offset, two.size):
            if one.kind == "allocation" and one.number == two.number:
                # A number in a struct may look like an address, for example 0x3cccccccd, by which cuBLAS divides by 5.
                if not in_struct or first % 4 == 0 or self._owner(first, one):
                    self._keep(first, one, where)
                return None
            if one.kind == "range" and one.number == two.number < len(self.arrays):
                return Pointer(one.number, one.offset)
            # Arrays that the function refers to are not temporary memory: the function alternates between arrays.
            temporary = one.kind != "allocation" or not (self._owner(first, one) or self._owner(second, two))
            if temporary and (one.kind == "allocation" or one.number == two.number):
                return Pointer(self._scratch(one, two), one.offset)
        text = f"{where} points to {one or 'no memory'} and then to {two or 'no memory'}"
        raise self._differs(text, in_struct=in_struct)

    def _scratch(self, one: _Place, two: _Place) -> int:
        """Return the number of the scratch block that replaces a temporary block."""
        key = (one.kind, one.number, two.number)
        if key not in self._blocks:
            self._blocks[key] = len(self.scratch)
            self.scratch.append(one.size)
        return len(self.arrays) + self._blocks[key]

    def _keep(self, address: int, place: _Place, where: str) -> None:
        """Keep the device array that *address* points into, or raise if the function refers to none."""
        if found := self._owner(address, place):
            if found not in self.kept:
                self.kept.append(found)
            return
        raise RecordingError(
            f"{self.label} cannot be recorded: {where} is {address:#x}, which points into {place.size} bytes of GPU "
            "memory that are neither an argument, nor allocated in the call, nor a device array that the function "
            "refers to; a library's memory pool or workspace, for example. Pass the array as an input, or refer to it "
            "by a global or a closure of the function."
        )

    def _owner(self, address: int, place: _Place) -> DeviceArray | None:
        """Return the device array that the function refers to and that *address* points into."""
        if self._known is None:
            self._known = Closure(self.launchable.closed_over).arrays
        begin = address - place.offset  # The array must lie in the allocation; an empty array may lie anywhere.
        for found in self._known:
            # The address at an array's end is not in the array: another block of a library's pool may begin there.
            if found.begin <= address < found.end and begin <= found.begin < begin + place.size:
                return found
        return None

    def _differs(self, text: str, *, in_struct: bool = False) -> RecordingError:
        kind = StructMismatch if in_struct else RecordingError
        return kind(f"{self.label} cannot be recorded, because it does not do the same each time: {text}.")


@dataclasses.dataclass(frozen=True)
class _Place:
    """A byte of a block of memory: an array's range, memory allocated on the stream, or another allocation."""

    kind: Literal["range", "stream", "allocation"]
    number: int
    offset: int
    size: int

    def __str__(self) -> str:
        return f"byte {self.offset} of {self.size} in {_BLOCKS[self.kind]} {self.number}"


_BLOCKS = {"range": "array", "stream": "temporary block", "allocation": "allocation"}


def _place(recording: Recording, word: int) -> _Place | None:
    if found := recording.ranges.find(word):
        number, offset = found
        return _Place("range", number, offset, recording.ranges.size(number))
    for behind in (0, 1):  # the address after a block belongs to the block, unless another block begins there
        for number, (begin, size) in enumerate(recording.capture.allocations):
            if begin <= word < begin + size + behind:
                return _Place("stream", number, word - begin, size)
    if word in recording.allocations:
        begin, size, number = recording.allocations[word]
        return _Place("allocation", number, word - begin, size)
    return None


def _count(steps: Sequence[Step]) -> str:
    names = [step.kernel if isinstance(step, Launch) else _TITLES[type(step)] for step in steps]
    return f"{len(steps)} steps ({', '.join(names[:8])}{', …' if len(names) > 8 else ''})"
