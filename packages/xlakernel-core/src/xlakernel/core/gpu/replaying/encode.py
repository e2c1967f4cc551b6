"""Binary layout of a launch plan, which machine code reads (`replay`).

A step begins with the addresses of the routine that performs it and of the driver function that the routine calls. A
place in memory is the number of a base and an offset. The bases of a call are the addresses of its arrays, then of its
scratch blocks (temporary memory), then 0 for fixed addresses.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ...errors import DtypeError
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


class ArrayEntry(ctypes.Structure):
    """An `Array`: XLA's number of its dtype, and its extents."""

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
    """A pointer to store at byte *at* of a kernel's parameters."""

    _fields_ = [("at", ctypes.c_int64), ("place", PlaceEntry)]


_STEP = [("perform", ctypes.c_void_p), ("function", ctypes.c_void_p)]


class StepEntry(ctypes.Structure):
    """The first fields of every step."""

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
    """A `Plan`, number *number* of its handler. *scratch* is an array of sizes, *steps* an array of addresses."""

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
    """The data of a handler.

    *current_device* is null if the plan runs on any device. *stream* is used in place of XLA's if *fixed_stream* is
    not 0. *report* is an `Upcall` that makes an ``XLA_FFI_Error``.
    """

    _fields_ = [
        ("plans", ctypes.c_void_p),
        ("plan_count", ctypes.c_int64),
        ("current_device", ctypes.c_void_p),
        ("fixed_stream", ctypes.c_int64),
        ("stream", ctypes.c_void_p),
        ("report", ctypes.c_void_p),
    ]


class Encoder:
    """Encodes one plan.

    Args:
      plan: the plan.
      routine: returns the address of a routine of `replay`, by name.
      functions: addresses of the driver's functions, by name.

    Attributes:
      steps: the plan's steps without the empty ones, in the order in which they are encoded.
      owned: the memory that the entry of the plan refers to.
    """

    def __init__(self, plan: Plan, routine: Callable[[str], int], functions: Mapping[str, int]) -> None:
        self._plan = plan
        self._routine = routine
        self._functions = functions
        self.steps: list[Step] = [step for step in plan.steps if not _is_empty(step)]
        self.owned: list[Any] = []

    def encode(self, number: int) -> PlanEntry:
        """Return the entry of the plan, number *number* of its handler."""
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
            raise DtypeError(f"{array}: handlers do not support this dtype; allowed: {', '.join(abi.DATA_TYPES)}.")
        return ArrayEntry(abi.DATA_TYPES[array.dtype], len(array.shape), array.nbytes, self._numbers(array.shape))

    def _place(self, address: Address) -> PlaceEntry:
        if isinstance(address, Pointer):
            return PlaceEntry(address.array, address.offset)
        return PlaceEntry(len(self._plan.arrays) + len(self._plan.scratch), address)

    def _calls(self, routine: str, function: str) -> tuple[int, int]:
        """Return the values of the first fields of a step."""
        return self._routine(routine), self._functions[function]

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
        # The driver uses the low bits of a memset's value; a recorded value may be wider.
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
    """Return the entry of a handler, and the memory of its plan entries."""
    entries = list(plans)
    memory = (PlanEntry * len(entries))(*entries)
    return HandlerEntry(plans=ctypes.addressof(memory), plan_count=len(entries), **fields), memory


def _is_empty(step: Step) -> bool:
    """Return True if a fill or a copy has no element."""
    if isinstance(step, Launch):
        return False
    return 0 in ((step.width, step.height) if isinstance(step, Fill) else (step.width, step.height, step.depth))
