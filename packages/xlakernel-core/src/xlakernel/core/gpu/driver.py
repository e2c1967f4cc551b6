"""Calls of the CUDA driver from Python, made while work is recorded and never while it is replayed."""

from __future__ import annotations

import contextlib
import functools
import re
import threading
from collections.abc import Iterator
from typing import Any

import jax
from cuda.bindings import driver as cuda

from ..errors import DeviceError

_MAX_DYNAMIC_SHARED_MEM = cuda.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_limit_lock = threading.Lock()  # held from reading a limit to raising it

# The first version with cuFuncGetParamInfo, which describes a kernel's parameters.
_OLDEST = 12040


def check(result: tuple[Any, ...]) -> Any:
    """Return the values that a function of ``cuda.bindings.driver`` returned besides its status.

    Raises:
      DeviceError: if the driver refused.
    """
    status, *values = result
    if int(status):
        raise DeviceError(f"the CUDA driver refused a request: {describe(int(status))}.")
    return values[0] if len(values) == 1 else tuple(values)


def describe(status: int) -> str:
    """Return the name, number and meaning of an error code of the driver."""
    try:
        code = cuda.CUresult(status)
    except ValueError:  # a code of a driver that is newer than the bindings
        return f"error {status}"
    meaning = cuda.cuGetErrorString(code)[1]
    return f"{code.name} ({status}{f': {meaning.decode()}' if meaning else ''})"


def error_code(error: BaseException) -> int | None:
    """Return the driver's error code that the message of a library's exception names, or None."""
    text = str(error)
    found = re.search(r"CUDA_ERROR_\w+", text)
    name = found[0] if found else ""
    if found := re.search(r"\bcudaError(StreamCapture\w+)", text):  # the CUDA runtime's name for the same error
        name = "CUDA_ERROR" + re.sub(r"(?=[A-Z])", "_", found[1]).upper()
    known = getattr(cuda.CUresult, name, None)
    return None if known is None else int(known)


@functools.cache
def devices() -> tuple[int, ...]:
    """Return the driver's ordinals of the GPUs that JAX uses in this process.

    Raises:
      DeviceError: if there is no GPU, or the driver is too old.
    """
    try:
        found = jax.local_devices(backend="cuda")
    except RuntimeError as error:
        from xlakernel.command.install import install_command

        raise DeviceError(
            f"a kernel for CUDA needs an NVIDIA GPU, and JAX finds none: {error}. Check it with nvidia-smi, and "
            f"install JAX with CUDA: {install_command('core', 'cuda13')} (or [cuda12])."
        ) from error
    if not found:
        raise DeviceError(
            "a kernel for CUDA needs an NVIDIA GPU of this process, and JAX finds GPUs of other processes only. Give "
            "this one a GPU (local_device_ids of jax.distributed.initialize), or call the kernel in the others."
        )
    check(cuda.cuInit(0))
    version = int(check(cuda.cuDriverGetVersion()))
    if version < _OLDEST:
        raise DeviceError(
            f"the NVIDIA driver is for CUDA {version // 1000}.{version % 1000 // 10}; the recording of kernels needs a "
            f"driver for CUDA {_OLDEST // 1000}.{_OLDEST % 1000 // 10} (550 on Linux) or newer. Update it."
        )
    return tuple(device.local_hardware_id for device in found)


def usual_device() -> int:
    """Return the ordinal of JAX's default device if that is a GPU, else of JAX's first GPU."""
    chosen = jax.config.jax_default_device  # type: ignore[attr-defined]
    if getattr(chosen, "platform", None) == "gpu" and chosen.local_hardware_id in devices():
        return int(chosen.local_hardware_id)
    return devices()[0]


@contextlib.contextmanager
def context_of(device: int) -> Iterator[None]:
    """Make the primary context of a device, which JAX also uses, current in this thread."""
    handle = check(cuda.cuDeviceGet(device))
    check(cuda.cuCtxPushCurrent(_primary_context(device, handle)))
    try:
        yield
    finally:
        check(cuda.cuCtxPopCurrent())


@functools.cache  # retained once, for the life of the process, as JAX does
def _primary_context(device: int, handle: Any) -> Any:
    return check(cuda.cuDevicePrimaryCtxRetain(handle))


def current_device() -> int:
    """Return the ordinal of the device whose context is current in this thread.

    Raises:
      DeviceError: if there is no current context.
    """
    status, device = cuda.cuCtxGetDevice()
    if int(status):
        raise DeviceError(f"{describe(int(status))}: no device's context is current in this thread.")
    return int(device)


def allocation_of(address: int) -> tuple[int, int, int] | None:
    """Return begin, size and number of the allocation in GPU memory that contains *address*, or None.

    The driver reuses addresses, but never the number of an allocation.
    """
    status, begin, size = cuda.cuMemGetAddressRange(address)
    if int(status):
        return None
    number = check(cuda.cuPointerGetAttribute(cuda.CUpointer_attribute.CU_POINTER_ATTRIBUTE_BUFFER_ID, address))
    return int(begin), int(size), int(number)


def device_of(address: int) -> int | None:
    """Return the ordinal of the GPU that has *address* in its memory, or None."""
    kind = cuda.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
    status, ordinal = cuda.cuPointerGetAttribute(kind, address)
    return None if int(status) else int(ordinal)


def load_kernel(kernel: int) -> Any:
    """Load a ``CUkernel`` into the current context, and return its function there."""
    return check(cuda.cuKernelGetFunction(cuda.CUkernel(kernel)))


def allow_shared_mem(function: Any, nbytes: int) -> None:
    """Raise the limit on dynamic shared memory for launches of a ``CUfunction`` to at least *nbytes*.

    The limit is never lowered: an earlier plan may launch the same function with more shared memory.
    """
    function = cuda.CUfunction(int(function))
    with _limit_lock:
        if nbytes > check(cuda.cuFuncGetAttribute(_MAX_DYNAMIC_SHARED_MEM, function)):
            check(cuda.cuFuncSetAttribute(function, _MAX_DYNAMIC_SHARED_MEM, nbytes))
