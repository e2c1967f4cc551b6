"""Counting sort of synapses on a GPU: each warp orders the entries of its own sources."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numba import cuda

from xlakernel.cuda import numba_cuda_kernel

from ....kernels.cuda.device.memory import add_to
from ....kernels.cuda.device.warp import ALL
from ....kernels.cuda.launches import multiprocessors
from ...layout import Layout
from ..counting_sort import counting_sort

_THREADS = 256
_BLOCKS_OF_A_MULTIPROCESSOR = 8


@cuda.jit
def _count(places, indices, indptr, counts, result, blocks, target_bits, first_source, first_target):
    for row in range(cuda.grid(1) >> 5, indptr.size - 1, cuda.gridsize(1) >> 5):
        segment = (row + first_source) * blocks
        for entry in range(np.int64(indptr[row]) + cuda.laneid, np.int64(indptr[row + 1]), 32):
            place = places[np.int64(indices[entry]) + first_target]
            add_to(result, segment + (place >> target_bits), np.uint32(1))


@cuda.jit
def _fill(
    places, words, indices, indptr, cursor, entries, next_cursor, next_entries, blocks, target_bits, first_source,
    first_target,
):  # fmt: skip
    lane, width, mask = cuda.laneid, words.shape[1], (1 << target_bits) - 1
    for row in range(cuda.grid(1) >> 5, indptr.size - 1, cuda.gridsize(1) >> 5):
        segment, stop = (row + first_source) * blocks, np.int64(indptr[row + 1])
        for first in range(np.int64(indptr[row]), stop, 32):
            entry = first + lane
            place = np.int32(-1)
            if entry < stop:
                place = places[np.int64(indices[entry]) + first_target]
            block = np.int32(place >> target_bits)
            # The lanes whose targets are in this block. Entries of a block are written in the order of lanes.
            same = cuda.match_any_sync(ALL, block)
            earlier = cuda.popc(same & (1 << lane) - 1)
            begin = np.int64(0)
            if entry < stop:
                begin = np.int64(next_cursor[segment + block])
            cuda.syncwarp()
            if entry < stop:
                if earlier == 0:
                    next_cursor[segment + block] = begin + cuda.popc(same)
                to = begin + earlier
                next_entries[width * to] = words[entry, 0] | place & mask
                if width == 2:
                    next_entries[width * to + 1] = words[entry, 1]
            cuda.syncwarp()


def sort(outs: Sequence[Any], *, layout: Layout, ranges: Sequence[tuple[int, int]]) -> Callable[..., Any]:
    """Return a function ``f(places, words, indices, indptr, ...)`` that returns the results of `sort_entries`."""
    blocks = _BLOCKS_OF_A_MULTIPROCESSOR * multiprocessors()
    launched = functools.partial(numba_cuda_kernel, grid=blocks, block=_THREADS)
    return counting_sort(launched, (_count, _fill), outs, layout=layout, ranges=ranges)
