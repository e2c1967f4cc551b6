"""Products of procedural matrices: each line is drawn, and then multiplied like a row that is stored."""

from __future__ import annotations

import numpy as np
from numba import njit, prange

from ...operators.connections import BATCH
from .gather import gather_rows
from .helpers.elements import cast
from .helpers.lines import draw_line, room_of, weights_buffer
from .helpers.parts import first_of, part_count, private_part_count
from .matrix import gather_row
from .scatter import add_private, clear, scatter_rows


@njit
def _work(lines, walk):
    """Return the number of slots that are drawn for a number of lines."""
    return np.int64(lines) * (np.int64(walk[1]) * BATCH + 1)


@njit
def _gather_lines(first, last, params, key, walk, x, y, active):
    room = room_of(walk, x.shape[0])
    words, span = np.empty(BATCH, np.uint32), np.zeros(2, np.int64)
    indices, data = np.empty(room, np.uint32), weights_buffer(params, room, y)
    for line in range(first, last):
        span[1] = draw_line(line, key, walk, x.shape[0], params, words, indices, data)
        if y.ndim == 1:
            gather_rows(0, 1, data, indices, span, x, y[line : line + 1], active)
        else:
            gather_row(line, data, indices, 0, span[1], x, y, active)


@njit(parallel=True)
def _gather(params, key, walk, x, y, active):
    lines = y.shape[0]
    parts = part_count(_work(lines, walk))
    if parts == 1:
        _gather_lines(0, lines, params, key, walk, x, y, active)
    else:
        for part in prange(parts):
            first, last = first_of(lines, part, parts), first_of(lines, part + 1, parts)
            _gather_lines(first, last, params, key, walk, x, y, active)


@njit(cache=True)
def gather_drawn(params, key, walk, x, y):
    """Multiply a matrix of drawn lines by a vector or matrix."""
    _gather(params, key, walk, x, y, None)


@njit(cache=True)
def gather_drawn_active(params, key, walk, x, y):
    """Compute `gather_drawn` over the elements of *x* that are not 0."""
    _gather(params, key, walk, x, y, True)


@njit
def _is_active(x, line):
    """Return True if a line's element of *x*, or one of its row, is not 0."""
    if x.ndim == 1:
        return x[line] != 0
    active = False
    for c in range(x.shape[1]):
        active |= x[line, c] != 0
    return active


@njit
def _list_lines(x, active, listed):
    """Write the lines with active elements to *listed*, all of them if *active* is None; return their number."""
    count = np.int64(0)
    for line in range(x.shape[0]):
        listed[count] = line
        count += 1 if active is None else np.int64(_is_active(x, line))
    return count


@njit(fastmath={"contract"})
def _scatter_columns(line, count, data, indices, x, y, active):
    for k in range(count):
        weight = cast(data[0, 0], y) if data.ndim == 2 else cast(data[k], y)
        at = np.int64(indices[k])
        for c in range(y.shape[1]):
            if active is None or x[line, c] != 0:
                y[at, c] += weight * x[line, c]


@njit
def _scatter_lines(listed, params, key, walk, x, y, active):
    room = room_of(walk, y.shape[0])
    words, span = np.empty(BATCH, np.uint32), np.zeros(2, np.int64)
    indices, data = np.empty(room, np.uint32), weights_buffer(params, room, y)
    for line in listed:
        span[1] = draw_line(line, key, walk, y.shape[0], params, words, indices, data)
        if y.ndim == 1:
            scatter_rows(0, 1, data, indices, span, x[line : line + 1], y)
        else:
            _scatter_columns(line, span[1], data, indices, x, y, active)


@njit(parallel=True)
def _scatter(params, key, walk, x, y, active):
    listed = np.empty(x.shape[0] + 1, np.int64)
    count = _list_lines(x, active, listed)
    flat = y.reshape(-1)
    parts = private_part_count(_work(count, walk), flat.size, y.itemsize)
    clear(flat)
    if parts == 1:
        _scatter_lines(listed[:count], params, key, walk, x, y, active)
    else:
        private = np.empty((parts - 1, *y.shape), y.dtype)
        for part in prange(parts):
            own = y if part == 0 else private[part - 1]
            if part > 0:
                clear(own.reshape(-1))
            first, last = first_of(count, part, parts), first_of(count, part + 1, parts)
            _scatter_lines(listed[first:last], params, key, walk, x, own, active)
        others = private.reshape(parts - 1, -1)
        for share in prange(parts):
            add_private(first_of(flat.size, share, parts), first_of(flat.size, share + 1, parts), others, flat)


@njit(cache=True)
def scatter_drawn(params, key, walk, x, y):
    """Multiply the transpose of a matrix of drawn lines by a vector or matrix."""
    _scatter(params, key, walk, x, y, None)


@njit(cache=True)
def scatter_drawn_active(params, key, walk, x, y):
    """Compute `scatter_drawn` over the elements of *x* that are not 0; lines without them are not drawn."""
    _scatter(params, key, walk, x, y, True)
