"""Vectors of events times a dense matrix: only the lines of active events are read.

The vectors are the rows of ``x``, and the products those of ``y``. The matrix is row-major. A block processes up to 32
vectors at once: it lists the events that are active in any of them. The *mask* of a listed event has a bit for each of
the vectors; the bit is 1 if the event is active. With more vectors, the product of dense matrices is faster.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numba import cuda

from xlakernel.cuda import numba_cuda_kernel

from .. import reference
from .device.memory import add_to, load
from .device.numbers import in_memory, kind_of
from .device.terms import counts, term, value_at
from .device.warp import ALL, warp_sum
from .launches import blocks_of, kept_whole, multiprocessors

_THREADS = 256
_WARPS = _THREADS // 32
_TOGETHER = (1, 8, 32)  #: how many vectors a block can have
_UNROLLED = 128  #: about the most terms that a thread adds in unrolled loops, which keep its sums in registers
_ROOM = 4096  # events that a block lists at a time
_ROWS = 4  # rows of the matrix that a warp processes at a time
_MOST_EVENTS = 2**31 - 1  # their numbers in the list are of 32 bits
_LEAST = 64  # events of a block, at least
_BLOCKS = 4  # blocks of the grid for each multiprocessor, about


@cuda.jit(device=True, forceinline=True)
def _empty_list() -> Any:
    """Return a list of events in shared memory: their indices and masks, and the length."""
    return cuda.shared.array(_ROOM, np.int32), cuda.shared.array(_ROOM, np.uint32), cuda.shared.array(1, np.int32)


def _list_of(operand: str, together: int) -> Any:
    """Return ``list_active(x, begin, end, listed)``, a device function for all threads of a block.

    The function lists active events from *begin* on until the list is full, and returns the first event after those; if
    it lists all events up to *end* - 1, it returns *end* or more.
    """
    is_active, at_once = counts(operand), max(1, 8 // together)  # loads that overlap
    round_ = at_once * _THREADS

    @cuda.jit(device=True, forceinline=True)
    def list_active(x: Any, begin: Any, end: Any, listed: Any) -> Any:
        events, masks, length = listed
        found = cuda.local.array(at_once, np.uint32)
        cuda.syncthreads()
        if cuda.threadIdx.x == 0:
            length[0] = 0
        cuda.syncthreads()
        while begin < end and length[0] + round_ <= _ROOM:
            for i in range(at_once):
                event = begin + i * _THREADS + cuda.threadIdx.x
                found[i] = 0
                for c in range(together):
                    if event < end and c < x.shape[0] and is_active(load(x, c * x.shape[1] + event)):
                        found[i] = np.uint32(found[i] | np.uint32(1 << c))
            cuda.syncthreads()  # all threads have read the length
            for i in range(at_once):
                flags = np.uint32(cuda.ballot_sync(ALL, found[i] != 0))
                place = np.int32(0)
                if cuda.laneid == 0 and flags != 0:
                    place = cuda.atomic.add(length, 0, np.int32(cuda.popc(flags)))
                place = cuda.shfl_sync(ALL, place, 0)
                if found[i] != 0:
                    before = np.uint32(flags & np.uint32((np.uint32(1) << np.uint32(cuda.laneid)) - np.uint32(1)))
                    place = np.int32(place + cuda.popc(before))
                    events[place], masks[place] = begin + i * _THREADS + cuda.threadIdx.x, found[i]
            begin += round_
            cuda.syncthreads()
        return begin

    return list_active


def _add_of(operand: str, kind: type, together: int) -> Any:
    """Return ``add(totals, weight, x, event, mask)``, a device function that adds an entry's terms."""
    of = term(operand, kind)

    @cuda.jit(device=True, forceinline=True)
    def add_flags(totals: Any, weight: Any, x: Any, event: Any, mask: Any) -> None:
        for c in range(together):
            if mask & np.uint32(1 << c):
                totals[c] = kind(totals[c] + of(weight, True))

    @cuda.jit(device=True, forceinline=True)
    def add_values(totals: Any, weight: Any, x: Any, event: Any, mask: Any) -> None:
        for c in range(together):
            if mask & np.uint32(1 << c):
                totals[c] = kind(totals[c] + of(weight, load(x, c * x.shape[1] + event)))

    return add_flags if operand == "binary" else add_values


