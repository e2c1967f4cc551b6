"""How many blocks and threads the kernels are launched with."""

from __future__ import annotations

import functools
import math

import numpy as np

from xlakernel.core.backend import is_debugging

from ...operators.products.blocks import SHARED_BYTES
from .device.walk import TILE

# Those of the GPUs that the launches are measured on (H100, H200), for where there is no GPU to ask.
_USUAL_MULTIPROCESSORS = 132
_USUAL_CAPABILITY = 9
_BESIDES = 1024


# Debug mode does not compile kernels anew that have more dynamic shared memory than 48 KiB.
_WHOLE = 48 * 1024 + 16


def _attribute(name: str, usual: int) -> int:
    """Return what the driver says of the first GPU; *usual* where a program is only lowered, without one."""
    from cuda.bindings import driver as cuda

    from xlakernel.core.backend.gpu import driver
    from xlakernel.core.errors import DeviceError

    try:
        driver.check(cuda.cuInit(0))
        attribute = getattr(cuda.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        return int(driver.check(cuda.cuDeviceGetAttribute(attribute, driver.check(cuda.cuDeviceGet(0)))))
    except (DeviceError, RuntimeError, OSError):
        return usual


@functools.cache
def multiprocessors() -> int:
    """Return how many multiprocessors the GPU has, each of which runs one block at a time where a block fills it."""
    return _attribute("MULTIPROCESSOR_COUNT", _USUAL_MULTIPROCESSORS)


@functools.cache
def capability() -> int:
    """Return the major number of the GPU's compute capability."""
    return _attribute("COMPUTE_CAPABILITY_MAJOR", _USUAL_CAPABILITY)


@functools.cache
def shared_bytes() -> int:
    """Return how many bytes of shared memory a block can have, without those that kernels have besides."""
    return _attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN", SHARED_BYTES + _BESIDES) - _BESIDES


def share_of(entries: int, warps: int, *, most: int) -> int:
    """Return how many entries a warp takes, whole tiles of them, so that *warps* have work, and none too much."""
    tiles = math.ceil(entries / (warps * TILE))
    return TILE * max(1, min(tiles, most // TILE))


def places_of(rows: int, entries: int, shares: int) -> int:
    """Return how many places each of so many shares has; a row has one, and one for each of its entries."""
    return max(1, math.ceil((rows + entries) / shares))


def blocks_of(work: int, each: int) -> int:
    """Return how many blocks take *work*, one at least, so that there is a launch."""
    return max(1, math.ceil(work / each))


def threads_for(kind: type) -> int:
    """Return how many threads a block has that fills a multiprocessor: all that there are registers for."""
    return 1024 if np.dtype(kind).itemsize <= 4 else 512


def filling(shared_mem: int) -> int:
    """Return the bytes of shared memory for a block that fills a multiprocessor, more than what is usual.

    So the code stays as it is in debug mode too: see `kept_whole`.
    """
    return max(shared_mem, _WHOLE)


def kept_whole() -> int:
    """Return the bytes of shared memory to ask for so that debug mode leaves a kernel's code as it is; usually none.

    These kernels raise nothing that would have to be reported. Compiled for that, they are taken apart into functions,
    which need more registers than large blocks have; and some that sum over a warp gave wrong results then, with
    numba-cuda 0.30.4.
    """
    return _WHOLE if is_debugging() else 0
