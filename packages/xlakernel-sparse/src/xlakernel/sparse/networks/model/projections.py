"""`Projection`: synapses from one range of neurons to another, and the checks of their values."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from xlakernel.core.errors import ArgumentError, DtypeError, InputError, ShapeError

from ...formats.matrices import CSR, SparseMatrix
from ...operators.arguments import as_integer
from ...operators.units import check_plain
from .populations import check_name
from .rules import Rule, check_rule


class Projection(NamedTuple):
    """Synapses from one range of neurons to another.

    Args:
      matrix: the weights, a `CSR`, `CSC` or `COO` of shape ``(sources, targets)``, with *plasticity* a `CSR`: a spike
        of the source ``i`` adds ``matrix[i, j]`` to the target ``j``. Weights may be floats or integers; several
        entries at one place are separate synapses.
      delay: the time from the spike to its arrival in steps (not in ms or other units of time), at least 1: an integer
        for all synapses, or integers ``(nnz,)`` in the order of the matrix's entries.
      receptor: the name of the field of ``arrived`` to which the weights are added.
      source, target: the neurons: a population's name, a slice of the network's neurons, or None for all neurons of
        the network.
      plasticity: the `Rule` by which the weights change in a run, or None. A projection with a rule is called plastic;
        all of its synapses have the same delay.
    """

    matrix: Any
    delay: Any
    receptor: str
    source: str | slice | None = None
    target: str | slice | None = None
    plasticity: Rule | None = None


class Synapses(NamedTuple):
    """A checked projection: its arrays, the ranges of its neurons, and the number of its receptor."""

    matrix: CSR
    delay: jax.Array
    receptor: int
    sources: tuple[int, int]
    targets: tuple[int, int]
    survey: Survey
    rule: Rule | None

    @property
    def largest_weight(self) -> float:
        """The largest absolute weight that the projection has or, if it is plastic, may have."""
        if self.rule is not None:
            return max(abs(self.rule.minimum), abs(self.rule.maximum))
        return float(self.survey.largest_weight)


class Survey(NamedTuple):
    """Extremes of a projection's values, over its entries without padding.

    Those of weights are of absolute values, and the smallest weight is not 0. *is_compressed* is True if *indptr* of
    the matrix is valid.
    """

    smallest_weight: Any
    largest_weight: Any
    shortest_delay: Any
    longest_delay: Any
    smallest_index: Any
    largest_index: Any
    is_compressed: Any


def check_projections(
    projections: Any, ranges: Mapping[str, tuple[int, int]], size: int
) -> tuple[tuple[str, ...], list[Synapses]]:
    """Return the names of the receptors, and the projections with their values checked.

    Args:
      projections: the projections as they were given.
      ranges: the first neuron of each population, and the neuron after its last one.
      size: the number of neurons.

    Raises:
      InputError, ArgumentError, ShapeError, DtypeError: if a projection is invalid; the message has its number.
    """
    if isinstance(projections, Projection) or not isinstance(projections, Sequence):
        raise InputError(f"Network: projections are a {type(projections).__name__}; allowed: a list of Projection.")
    for number, projection in enumerate(projections):
        if not isinstance(projection, Projection):
            raise InputError(f"Network: projection {number} is a {type(projection).__name__}; allowed: a Projection.")
        check_name(f"Network: the receptor of projection {number}", projection.receptor)
    total = sum(one.matrix.nnz for one in projections if isinstance(one.matrix, SparseMatrix))
    if total >= 2**32:
        raise ArgumentError(f"Network: {total} synapses; allowed: fewer than 2**32.")
    # Receptors are sorted, so that a state does not depend on the order of the projections.
    receptors = tuple(sorted({projection.receptor for projection in projections}))
    found = [
        _check(f"Network: projection {number}", projection, receptors.index(projection.receptor), ranges, size)
        for number, projection in enumerate(projections)
    ]
    return receptors, found


def is_entry(indices: jax.Array, indptr: jax.Array) -> jax.Array:
    """Return a mask for the arrays of a compressed matrix: True for entries, False for padding."""
    # There may be more entries than int32 can count, and JAX may have no 64-bit integers.
    return jax.lax.iota(jnp.uint32, indices.size) < indptr[-1].astype(jnp.uint32)


def _check(
    what: str, projection: Projection, receptor: int, ranges: Mapping[str, tuple[int, int]], size: int
) -> Synapses:
    matrix = projection.matrix
    if not isinstance(matrix, SparseMatrix):
        raise InputError(
            f"{what}: the matrix is a {type(matrix).__name__}; allowed: a CSR of xlakernel.sparse, such as "
            "CSR.from_scipy(matrix) or CSR.from_dense(matrix)."
        )
    if projection.plasticity is not None and not isinstance(matrix, CSR):
        raise InputError(
            f"{what}: the matrix is a {type(matrix).__name__}; allowed with plasticity: a CSR, as the weights come "
            "back in the order of its entries. Convert it with tocsr()."
        )
    check_plain(what, "matrix.data", matrix.data)
    delay = _delay(what, projection.delay, matrix.nnz)
    if not isinstance(matrix, CSR):
        if delay.shape:  # put in the order of the CSR matrix's entries
            delay = delay[matrix.with_data(jnp.arange(matrix.nnz, dtype=jnp.int32)).tocsr().data]
        matrix = matrix.tocsr()
    if matrix.dtype.kind not in "iuf" and matrix.dtype != jnp.bfloat16:
        raise DtypeError(f"{what}: weights of dtype {matrix.dtype}; allowed: real numbers or integers.")
    sources = _range(f"{what}: source", projection.source, ranges, size)
    targets = _range(f"{what}: target", projection.target, ranges, size)
    extents = sources[1] - sources[0], targets[1] - targets[0]
    if matrix.shape != extents:
        raise ShapeError(
            f"{what}: the matrix has the shape {matrix.shape}; allowed: {extents}, the numbers of sources and targets."
        )
    survey = _survey(matrix.data, delay, matrix.indices, matrix.indptr)
    survey = Survey(*(value.item() for value in jax.device_get(survey)))
    _check_values(what, survey, extents[1])
    rule = None if projection.plasticity is None else check_rule(what, projection.plasticity)
    if rule is not None:
        _check_plastic(what, rule, matrix, delay)
    return Synapses(matrix, delay, receptor, sources, targets, survey, rule)


def _check_plastic(what: str, rule: Rule, matrix: CSR, delay: jax.Array) -> None:
    if delay.shape:
        raise ShapeError(
            f"{what}: the delay of a plastic projection has the shape {delay.shape}; allowed: (), one delay for all of "
            "its synapses. Use a projection for each delay."
        )
    weights = jnp.where(is_entry(matrix.indices, matrix.indptr), matrix.data.astype(jnp.float32), rule.minimum)
    low, high = float(jnp.min(weights, initial=rule.minimum)), float(jnp.max(weights, initial=rule.minimum))
    if low < rule.minimum or high > rule.maximum:
        raise ArgumentError(
            f"{what}: weights are from {low} to {high}; allowed: {rule.minimum} to {rule.maximum}, the limits of the "
            "rule."
        )


def _range(what: str, given: Any, ranges: Mapping[str, tuple[int, int]], size: int) -> tuple[int, int]:
    if given is None:
        return 0, size
    if isinstance(given, str) and given in ranges:
        return ranges[given]
    if isinstance(given, slice) and given.step in (None, 1):
        start = 0 if given.start is None else as_integer(given.start)
        stop = size if given.stop is None else as_integer(given.stop)
        if start is not None and stop is not None and 0 <= start <= stop <= size:
            return start, stop
    raise ArgumentError(
        f"{what} is {given!r}; allowed: None, a slice of the {size} neurons without a step, or one of {list(ranges)}."
    )


def _delay(what: str, delay: Any, entries: int) -> jax.Array:
    value = delay if isinstance(delay, jax.Array) else np.asarray(delay)
    if value.dtype.kind not in "iu":
        raise DtypeError(f"{what}: the delay is {reprlib.repr(delay)}; allowed: whole steps, integers of at least 1.")
    if value.shape not in {(), (entries,)}:
        raise ShapeError(f"{what}: the delay has the shape {value.shape}; allowed: () or ({entries},).")
    if value.size and not -(2**31) <= int(value.min()) <= int(value.max()) < 2**31:
        extreme = int(value.max()) if int(value.max()) >= 2**31 else int(value.min())
        raise ArgumentError(f"{what}: a delay is {extreme}; allowed: from 1 to 2**31 - 1 steps.")
    return jnp.asarray(value)


@jax.jit
def _survey(data: jax.Array, delay: jax.Array, indices: jax.Array, indptr: jax.Array) -> Survey:
    valid = is_entry(indices, indptr)
    weights = jnp.broadcast_to(jnp.abs(data.astype(jnp.result_type(data, jnp.float32))), valid.shape)
    delays = jnp.broadcast_to(delay, valid.shape).astype(jnp.int32)
    most = indptr.dtype.type(min(indices.size, np.iinfo(indptr.dtype).max))
    # Each row: the reduction, the mask, the values, and the value elsewhere. Both reductions propagate NaN.
    extremes = (
        (jnp.minimum, valid & (weights > 0), weights, jnp.inf),
        (jnp.maximum, valid, weights, 0),
        (jnp.minimum, valid, delays, np.iinfo(np.int32).max),
        (jnp.maximum, valid, delays, 1),
        (jnp.minimum, valid, indices, np.iinfo(indices.dtype).max),
        (jnp.maximum, valid, indices, 0),
    )
    # One reduction for all: for several, XLA on the CPU would store their operands, 25 bytes a synapse.
    least_weight, weight, least_delay, delay, least_index, index = jax.lax.reduce(
        tuple(jnp.where(where, values, other) for _, where, values, other in extremes),
        tuple(values.dtype.type(other) for _, _, values, other in extremes),
        lambda first, second: tuple(extremes[k][0](first[k], second[k]) for k in range(len(extremes))),
        (0,),
    )
    none = (indices.size == 0) | (indptr[-1] == 0)
    return Survey(
        least_weight,
        weight,
        jnp.where(none, 1, least_delay),
        delay,
        jnp.where(none, 0, least_index),
        index,
        (indptr[0] == 0) & jnp.all(jnp.diff(indptr) >= 0) & (indptr[-1] <= most),
    )


def _check_values(what: str, survey: Survey, targets: int) -> None:
    if not survey.is_compressed:
        raise ArgumentError(f"{what}: indptr of the matrix does not rise from 0 to at most nnz.")
    if not np.isfinite(survey.largest_weight):
        raise ArgumentError(f"{what}: a weight is NaN or infinite; allowed: finite numbers.")
    if survey.shortest_delay < 1:
        raise ArgumentError(
            f"{what}: a delay is {survey.shortest_delay}; allowed: at least 1, as a spike arrives after its own step."
        )
    if survey.smallest_index < 0 or survey.largest_index >= max(targets, 1):
        index = survey.smallest_index if survey.smallest_index < 0 else survey.largest_index
        raise ArgumentError(f"{what}: a target is {index}; allowed: 0 to {targets - 1}.")
