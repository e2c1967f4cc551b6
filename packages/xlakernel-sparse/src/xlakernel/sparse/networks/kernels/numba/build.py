"""Counting sort of synapses on the CPU: each thread orders the entries of its own sources."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numba import njit, prange

from xlakernel.numba import numba_kernel

from ....kernels.numba.helpers.parts import first_row, part_count
from ...layout import Layout


@njit(parallel=True)
def _count(places, indices, indptr, counts, result, blocks, target_bits, first_source, first_target):
    parts = part_count(indices.size)
    for part in prange(parts):
        for row in range(first_row(indptr, part, parts), first_row(indptr, part + 1, parts)):
            segment = (np.int64(row) + first_source) * blocks
            for entry in range(indptr[row], indptr[row + 1]):
                result[segment + (places[indices[entry] + first_target] >> target_bits)] += 1


@njit(parallel=True)
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
    """Return ``f(places, words, indices, indptr, ...)``: the starts and the entries; see `sort_entries`."""
    segments, entries = outs[0].shape[0] - 1, outs[1]
    table = jax.ShapeDtypeStruct((segments,), jnp.uint32)
    count = numba_kernel(_count, table, input_output_aliases={3: 0})
    fill = numba_kernel(_fill, (table, entries), input_output_aliases={4: 0, 5: 1})

    def run(places: jax.Array, *arrays: jax.Array) -> tuple[jax.Array, jax.Array]:
        groups = [arrays[k : k + 3] for k in range(0, len(arrays), 3)]
        static = {"blocks": layout.blocks, "target_bits": layout.target_bits}
        counts = jnp.zeros(segments, jnp.uint32)
        for (_, indices, indptr), (source, target) in zip(groups, ranges, strict=True):
            counts = count(places, indices, indptr, counts, **static, first_source=source, first_target=target)
        first = jnp.concatenate([jnp.zeros(1, jnp.uint32), jnp.cumsum(counts, dtype=jnp.uint32)])
        cursor, found = first[:-1], jnp.zeros(entries.shape, entries.dtype)
        for (words, indices, indptr), (source, target) in zip(groups, ranges, strict=True):
            cursor, found = fill(
                places, words, indices, indptr, cursor, found, **static, first_source=source, first_target=target
            )
        return first, found

    return run
