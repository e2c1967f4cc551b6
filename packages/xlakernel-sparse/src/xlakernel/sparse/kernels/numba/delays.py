"""Delivery of events with delays: the rows of active events are added to the slots of a ring, in place."""

from __future__ import annotations

import numpy as np
from numba import njit, prange

from .helpers.active import active_flags, active_values, cut_active, entries_of
from .helpers.elements import cast, scale_each, scale_once
from .helpers.parts import first_of, part_count, private_part_count
from .helpers.prefetch import prefetch
from .scatter import add_private, clear

# The number of entries with places in the ring that are computed before weights are added.
_CHUNK = np.uint64(512)
# The number of entries of the next row to prefetch, and the largest number of entries in a cache line.
_AHEAD = np.uint64(256)
_LINE = np.uint64(16)


@njit
def _slot(delay, t, slots):
    """Return the slot of a delay; *t* is a slot, and the delay any integer."""
    return (t + np.int64(delay) % slots) % slots


@njit
def _prefetch_row(i, data, indices, indptr, delays):
    begin, end = np.uint64(indptr[i]), np.uint64(indptr[i + np.uint64(1)])
    for k in range(begin, min(end, begin + _AHEAD), _LINE):
        prefetch(indices, k)
        if delays.ndim == 1:
            prefetch(delays, k)
        if data.ndim == 1:
            prefetch(data, k)


@njit
def _find_places(first, last, indices, delays, t, slots, columns, places):
    """Write the places in the ring of the entries *first* to *last* - 1; *delays* has shape (1, 1) if all are equal.

    Without divisions and branches, the loop compiles to vector instructions. Delays out of range, which only traced
    delays can be, are found on the way.
    """
    if delays.ndim == 2:
        begin = np.uint64(_slot(delays[0, 0], t, slots)) * columns
        for n in range(last - first):
            places[n] = begin + np.uint64(indices[first + n])
        return
    out_of_range = False
    for n in range(last - first):
        delay = np.int64(delays[first + n])
        out_of_range |= (delay < 0) | (delay >= slots)
        slot = t + delay
        slot = slot - slots if slot >= slots else slot
        places[n] = np.uint64(slot) * columns + np.uint64(indices[first + n])
    if out_of_range:
        for n in range(last - first):
            slot = _slot(delays[first + n], t, slots)
            places[n] = np.uint64(slot) * columns + np.uint64(indices[first + n])


@njit(fastmath={"contract"})
def _rows(first, last, active, values, data, indices, indptr, delays, t, slots, ring):
    """Deliver the rows ``active[first:last]``; *values* has shape (1, 1) if all values are 1."""
    columns = np.uint64(ring.size // slots)
    places = np.empty(_CHUNK, np.uint64)
    for a in range(np.uint64(first), np.uint64(last)):
        i = np.uint64(active[a])
        if a + np.uint64(1) < np.uint64(last):
            _prefetch_row(np.uint64(active[a + np.uint64(1)]), data, indices, indptr, delays)
        value = cast(1, ring)
        if values.ndim == 1:
            value = values[i]
        value = scale_once(data, value, ring)
        end = np.uint64(indptr[i + np.uint64(1)])
        for start in range(np.uint64(indptr[i]), end, _CHUNK):
            stop = min(start + _CHUNK, end)
            _find_places(start, stop, indices, delays, t, slots, columns, places)
            for n in range(stop - start):
                ring[places[n]] += scale_each(data, start + n, value, ring)


@njit(parallel=True)
def _deliver(active, count, values, data, indices, indptr, delays, t, slots, ring):
    entries = entries_of(active, count, indptr)
    parts = private_part_count(entries, ring.size, ring.itemsize)
    if parts == 1:
        _rows(0, count, active, values, data, indices, indptr, delays, t, slots, ring)
    else:
        cuts = np.empty(parts + 1, np.int64)
        cut_active(active, count, indptr, entries, cuts)
        private = np.empty((parts - 1, ring.size), ring.dtype)
        for part in prange(parts):
            own = ring if part == 0 else private[part - 1]
            if part > 0:
                clear(own)
            _rows(cuts[part], cuts[part + 1], active, values, data, indices, indptr, delays, t, slots, own)
        shares = part_count(private.size)
        if shares == 1:
            add_private(0, ring.size, private, ring)
        else:
            for share in prange(shares):
                add_private(first_of(ring.size, share, shares), first_of(ring.size, share + 1, shares), private, ring)


@njit(cache=True)
def deliver_flags(ring, data, indices, indptr, delays, t, x, out):
    """Add the rows i for which ``x[i]`` is True; *ring* and *out* are one array."""
    active = np.empty(x.size + 1, np.uint64)
    count = active_flags(x, active)
    values = np.empty((1, 1), out.dtype)
    _deliver(active, count, values, data, indices, indptr, delays, np.int64(t[0]), out.shape[0], out.reshape(-1))


@njit(cache=True)
def deliver_values(ring, data, indices, indptr, delays, t, x, out):
    """Add ``x[i]`` times row i for all nonzero ``x[i]``."""
    active = np.empty(x.size + 1, np.uint64)
    count = active_values(x, active)
    _deliver(active, count, x, data, indices, indptr, delays, np.int64(t[0]), out.shape[0], out.reshape(-1))
