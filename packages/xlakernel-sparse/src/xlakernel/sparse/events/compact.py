"""`CompactArray`: spikes as the indices of the active elements."""

from __future__ import annotations

import functools
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from xlakernel.core.errors import DtypeError, ShapeError, StructureError

from ..operators.active import positions_of
from ..operators.arguments import as_array, as_integer, check_size, index_array, is_known
from .arrays import EventArray, event_values


@jax.tree_util.register_pytree_with_keys_class
class CompactArray(EventArray):
    """Spikes as the indices of the active elements: ``events @ A`` with a `CSR` reads only these rows.

    Indices have no derivative: the gradient with respect to *value* is zero, unlike that of `BinaryArray`.

    Args:
      value: a vector of bool, integers or real numbers; elements that are not zero are active.

    Attributes:
      indices: the indices of the active elements, int32 or int64, ``(n,)``; from *count* on, they are ignored.
      count: the number of active elements, a 0-d integer.

    Raises:
      ShapeError: if *value* is not a vector.
      DtypeError: if *value* is of a dtype that `BinaryArray` does not take.

    Example:
      >>> import jax.numpy as jnp
      >>> from xlakernel.sparse import CompactArray
      >>> spikes = CompactArray(jnp.array([0.0, 1.0, 0.0, 1.0]))
      >>> print(spikes.indices[: spikes.count], spikes.count)
      [1 3] 2
    """

    __slots__ = ("_length", "count", "indices")
    _leaves = ("indices", "count")
    _static = ("_length",)
    indices: jax.Array
    count: jax.Array
    _length: int

    def __init__(self, value: Any) -> None:
        raw = event_values(type(self), value, real=True)
        if raw.ndim != 1:
            raise ShapeError(f"CompactArray: value has the shape {raw.shape}; expected a vector.")
        indices, count = positions_of(jax.lax.stop_gradient(raw))
        self._set(indices=indices, count=count, _length=int(raw.shape[0]))

    @classmethod
    def from_indices(cls, indices: Any, size: int, count: Any = None) -> Self:
        """Make an array from the indices of its active elements.

        Args:
          indices: the active elements, ``(capacity,)``, int32 or int64, in any order; repetitions count once. If
            *indices* or *count* is traced, indices out of range raise no error and are left out.
          size: the number of elements of the array.
          count: the number of *indices* that are used, an integer; None: all of them.

        Raises:
          InputError: if *indices* or *count* is not an array.
          ShapeError: if *indices* is not a vector, *size* is not a length, or *count* is negative or exceeds the number
            of *indices*.
          StructureError: if an index is out of range.
          DtypeError: if *indices* or *count* are not integers.
        """
        caller = f"{cls.__name__}.from_indices"
        size = check_size(caller, size)
        indices = index_array(caller, "indices", indices)
        count = indices.shape[0] if count is None else count
        known = as_integer(count) if is_known(count) else None
        if known is not None and not 0 <= known <= indices.shape[0]:
            raise ShapeError(f"{caller}: count is {known}; there are {indices.shape[0]} indices.")
        count = as_array(caller, "count", count if known is None else np.array(known, np.int32))
        if count.shape != () or count.dtype.kind not in "iu":
            raise DtypeError(f"{caller}: count is {count}; expected one integer.")
        if known is not None and is_known(indices):
            active = np.asarray(indices)[:known]
            wrong = active[(active < 0) | (active >= size)]
            if wrong.size:
                raise StructureError(
                    f"{caller}: the index {wrong[0]} is out of range; an array of {size} has 0 to {size - 1}."
                )
        indices, count = _compacted(_is_first(indices, count, size), indices)
        return object.__new__(cls)._set(indices=indices, count=count, _length=size)

    @property
    def value(self) -> jax.Array:
        """The events as a plain array, of bool."""
        self._check_single()
        active: jax.Array = _is_active(self.indices, self.count, self._length)
        return active

    @property
    def shape(self) -> tuple[int, ...]:
        """The extent."""
        return (self._length,)

    @property
    def dtype(self) -> Any:
        """Bool."""
        return np.dtype(bool)

    def _check_single(self) -> None:
        """Raise `ShapeError` for a batch of arrays, as `jax.vmap` returns it."""
        if len(self.indices.shape) != 1:
            raise ShapeError(
                f"CompactArray: this is a batch of arrays, with indices of shape {self.indices.shape}. Map over it, "
                "as in jax.vmap(lambda events: events @ A)(events)."
            )

    def __repr__(self) -> str:
        batch = getattr(self.indices, "shape", ())[:-1]
        text = super().__repr__()
        return f"{text[:-1]}, batch={batch})" if batch else text

    def __getitem__(self, index: Any) -> Any:
        part = self.value[index]
        return type(self)(part) if part.ndim == 1 else part


@jax.jit
def _compacted(active: jax.Array, indices: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the active *indices*, followed by zeros, and their number."""
    # The place of an active element is the number of active ones before it; inactive elements are dropped.
    place = jnp.where(active, jnp.cumsum(active, dtype=jnp.int32) - 1, active.shape[0])
    found = jnp.zeros_like(indices).at[place].set(indices, mode="drop", unique_indices=True)
    # Kernels rely on a count within the array. The sum may exceed it if bools are bytes other than 0 and 1, as those of
    # `np.frombuffer(...)` under jit.
    return found, jnp.minimum(jnp.sum(active, dtype=jnp.int32), active.shape[0])


@functools.partial(jax.jit, static_argnums=2)
def _is_first(indices: jax.Array, count: jax.Array, size: int) -> jax.Array:
    """Return True for those of the first *count* indices that are in range and not repetitions."""
    position = jnp.arange(indices.shape[0])
    is_valid = (position < count) & (indices >= 0) & (indices < size)
    # After a stable sort, equal indices are adjacent and in their original order.
    found, order = jax.lax.sort((indices, position), num_keys=1, is_stable=True)
    is_new = jnp.ones(indices.shape[0], bool).at[1:].set(found[1:] != found[:-1])
    return is_valid & jnp.zeros_like(is_new).at[order].set(is_new, unique_indices=True)


@functools.partial(jax.jit, static_argnums=2)
def _is_active(indices: jax.Array, count: jax.Array, length: int) -> jax.Array:
    counted = (jnp.arange(indices.shape[0]) < count) & (indices >= 0)
    place = jnp.where(counted, indices, length)
    return jnp.zeros(length, bool).at[place].set(True, mode="drop")
