"""Updates of weights at active events, in place: the lines of active events are visited, and no other weights.

Each entry is changed by one thread, so that the result does not depend on the number of threads.
"""

from __future__ import annotations

import numpy as np
from numba import njit, prange

from .helpers.active import active_flags, cut_active, entries_of
from .helpers.elements import cast, shared_weight, weight
from .helpers.parts import first_of, part_count
from .helpers.prefetch import prefetch, prefetch_for_writing

# The number of entries between a weight that is changed and the permuted weight that is prefetched.
_AHEAD = np.uint64(24)
# The number of entries of the next line to prefetch, and the smallest number of entries in a cache line.
_NEXT = np.uint64(128)
_LINE = np.uint64(8)


@njit
def _change(out, k, trace, j, lower, lowest, upper, highest):
    """Add element j of the trace to weight k, within the limits unless they are None."""
    value = cast(cast(out[k], trace) + trace[j], trace)
    if lower is not None:
        least, most = weight(lower, k, lowest, trace), weight(upper, k, highest, trace)
        value = least if value < least else value
        value = most if value > most else value
    out[k] = value


@njit
def _shared(limit, trace):
    """Return the limit that all weights share; 0 if there is none."""
    if limit is None:
        return cast(0, trace)
    return shared_weight(limit, trace)


@njit
def _prefetch_line(i, indices, indptr, permutation, out):
    begin, end = np.uint64(indptr[i]), np.uint64(indptr[i + np.uint64(1)])
    for k in range(begin, min(end, begin + _NEXT), _LINE):
        prefetch(indices, k)
        if permutation is None:
            prefetch_for_writing(out, k)
        else:
            prefetch(permutation, k)


@njit
def _lines(first, last, active, indices, indptr, permutation, trace, lower, upper, out):
    lowest, highest = _shared(lower, trace), _shared(upper, trace)
    for a in range(np.uint64(first), np.uint64(last)):
        i = np.uint64(active[a])
        if a + np.uint64(1) < np.uint64(last):
            _prefetch_line(np.uint64(active[a + np.uint64(1)]), indices, indptr, permutation, out)
        begin, end = np.uint64(indptr[i]), np.uint64(indptr[i + np.uint64(1)])
        for k in range(begin, end):
            j = np.uint64(indices[k])
            if permutation is None:
                _change(out, k, trace, j, lower, lowest, upper, highest)
            else:
                prefetch_for_writing(out, np.uint64(permutation[min(k + _AHEAD, end - np.uint64(1))]))
                _change(out, np.uint64(permutation[k]), trace, j, lower, lowest, upper, highest)


@njit(parallel=True)
def _update(indices, indptr, permutation, trace, flags, lower, upper, out):
    active = np.empty(flags.size + 1, np.uint64)
    count = active_flags(flags, active)
    entries = entries_of(active, count, indptr)
    parts = part_count(entries)
    if parts == 1:
        _lines(0, count, active, indices, indptr, permutation, trace, lower, upper, out)
    else:
        cuts = np.empty(parts + 1, np.int64)
        cut_active(active, count, indptr, entries, cuts)
        for part in prange(parts):
            first, last = cuts[part], cuts[part + 1]
            _lines(first, last, active, indices, indptr, permutation, trace, lower, upper, out)


@njit(cache=True)
def update_lines(data, indices, indptr, trace, active, out):
    """Compute ``out[k] += trace[indices[k]]`` for the entries k of active lines; *data* and *out* are one array."""
    _update(indices, indptr, None, trace, active, None, None, out)


@njit(cache=True)
def update_lines_within(data, indices, indptr, trace, active, lower, upper, out):
    """Compute `update_lines` within limits."""
    _update(indices, indptr, None, trace, active, lower, upper, out)


@njit(cache=True)
def update_permuted(data, indices, indptr, permutation, trace, active, out):
    """Compute ``out[permutation[k]] += trace[indices[k]]`` for the entries k of active lines."""
    _update(indices, indptr, permutation, trace, active, None, None, out)


@njit(cache=True)
def update_permuted_within(data, indices, indptr, permutation, trace, active, lower, upper, out):
    """Compute `update_permuted` within limits."""
    _update(indices, indptr, permutation, trace, active, lower, upper, out)


@njit
def _rows(first, last, active, trace, lower, upper, out):
    lowest, highest = _shared(lower, trace), _shared(upper, trace)
    columns = np.uint64(trace.size)
    for a in range(np.uint64(first), np.uint64(last)):
        begin = np.uint64(active[a]) * columns
        for j in range(columns):
            _change(out, begin + j, trace, j, lower, lowest, upper, highest)


@njit(parallel=True)
def _update_rows(trace, flags, lower, upper, out):
    active = np.empty(flags.size + 1, np.uint64)
    count = np.int64(active_flags(flags, active))
    parts = part_count(count * trace.size)
    if parts == 1:
        _rows(0, count, active, trace, lower, upper, out)
    else:
        for part in prange(parts):
            first, last = first_of(count, part, parts), first_of(count, part + 1, parts)
            _rows(first, last, active, trace, lower, upper, out)


@njit(cache=True)
def update_rows(data, trace, active, out):
    """Add the trace to the active rows of a dense matrix."""
    _update_rows(trace, active, None, None, out.reshape(-1))


@njit(cache=True)
def update_rows_within(data, trace, active, lower, upper, out):
    """Compute `update_rows` within limits."""
    _update_rows(trace, active, lower, upper, out.reshape(-1))


@njit
def _columns(first, last, active, count, columns, trace, lower, upper, out):
    lowest, highest = _shared(lower, trace), _shared(upper, trace)
    for i in range(np.uint64(first), np.uint64(last)):
        for a in range(np.uint64(count)):
            k = i * np.uint64(columns) + np.uint64(active[a])
            _change(out, k, trace, i, lower, lowest, upper, highest)


@njit(parallel=True)
def _update_columns(trace, flags, lower, upper, out):
    active = np.empty(flags.size + 1, np.uint64)
    count = np.int64(active_flags(flags, active))
    parts = part_count(count * trace.size)
    if parts == 1:
        _columns(0, trace.size, active, count, flags.size, trace, lower, upper, out)
    else:
        for part in prange(parts):
            first, last = first_of(trace.size, part, parts), first_of(trace.size, part + 1, parts)
            _columns(first, last, active, count, flags.size, trace, lower, upper, out)


@njit(cache=True)
def update_columns(data, trace, active, out):
    """Add the trace to the active columns of a dense matrix."""
    _update_columns(trace, active, None, None, out.reshape(-1))


@njit(cache=True)
def update_columns_within(data, trace, active, lower, upper, out):
    """Compute `update_columns` within limits."""
    _update_columns(trace, active, lower, upper, out.reshape(-1))
