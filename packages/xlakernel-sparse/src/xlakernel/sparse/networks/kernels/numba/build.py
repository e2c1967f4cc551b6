"""Counting sort of synapses on the CPU: each thread orders the entries of its own sources."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numba import njit, prange

from xlakernel.numba import numba_kernel

from ....kernels.numba.helpers.parts import first_row, part_count
from ...layout import Layout
from ..counting_sort import counting_sort


@njit(parallel=True, cache=True)
def _count(places, indices, indptr, counts, result, blocks, target_bits, first_source, first_target):
    parts = part_count(indices.size)
    for part in prange(parts):
        for row in range(first_row(indptr, part, parts), first_row(indptr, part + 1, parts)):
            segment = (np.int64(row) + first_source) * blocks
            for entry in range(indptr[row], indptr[row + 1]):
                result[segment + (places[indices[entry] + first_target] >> target_bits)] += 1


@njit(parallel=True, cache=True)
def _fill(
    places, words, indices, indptr, cursor, entries, next_cursor, next_entries, blocks, target_bits, first_source,
    first_target,
):  # fmt: skip
    parts, width, mask = part_count(indices.size), words.shape[1], (1 << target_bits) - 1
    for part in prange(parts):
        for row in range(first_row(indptr, part, parts), first_row(indptr, part + 1, parts)):
            segment = (np.int64(row) + first_source) * blocks
            for entry in range(indptr[row], indptr[row + 1]):
                place = places[indices[entry] + first_target]
                at = segment + (place >> target_bits)
                to = np.int64(next_cursor[at])
                next_cursor[at] = to + 1
                next_entries[width * to] = words[entry, 0] | (place & mask)
                if width == 2:
                    next_entries[width * to + 1] = words[entry, 1]


def sort(outs: Sequence[Any], *, layout: Layout, ranges: Sequence[tuple[int, int]]) -> Callable[..., Any]:
    """Return a function ``f(places, words, indices, indptr, ...)`` that returns the results of `sort_entries`."""
    return counting_sort(numba_kernel, (_count, _fill), outs, layout=layout, ranges=ranges)
