"""A launch plan in memory, as machine code reads it (`replay`).

A step begins with the address of the routine that performs it and of the driver's function that it calls. Places in
memory are a base and an offset: the bases of a call are the addresses of its arrays and of its scratch blocks, and
behind them 0, for addresses that stay.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ...errors import DtypeError, RecordingError
from ...ffi import abi
from ..plan import Address, Array, Copy, Fill, Launch, Plan, Pointer, Step
from .cuda_abi import (
    COPY_ROW,
    COPY_ROWS,
    CUDA_MEMCPY3D,
    FILL_ROW,
    FILL_ROWS,
    LAUNCH,
    MEMORY_TYPE_DEVICE,
    CUlaunchAttribute,
    CUlaunchConfig,
)

#: The driver takes 4 KiB, from CUDA 12.1 on 32764 bytes; what the handler puts on the stack has to end somewhere.
LARGEST_BLOCK = 1 << 15


class ArrayEntry(ctypes.Structure):
    """An `Array`: its dtype as XLA numbers them, and its extents."""

    _fields_ = [
        ("dtype", ctypes.c_int64),
        ("rank", ctypes.c_int64),
        ("nbytes", ctypes.c_int64),
        ("extents", ctypes.c_void_p),
    ]


class PlaceEntry(ctypes.Structure):
    """An `Address`."""

    _fields_ = [("base", ctypes.c_int64), ("offset", ctypes.c_int64)]


class PointerEntry(ctypes.Structure):
    """A pointer that belongs at byte *at* of a kernel's parameters."""

    _fields_ = [("at", ctypes.c_int64), ("place", PlaceEntry)]


_STEP = [("perform", ctypes.c_void_p), ("function", ctypes.c_void_p)]


class StepEntry(ctypes.Structure):
    """How every step begins."""

    _fields_ = _STEP


class LaunchEntry(ctypes.Structure):
    """A `Launch`."""

    _fields_ = [
        *_STEP,
        ("handle", ctypes.c_void_p),
        ("config", CUlaunchConfig),
        ("block", ctypes.c_void_p),
        ("block_size", ctypes.c_int64),
        ("offsets", ctypes.c_void_p),
        ("offset_count", ctypes.c_int64),
        ("pointers", ctypes.c_void_p),
        ("pointer_count", ctypes.c_int64),
    ]


class FillEntry(ctypes.Structure):
    """A `Fill`."""

    _fields_ = [
        *_STEP,
        ("destination", PlaceEntry),
        ("value", ctypes.c_uint32),
        ("width", ctypes.c_int64),
        ("height", ctypes.c_int64),
        ("pitch", ctypes.c_int64),
    ]


class CopyEntry(ctypes.Structure):
    """A `Copy`."""

    _fields_ = [*_STEP, ("source", PlaceEntry), ("destination", PlaceEntry), ("parameters", CUDA_MEMCPY3D)]


class PlanEntry(ctypes.Structure):
    """A `Plan`, the *number*-th of its handler; *scratch* and *steps* are arrays of sizes and of addresses."""

    _fields_ = [
        ("number", ctypes.c_int64),
        ("device", ctypes.c_int64),
        ("input_count", ctypes.c_int64),
        ("output_count", ctypes.c_int64),
        ("scratch_count", ctypes.c_int64),
        ("step_count", ctypes.c_int64),
        ("arrays", ctypes.c_void_p),
        ("scratch", ctypes.c_void_p),
        ("steps", ctypes.c_void_p),
    ]


class HandlerEntry(ctypes.Structure):
    """All that a handler knows.

    *current_device* is null where any device will do, *fixed_stream* whether to use *stream* instead of XLA's. *report*
    is an `Upcall` that makes an ``XLA_FFI_Error``.
    """

    _fields_ = [
        ("plans", ctypes.c_void_p),
        ("plan_count", ctypes.c_int64),
        ("current_device", ctypes.c_void_p),
        ("fixed_stream", ctypes.c_int64),
        ("stream", ctypes.c_void_p),
        ("traits", ctypes.c_int64),
        ("report", ctypes.c_void_p),
    ]


