"""The Warp kernels. Several threads share a row: each processes every *lanes*-th entry. Sums are added atomically.

*stride* is 0 if all entries have the weight ``data[0]``, else 1; *lanes* is the number of threads of a row.
"""

# No `from __future__ import annotations`: Warp reads the annotations.

from typing import Any

import warp as wp


@wp.kernel
def gather(
    data: wp.array(dtype=Any),
    indices: wp.array(dtype=Any),
    indptr: wp.array(dtype=Any),
    x: wp.array(dtype=Any),
    y: wp.array(dtype=Any),
    stride: int,
    lanes: int,
    skip: bool,
):
    """Sum the entries of a row times the elements of *x*; zeros add nothing if *skip*."""
    row, lane = wp.tid()
    total = y.dtype(0)
    k = int(indptr[row]) + lane
    end = int(indptr[row + 1])
    while k < end:
        value = x[indices[k]]
        if value != y.dtype(0) or not skip:
            total += y.dtype(data[k * stride]) * value
        k += lanes
    wp.atomic_add(y, row, total)


@wp.kernel
def scatter(
    data: wp.array(dtype=Any),
    indices: wp.array(dtype=Any),
    indptr: wp.array(dtype=Any),
    x: wp.array(dtype=Any),
    y: wp.array(dtype=Any),
    stride: int,
    lanes: int,
    skip: bool,
):
    """Add a row times its element of *x* to the result; zeros add nothing if *skip*."""
    row, lane = wp.tid()
    value = x[row]
    if value == y.dtype(0) and skip:
        return
    k = int(indptr[row]) + lane
    end = int(indptr[row + 1])
    while k < end:
        wp.atomic_add(y, int(indices[k]), y.dtype(data[k * stride]) * value)
        k += lanes


@wp.kernel
def sample(
    indices: wp.array(dtype=Any),
    indptr: wp.array(dtype=Any),
    u: wp.array(dtype=Any),
    v: wp.array(dtype=Any),
    entries: wp.array(dtype=Any),
    lanes: int,
    skip_u: bool,
    skip_v: bool,
):
    """Multiply two vectors at the entries; zeros of *u* add nothing if *skip_u*, those of *v* if *skip_v*."""
    row, lane = wp.tid()
    k = int(indptr[row]) + lane
    end = int(indptr[row + 1])
    while k < end:
        one = u[row]
        other = v[indices[k]]
        if not (skip_u and one == entries.dtype(0)) and not (skip_v and other == entries.dtype(0)):
            entries[k] = one * other
        k += lanes
