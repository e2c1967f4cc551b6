"""How many blocks and threads the kernels are launched with."""

from __future__ import annotations

import functools
import math

import numpy as np

from xlakernel.core.config import is_debugging

from .walk import TILE

#: Multiprocessors of the GPUs that the launches are measured on (H100, H200), for where there is no GPU to ask.
_USUAL_MULTIPROCESSORS = 132


# Debug mode does not compile kernels anew that have more dynamic shared memory than 48 KiB.
_WHOLE = 48 * 1024 + 16


@functools.cache
def multiprocessors() -> int:
    """Return how many multiprocessors the GPU has, each of which runs one block at a time where a block fills it."""
    from cuda.bindings import driver

    from xlakernel.core.errors import DeviceError
    from xlakernel.core.gpu.driver import check

    try:
        check(driver.cuInit(0))
        attribute = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
        return int(check(driver.cuDeviceGetAttribute(attribute, check(driver.cuDeviceGet(0)))))
    except (DeviceError, RuntimeError, OSError):  # without a driver or a GPU: a program is only lowered here
        return _USUAL_MULTIPROCESSORS


def share_of(entries: int, warps: int, *, most: int) -> int:
    """Return how many entries a warp takes, whole tiles of them, so that *warps* have work, and none too much."""
    tiles = math.ceil(entries / (warps * TILE))
    return TILE * max(1, min(tiles, most // TILE))


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
