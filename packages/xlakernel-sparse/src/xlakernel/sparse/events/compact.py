"""`CompactArray`: spikes as the numbers of the active elements."""

from __future__ import annotations

import functools
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from xlakernel.core.errors import DtypeError, ShapeError, StructureError

from ..operators.arguments import as_array, as_integer, check_size, index_array, is_known, known_stays_known
from .arrays import EventArray, checked


@jax.tree_util.register_pytree_with_keys_class
class CompactArray(EventArray):
    """Spikes as the numbers of the active elements: ``events @ A`` need not look at the others.

    Numbers have no derivative: the gradient with respect to *value* is zero, where `BinaryArray` passes it on.

    Args:
      value: a vector of bool, integers or real numbers; what is not zero is active.

    Attributes:
      indices: numbers of the active elements, int32, ``(capacity,)``; what is behind *count* does not matter.
      count: how many there are, a 0-d integer.

    Raises:
      ShapeError: if it is not a vector.
      DtypeError: if it is of a dtype that `BinaryArray` does not take.

    Example:
      >>> import jax.numpy as jnp
      >>> from xlakernel.sparse import CompactArray
      >>> spikes = CompactArray(jnp.array([0.0, 1.0, 0.0, 1.0]))
      >>> print(spikes.indices[: spikes.count], spikes.count)
      [1 3] 2
    """

    __slots__ = ("_length", "count", "indices")
    indices: jax.Array
    count: jax.Array
    _length: int

    def __init__(self, value: Any) -> None:
        raw = checked(type(self), value, real=True)
        if raw.ndim != 1:
            raise ShapeError(f"CompactArray: value has the shape {raw.shape}; expected a vector.")
        indices, count = _active_numbers(jax.lax.stop_gradient(raw))
        self._set(indices=indices, count=count, _length=int(raw.shape[0]))

    @classmethod
    def from_indices(cls, indices: Any, size: int, count: Any = None) -> Self:
        """Make an array from the numbers of its active elements.

        Args:
          indices: the numbers, ``(capacity,)``, int32 or int64, each at most once. They are checked; where they or
            *count* are traced, those that are out of range, and repetitions, are left out.
          size: how many elements the array has.
          count: how many of *indices* are active; None: all of them.

        Raises:
          InputError: if *indices* or *count* is no array.
          ShapeError: if *indices* is not a vector, *count* is more than its length, or *size* no length.
          StructureError: if a number is out of range or there twice.
          DtypeError: if they are not integers.
        """
        who = f"{cls.__name__}.from_indices"
        size = check_size(who, size)
        indices = index_array(who, "indices", indices)
        count = indices.shape[0] if count is None else count
        number = as_integer(count) if is_known(count) else None
        if number is not None:  # JAX may have no room for it
            _check_count(who, number, indices.shape[0])
            count = np.array(number, np.int32)
        with known_stays_known(count):
            count = as_array(who, "count", count)
        if count.shape != () or count.dtype.kind not in "iu":
            raise DtypeError(f"{who}: count is {count}; expected one integer.")
        if number is None or isinstance(indices, jax.core.Tracer):
            # Kernels read the rows of these numbers without looking.
            indices, count = _compacted(_is_first(indices, count, size), indices)
        else:
            _check_numbers(who, np.asarray(indices), number, size)
        return object.__new__(cls)._set(indices=indices, count=count, _length=size)

    @property
    def value(self) -> jax.Array:
        """The array as a plain one, of bool."""
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
        """Raise `ShapeError` if these are several, as `jax.vmap` returns them."""
        if len(self.indices.shape) != 1:
            raise ShapeError(
                f"CompactArray: these are several in one, with numbers of shape {self.indices.shape}. Map over them, "
                "as jax.vmap(lambda events: events @ A)(events)."
            )

    def __repr__(self) -> str:
        several = getattr(self.indices, "shape", ())[:-1]  # as `jax.vmap` returns them
        text = super().__repr__()
        return f"{text[:-1]}, batch={several})" if several else text

    def _part(self, part: jax.Array) -> Any:
        return super()._part(part) if part.ndim == 1 else part

    def tree_flatten_with_keys(self) -> Any:
        """Return the leaves and what is static; for JAX."""
        keys = [jax.tree_util.GetAttrKey(name) for name in ("indices", "count")]
        return list(zip(keys, (self.indices, self.count), strict=True)), self._length

    @classmethod
    def tree_unflatten(cls, length: int, leaves: Any) -> Self:
        """Return the array that was flattened; for JAX."""
        indices, count = leaves
        return object.__new__(cls)._set(indices=indices, count=count, _length=length)


@jax.jit
def _active_numbers(raw: jax.Array) -> tuple[jax.Array, jax.Array]:
    return _compacted(raw.astype(bool), jnp.arange(raw.shape[0], dtype=jnp.int32))


@functools.partial(jax.jit, static_argnums=2)
def _is_active(indices: jax.Array, count: jax.Array, length: int) -> jax.Array:
    counted = jnp.arange(indices.shape[0]) < count
    place = jnp.where(counted, indices, length)
    return jnp.zeros(length, bool).at[place].set(True, mode="drop")


def _is_first(indices: jax.Array, count: jax.Array, size: int) -> jax.Array:
    """Return which of *indices* are among the first *count*, below *size* and not there before."""
    position = jnp.arange(indices.shape[0])
    valid = (position < count) & (indices >= 0) & (indices < size)
    # Sorted by numbers, what is there before comes before; and what is behind *count* comes after what is not.
    numbers, order = jax.lax.sort((indices, position), num_keys=1, is_stable=True)
    is_new = jnp.ones(indices.shape[0], bool).at[1:].set(numbers[1:] != numbers[:-1])
    return valid & jnp.zeros_like(is_new).at[order].set(is_new, unique_indices=True)


def _compacted(active: jax.Array, numbers: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return *numbers* with those that are active first, and how many these are."""
    # Each active one goes where the number of active ones before it says; the others out of range.
    place = jnp.where(active, jnp.cumsum(active, dtype=jnp.int32) - 1, active.shape[0])
    found = jnp.zeros_like(numbers).at[place].set(numbers, mode="drop", unique_indices=True)
    return found, jnp.sum(active, dtype=jnp.int32)


def _check_count(who: str, count: int, capacity: int) -> None:
    if not 0 <= count <= capacity:
        raise ShapeError(f"{who}: count is {count}; there are {capacity} indices.")


def _check_numbers(who: str, indices: np.ndarray, count: int, size: int) -> None:
    _check_count(who, count, indices.size)
    active = indices[:count]
    if active.size and not (active.min() >= 0 and active.max() < size):
        wrong = int(active[(active < 0) | (active >= size)][0])
        raise StructureError(f"{who}: the number {wrong} is out of range; an array of {size} has 0 to {size - 1}.")
    if np.unique(active).size != active.size:
        raise StructureError(f"{who}: a number is there more than once; each active element is named once.")
