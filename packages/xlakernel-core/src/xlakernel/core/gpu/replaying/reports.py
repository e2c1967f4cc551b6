"""Error messages of a handler that replays plans. A call runs Python only to make such a message."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence

from ...ffi import abi
from ...native.debugging.call_frame import api_of
from ...native.machine.frame import new_error
from ..plan import Address, Fill, Launch, Plan, Pointer, Step
from .cuda_abi import ERROR_NAME, EXHAUSTED, STICKY
from .replay import NO_DEVICE, NO_PLAN, OTHER_CALL

_DTYPES = {number: name for name, number in abi.DATA_TYPES.items()}


class Reporter:
    """Makes the errors of one handler, with the encoded steps of each of its plans.

    Attributes:
      address: the address of the Python function that machine code calls; valid as long as this object lives.
    """

    def __init__(
        self, label: str, plans: Sequence[Plan], steps: Sequence[Sequence[Step]], functions: Mapping[str, int]
    ) -> None:
        self._label = label
        self._plans = plans
        self._steps = steps
        self._functions = functions
        self._upcall = self._report
        self.address = id(self._upcall)

    def _report(self, frame: int, what: int, plan: int, step: int, code: int) -> int | None:
        try:
            text, kind = self._describe(frame, what, plan, step, code)
        except Exception as error:  # noqa: BLE001  # becomes the error of XLA's program
            text, kind = f"the call failed (code {code}), and so did describing it: {error!r}", "INTERNAL"
        message = f"xlakernel: {self._label}: {text}".replace("\0", "\\0")  # XLA reads it up to the first NUL
        return new_error(api_of(frame), message, abi.ERROR_CODES[kind])

    def _describe(self, frame: int, what: int, plan: int, step: int, code: int) -> tuple[str, str]:
        """Return the text of an error, and the name of its XLA error code."""
        if what == NO_DEVICE:
            return f"the CUDA driver gives no current device: {self._error(code)}", "INTERNAL"
        if what == NO_PLAN:
            devices = ", ".join(str(plan.device) for plan in self._plans)
            text = f"this call runs on CUDA device {code}; it was recorded for devices {devices}."
            text += " The device arrays that it refers to are there: pass them as inputs, which JAX moves to the call."
            return text, "INVALID_ARGUMENT"
        if what == OTHER_CALL:
            return f"{_recorded(self._plans[plan])}; the call has {_found(frame)}.", "INVALID_ARGUMENT"
        text = f"the CUDA driver refused {_name_step(self._plans[plan], self._steps[plan][step])}: {self._error(code)}"
        if code in STICKY:
            text += (
                " An earlier kernel may be at fault: the driver reports a failure on the device at its next call. "
                "Debug mode (XLAKERNEL_DEBUG=1, or xlakernel.core.debug_mode()) names the kernel."
            )
        return text, "RESOURCE_EXHAUSTED" if code in EXHAUSTED else "INTERNAL"

    def _error(self, code: int) -> str:
        """Return the number and the name of one of the driver's codes."""
        name = ctypes.c_char_p()
        kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.POINTER(ctypes.c_char_p))
        kind(self._functions[ERROR_NAME])(code, ctypes.byref(name))
        return f"error {code}, {name.value.decode() if name.value else 'which has no name'}."


def _name_step(plan: Plan, step: Step) -> str:
    if isinstance(step, Launch):
        return (
            f"to launch kernel {step.kernel!r} (grid {step.grid}, block {step.block}, {step.shared_mem} bytes of "
            "dynamic shared memory)"
        )
    if isinstance(step, Fill):
        size = f"{step.height} × {step.width} elements of {step.itemsize} bytes"
        return f"to fill {size} in {_name_place(plan, step.destination)}"
    size = f"{step.depth} × {step.height} × {step.width} bytes"
    return f"to copy {size} from {_name_place(plan, step.source)} to {_name_place(plan, step.destination)}"


def _name_place(plan: Plan, address: Address) -> str:
    if not isinstance(address, Pointer):
        return f"memory at {address:#x}"
    count = len(plan.arrays)
    block = address.array - count
    name = str(plan.arrays[address.array]) if block < 0 else f"temporary block {block} of {plan.scratch[block]} bytes"
    return f"{name}, at byte {address.offset}"


def _recorded(plan: Plan) -> str:
    arrays = ", ".join(map(str, plan.arrays)) or "no arrays"
    scratch = "".join(f", then a result of {nbytes} bytes as temporary memory" for nbytes in plan.scratch)
    batch = " All may have the same batch dimensions before their own, where 1 is allowed for an input"
    return f"recorded for {arrays}{scratch}.{batch if plan.arrays else ''}"


def _found(frame: int) -> str:
    found = []
    for source, part, struct in (("input", "args", abi.ARGS), ("output", "rets", abi.RETS)):
        size, buffers = (_word(frame + abi.CALL_FRAME[part] + struct[field]) for field in ("size", part))
        found += [f"{source} {i} ({_buffer(_word(buffers + 8 * i))})" for i in range(size)]
    attributes = _word(frame + abi.CALL_FRAME["attrs"] + abi.ATTRS["size"])
    return (", ".join(found) or "no arrays") + (
        f" and {attributes} attributes, which nothing reads" if attributes else ""
    )


def _buffer(address: int) -> str:
    dtype = ctypes.c_int32.from_address(address + abi.BUFFER["dtype"]).value
    rank, dims = (_word(address + abi.BUFFER[name]) for name in ("rank", "dims"))
    shape = ",".join(str(_word(dims + 8 * axis)) for axis in range(rank))
    return f"{_DTYPES.get(dtype, f'dtype {dtype} of XLA')}[{shape}]"


def _word(address: int) -> int:
    return ctypes.c_int64.from_address(address).value
