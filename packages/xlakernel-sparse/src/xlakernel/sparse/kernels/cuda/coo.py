"""A matrix in coordinates, in any order, times a vector or a matrix."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numba import cuda

from xlakernel.cuda import numba_cuda_kernel

from .device.columns import group_of, tiles_of
from .device.memory import add_to, load
from .device.numbers import in_memory, kind_of
from .device.terms import counts, term, weight_at
from .device.warp import ALL, warp_sum
from .launches import blocks_of, kept_whole

_THREADS = 256
_EACH = 4  # entries of a thread, or of a group of threads


@functools.cache
def _vector_kernel(operand: str, kind: type, homogeneous: bool) -> Any:
    of, weight, is_active = term(operand, kind), weight_at(homogeneous=homogeneous), counts(operand)
    total = warp_sum(kind)

    @cuda.jit(launch_bounds=_THREADS)
    def multiply_vector(data: Any, row: Any, col: Any, x: Any, y: Any) -> None:
        first = np.int64(cuda.grid(1) // 32) * (32 * _EACH)
        for start in range(first, min(first + 32 * _EACH, row.size), 32):
            k = start + cuda.laneid
            to, found, here = np.int64(-1), kind(0), False
            if k < row.size:
                to = np.int64(load(row, k))
            if to >= 0 and to < y.size:  # other rows are padding
                value = load(x, load(col, k))
                here = is_active(value)
                if here:
                    found = of(weight(data, k), value)
            # Entries are often sorted by row: 32 additions to one place would wait for each other.
            if cuda.all_sync(ALL, to == cuda.shfl_sync(ALL, to, 0)):
                if cuda.any_sync(ALL, here):
                    found = total(found)
                    if cuda.laneid == 0:
                        add_to(y, to, found)
            elif here:
                add_to(y, to, found)

    return multiply_vector


@functools.cache
def _matrix_kernel(operand: str, kind: type, homogeneous: bool, group: int) -> Any:
    of, weight, is_active = term(operand, kind), weight_at(homogeneous=homogeneous), counts(operand)

    @cuda.jit(launch_bounds=_THREADS)
    def multiply_matrix(data: Any, row: Any, col: Any, x: Any, y: Any) -> None:
        rows, columns = np.int64(y.shape[0]), np.int64(y.shape[1])
        first = np.int64(cuda.grid(1) // group) * _EACH
        for k in range(first, min(first + _EACH, row.size)):
            to = np.int64(load(row, k))
            if to >= 0 and to < rows:
                from_, w = np.int64(load(col, k)), weight(data, k)
                for tile in range(cuda.blockIdx.y * group, columns, cuda.gridDim.y * group):
                    column = tile + cuda.laneid % group
                    if column < columns:
                        value = load(x, from_ * columns + column)
                        if is_active(value):
                            add_to(y, to * columns + column, of(w, value))

    return multiply_matrix


def coo_product(
    outs: Sequence[jax.ShapeDtypeStruct], *, operand: str, shape: tuple[int, int], homogeneous: bool
) -> Callable[..., Any]:
    """Return ``f(data, row, col, x)``, the matrix times *x*, a vector or a matrix.

    Args:
      outs: the result.
      operand: ``"dense"``, ``"binary"`` or ``"weighted"``; see `terms`.
      shape: rows and columns of the matrix. An entry whose row is beyond does not exist.
      homogeneous: whether all entries have the weight ``data[0]``.
    """
    (out,) = outs
    kind = kind_of(out.dtype)

    def multiply(data: Any, row: Any, col: Any, x: Any) -> Any:
        if not out.size or not row.size or not x.size:
            return jnp.zeros(out.shape, out.dtype)
        if x.ndim == 1:
            kernel, group, tiles = _vector_kernel(operand, kind, homogeneous), 1, 1
        else:
            group, tiles = group_of(x.shape[1]), tiles_of(x.shape[1])
            kernel = _matrix_kernel(operand, kind, homogeneous, group)
        grid = (blocks_of(row.size, _EACH * _THREADS // group), tiles)
        run = numba_cuda_kernel(
            kernel, in_memory(out), grid=grid, block=_THREADS, shared_mem=kept_whole(), output_init=0
        )
        return run(data, row, col, x).astype(out.dtype)

    return multiply
