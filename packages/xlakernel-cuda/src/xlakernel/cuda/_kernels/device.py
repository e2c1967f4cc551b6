"""The limit of shared memory on the GPUs of this process; other launch limits are the same on all GPUs."""

from __future__ import annotations

import functools

from cuda.bindings import driver as cuda

from xlakernel.core.backend.gpu import driver
from xlakernel.core.errors import LaunchError


def check_device(kernel: str, shared_mem: int) -> None:
    """Check that a GPU of this process can run blocks with *shared_mem* bytes of shared memory.

    Raises:
      LaunchError: if no GPU allows this size.
      DeviceError: if there is no GPU.
    """
    device, most = max(shared_mem_limits().items(), key=lambda item: item[1])
    if shared_mem > most:
        raise LaunchError(
            f"{kernel}: shared_mem is {shared_mem} bytes a block; {device} allows {most}. Reduce shared_mem, "
            "or keep some of the data in registers or global memory."
        )


@functools.cache
def shared_mem_limits() -> dict[str, int]:
    """Return the largest shared memory of a block for each GPU that JAX uses, by the GPU's name and number.

    Raises:
      DeviceError: if there is no GPU.
    """
    limit = cuda.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
    found = {}
    for ordinal in driver.devices():
        device = driver.check(cuda.cuDeviceGet(ordinal))
        name = driver.check(cuda.cuDeviceGetName(128, device)).split(b"\0")[0].decode()
        found[f"{name} (GPU {ordinal})"] = int(driver.check(cuda.cuDeviceGetAttribute(limit, device)))
    return found
