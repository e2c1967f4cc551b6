"""Launch dimensions and shared memory of the kernels."""

from __future__ import annotations

import functools
import math

import numpy as np

from xlakernel.core.backend import is_debugging

from ...operators.products.blocks import SHARED_BYTES
from .device.walk import TILE

# Attributes of the GPUs that the launches were tuned on (H100, H200), for lowering on machines without a GPU.
_USUAL_MULTIPROCESSORS = 132
_USUAL_CAPABILITY = 9
_BESIDES = 1024  # bytes of a block's shared memory that are kept free


# Debug mode does not recompile kernels with more than 48 KiB of dynamic shared memory.
_WHOLE = 48 * 1024 + 16


def _attribute(name: str, usual: int) -> int:
    """Return an attribute of the first GPU; *usual* on machines without a GPU."""
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
    """Return the number of multiprocessors of the GPU."""
    return _attribute("MULTIPROCESSOR_COUNT", _USUAL_MULTIPROCESSORS)


@functools.cache
def capability() -> int:
    """Return the major number of the GPU's compute capability."""
    return _attribute("COMPUTE_CAPABILITY_MAJOR", _USUAL_CAPABILITY)


@functools.cache
def shared_bytes() -> int:
    """Return the bytes of shared memory that a block can use for an operand or sums."""
    return _attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN", SHARED_BYTES + _BESIDES) - _BESIDES


def share_of(entries: int, warps: int, *, most: int) -> int:
    """Return the number of entries in a warp's share: whole tiles, at least one, and no more than *most* entries.

    Unless *most* limits the shares, *warps* shares cover all *entries*.
    """
    tiles = math.ceil(entries / (warps * TILE))
    return TILE * max(1, min(tiles, most // TILE))


def places_of(rows: int, entries: int, shares: int) -> int:
    """Return the number of places in a share, one of *shares*; a row has one, and one more for each of its entries."""
    return max(1, math.ceil((rows + entries) / shares))


def blocks_of(work: int, each: int) -> int:
    """Return the number of blocks, at least one, if each block takes *each* items of *work*."""
    return max(1, math.ceil(work / each))


def threads_for(kind: type) -> int:
    """Return the number of threads of a block that fills a multiprocessor, limited by registers."""
    return 1024 if np.dtype(kind).itemsize <= 4 else 512


def filling(shared_mem: int) -> int:
    """Return the bytes of shared memory, more than 48 KiB, for a block that fills a multiprocessor.

    Debug mode therefore does not recompile the kernel; see `kept_whole`.
    """
    return max(shared_mem, _WHOLE)


def kept_whole() -> int:
    """Return the bytes of shared memory with which debug mode does not recompile a kernel; 0 outside of debug mode.

    The recompiled code would report exceptions, which these kernels never raise. Its device functions are not inlined,
    and need more registers than large blocks have; with numba-cuda 0.30.4 some sums over a warp were also wrong.
    """
    return _WHOLE if is_debugging() else 0
