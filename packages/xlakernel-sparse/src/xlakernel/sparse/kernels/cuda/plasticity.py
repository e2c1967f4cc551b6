"""Updates of weights at active events, in place: the lines of active events are visited, and no other weights.

Each weight is changed by one thread, so that no addition is atomic and results are deterministic.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from numba import cuda

from xlakernel.cuda import numba_cuda_kernel

from ...operators.dtypes import accumulator
from ...operators.plasticity.update import STRUCTURES
from .device.memory import load
from .device.terms import weight_at
from .device.tiles import LANES, active_tiles_of, empty_list
from .device.weights import read, write
from .launches import blocks_of, kept_whole, multiprocessors, places_of

_THREADS = 512
_BLOCKS = 2  # on a multiprocessor
_SHARES = _THREADS // LANES
_LEAST = 64  # places of a share, at least; see `places_of`
_COLUMNS = 256  # threads of a block, along a row of a dense matrix
_DENSE_BLOCKS = 16  # on a multiprocessor


def _changing(kind: type, limits: str) -> Any:
    """Return a device function ``change(k, value, to)`` that adds *value* to weight k within the limits.

    *limits* is ``"shared"``, ``"each"``, or ``""`` for none; *to* is (weights, lower limits, upper limits).
    """
    limit_at = weight_at(homogeneous=limits == "shared")

    @cuda.jit(device=True, forceinline=True)
    def change(k: Any, value: Any, to: Any) -> None:
        weights, lower, upper = to
        moved = kind(kind(read(weights, k)) + kind(value))
        if limits:
            least, most = kind(limit_at(lower, k)), kind(limit_at(upper, k))
            moved = least if moved < least else moved
            moved = most if moved > most else moved
        write(weights, k, moved)

    return change


@functools.cache
def _lines_kernel(kind: type, limits: str, permuted: bool) -> Any:
    change = _changing(kind, limits)

    @cuda.jit(device=True, forceinline=True)
    def is_active(flags: Any, line: Any) -> Any:
        return load(flags, line) != 0

    @cuda.jit(device=True, forceinline=True)
    def place(permutation: Any, k: Any) -> Any:
        return np.int64(load(permutation, k)) if permuted else k

    @cuda.jit(device=True, forceinline=True)
    def take(line: Any, first: Any, last: Any, to: Any) -> None:
        indices, permutation, trace, weights = to
        k = first + cuda.laneid
        while k + 96 < last:  # a thread loads for four entries at a time
            p0, p1 = place(permutation, k), place(permutation, k + 32)
            p2, p3 = place(permutation, k + 64), place(permutation, k + 96)
            t0, t1 = load(trace, load(indices, k)), load(trace, load(indices, k + 32))
            t2, t3 = load(trace, load(indices, k + 64)), load(trace, load(indices, k + 96))
            change(p0, t0, weights)
            change(p1, t1, weights)
            change(p2, t2, weights)
            change(p3, t3, weights)
            k += 128
        while k < last:
            change(place(permutation, k), load(trace, load(indices, k)), weights)
            k += 32

    visit = active_tiles_of(is_active, take)

    @cuda.jit(launch_bounds=(_THREADS, _BLOCKS))
    def update_lines(
        data: Any,
        indices: Any,
        indptr: Any,
        permutation: Any,
        trace: Any,
        active: Any,
        lower: Any,
        upper: Any,
        out: Any,
        share: Any,
    ) -> None:
        lines = np.int64(active.size)
        to = (indices, permutation, trace, (out, lower, upper))
        visit(
            indptr, active, lines, lines + indices.size, share, cuda.gridDim.x, cuda.blockIdx.x, empty_list(), to
        )  # fmt: skip

    return update_lines


@functools.cache
def _dense_kernel(kind: type, limits: str, by_column: bool) -> Any:
    change = _changing(kind, limits)

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
    kind = accumulator(out.dtype).type

    def update(data: Any, *others: Any) -> Any:
        count = STRUCTURES[layout]
        structure, (trace, active, *limits) = others[:count], others[count:]
        if not data.size or not trace.size or not active.size:
            return data
        form = "" if not limits else "shared" if limits[0].shape == (1,) else "each"
        lower, upper = limits or (trace, trace)  # unused without limits
        ends = (trace, active, lower, upper)
        if layout in ("rows", "columns"):
            run = _dense_launch(_dense_kernel(kind, form, layout == "columns"), out)
            rows, columns = out.shape
            return run(data, *ends, rows=rows, columns=columns)  # not reshaped: XLA would copy the matrix
        indices, indptr, *permutation = structure
        permutation = permutation or [indices]  # unused without a permutation
        blocks = min(_BLOCKS * multiprocessors(), blocks_of(active.size + indices.size, _LEAST * _SHARES))
        run = numba_cuda_kernel(
            _lines_kernel(kind, form, layout == "permuted"),
            out,
            grid=blocks,
            block=_THREADS,
            shared_mem=kept_whole(),
            input_output_aliases={0: 0},
        )
        share = places_of(active.size, indices.size, blocks * _SHARES)
        return run(data, indices, indptr, *permutation, *ends, share=share)

    return update


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
