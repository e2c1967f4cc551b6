"""Plans → the native handler that XLA calls: it replays the plan of the current device on XLA's stream."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from functools import cache, partial
from typing import Any

from ...errors import DeviceError, RecordingError
from ...ffi import abi
from ...ffi.registry import Handler
from ..plan import Plan
from . import cuda_abi
from .encode import Encoder, encode_handler
from .replay import routine, take_handler
from .reports import Reporter


def build_handler(
    plans: Sequence[Plan],
    *,
    label: str,
    functions: Mapping[str, int] | None = None,
    stream: int | None = None,
    command_buffer: bool = True,
) -> Handler:
    """Build the handler that does what *plans* say.

    Its inputs and outputs are those of the plans, behind any number of batch dimensions: each slice of the batch is
    replayed, in order. An input that all slices share has 1 there. Behind the outputs come the plan's scratch blocks:
    arrays of at least as many uint8, without batch dimensions.

    Args:
      plans: one for any device, or one for each device.
      label: what the plans do, for messages.
      functions: addresses to call in place of the CUDA driver's functions (`cuda_abi.FUNCTIONS`).
      stream: handle of the stream to use in place of XLA's.
      command_buffer: whether XLA may capture the calls into a CUDA graph.

    Returns:
      The handler. It keeps no kernel, module or device memory alive: only what it reads itself.

    Raises:
      RecordingError: if the plans cannot be replayed, or do not belong together.
      DeviceError: if there is no CUDA driver, or it is too old.
    """
    _check_devices(plans, label)
    functions = driver_functions() if functions is None else functions
    address_of = partial(_address_of, functions, label)
    encoders = [Encoder(plan, routine, address_of) for plan in plans]
    reporter = Reporter(label, plans, [encoder.steps for encoder in encoders], functions)
    any_device = plans[0].device is None
    entry, memory = encode_handler(
        [encoder.encode(number) for number, encoder in enumerate(encoders)],
        current_device=None if any_device else address_of(cuda_abi.CURRENT_DEVICE),
        fixed_stream=stream is not None,
        stream=stream,
        traits=abi.COMMAND_BUFFER_COMPATIBLE if command_buffer else 0,
        report=reporter.address,
    )
    address, code = take_handler(ctypes.addressof(entry))
    return Handler(address, (code, entry, memory, [encoder.owned for encoder in encoders], reporter))


@cache
def driver_functions() -> dict[str, int]:
    """Return the addresses of the CUDA driver's functions; 0 for one that it does not have.

    Raises:
      DeviceError: if there is no CUDA driver.
    """
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise DeviceError(
            f"There is no CUDA driver: {error}. Install NVIDIA's driver on the machine; in a container, start it with "
            "access to the GPU (docker run --gpus all)."
        ) from error
    return {name: _symbol(driver, name) for name in cuda_abi.FUNCTIONS}


def _symbol(library: ctypes.CDLL, name: str) -> int:
    function: Any = getattr(library, name, None)
    return 0 if function is None else ctypes.cast(function, ctypes.c_void_p).value or 0


def _address_of(functions: Mapping[str, int], label: str, name: str) -> int:
    if address := functions.get(name, 0):
        return address
    raise DeviceError(
        f"{label}: the CUDA driver has no function {name}. xlakernel needs a driver for CUDA 12.4 or newer "
        "(550 on Linux); nvidia-smi shows which one is installed."
    )


def _check_devices(plans: Sequence[Plan], label: str) -> None:
    devices = [plan.device for plan in plans]
    if not plans or (None in devices and len(plans) > 1) or len(set(devices)) < len(devices):
        raise RecordingError(
            f"{label}: there must be one plan for any device (None), or one for each device; got plans for {devices}."
        )
    if len({(plan.arrays, len(plan.scratch)) for plan in plans}) > 1:
        raise RecordingError(
            f"{label}: the plans for devices {devices} take different arrays, or other numbers of scratch blocks."
        )
