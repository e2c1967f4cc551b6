"""Updates of weights at active events, in place: the lines of active events are visited, and no other weights.

Each weight is changed by one thread, so that results are deterministic.

Active lines are listed in parts first, and the parts are distributed evenly to all blocks. The warps of a block update
the first entries of all its parts, then the next ones: where a permutation leads from lines to weights, all blocks
work on the same region of the weights at a time, and it stays in L2.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numba import cuda

from xlakernel.core.backend import is_debugging
from xlakernel.cuda import numba_cuda_kernel

from ...operators.dtypes import accumulator
from ...operators.plasticity.update import STRUCTURES
from .device.memory import add_to, load
from .device.terms import weight_at
from .device.warp import ALL
from .device.weights import read, write
from .launches import blocks_of, kept_whole, multiprocessors

_THREADS = 512
_BLOCKS = 2  # on a multiprocessor
_PART = 1024  # entries of a line that one block updates
_ROOM = 256  # parts that a block lists
_COLUMNS = 256  # threads of a block, along a row of a dense matrix
_DENSE_BLOCKS = 16  # on a multiprocessor


def _changing(dtype: np.dtype[Any], limits: str) -> Any:
    """Return a device function ``change(k, value, to)`` that adds *value* to weight k within the limits.

    *limits* is ``"shared"``, ``"each"``, or ``""`` for none; *to* is (weights, lower limits, upper limits).
    """
    kind = accumulator(dtype).type
    limit_at = weight_at(homogeneous=limits == "shared")
    # Memory adds numbers of at least 32 bits without a result: the thread neither loads the weight nor waits for it.
    reduces = not limits and kind is dtype.type and dtype.itemsize >= 4

    @cuda.jit(device=True, forceinline=True)
    def change(k: Any, value: Any, to: Any) -> None:
        weights, lower, upper = to
        if reduces:
            add_to(weights, k, value)
            return
        moved = kind(kind(read(weights, k)) + kind(value))
        if limits:
            least, most = kind(limit_at(lower, k)), kind(limit_at(upper, k))
            moved = least if moved < least else moved
            moved = most if moved > most else moved
        write(weights, k, moved)

    return change


@cuda.jit(launch_bounds=_THREADS)
def _list_parts(indptr: Any, active: Any, zero: Any, firsts: Any, lasts: Any, count: Any) -> None:
    """List the parts of active lines, in any order: first entries, the entries behind the last ones, and the number."""
    length, begin = cuda.shared.array(1, np.int32), cuda.shared.array(1, np.int32)
    if cuda.threadIdx.x == 0:
        length[0] = 0
    cuda.syncthreads()
    line, place = np.int64(cuda.grid(1)), np.int64(0)
    first, last = np.int64(0), np.int64(0)
    if line < active.size and load(active, line) != 0:
        first, last = np.int64(load(indptr, line)), np.int64(load(indptr, line + 1))
    if first < last:
        place = np.int64(cuda.atomic.add(length, 0, np.int32((last - first + (_PART - 1)) // _PART)))
    cuda.syncthreads()
    if cuda.threadIdx.x == 0 and length[0] > 0:
        begin[0] = cuda.atomic.add(count, 0, length[0])
    cuda.syncthreads()
    place += begin[0]
    while first < last and place < firsts.size:
        firsts[place], lasts[place] = first, min(first + _PART, last)
        first += _PART
        place += 1


@functools.cache
def _parts_kernel(dtype: np.dtype[Any], limits: str, permuted: bool) -> Any:
    change = _changing(dtype, limits)

    @cuda.jit(device=True, forceinline=True)
    def find(k: Any, structure: Any) -> Any:
        indices, permutation, trace = structure
        value = load(trace, load(indices, k))
        return np.int64(load(permutation, k)) if permuted else k, value

    @cuda.jit(device=True, forceinline=True)
    def entry_of(part: Any, offset: Any, parts: Any) -> Any:
        first, last = parts[0][part], parts[1][part]
        # Threads behind the last entry load that entry, and change nothing: loads without branches overlap.
        return min(first + offset, max(last - 1, np.int64(0))), first + offset < last

    @cuda.jit(device=True, forceinline=True)
    def update_four(part: Any, offset: Any, parts: Any, structure: Any, weights: Any) -> None:
        k0, has0 = entry_of(part, offset, parts)
        k1, has1 = entry_of(part + 1, offset, parts)
        k2, has2 = entry_of(part + 2, offset, parts)
        k3, has3 = entry_of(part + 3, offset, parts)
        if not cuda.any_sync(ALL, has0 or has1 or has2 or has3):
            return
        place0, value0 = find(k0, structure)
        place1, value1 = find(k1, structure)
        place2, value2 = find(k2, structure)
        place3, value3 = find(k3, structure)
        if has0:
            change(place0, value0, weights)
        if has1:
            change(place1, value1, weights)
        if has2:
            change(place2, value2, weights)
        if has3:
            change(place3, value3, weights)

    @cuda.jit(launch_bounds=(_THREADS, _BLOCKS))
    def update_parts(
        data: Any,
        indices: Any,
        permutation: Any,
        trace: Any,
        firsts: Any,
        lasts: Any,
        count: Any,
        lower: Any,
        upper: Any,
        out: Any,
    ) -> None:
        parts = cuda.shared.array(_ROOM, np.int64), cuda.shared.array(_ROOM, np.int64)
        longest = cuda.shared.array(1, np.int32)
        structure, weights = (indices, permutation, trace), (out, lower, upper)
        thread, total = np.int32(cuda.threadIdx.x), np.int64(load(count, 0))
        base = np.int64(cuda.blockIdx.x)
        while base < total:
            cuda.syncthreads()
            if thread == 0:
                longest[0] = 0
            cuda.syncthreads()
            if thread < _ROOM:
                mine, first, last = base + np.int64(thread) * cuda.gridDim.x, np.int64(0), np.int64(0)
                if mine < total:
                    first, last = np.int64(load(firsts, mine)), np.int64(load(lasts, mine))
                    cuda.atomic.max(longest, 0, np.int32(last - first))
                parts[0][thread], parts[1][thread] = first, last
            cuda.syncthreads()
            listed = np.int32(min(np.int64(_ROOM), (total - base + cuda.gridDim.x - 1) // cuda.gridDim.x))
            fours = (listed + np.int32(3)) // np.int32(4)
            steps = fours * ((longest[0] + np.int32(31)) // np.int32(32))
            step = thread // np.int32(32)
            while step < steps:
                along = step // fours
                part = (step - along * fours) * np.int32(4)
                update_four(part, np.int64(along * np.int32(32) + cuda.laneid), parts, structure, weights)
                step += np.int32(_THREADS // 32)
            base += np.int64(_ROOM) * cuda.gridDim.x

    return update_parts


@functools.cache
def _dense_kernel(dtype: np.dtype[Any], limits: str, by_column: bool) -> Any:
    change = _changing(dtype, limits)

    @cuda.jit(launch_bounds=_COLUMNS)
    def update_dense(
        data: Any, trace: Any, active: Any, lower: Any, upper: Any, out: Any, rows: Any, columns: Any
    ) -> None:
        i, j = np.int64(cuda.blockIdx.y), np.int64(cuda.grid(1))
        if j >= columns or (by_column and load(active, j) == 0):
            return
        while i < rows:
            if by_column or load(active, i) != 0:
                change(i * columns + j, load(trace, i if by_column else j), (out, lower, upper))
            i += cuda.gridDim.y

    return update_dense


def trace_update(outs: Sequence[jax.ShapeDtypeStruct], *, layout: str) -> Callable[..., Any]:
    """Return a function ``f(data, *structure, trace, active, *limits)`` that updates the weights at active events.

    Args:
      outs: the result.
      layout: one of `STRUCTURES`.
    """
    (out,) = outs
    dtype = np.dtype(out.dtype)

    def update(data: Any, *others: Any) -> Any:
        count = STRUCTURES[layout]
        structure, (trace, active, *limits) = others[:count], others[count:]
        if not data.size or not trace.size or not active.size:
            return data
        form = "" if not limits else "shared" if limits[0].shape == (1,) else "each"
        lower, upper = limits or (trace, trace)  # unused without limits
        if layout in ("rows", "columns"):
            run = _dense_launch(_dense_kernel(dtype, form, layout == "columns"), out)
            rows, columns = out.shape
            # Not reshaped: XLA would copy the matrix.
            return run(data, trace, active, lower, upper, rows=rows, columns=columns)
        indices, indptr, *permutation = structure
        parts = _list(indptr, active, indices.size)
        run = numba_cuda_kernel(
            _parts_kernel(dtype, form, layout == "permuted"),
            out,
            grid=min(_BLOCKS * multiprocessors(), blocks_of(active.size + indices.size, _THREADS)),
            block=_THREADS,
            shared_mem=kept_whole(),
            input_output_aliases={0: 0},
        )
        return run(data, indices, *(permutation or [indices]), trace, *parts, lower, upper)

    return update


def _list(indptr: Any, active: Any, entries: int) -> Any:
    """Return the parts of active lines; see `_list_parts`."""
    if is_debugging():  # which would report the unwritten ends of the lists, and an order that varies
        return parts_of(indptr, active, entries)
    most = jax.ShapeDtypeStruct((_most_parts(active, entries),), indptr.dtype)
    count = jnp.zeros((1,), np.int32)
    run = numba_cuda_kernel(
        _list_parts,
        [most, most, jax.ShapeDtypeStruct(count.shape, count.dtype)],
        grid=blocks_of(active.size, _THREADS),
        block=_THREADS,
        input_output_aliases={2: 2},
    )
    return run(indptr, active, count)


def _most_parts(active: Any, entries: int) -> int:
    return int(active.size) + entries // _PART


def parts_of(indptr: Any, active: Any, entries: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return what `_list_parts` lists, in the order of the lines."""
    numbers = jnp.where(active.astype(bool), (jnp.diff(indptr) + (_PART - 1)) // _PART, 0)
    ends = jnp.cumsum(numbers)
    part = jnp.arange(_most_parts(active, entries), dtype=indptr.dtype)
    line = jnp.searchsorted(ends, part, side="right").clip(max=active.size - 1)
    firsts = indptr[line] + (part - (ends - numbers)[line]) * _PART
    return firsts, jnp.minimum(firsts + _PART, indptr[line + 1]), ends[-1:].astype(np.int32)


def _dense_launch(kernel: Any, out: jax.ShapeDtypeStruct) -> Callable[..., Any]:
    rows, columns = out.shape
    strips = blocks_of(columns, _COLUMNS)
    return numba_cuda_kernel(
        kernel,
        out,
        grid=(strips, min(rows, blocks_of(_DENSE_BLOCKS * multiprocessors(), strips))),
        block=_COLUMNS,
        shared_mem=kept_whole(),
        input_output_aliases={0: 0},
    )
