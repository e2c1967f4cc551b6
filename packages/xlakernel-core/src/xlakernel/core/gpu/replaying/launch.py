"""The native handler of launch plans: it replays the plan of the current device on XLA's stream."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Mapping, Sequence

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
) -> Handler:
    """Build the handler that replays *plans*.

    The inputs and outputs of a call are those of the plans, with any number of leading batch dimensions. The plan is
    replayed for each slice of the batch in order. An input has the extent 1 in batch dimensions along which all slices
    share it. The outputs are followed by one array for each scratch block (temporary memory) of the plan: uint8,
    one-dimensional, at least as large as the block. XLA may capture a call in a CUDA graph.

    Args:
      plans: one for any device, or one for each device; all have the same arrays and number of scratch blocks.
      label: the name of the function, for messages.
      functions: addresses to call in place of the CUDA driver's functions (`cuda_abi.FUNCTIONS`).
      stream: handle of the stream to use in place of XLA's.

    Returns:
      The handler. It keeps the memory that it reads alive, but no kernel, module or device memory.

    Raises:
      DtypeError: if an array has a dtype that handlers do not support.
    """
    functions = driver_functions() if functions is None else functions
    encoders = [Encoder(plan, routine, functions) for plan in plans]
    reporter = Reporter(label, plans, [encoder.steps for encoder in encoders], functions)
    any_device = plans[0].device is None
    entry, memory = encode_handler(
        [encoder.encode(number) for number, encoder in enumerate(encoders)],
        current_device=None if any_device else functions[cuda_abi.CURRENT_DEVICE],
        fixed_stream=stream is not None,
        stream=stream,
        report=reporter.address,
    )
    address, code = take_handler(ctypes.addressof(entry))
    return Handler(address, (code, entry, memory, [encoder.owned for encoder in encoders], reporter))


@functools.cache
def driver_functions() -> dict[str, int]:
    """Return the addresses of the CUDA driver's functions. `driver.devices` has checked the driver's version."""
    driver = ctypes.CDLL("libcuda.so.1")
    return {name: ctypes.cast(getattr(driver, name), ctypes.c_void_p).value or 0 for name in cuda_abi.FUNCTIONS}
