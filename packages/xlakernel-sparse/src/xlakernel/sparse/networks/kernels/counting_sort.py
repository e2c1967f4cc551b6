"""Counting sort of synapses by their source and their target's block, with two kernels of a platform."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ..layout import Layout


def counting_sort(
    make_kernel: Callable[..., Callable[..., Any]],
    kernels: tuple[Any, Any],
    outs: Sequence[Any],
    *,
    layout: Layout,
    ranges: Sequence[tuple[int, int]],
) -> Callable[..., Any]:
    """Return a function ``f(places, words, indices, indptr, ...)`` that returns the results of `sort_entries`.

    Args:
      make_kernel: makes a function of JAX arrays from a kernel: `numba_kernel`, or `numba_cuda_kernel` with its launch.
      kernels: the two kernels. A segment is the entries of one source and one block. The first kernel counts the
        entries of each segment. The second writes each entry at its segment's cursor, and advances this cursor.
      outs: the starts and the entries.
      layout: that of the network.
      ranges: the first source and the first target of each projection.
    """
    segments, entries = outs[0].shape[0] - 1, outs[1]
    table = jax.ShapeDtypeStruct((segments,), jnp.uint32)
    count = make_kernel(kernels[0], table, input_output_aliases={3: 0})
    fill = make_kernel(kernels[1], (table, entries), input_output_aliases={4: 0, 5: 1})

    def run(places: jax.Array, *arrays: jax.Array) -> tuple[jax.Array, jax.Array]:
        groups = [arrays[k : k + 3] for k in range(0, len(arrays), 3)]
        static = {"blocks": layout.segments, "target_bits": layout.target_bits}
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
