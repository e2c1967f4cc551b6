"""Products with a dense matrix of any number of columns; ``x`` and ``y`` are row-major."""

from __future__ import annotations

import numpy as np
from numba import njit, prange

from .helpers.parts import first_row, part_count
from .helpers.strips import scatter_strips
from .helpers.tiles import gather_tile, tile_width


@njit
def gather_row(i, data, indices, begin, end, x, y, active):
    """Compute row i of *y*, in the widest tiles that fit; the last two may overlap, and write equal sums there."""
    columns = y.shape[1]
    if columns >= tile_width(128, y):
        width = tile_width(128, y)
        for c in range(0, columns, width):
            gather_tile(128, data, indices, begin, end, x, y, i, min(c, columns - width), active)
    elif columns >= tile_width(64, y):
        width = tile_width(64, y)
        for c in range(0, columns, width):
            gather_tile(64, data, indices, begin, end, x, y, i, min(c, columns - width), active)
    elif columns >= tile_width(32, y):
        width = tile_width(32, y)
        for c in range(0, columns, width):
            gather_tile(32, data, indices, begin, end, x, y, i, min(c, columns - width), active)
    elif columns >= tile_width(16, y):
        width = tile_width(16, y)
        for c in range(0, columns, width):
            gather_tile(16, data, indices, begin, end, x, y, i, min(c, columns - width), active)
    else:
        for c in range(columns):
            gather_tile(1, data, indices, begin, end, x, y, i, c, active)


@njit
def _rows(first, last, data, indices, indptr, x, y, active):
    for i in range(first, last):
        gather_row(i, data, indices, np.int64(indptr[i]), np.int64(indptr[i + 1]), x, y, active)


@njit(parallel=True)
def _gather(data, indices, indptr, x, y, active):
    rows, columns = y.shape
    parts = part_count((np.int64(indptr[rows]) + rows) * columns)
    if parts == 1:
        _rows(0, rows, data, indices, indptr, x, y, active)
    else:
        for part in prange(parts):
            first, last = first_row(indptr, part, parts), first_row(indptr, part + 1, parts)
            _rows(first, last, data, indices, indptr, x, y, active)


@njit(cache=True)
def gather_matrix(data, indices, indptr, x, y):
    """Compute ``y[i, :] = sum(data[k] * x[indices[k], :])`` over the entries k of each row i."""
    _gather(data, indices, indptr, x, y, None)


@njit(cache=True)
def gather_active_matrix(data, indices, indptr, x, y):
    """Compute `gather_matrix` over the elements of *x* that are not 0 or False."""
    _gather(data, indices, indptr, x, y, True)


@njit(cache=True)
def scatter_matrix(data, indices, indptr, x, y):
    """Compute ``y[indices[k], :] += data[k] * x[i, :]`` from zeros, for all entries k of each row i."""
    scatter_strips(data, indices, indptr, x, y, None)