class Encoder:
    """Writes one plan.

    Args:
      plan: the plan.
      routine: name of a routine of `replay` → its address.
      function: name of one of the driver's functions → its address.

    Attributes:
      steps: those that there is something to do for, in the order in which they are encoded.
      owned: the memory that the entry of the plan refers to.
    """

    def __init__(self, plan: Plan, routine: Callable[[str], int], function: Callable[[str], int]) -> None:
        check(plan)
        self._plan = plan
        self._routine = routine
        self._function = function
        self.steps: list[Step] = [step for step in plan.steps if not _is_empty(step)]
        self.owned: list[Any] = []

    def encode(self, number: int) -> PlanEntry:
        """Return the plan as the *number*-th of a handler."""
        plan = self._plan
        sources = [array.source for array in plan.arrays]
        return PlanEntry(
            number,
            -1 if plan.device is None else plan.device,
            sources.count("input"),
            sources.count("output"),
            len(plan.scratch),
            len(self.steps),
            self._keep((ArrayEntry * len(plan.arrays))(*map(self._array, plan.arrays))),
            self._numbers(plan.scratch),
            self._numbers([self._keep(self._step(step)) for step in self.steps]),
        )

    def _keep(self, memory: Any) -> int:
        self.owned.append(memory)
        return ctypes.addressof(memory)

    def _numbers(self, numbers: Sequence[int]) -> int:
        return self._keep((ctypes.c_int64 * len(numbers))(*numbers))

    def _bytes(self, data: bytes) -> int:
        return self._keep((ctypes.c_uint64 * -(-len(data) // 8)).from_buffer_copy(data.ljust(-(-len(data) // 8) * 8)))

    def _array(self, array: Array) -> ArrayEntry:
        if array.dtype not in abi.DATA_TYPES:
            raise DtypeError(f"{array}: no array of a handler has this dtype; allowed: {', '.join(abi.DATA_TYPES)}.")
        return ArrayEntry(abi.DATA_TYPES[array.dtype], len(array.shape), array.nbytes, self._numbers(array.shape))

    def _place(self, address: Address) -> PlaceEntry:
        if isinstance(address, Pointer):
            return PlaceEntry(address.array, address.offset)
        return PlaceEntry(len(self._plan.arrays) + len(self._plan.scratch), address)

    def _calls(self, routine: str, function: str) -> tuple[int, int]:
        return self._routine(routine), self._function(function)

    def _step(self, step: Step) -> ctypes.Structure:
        if isinstance(step, Launch):
            return self._launch(step)
        return self._fill(step) if isinstance(step, Fill) else self._copy(step)

    def _launch(self, step: Launch) -> LaunchEntry:
        attributes = len(step.attributes) // ctypes.sizeof(CUlaunchAttribute)
        address = self._bytes(step.attributes) if attributes else None
        pointers = [PointerEntry(at, self._place(pointer)) for at, pointer in step.pointers]
        return LaunchEntry(
            *self._calls("launch", LAUNCH),
            step.handle,
            CUlaunchConfig(*step.grid, *step.block, step.shared_mem, None, address, attributes),
            self._bytes(step.parameters),
            len(step.parameters),
            self._numbers(step.offsets),
            len(step.offsets),
            self._keep((PointerEntry * len(pointers))(*pointers)),
            len(pointers),
        )

    def _fill(self, step: Fill) -> FillEntry:
        calls = (
            self._calls("fill_row", FILL_ROW[step.itemsize])
            if step.height == 1
            else self._calls("fill_rows", FILL_ROWS[step.itemsize])
        )
        # A memset takes the low bits of a wider number.
        value = step.value & ((1 << 8 * step.itemsize) - 1)
        return FillEntry(*calls, self._place(step.destination), value, step.width, step.height, step.pitch)

    def _copy(self, step: Copy) -> CopyEntry:
        one_row = step.height == step.depth == 1
        calls = self._calls("copy_row", COPY_ROW) if one_row else self._calls("copy_rows", COPY_ROWS)
        parameters = CUDA_MEMCPY3D(
            srcMemoryType=MEMORY_TYPE_DEVICE,
            srcPitch=step.source_pitch,
            srcHeight=step.source_height,
            dstMemoryType=MEMORY_TYPE_DEVICE,
            dstPitch=step.destination_pitch,
            dstHeight=step.destination_height,
            WidthInBytes=step.width,
            Height=step.height,
            Depth=step.depth,
        )
        return CopyEntry(*calls, self._place(step.source), self._place(step.destination), parameters)


def encode_handler(plans: Iterable[PlanEntry], **fields: Any) -> tuple[HandlerEntry, Any]:
    """Return the entry of a handler, and memory that it refers to besides that of its plans."""
    entries = list(plans)
    memory = (PlanEntry * len(entries))(*entries)
    return HandlerEntry(plans=ctypes.addressof(memory), plan_count=len(entries), **fields), memory


def _is_empty(step: Step) -> bool:
    if isinstance(step, Launch):
        return False
    return 0 in ((step.width, step.height) if isinstance(step, Fill) else (step.width, step.height, step.depth))


def check(plan: Plan) -> None:
    """Raise `RecordingError` if replaying *plan* would read or write memory that is not its own."""
    sources = [(array.source, array.index) for array in plan.arrays]
    inputs = sum(source == "input" for source, _ in sources)
    expected = [("input", i) for i in range(inputs)] + [("output", i) for i in range(len(sources) - inputs)]
    if sources != expected:
        raise RecordingError(
            f"The arrays of a plan are the inputs of a call and then its outputs, in order; got {sources}."
        )
    bases = len(plan.arrays) + len(plan.scratch)
    for number, step in enumerate(plan.steps):
        for problem, wrong in _problems(step, bases).items():
            if wrong:
                raise RecordingError(f"Step {number} of a plan cannot be replayed: {problem}. It is {step}.")


def _problems(step: Step, bases: int) -> Mapping[str, bool]:
    """Return what may be wrong with a step, and whether it is."""
    if isinstance(step, Launch):
        places: list[Address] = [pointer for _, pointer in step.pointers]
        size = len(step.parameters)
        own = {
            "a pointer is beside the block of parameters": any(not 0 <= at <= size - 8 for at, _ in step.pointers),
            "a parameter is beside the block of parameters": any(not 0 <= at <= size for at in step.offsets),
            f"its parameters take {size} bytes, more than {LARGEST_BLOCK}": size > LARGEST_BLOCK,
            "its attributes are not whole CUlaunchAttributes": bool(
                len(step.attributes) % ctypes.sizeof(CUlaunchAttribute)
            ),
            "a number does not fit 32 bits": _beyond(32, (*step.grid, *step.block, step.shared_mem)),
        }
    elif isinstance(step, Fill):
        places = [step.destination]
        own = {
            "elements of a fill have 1, 2 or 4 bytes": step.itemsize not in FILL_ROW,
            "an extent or a pitch is negative or too large": _beyond(63, (step.width, step.height, step.pitch)),
        }
    else:
        places = [step.source, step.destination]
        extents = (step.width, step.height, step.depth)
        pitches = (step.source_pitch, step.source_height, step.destination_pitch, step.destination_height)
        own = {"an extent or a pitch is negative or too large": _beyond(63, (*extents, *pitches))}
    unknown = any(isinstance(place, Pointer) and not 0 <= place.array < bases for place in places)
    return {f"a pointer is into none of the {bases} arrays and blocks of the plan": unknown, **own}


def _beyond(bits: int, numbers: Iterable[int]) -> bool:
    return any(not 0 <= number < 1 << bits for number in numbers)
