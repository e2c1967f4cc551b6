"""Visits of the entries of active rows or columns, for a rule that JAX computes.

The active lines are listed, and their entries are counted. A loop then takes a chunk of entries at a time: it gathers
the states, computes the rule for all of the chunk, and scatters the new states into the array that it carries. The cost
is that of the active entries, and of a pass over the events.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun

from xlakernel.core.backend import TangentsByJAX, with_tangents
from xlakernel.core.errors import ArgumentError, DtypeError

from ..entries import rows_of_entries

#: The smallest and the largest number of entries in a chunk, and the smallest number of chunks between these.
_CHUNK = (2048, 1 << 17, 256)


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["indices", "indptr", "permutation", "active"],
    meta_fields=["by_row", "across"],
)
@dataclasses.dataclass(frozen=True)
class Visits:
    """The entries to visit.

    Attributes:
      indices: the place of each entry in its line.
      indptr: the first entry of each line.
      permutation: the position of each entry's state; None: the states are in the order of the entries.
      active: True for active lines, or places if *across*.
      by_row: True if the lines are rows.
      across: True if the events select places in all lines.
    """

    indices: jax.Array
    indptr: jax.Array
    permutation: jax.Array | None
    active: jax.Array
    by_row: bool
    across: bool


@dataclasses.dataclass(frozen=True)
class TracedRule:
    """A rule for the flattened arguments of one entry, ``compute(*constants, *leaves)``.

    Attributes:
      compute: the function; it returns the leaves of the new state.
      constants: the arrays that the rule closes over.
    """

    compute: Callable[..., Sequence[Any]]
    constants: Sequence[Any]


def trace_rule(caller: str, rule: Callable[..., Any], state: Any, pre: Any, post: Any, params: Any) -> TracedRule:
    """Trace *rule* for one entry.

    Raises:
      ArgumentError: if it returns another structure than that of *state*, or arrays of another shape.
      DtypeError: if the dtype of a state cannot hold the numbers that it returns.
    """
    one = [jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), tree) for tree in (state, pre, post)]
    traced, found = jax.make_jaxpr(rule, return_shape=True)(*one, params)
    expected = one[0]
    given, wanted = (str(jax.tree.structure(tree)) for tree in (found, expected))
    if given != wanted:
        raise ArgumentError(f"{caller}: rule returns the structure {given}; expected that of edge_state, {wanted}.")
    leaves = jax.tree.leaves(expected)
    for new, old in zip(jax.tree.leaves(found), leaves, strict=True):
        if new.shape not in ((), old.shape):
            raise ArgumentError(
                f"{caller}: rule returns an array of shape {new.shape} for a state of shape {old.shape}; expected the "
                "same shape."
            )
        kinds = (jnp.inexact, jnp.complexfloating)
        if any(jnp.issubdtype(new.dtype, kind) and not jnp.issubdtype(old.dtype, kind) for kind in kinds):
            raise DtypeError(
                f"{caller}: rule returns numbers of dtype {new.dtype} for a state of dtype {old.dtype}, which cannot "
                "hold them."
            )
    count = len(traced.consts)

    def compute(*arguments: Any) -> list[Any]:
        new = jaxpr_as_fun(ClosedJaxpr(traced.jaxpr, list(arguments[:count])))(*arguments[count:])
        return [jnp.broadcast_to(x, old.shape).astype(old.dtype) for x, old in zip(new, leaves, strict=True)]

    return TracedRule(compute, traced.consts)


def apply_at_events(rule: TracedRule, visits: Visits, state: Any, pre: Any, post: Any, params: Any) -> Any:
    """Return the new states of all entries."""
    entries = visits.indices.shape[0]
    old, structure = jax.tree.flatten(state)
    if not old:
        return state
    groups = [old, jax.tree.leaves(pre), jax.tree.leaves(post), jax.tree.leaves(params), list(rule.constants)]
    ends = [sum(map(len, groups[: i + 1])) for i in range(len(groups))]
    index = [visits.indices, visits.indptr, visits.active]
    if visits.permutation is not None:
        index.append(visits.permutation)

    def unpack(arrays: Sequence[Any]) -> tuple[Any, ...]:
        leaves = [arrays[start:end] for start, end in zip([0, *ends], ends, strict=False)]
        indices, indptr, active, *permutation = arrays[ends[-1] :]
        here = dataclasses.replace(
            visits, indices=indices, indptr=indptr, active=active, permutation=permutation[0] if permutation else None
        )
        return here, *leaves

    def everywhere(*arrays: Any) -> list[Any]:
        here, *leaves = unpack(arrays)
        line = rows_of_entries(here.indptr, entries)
        is_entry = line < here.indptr.shape[0] - 1
        is_active = here.active[here.indices if here.across else line] & is_entry
        # Other entries get the arguments of an active one: where the rule's derivative is infinite, a cotangent of 0
        # would become NaN.
        some = jnp.argmax(is_active)
        entry = jnp.where(is_active, jnp.arange(entries), some)
        found: list[Any] = jax.lax.cond(
            is_active[some],
            lambda: _visit(rule, here, leaves, entry, line[entry], is_active),
            lambda: list(leaves[0]),
        )
        return found

    def run(*arrays: Any) -> list[Any]:
        here, *leaves = unpack(arrays)
        return _in_chunks(rule, here, leaves)

    # Under vmap, each step of the loop would copy all states of the slices that have finished.
    visit = everywhere if visits.across else _mapped_as(everywhere, run)

    arrays = [jnp.asarray(leaf) for group in groups for leaf in group]
    return jax.tree.unflatten(
        structure, with_tangents("rule at events", visit, TangentsByJAX(everywhere))(*arrays, *index)
    )


def _mapped_as(mapped: Callable[..., list[Any]], run: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    """Return *run*, in place of which ``jax.vmap`` maps the function *mapped*."""
    found = jax.custom_batching.custom_vmap(run)

    @found.def_vmap
    def _(_: int, batched: Sequence[bool], *arrays: Any) -> tuple[list[Any], list[bool]]:
        results = jax.vmap(mapped, [0 if is_batched else None for is_batched in batched])(*arrays)
        return results, [True] * len(results)

    called: Callable[..., list[Any]] = found
    return called


def _visit(
    rule: TracedRule, visits: Visits, leaves: Sequence[Any], entry: jax.Array, line: jax.Array, is_active: jax.Array
) -> list[Any]:
    """Return the states after the rule at those of the entries *entry* that are active; *line* has their lines."""
    states, pre, post, params, constants = leaves
    place = visits.indices[entry]
    row, column = (line, place) if visits.by_row else (place, line)
    target = entry if visits.permutation is None else visits.permutation[entry]
    gathered = [x[target] for x in states] + [x[row] for x in pre] + [x[column] for x in post]
    axes = [None] * len(constants) + [0] * len(gathered) + [None] * len(params)
    new = jax.vmap(rule.compute, axes, axis_size=entry.shape[0])(*constants, *gathered, *params)
    target = jnp.where(is_active, target, visits.indices.shape[0])
    return [old.at[target].set(x, mode="drop") for old, x in zip(states, new, strict=True)]


def _in_chunks(rule: TracedRule, visits: Visits, leaves: Sequence[Any]) -> list[Any]:
    """Return the states after the rule at the entries of active lines."""
    entries, lines = visits.indices.shape[0], visits.indptr.shape[0] - 1
    least, most, chunks = _CHUNK
    size = min(entries, max(least, min(most, entries // chunks)))
    window = min(size, lines)  # a chunk has entries of no more listed lines
    lengths = jnp.where(visits.active, jnp.diff(visits.indptr), 0)
    (listed,) = jnp.nonzero(lengths, size=lines, fill_value=lines - 1)
    is_listed = jnp.arange(lines) < jnp.count_nonzero(lengths)
    ends = jnp.cumsum(jnp.where(is_listed, lengths[listed], 0), dtype=visits.indptr.dtype)
    total = ends[-1]
    last = total // size + (total % size > 0)  # in chunks: the number of entries and a chunk may exceed the dtype
    # Entry number n of the listed lines is entry n + skipped of the matrix.
    skipped = visits.indptr[listed] - jnp.concatenate([jnp.zeros(1, ends.dtype), ends[:-1]])

    def step(carry: Any) -> Any:
        chunk, states = carry
        start = chunk * size
        within = jnp.arange(size, dtype=ends.dtype)
        number = start + within
        first = jnp.minimum(jnp.searchsorted(ends, start, side="right"), lines - window)
        ended = jax.lax.dynamic_slice(ends, (first,), (window,)) - start
        passed = jnp.zeros(size, jnp.int32).at[jnp.where(ended < 0, 0, ended)].add(1, mode="drop")
        position = jnp.minimum(first + jnp.cumsum(passed), lines - 1)
        is_active = within < total - start
        entry = jnp.where(is_active, number + skipped[position], 0)
        states = _visit(rule, visits, [states, *leaves[1:]], entry, listed[position], is_active)
        return chunk + 1, states

    zero = jnp.zeros((), ends.dtype)
    found: list[Any] = jax.lax.while_loop(lambda carry: carry[0] < last, step, (zero, list(leaves[0])))[1]
    return found
