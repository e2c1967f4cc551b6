"""Elements of a product of two dense matrices at the entries of a sparse one."""

from __future__ import annotations

import numpy as np
from numba import njit, prange

from .helpers.elements import cast, term, zero
from .helpers.parts import first_of, first_row, part_count


@njit
def _product(one, other, active_one, active_other):
    """Return the product of two elements; 0 if one of them is 0 and its *active* flag is not None."""
    if active_one is None:
        return term(one, other, active_other)
    return term(other, one, active_one)


@njit(fastmath={"contract", "reassoc", "nsz"})
def _rows(first, last, indices, indptr, u, v, out, active_u, active_v):
    for i in range(np.uint64(first), np.uint64(last)):
        for k in range(np.uint64(indptr[i]), np.uint64(indptr[i + np.uint64(1)])):
            j = np.uint64(indices[k])
            if u.ndim == 1:
                out[k] = _product(u[i], v[j], active_u, active_v)
            else:
                total = zero(out)
                for c in range(np.uint64(u.shape[1])):
                    total += _product(u[i, c], v[j, c], active_u, active_v)
                out[k] = total


@njit
def _clear(first, last, out):
    for k in range(first, last):
        out[k] = cast(0, out)


@njit(parallel=True)
def _sample(indices, indptr, u, v, out, active_u, active_v):
    rows = indptr.size - 1
    used = np.int64(indptr[rows])
    parts = part_count((rows + out.size) * max(1, u.size // max(1, rows)))
    if parts == 1:
        _rows(0, rows, indices, indptr, u, v, out, active_u, active_v)
        _clear(used, out.size, out)
    else:
        for part in prange(parts):
            first, last = first_row(indptr, part, parts), first_row(indptr, part + 1, parts)
            _rows(first, last, indices, indptr, u, v, out, active_u, active_v)
            unused = out.size - used
            _clear(used + first_of(unused, part, parts), used + first_of(unused, part + 1, parts), out)


@njit(cache=True)
def sample(indices, indptr, u, v, out):
    """Compute ``out[k] = sum(u[i] * v[indices[k]])`` for the entries k of all rows i; the padding after them is 0."""
    _sample(indices, indptr, u, v, out, None, None)


@njit(cache=True)
def sample_active_rows(indices, indptr, u, v, out):
    """Compute `sample` over the elements of *u* that are not 0."""
    _sample(indices, indptr, u, v, out, True, None)


@njit(cache=True)
def sample_active_columns(indices, indptr, u, v, out):
    """Compute `sample` over the elements of *v* that are not 0."""
    _sample(indices, indptr, u, v, out, None, True)