@functools.cache
def _rows_kernel(operand: str, kind: type, together: int) -> Any:
    list_active, add = _list_of(operand, together), _add_of(operand, kind, together)

    ahead = min(8, _UNROLLED // together)  # elements of the matrix that a thread loads before it adds them

    @cuda.jit(launch_bounds=_THREADS)
    def sum_rows(matrix: Any, x: Any, y: Any, span: Any) -> None:
        """Add the rows of active events to the output; each thread has a column."""
        listed = _empty_list()
        events, masks, length = listed
        totals, weights = cuda.local.array(together, kind), cuda.local.array(ahead, kind)
        count, columns = np.int64(y.shape[0]), np.int64(y.shape[1])
        column = np.int64(cuda.blockIdx.x) * _THREADS + cuda.threadIdx.x
        begin = np.int64(cuda.blockIdx.y) * span
        stop = min(begin + span, np.int64(x.shape[1]))
        for c in range(together):
            totals[c] = 0
        while begin < stop:
            begin = list_active(x, begin, stop, listed)
            i, last = np.int32(0), np.int32(length[0] - 1)
            while i <= last and column < columns:
                for j in range(ahead):
                    weights[j] = load(matrix, np.int64(events[min(i + j, last)]) * columns + column)
                for j in range(ahead):
                    if i + j <= last:
                        add(totals, weights[j], x, events[i + j], masks[i + j])
                i += np.int32(ahead)
        for c in range(together):
            if column < columns and c < count:
                add_to(y, c * columns + column, totals[c])

    return sum_rows


@functools.cache
def _columns_kernel(operand: str, kind: type) -> Any:
    list_active, of, value_of, total_of = _list_of(operand, 1), term(operand, kind), value_at(operand), warp_sum(kind)

    @cuda.jit(launch_bounds=_THREADS)
    def sum_columns(matrix: Any, x: Any, y: Any, span: Any) -> None:
        """Add the columns of active events to the output; each warp has some rows, `_ROWS` of them at a time."""
        listed = _empty_list()
        events, _, length = listed
        totals, weights = cuda.local.array(_ROWS, kind), cuda.local.array(_ROWS, kind)
        rows, columns = np.int64(y.shape[1]), np.int64(x.shape[1])
        begin = np.int64(cuda.blockIdx.y) * span
        stop = min(begin + span, columns)
        apart = np.int64(cuda.gridDim.x) * _WARPS
        while begin < stop:
            begin = list_active(x, begin, stop, listed)
            row = np.int64(cuda.blockIdx.x) * _WARPS + cuda.threadIdx.x // 32
            while row < rows and length[0] > 0:
                for r in range(_ROWS):
                    totals[r] = 0
                i = np.int32(cuda.laneid)
                while i < length[0]:
                    event = np.int64(events[i])
                    value = value_of(x, event)
                    for r in range(_ROWS):
                        weights[r] = load(matrix, min(row + r * apart, rows - 1) * columns + event)
                    for r in range(_ROWS):
                        totals[r] = kind(totals[r] + of(weights[r], value))
                    i += np.int32(32)
                for r in range(_ROWS):
                    total = total_of(totals[r])
                    if cuda.laneid == r and row + r * apart < rows:
                        add_to(y, row + r * apart, total)
                row += _ROWS * apart

    return sum_columns


def dense_product(outs: Sequence[jax.ShapeDtypeStruct], *, operand: str, across: bool) -> Callable[..., Any]:
    """Return a function ``f(matrix, x)`` that multiplies each row of *x* by the matrix, transposed if *across*.

    Inactive events add nothing, also where the matrix is infinite or NaN.

    Args:
      outs: the result, ``(k, m)``.
      operand: ``"binary"`` or ``"weighted"``.
      across: if True, the matrix is ``(m, n)``, otherwise ``(n, m)``; *x* is ``(k, n)``.
    """
    (out,) = outs
    count, lines = out.shape
    plain = reference.dense_product(outs, operand=operand, across=across)
    if not all(isinstance(extent, int) for extent in out.shape):  # of a program that is exported for any shape
        return plain
    together = next((each for each in _TOGETHER if count <= each), None)
    if together is None or (across and count > 1):
        return plain

    def multiply(matrix: Any, x: Any) -> Any:
        if not isinstance(x.shape[1], int) or x.shape[1] > _MOST_EVENTS:
            return plain(matrix, x)
        if not out.size or not x.size:
            return jnp.zeros(out.shape, out.dtype)
        wanted = _BLOCKS * multiprocessors()
        blocks = min(blocks_of(lines, _ROWS * _WARPS), wanted) if across else blocks_of(lines, _THREADS)
        spans = min(max(1, wanted // blocks), blocks_of(x.shape[1], _LEAST))
        kind = kind_of(out.dtype)
        run = numba_cuda_kernel(
            _columns_kernel(operand, kind) if across else _rows_kernel(operand, kind, together),
            in_memory(out),
            grid=(blocks, spans),
            block=_THREADS,
            shared_mem=kept_whole(),
            output_init=0,
        )
        return run(matrix, x, span=math.ceil(x.shape[1] / spans)).astype(out.dtype)

    return multiply
