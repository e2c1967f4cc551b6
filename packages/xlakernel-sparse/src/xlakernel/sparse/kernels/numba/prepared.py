"""Events times a matrix whose entries are stored in both orders: one to scatter from, and one to gather with.

Scattering reads the entries of active events alone, but writes to places all over the result. If many events are
active, it is faster to read all entries and gather.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from .events import scatter_active
from .gather import gather_flags, gather_values
from .helpers.active import active_flags, active_values

# The entries are gathered if more than this fraction of the events is active, a numerator and a denominator.
_MANY = 3, 8


@njit(cache=True)
def multiply_flags(data, order, indices, indptr, all_data, all_indices, all_indptr, x, y):
    """Compute the sum of the rows i for which ``x[i]`` is True.

    Entry k has the weight ``data[order[k]]``, or ``data[k]`` if *order* has shape (1, 1). The arrays *all_data*,
    *all_indices* and *all_indptr* are the transpose, with its own weights; *all_data* is empty if it has none.
    """
    active = np.empty(x.size + 1, np.uint64)
    count = active_flags(x, active)
    if all_data.size and count * _MANY[1] > x.size * _MANY[0]:
        gather_flags(all_data, all_indices, all_indptr, x, y)
    else:
        scatter_active(active, count, np.empty((1, 1), y.dtype), data, order, indices, indptr, y)


@njit(cache=True)
def multiply_values(data, order, indices, indptr, all_data, all_indices, all_indptr, x, y):
    """Compute the sum of ``x[i]`` times row i over all nonzero ``x[i]``; see `multiply_flags`."""
    active = np.empty(x.size + 1, np.uint64)
    count = active_values(x, active)
    if all_data.size and count * _MANY[1] > x.size * _MANY[0]:
        gather_values(all_data, all_indices, all_indptr, x, y)
    else:
        scatter_active(active, count, x, data, order, indices, indptr, y)
