"""What the GPUs of this process allow."""

from __future__ import annotations

import dataclasses
import functools
import math

from xlakernel.core.errors import DeviceError, LaunchError

from .geometry import AXES, Geometry


@dataclasses.dataclass(frozen=True)
class Limits:
    """The largest launch that a device takes.

    Attributes:
      device: its name and number, for messages.
      block: threads of a block along x, y and z.
      threads: threads of a block.
      grid: blocks along x, y and z.
      shared_mem: bytes of shared memory of a block, for kernels that ask for more than the usual 48 KiB.
    """

    device: str
    block: tuple[int, int, int]
    threads: int
    grid: tuple[int, int, int]
    shared_mem: int

    def refusal(self, geometry: Geometry, shared_mem: int) -> str | None:
        """Say why the device does not take a launch; None: it does."""
        for what, asked, allowed in (("block", geometry.block, self.block), ("grid", geometry.grid, self.grid)):
            for axis, extent, most in zip(AXES, asked, allowed, strict=True):
                if extent > most:
                    return f"{what} {asked} has {extent} along {axis}; {self.device} allows {most}"
        threads = math.prod(geometry.block)
        if threads > self.threads:
            return f"block {geometry.block} has {threads} threads; {self.device} allows {self.threads}"
        if shared_mem > self.shared_mem:
            return (
                f"shared_mem is {shared_mem} bytes a block; {self.device} allows {self.shared_mem}. Let the blocks "
                "share less, or keep a part in registers or global memory"
            )
        return None


def check_launch(kernel: str, geometry: Geometry, shared_mem: int) -> None:
    """Raise `LaunchError` if no GPU of this process takes the launch, `DeviceError` if there is none."""
    refusals = [limits.refusal(geometry, shared_mem) for limits in device_limits()]
    if None not in refusals:
        raise LaunchError(f"{kernel}: {refusals[0]}.")


@functools.cache
def device_limits() -> tuple[Limits, ...]:
    """Return the limits of each GPU that this process sees.

    Raises:
      DeviceError: if there is none, or no driver.
    """
    from cuda.bindings import driver as cuda

    from xlakernel.core.backend.gpu import driver

    try:
        driver.check(cuda.cuInit(0))
        count = driver.check(cuda.cuDeviceGetCount())
    except DeviceError as error:
        raise DeviceError(f"{error} Check that nvidia-smi lists a GPU.") from error
    except Exception as error:  # cuda-bindings has several kinds for a missing driver, none of them public
        first = str(error).strip().partition("\n")[0].rstrip(".")
        raise DeviceError(
            f"no NVIDIA driver can be loaded: {first}. Kernels of xlakernel.cuda are compiled for a GPU where they "
            "run; check that nvidia-smi lists one."
        ) from error
    if not count:
        raise DeviceError("the NVIDIA driver sees no GPU. Check nvidia-smi and CUDA_VISIBLE_DEVICES.")
    return tuple(_limits(ordinal) for ordinal in range(count))


def _limits(ordinal: int) -> Limits:
    from cuda.bindings import driver as cuda

    from xlakernel.core.backend.gpu import driver

    device = driver.check(cuda.cuDeviceGet(ordinal))
    name = driver.check(cuda.cuDeviceGetName(128, device)).split(b"\0")[0].decode()

    def ask(attribute: str) -> int:
        kind = getattr(cuda.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{attribute}")
        return int(driver.check(cuda.cuDeviceGetAttribute(kind, device)))

    x, y, z = (ask(f"MAX_BLOCK_DIM_{axis.upper()}") for axis in AXES)
    grid_x, grid_y, grid_z = (ask(f"MAX_GRID_DIM_{axis.upper()}") for axis in AXES)
    return Limits(
        f"{name} (GPU {ordinal})",
        (x, y, z),
        ask("MAX_THREADS_PER_BLOCK"),
        (grid_x, grid_y, grid_z),
        ask("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
    )
