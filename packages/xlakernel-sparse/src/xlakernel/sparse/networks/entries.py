"""The entries (stored synapses) of a network in the order in which a run reads them: by source and target's block."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from xlakernel.core import XLACustomKernel
from xlakernel.core.errors import ArgumentError

from .layout import MOST_UNITS, WEIGHT_BITS, Layout
from .model.projections import Synapses, is_entry

#: Inputs: the place of each neuron, ``segment << target_bits | target``; then, for each projection, the words of its
#: entries without the target, ``(nnz, words of an entry)``, its indices and its indptr. Results: starts, ``(neurons *
#: segments + 1,)``, and entries. Static keywords: ``layout``, and ``ranges``, the first source and target of each
#: projection. A segment is the entries of one source with targets in one block.
sort_entries = XLACustomKernel("network_entries", "The operator behind `xlakernel.sparse.networks.Network`.")
sort_entries.def_tags("sparse", "network")


#: Rounding may change a weight of fewer units by more than 1/256 of the weight.
_COARSE = 2**7
#: The largest share of a projection's weights that may have fewer units with 16 bits.
_COARSE_SHARE = 1 / 32


def choose_weight_bits(synapses: Sequence[Synapses]) -> int:
    """Return 16, or 32 if small weights are more than 1/32 of the weights other than 0 in some projection.

    A weight is small below 1/256 of its receptor's largest weight: 16 bits may round it by more than 1/256.
    """
    for projection in synapses:
        if projection.rule is not None:
            continue
        of_receptor = (other for other in synapses if other.receptor == projection.receptor and other.rule is None)
        coarse = _COARSE * max(other.survey.largest_weight for other in of_receptor) / (2 ** (WEIGHT_BITS[0] - 1) - 1)
        if projection.survey.smallest_weight < coarse and _share_below(projection.matrix, coarse) > _COARSE_SHARE:
            return WEIGHT_BITS[1]
    return WEIGHT_BITS[0]


@jax.jit
def _share_below(matrix: Any, limit: Any) -> jax.Array:
    """Return the share of the weights other than 0 that are below *limit*."""
    weights = jnp.abs(matrix.data.astype(jnp.result_type(matrix.data, jnp.float32)))
    counted = is_entry(matrix.indices, matrix.indptr) & (weights > 0)
    return jnp.sum(counted & (weights < limit), dtype=jnp.uint32) / jnp.sum(counted, dtype=jnp.uint32)


#: The fewest units that the largest weight of a receptor with plastic projections must have.
_LEAST_UNITS = 256


def choose_scales(receptors: int, synapses: Sequence[Synapses], size: int, weight_bits: int) -> np.ndarray:
    """Return the weight of one unit of each receptor's sums, ``(receptors,)``, float32.

    Weights are rounded to multiples of this unit. The unit is the receptor's largest weight over ``2**(weight_bits - 1)
    - 1``, or more where the sum over all synapses of a neuron would reach `MOST_UNITS` units. Equal weights are exact.
    With plastic projections, the unit is a power of two that suits the largest weight that their rules allow.

    Raises:
      ArgumentError: if *weight_bits* is invalid, if a neuron has too many synapses, if plastic weights have too few
        units, or if float32 cannot represent the unit or its reciprocal.
    """
    if weight_bits not in WEIGHT_BITS:
        raise ArgumentError(f"Network: weight_bits is {weight_bits!r}; allowed: {WEIGHT_BITS[0]} or {WEIGHT_BITS[1]}.")
    scales = np.ones(receptors, np.float32)
    for receptor in range(receptors):
        own = [projection for projection in synapses if projection.receptor == receptor]
        largest = max(projection.largest_weight for projection in own)
        if largest == 0:
            continue
        degrees = (_degrees(one.matrix, one.targets[0], size=size) for one in own)
        most = max(1, int(jnp.max(sum(degrees))))
        # Each weight is rounded by half a unit, and its quotient by the unit by 2**-23 of it: 64 units of the sum.
        fitting = (MOST_UNITS - 2**9 - most) // most
        if fitting < 1:
            raise ArgumentError(
                f"Network: a neuron has {most} synapses of receptor {receptor}; allowed: up to 2**28 - 2**8, as their "
                "sum and that of spikes on their way have 32 bits."
            )
        is_plastic = any(projection.rule is not None for projection in own)
        if is_plastic:
            static = max((projection.largest_weight for projection in own if projection.rule is None), default=0)
            # A power of two: all platforms divide changing weights by this unit without a rounding error.
            scale = 2.0 ** math.ceil(math.log2(max(static / (2 ** (weight_bits - 1) - 1), largest / fitting)))
            present = max(projection.survey.largest_weight for projection in own)
            if 0 < present < _LEAST_UNITS * scale:
                raise ArgumentError(
                    f"Network: receptor {receptor}: the limits of a plasticity rule are up to {largest}, so that one "
                    f"unit of {most} synapses is {scale}; the largest weight is {present}; allowed: at least "
                    f"{_LEAST_UNITS} units. Lower the limits, minimum and maximum of the Rule."
                )
        else:
            smallest = min(projection.survey.smallest_weight for projection in own)
            units = min(1 if largest == smallest else 2 ** (weight_bits - 1) - 1, fitting)
            scale = float(largest) / units
        if not is_plastic and units != 1:  # rounded up, so that no weight has more units
            scale = float(np.nextafter(np.float32(scale), np.float32(np.inf)))
        # XLA multiplies by the reciprocal, and replaces numbers below the least normal one by 0.
        least = float(np.finfo(np.float32).tiny)
        if not least <= scale <= 1 / least:
            raise ArgumentError(
                f"Network: the weights of receptor {receptor} are up to {largest}, and one unit would be {scale}; "
                f"allowed: {least} to {1 / least}. Use another unit for the weights."
            )
        scales[receptor] = scale
    return scales


def needed_bits(receptors: int, synapses: Sequence[Synapses], weight_bits: int) -> int:
    """Return the bits that a weight needs: 2 if weights of a receptor differ only in sign, else *weight_bits*."""
    for receptor in range(receptors):
        own = [projection for projection in synapses if projection.receptor == receptor]
        static = [projection.survey for projection in own if projection.rule is None]
        weights = {weight for survey in static for weight in (survey.smallest_weight, survey.largest_weight)}
        if len(weights) > 1 or (static and len(static) < len(own)):
            return weight_bits
    return 2


@functools.partial(jax.jit, static_argnames="size")
def _degrees(matrix: Any, first_target: Any, *, size: int) -> jax.Array:
    """Return the number of synapses of each neuron as a target, uint32 ``(size,)``."""
    valid = is_entry(matrix.indices, matrix.indptr)
    return jnp.zeros(size, jnp.uint32).at[first_target + matrix.indices].add(valid.astype(jnp.uint32))


#: In networks of 2**31 synapses or more, a segment has fewer entries than this. A GPU counts the entries of up to 1024
#: segments in one round, by int32.
_LONGEST = 2**21


def order_entries(layout: Layout, synapses: Sequence[Synapses], scales: np.ndarray) -> tuple[jax.Array, jax.Array]:
    """Return the starts of the segments of each source, uint32, and the entries, int32.

    The starts have the shape ``(neurons * segments + 1,)``, and the entries ``(words of an entry * nnz,)``.

    Raises:
      ArgumentError: if there are too many synapses for the number of blocks or for plain JAX.
    """
    total = sum(projection.matrix.nnz for projection in synapses)
    arrays = [
        array
        for projection in synapses
        for array in (
            _words(
                projection.matrix.data,
                projection.delay,
                scales[projection.receptor],
                projection.receptor,
                layout=layout,
                shape=projection.matrix.indices.shape,
            ),
            projection.matrix.indices,
            projection.matrix.indptr,
        )
    ]
    outs = (
        jax.ShapeDtypeStruct((layout.size * layout.segments + 1,), jnp.uint32),
        jax.ShapeDtypeStruct((total * (2 if layout.wide else 1),), jnp.int32),
    )
    ranges = tuple((projection.sources[0], projection.targets[0]) for projection in synapses)
    found: tuple[jax.Array, jax.Array] = sort_entries(
        places_of(layout), *arrays, outs=outs, layout=layout, ranges=ranges
    )
    if total >= 2**31 and not layout.scattered and (longest := int(jnp.max(jnp.diff(found[0])))) >= _LONGEST:
        raise ArgumentError(
            f"Network: {total} synapses, {longest} of them from one neuron to one block; allowed from 2**31 synapses "
            f"on: fewer than {_LONGEST}. Use more blocks."
        )
    return found


def places_of(layout: Layout) -> jax.Array:
    """Return the place of each neuron, ``segment << target_bits | target``, int32."""
    if layout.scattered:
        return jnp.arange(layout.size, dtype=jnp.int32)
    edges = np.array(layout.edges)
    block = np.repeat(np.arange(layout.blocks), np.diff(edges))
    return jnp.asarray(block << layout.target_bits | np.arange(layout.size) - edges[block], jnp.int32)


@functools.partial(jax.jit, static_argnames=("layout", "shape"))
def _words(
    weights: jax.Array, delay: jax.Array, scale: Any, receptor: Any, *, layout: Layout, shape: tuple[int]
) -> jax.Array:
    """Return the words of a projection's entries without the targets, ``(nnz, 1)``, or ``(nnz, 2)`` if wide.

    One compiled program computes them, without memory for intermediate values.
    """
    exact = weights.astype(jnp.result_type(weights, jnp.float32))
    limit = 2.0 ** (layout.weight_bits - 1) - 1 if not layout.wide else 2.0**31 - 128
    units = jnp.clip(jnp.rint(exact / scale), -limit, limit).astype(jnp.int32)
    rows = (delay.astype(jnp.int32) - 1) * len(layout.receptors) + receptor
    low = rows << layout.target_bits
    if layout.wide:
        return jnp.stack([jnp.broadcast_to(low, shape), jnp.broadcast_to(units, shape)], axis=-1)
    return jnp.broadcast_to(low | units << layout.target_bits + layout.row_bits, shape)[:, None]


@sort_entries.def_jax_kernel
def _sort_in_jax(outs: Sequence[Any], *, layout: Layout, ranges: Sequence[tuple[int, int]]) -> Any:
    words = 2 if layout.wide else 1
    mask = (1 << layout.target_bits) - 1
    if outs[1].shape[0] // words >= 2**31:
        raise ArgumentError(
            f"Network: {outs[1].shape[0] // words} synapses; allowed in plain JAX: fewer than 2**31. Use the backend "
            '"numba" or "numba_cuda".'
        )

    def sort(places: jax.Array, *arrays: jax.Array) -> tuple[jax.Array, jax.Array]:
        keys, columns = [jnp.zeros(0, jnp.uint32)], [jnp.zeros((0, words), jnp.int32)]
        for number, (first_source, first_target) in enumerate(ranges):
            entries, indices, indptr = arrays[3 * number : 3 * number + 3]
            source = (
                jnp.repeat(jnp.arange(indptr.size - 1), jnp.diff(indptr), total_repeat_length=indices.size)
                + first_source
            )
            place = places[indices + first_target]
            key = source.astype(jnp.uint32) * layout.segments + (place >> layout.target_bits).astype(jnp.uint32)
            # Padding has the largest key, and is sorted to the end.
            keys.append(jnp.where(is_entry(indices, indptr), key, outs[0].shape[0] - 1))
            columns.append(entries.at[:, 0].set(entries[:, 0] | place & mask))
        key = jnp.concatenate(keys)
        column = jnp.concatenate(columns)
        key, *ordered = jax.lax.sort((key, *(column[:, k] for k in range(words))), num_keys=1, is_stable=True)
        starts = jnp.searchsorted(key, jnp.arange(outs[0].shape[0], dtype=jnp.uint32)).astype(jnp.uint32)
        return starts, jnp.stack(ordered, axis=-1).reshape(-1)

    return sort


def _sort_in_numba(outs: Sequence[Any], *, layout: Layout, ranges: Sequence[tuple[int, int]]) -> Any:
    from .kernels.numba import sort

    return sort(outs, layout=layout, ranges=ranges)


def _sort_in_numba_cuda(outs: Sequence[Any], *, layout: Layout, ranges: Sequence[tuple[int, int]]) -> Any:
    from .kernels.cuda import sort

    return sort(outs, layout=layout, ranges=ranges)


sort_entries.def_kernel("numba", "cpu", _sort_in_numba, asdefault=True)
sort_entries.def_kernel("numba_cuda", "gpu", _sort_in_numba_cuda, asdefault=True)
