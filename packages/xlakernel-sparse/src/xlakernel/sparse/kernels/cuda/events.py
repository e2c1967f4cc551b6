"""The transpose of a compressed matrix times events: what the active rows cost, however long they are.

Weights that are equal need no more than counting. Where there are many active entries, each block counts its own in
shared memory, where that is four times as fast as in the cache that the multiprocessors share, and a second kernel adds
the blocks' counts up.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from numba import cuda

from xlakernel.cuda import numba_cuda_kernel

from .active import GROUPS, PIECE, groups_of, list_active
from .launches import blocks_of, multiprocessors
from .memory import add_to, is_aligned, load
from .numbers import in_memory, kind_of
from .pieces import piece_in, sum_groups
from .push import columns_of, push_of
from .staging import SHARED_BYTES
from .walk import TILE

_THREADS = 1024
_MERGE_COLUMNS, _MERGE_PARTS = 32, 16
_RESERVED = 10 * 1024  # bytes of shared memory for the groups' sums

#: Active entries for each column from which on counting them in shared memory is faster.
MANY = 24
#: What a counter of 16 bits is emptied at, long before it is full: others may count on meanwhile.
_FULL = 1 << 15


@cuda.jit(device=True, forceinline=True)
def _always(x: Any, row: Any) -> Any:
    return True


@functools.cache
def _kernel(operand: str, kind: type, homogeneous: bool) -> Any:
    push = push_of(operand, kind, homogeneous=homogeneous)
    value_of = load if operand == "weighted" else _always

    @cuda.jit(launch_bounds=_THREADS)
    def push_events(
        data: Any, indices: Any, indptr: Any, x: Any, rows: Any, pieces: Any, lengths: Any, totals: Any, _: Any,
        y: Any, each: Any,
    ) -> None:  # fmt: skip
        upto = cuda.shared.array(GROUPS, np.int64)
        sum_groups(totals, upto)
        every = upto[totals.size - 1]
        warps = cuda.gridsize(1) // 32
        for number in range(cuda.grid(1) // 32, every, warps):
            row, first, last = piece_in(rows, pieces, lengths, indptr, upto, totals.size, each, number)
            push(data, indices, first, last, value_of(x, row), y)

    return push_events


@functools.cache
def _counting_kernel(kind: type) -> Any:
    push = push_of("binary", kind, homogeneous=True)

    @cuda.jit(device=True, forceinline=True)
    def count(counters: Any, column: Any, weight: Any, y: Any) -> None:
        shift = np.uint32(16) * (np.uint32(column) & np.uint32(1))
        before = cuda.atomic.add(counters, np.uint32(column) >> np.uint32(1), np.uint32(1) << shift)
        if (before >> shift) & np.uint32(0xFFFF) == np.uint32(_FULL - 1):
            cuda.atomic.sub(counters, np.uint32(column) >> np.uint32(1), np.uint32(_FULL) << shift)
            add_to(y, column, kind(kind(_FULL) * weight))

    @cuda.jit(device=True, forceinline=True)
    def count_four(counters: Any, columns: Any, k: Any, first: Any, last: Any, weight: Any, y: Any) -> None:
        if first <= k and k < last:
            count(counters, columns[0], weight, y)
        if first <= k + 1 and k + 1 < last:
            count(counters, columns[1], weight, y)
        if first <= k + 2 and k + 2 < last:
            count(counters, columns[2], weight, y)
        if first <= k + 3 and k + 3 < last:
            count(counters, columns[3], weight, y)

    @cuda.jit(device=True, forceinline=True)
    def count_piece(indices: Any, first: Any, last: Any, counters: Any, weight: Any, y: Any) -> None:
        tile = first // 4 * 4
        k = tile + 4 * np.int64(cuda.laneid)
        if is_aligned(indices) and (last + 3) // 4 * 4 <= indices.size:
            while tile < last:
                c0 = columns_of(indices, k, first, last)
                c1 = columns_of(indices, k + 128, first, last)
                c2 = columns_of(indices, k + 256, first, last)
                c3 = columns_of(indices, k + 384, first, last)
                count_four(counters, c0, k, first, last, weight, y)
                count_four(counters, c1, k + 128, first, last, weight, y)
                count_four(counters, c2, k + 256, first, last, weight, y)
                count_four(counters, c3, k + 384, first, last, weight, y)
                tile += TILE
                k += TILE
        else:
            for i in range(first + cuda.laneid, last, 32):
                count(counters, load(indices, i), weight, y)

    @cuda.jit(launch_bounds=_THREADS)
    def count_events(
        data: Any, indices: Any, indptr: Any, x: Any, rows: Any, pieces: Any, lengths: Any, totals: Any, _: Any,
        y: Any, counts: Any, counted: Any, each: Any, many: Any,
    ) -> None:  # fmt: skip
        upto = cuda.shared.array(GROUPS, np.int64)
        counters = cuda.shared.array(0, np.uint32)
        sum_groups(totals, upto)
        every = upto[totals.size - 1]
        counting = every * PIECE >= many
        weight = kind(load(data, 0))
        if counting:
            for i in range(cuda.threadIdx.x, counts.shape[1], cuda.blockDim.x):
                counters[i] = 0
            cuda.syncthreads()
        warps = cuda.gridsize(1) // 32
        for number in range(cuda.grid(1) // 32, every, warps):
            _row, first, last = piece_in(rows, pieces, lengths, indptr, upto, totals.size, each, number)
            if counting:
                count_piece(indices, first, last, counters, weight, y)
            else:
                push(data, indices, first, last, True, y)
        if counting:
            cuda.syncthreads()
            for i in range(cuda.threadIdx.x, counts.shape[1], cuda.blockDim.x):
                counts[cuda.blockIdx.x, i] = counters[i]
        if cuda.grid(1) == 0:
            counted[0] = counting

    return count_events


@functools.cache
def _merge_kernel(kind: type) -> Any:
    @cuda.jit(launch_bounds=_MERGE_COLUMNS * _MERGE_PARTS)
    def merge_counts(data: Any, counts: Any, counted: Any, _: Any, y: Any) -> None:
        low_sums = cuda.shared.array((_MERGE_PARTS, _MERGE_COLUMNS), np.uint32)
        high_sums = cuda.shared.array((_MERGE_PARTS, _MERGE_COLUMNS), np.uint32)
        if load(counted, 0) == 0:
            return
        word, part = cuda.blockIdx.x * _MERGE_COLUMNS + cuda.threadIdx.x, cuda.threadIdx.y
        low, high = np.uint32(0), np.uint32(0)
        if word < counts.shape[1]:
            for block in range(part, counts.shape[0], _MERGE_PARTS):
                found = counts[block, word]
                low += found & np.uint32(0xFFFF)
                high += found >> np.uint32(16)
        low_sums[part, cuda.threadIdx.x] = low
        high_sums[part, cuda.threadIdx.x] = high
        cuda.syncthreads()
        if part < 2 and 2 * word + part < y.size:
            total = np.int64(0)
            for i in range(_MERGE_PARTS):
                total += np.int64(high_sums[i, cuda.threadIdx.x] if part else low_sums[i, cuda.threadIdx.x])
            if total != 0:
                add_to(y, 2 * word + part, kind(kind(total) * load(data, 0)))

    return merge_counts


def scatter_events(
    out: jax.ShapeDtypeStruct, *, operand: str, homogeneous: bool, listed: bool = False
) -> Callable[..., Any]:
    """Return ``f(data, indices, indptr, x, count=None)``, the matrix's transpose times a vector of events.

    Args:
      out: the result.
      operand: ``"binary"`` or ``"weighted"``.
      homogeneous: whether all entries have the weight ``data[0]``.
      listed: whether *x* is a list of active rows, the first *count* of them; see `list_active`.
    """
    kind, struct = kind_of(out.dtype), in_memory(out)
    words = (out.size + 1) // 2
    counting = homogeneous and operand == "binary" and 4 * words + _RESERVED <= SHARED_BYTES

    def multiply(data: Any, indices: Any, indptr: Any, x: Any, count: Any = None) -> Any:
        lists = list_active(struct, listed=listed)(x, indptr if count is None else count, indptr)
        each, last = groups_of(x.size)[1], 4 + len(lists) - 1
        if not counting:
            run = numba_cuda_kernel(
                _kernel(operand, kind, homogeneous),
                struct,
                grid=multiprocessors() * 2,
                block=_THREADS,
                input_output_aliases={last: 0},
            )
            return run(data, indices, indptr, x, *lists, each=each).astype(out.dtype)
        blocks = multiprocessors()
        counts = jax.ShapeDtypeStruct((blocks, words), np.uint32)
        run = numba_cuda_kernel(
            _counting_kernel(kind),
            (struct, counts, jax.ShapeDtypeStruct((1,), np.int32)),
            grid=blocks,
            block=_THREADS,
            shared_mem=4 * words,
            input_output_aliases={last: 0},
        )
        y, found, counted = run(data, indices, indptr, x, *lists, each=each, many=MANY * out.size)
        merge = numba_cuda_kernel(
            _merge_kernel(kind),
            struct,
            grid=blocks_of(words, _MERGE_COLUMNS),
            block=(_MERGE_COLUMNS, _MERGE_PARTS),
            input_output_aliases={3: 0},
        )
        return merge(data, found, counted, y).astype(out.dtype)

    return multiply
