"""`BitPackedArray`: spikes as single bits."""

from __future__ import annotations

import functools
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from xlakernel.core.errors import DtypeError, ShapeError

from ..operators.arguments import as_array, check_size
from .arrays import EventArray, event_values

_WORD = 32


@jax.tree_util.register_pytree_with_keys_class
class BitPackedArray(EventArray):
    """Spikes as single bits, for recordings and transfers; they take a 32nd of the memory of float32.

    Bits have no derivative: the gradient with respect to *value* is zero, unlike that of `BinaryArray`.

    Args:
      value: the array, of at least one dimension; elements that are not zero are active.

    Attributes:
      words: the bits in 32-bit words, uint32, ``(..., ceil(n / 32))``. Element ``j`` of the last axis is bit
        ``j % 32`` of word ``j // 32``.

    Raises:
      DtypeError: if *value* is of a dtype that `BinaryArray` does not take.
      ShapeError: if *value* has no dimension.

    Example:
      >>> import jax.numpy as jnp
      >>> from xlakernel.sparse import BitPackedArray
      >>> spikes = BitPackedArray(jnp.array([True, False, True, True]))
      >>> print(spikes.words, spikes.sum())
      [13] 3
    """

    __slots__ = ("_length", "words")
    _leaves = ("words",)
    _static = ("_length",)
    words: jax.Array
    _length: int

    def __init__(self, value: Any) -> None:
        array = event_values(type(self), value, real=True)
        if array.ndim == 0:
            raise ShapeError("BitPackedArray: value has no dimension; expected at least one, which is packed.")
        self._set(words=_pack(jax.lax.stop_gradient(array)), _length=int(array.shape[-1]))

    @classmethod
    def from_words(cls, words: Any, size: int) -> Self:
        """Make an array from its words of bits.

        Args:
          words: uint32, ``(..., ceil(size / 32))``; see `BitPackedArray`. Bits from *size* on are ignored.
          size: the length of the last axis.

        Raises:
          InputError: if *words* is not an array.
          DtypeError: if *words* is not of uint32.
          ShapeError: if the number of words does not fit *size*, or *size* is not a length.
        """
        size = check_size(cls.__name__, size)
        words = as_array(cls.__name__, "words", words)
        if words.dtype != jnp.uint32:
            raise DtypeError(f"{cls.__name__}: words is of dtype {words.dtype}; expected uint32.")
        packed = cls._of(words=words, _length=size)
        packed._check_words()
        return packed

    def _check_words(self) -> None:
        needed = -(-self._length // _WORD)
        if self.words.shape[-1:] != (needed,):  # after `jax.vmap` over the last axis
            raise ShapeError(
                f"{type(self).__name__}: words has the shape {self.words.shape}; {self._length} bits take "
                f"(..., {needed}) words of 32. The last axis, which is packed, cannot be mapped over."
            )

    @property
    def value(self) -> jax.Array:
        """The events as a plain array, of bool."""
        self._check_words()
        active: jax.Array = _unpack(self.words, self._length)
        return active

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents."""
        return (*self.words.shape[:-1], self._length)

    @property
    def dtype(self) -> Any:
        """Bool."""
        return np.dtype(bool)


@functools.partial(jax.jit, static_argnums=1)
def _unpack(words: jax.Array, length: int) -> jax.Array:
    bits = (words[..., None] >> _places(words.ndim + 1)) & 1
    return bits.reshape(*bits.shape[:-2], bits.shape[-2] * _WORD)[..., :length].astype(bool)


@jax.jit
def _pack(array: jax.Array) -> jax.Array:
    active = array.astype(bool)
    length = active.shape[-1]
    padding = [(0, 0)] * (active.ndim - 1) + [(0, -length % _WORD)]
    bits = jnp.pad(active, padding).astype(jnp.uint32).reshape(*active.shape[:-1], -(-length // _WORD), _WORD)
    return jnp.sum(bits << _places(bits.ndim), axis=-1, dtype=jnp.uint32)


def _places(rank: int) -> jax.Array:
    """Return the numbers 0 to 31 along the last of *rank* axes, because JAX's rank promotion may be switched off."""
    return jnp.arange(_WORD, dtype=jnp.uint32).reshape((1,) * (rank - 1) + (_WORD,))
