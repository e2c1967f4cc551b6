"""Duplicates, entries at one place: known to be absent, or added up."""

from __future__ import annotations

import functools
import weakref
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from xlakernel.core.backend import is_tracing

from ..operators.arguments import is_known
from ..operators.dtypes import accumulator
from .base import Format


class Known(NamedTuple):
    """Facts about a structure that programs need not find out again.

    Attributes:
      distinct: the entries are at different places.
      whole: there is no padding.
    """

    distinct: bool = False
    whole: bool = False


_Facts = dict[Any, tuple[weakref.ref[Any], Known]]
#: By the identity of a first index array: the array, and by class, shape and the identity of a second one, that array
#: and the facts. Identities are used again, so the arrays are compared.
_KNOWN: dict[int, tuple[weakref.ref[Any], _Facts]] = {}


def evaluated() -> AbstractContextManager[Any]:
    """Return a context in which operations on known arrays are evaluated, also while JAX traces."""
    return jax.ensure_compile_time_eval() if is_tracing() else nullcontext()  # the former runs jitted code op by op


def known_of(matrix: Format) -> Known:
    """Return facts about the structure, if it is not traced; computed once for a structure."""
    if not all(isinstance(array, jax.Array) and is_known(array) for array in matrix._index_arrays):
        return Known()
    first, second = matrix._index_arrays
    key = type(matrix), matrix.shape, id(second)
    owner, facts = _KNOWN.get(id(first), (None, {}))
    if owner is None or owner() is not first:
        facts = {}
    of, known = facts.get(key, (None, Known()))
    if of is None or of() is not second:
        with evaluated():
            known = Known(*map(bool, _facts(matrix._with_structure(jnp.zeros(1), *matrix.structure, matrix.shape))))
        alive = {other: fact for other, fact in facts.items() if fact[0]() is not None}
        forget = functools.partial(_forget, id(first))
        _KNOWN[id(first)] = weakref.ref(first, forget), {**alive, key: (weakref.ref(second), known)}
    return known


def _forget(identity: int, array: weakref.ref[Any]) -> None:
    if identity in _KNOWN and _KNOWN[identity][0] is array:
        del _KNOWN[identity]


@jax.jit
def _facts(matrix: Format) -> Any:
    return matrix._ascends(), jnp.all(matrix._is_entry())


def sums_at_places(matrix: Format, known: Known) -> tuple[jax.Array, jax.Array]:
    """Return the elements at the entries, ``(nnz,)``, with duplicates added up, and where they are.

    The second array is True for the first entry of each place (a row and column), which has the element. It is False
    for duplicates of the entry, and for padding, where the first array is arbitrary.

    Args:
      matrix: the matrix. Half precision is added up in float32, the dtype of the elements.
      known: what is known about the structure.
    """
    weights = jnp.broadcast_to(matrix._weights, matrix.nnz).astype(accumulator(matrix.dtype))
    is_entry = jnp.ones(matrix.nnz, bool) if known.whole else matrix._is_entry()
    if known.distinct:
        return weights, is_entry

    def of_sums(first: jax.Array) -> tuple[jax.Array, jax.Array]:
        # Padding is a place of its own, with weights that may be NaN.
        sums = jnp.zeros_like(weights).at[first].add(jnp.where(is_entry, weights, 0))
        return sums, is_entry & (first == jnp.arange(matrix.nnz))

    def search() -> Any:
        first, repeated = matrix._first_of_places()
        return jax.lax.cond(repeated == 0, lambda: (weights, is_entry), lambda: of_sums(first))

    elements, used = jax.lax.cond(matrix._ascends(), lambda: (weights, is_entry), search)
    return elements, used
