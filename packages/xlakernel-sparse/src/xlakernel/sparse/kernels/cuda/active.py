"""Which rows are active, and the even pieces that their entries are pushed in.

The rows are dealt with in groups, a block of threads each. A group lists its active rows and counts, up to and with
each of them, how many pieces of `PIECE` entries they have. So the pieces of a group, and of all groups, are numbered,
and a warp that takes a piece finds the row by its number: a long row is the work of many warps.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from numba import cuda

from xlakernel.cuda import numba_cuda_kernel

from .launches import blocks_of
from .memory import load
from .warp import ALL

#: Entries of a piece.
PIECE = 512
#: Groups at most: as many as the threads of a block that adds up how many pieces they have.
GROUPS = 1024

_THREADS = 1024
_SHIFT = 48
_LOW = (1 << _SHIFT) - 1


def groups_of(rows: int) -> tuple[int, int]:
    """Return how many groups there are, and of how many rows each."""
    each = _THREADS * max(1, math.ceil(rows / (_THREADS * GROUPS)))
    return blocks_of(rows, each), each


@cuda.jit(device=True, forceinline=True)
def block_scan(value: Any, sums: Any) -> Any:
    """Return the sum over the block's threads up to and with this one; *sums* is shared memory of 32 elements."""
    lane, warp = cuda.laneid, cuda.threadIdx.x // 32
    offset = 1
    while offset < 32:
        below = cuda.shfl_up_sync(ALL, value, offset)
        if lane >= offset:
            value += below
        offset *= 2
    if lane == 31:
        sums[warp] = value
    cuda.syncthreads()
    if warp == 0:
        part = sums[lane] if lane < cuda.blockDim.x // 32 else np.int64(0)
        offset = 1
        while offset < 32:
            below = cuda.shfl_up_sync(ALL, part, offset)
            if lane >= offset:
                part += below
            offset *= 2
        sums[lane] = part
    cuda.syncthreads()
    if warp > 0:
        value += sums[warp - 1]
    return value


@cuda.jit(device=True, forceinline=True)
def _row_where_active(x: Any, count: Any, place: Any) -> Any:
    return np.int64(place) if place < x.size and load(x, place) != 0 else np.int64(-1)


@cuda.jit(device=True, forceinline=True)
def _row_in_list(x: Any, count: Any, place: Any) -> Any:
    return np.int64(load(x, place)) if place < x.size and place < load(count, 0) else np.int64(-1)


@functools.cache
def _kernel(listed: bool) -> Any:
    row_of = _row_in_list if listed else _row_where_active

    @cuda.jit(launch_bounds=_THREADS)
    def list_active(
        x: Any, count: Any, indptr: Any, rows: Any, pieces: Any, lengths: Any, totals: Any, y: Any, each: Any
    ) -> None:
        sums = cuda.shared.array(32, np.int64)
        for i in range(cuda.grid(1), y.size, cuda.gridsize(1)):
            y[i] = 0
        base = np.int64(cuda.blockIdx.x) * each
        listed_rows, listed_pieces = np.int64(0), np.int64(0)
        for first in range(base, base + each, _THREADS):
            row = row_of(x, count, first + cuda.threadIdx.x)
            has = np.int64(0)
            if row >= 0:
                has = (np.int64(load(indptr, row + 1)) - np.int64(load(indptr, row)) + PIECE - 1) // PIECE
            # Rows and their pieces are added up at once, in the upper and the lower bits of a number.
            both = block_scan((np.int64(has > 0) << _SHIFT) + has, sums)
            if has > 0:
                place = base + listed_rows + (both >> _SHIFT) - 1
                rows[place] = row
                pieces[place] = listed_pieces + (both & _LOW)
            every = sums[_THREADS // 32 - 1]
            listed_rows += every >> _SHIFT
            listed_pieces += every & _LOW
            cuda.syncthreads()
        if cuda.threadIdx.x == 0:
            lengths[cuda.blockIdx.x] = listed_rows
            totals[cuda.blockIdx.x] = listed_pieces

    return list_active


def list_active(out: jax.ShapeDtypeStruct, *, listed: bool) -> Callable[..., Any]:
    """Return ``f(x, count, indptr)``, which lists the active rows and empties the output.

    Args:
      out: the output that is to be zeros.
      listed: whether *x* is a list of rows, the first *count* of which are active; otherwise a value for each row,
        which is active where it is not zero.

    The function returns the rows ``(groups * each,)``, the pieces up to and with each of them, likewise, how many rows
    and how many pieces each group has, ``(groups,)``, and zeros.
    """

    def run(x: Any, count: Any, indptr: Any) -> Any:
        groups, each = groups_of(x.size)
        table = jax.ShapeDtypeStruct((groups * each,), indptr.dtype)
        sums = jax.ShapeDtypeStruct((groups,), indptr.dtype)
        flat = jax.ShapeDtypeStruct((out.size,), out.dtype)
        kernel = numba_cuda_kernel(_kernel(listed), (table, table, sums, sums, flat), grid=groups, block=_THREADS)
        *lists, zeros = kernel(x, count, indptr, each=each)
        return *lists, zeros.reshape(out.shape)

    return run
