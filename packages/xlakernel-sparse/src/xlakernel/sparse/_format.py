"""`Format`: what a matrix in one of the formats is and says of itself."""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np

from xlakernel.core.errors import ArgumentError, InputError

from .operators.arguments import as_integer
from .operators.operand import Operand

if TYPE_CHECKING:
    from ._compact import CompactArray
    from ._coo import COO
    from ._matrix import SparseMatrix


class Format(abc.ABC):
    """An immutable matrix, what its format must say, and what arrays have; the first base of `SparseMatrix`."""

    __slots__ = ("data", "shape")

    #: NumPy leaves operators between its arrays and these to us.
    __array_ufunc__ = None
    ndim = 2

    data: jax.Array
    shape: tuple[int, int]

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(
            f"{type(self).__name__} is immutable: {name} cannot be set. A.with_data(new) returns the matrix with other "
            "weights."
        )

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{type(self).__name__} is immutable: {name} cannot be deleted.")

    def __setstate__(self, state: Any) -> None:
        _, attributes = state  # what pickle and copy found in the slots
        self._set(**attributes)

    def __setitem__(self, index: Any, value: Any) -> None:
        raise TypeError(
            f"{type(self).__name__} is immutable: elements cannot be set. A.with_data(A.data.at[k].set(value)) returns "
            "the matrix with another weight of entry k."
        )

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        # Without this NumPy would make an array of one object, and np.dot(A, x) an array of matrices.
        raise InputError(
            f"{type(self).__name__}: {self!r} is not made dense unless it is asked for. A.todense() returns a dense "
            "array, A.to_scipy() a sparse one of SciPy's, for S @ A.to_scipy(); a product is A @ x."
        )

    def _set(self, **attributes: Any) -> Self:
        for name, value in attributes.items():
            object.__setattr__(self, name, value)
        return self

    def _like(self, **attributes: Any) -> Self:
        """Return the matrix with other *attributes*, unchecked."""
        known = {name: getattr(self, name) for name in ("shape", *self._leaves)}
        return object.__new__(type(self))._set(**{**known, **attributes})

    # For JAX.

    def tree_flatten(self) -> Any:
        """Return the leaves and what is static; for JAX, in each jitted call."""
        return [getattr(self, name) for name in self._leaves], self.shape

    def tree_flatten_with_keys(self) -> Any:
        """Return the leaves with their names, and what is static; for JAX."""
        return [(jax.tree_util.GetAttrKey(name), getattr(self, name)) for name in self._leaves], self.shape

    @classmethod
    def tree_unflatten(cls, shape: Any, leaves: Any) -> Self:
        """Return the matrix that was flattened; for JAX."""
        return object.__new__(cls)._set(shape=shape, **dict(zip(cls._leaves, leaves, strict=True)))

    # What a format says of itself.

    #: The attributes that are leaves, besides the static `shape`.
    _leaves: ClassVar[tuple[str, ...]]
    #: The name of SciPy's class, and its attributes of our constructor's arrays.
    _scipy: ClassVar[tuple[str, tuple[str, str, str]]]

    @abc.abstractmethod
    def __init__(self, arrays: Any, shape: Any = None, *, check: bool | None = None) -> None: ...

    @classmethod
    @abc.abstractmethod
    def _convert(cls, matrix: SparseMatrix) -> Self:
        """Return *matrix* in this format."""

    @classmethod
    @abc.abstractmethod
    def _of_entries(cls, entries: COO, *, in_range: bool = False) -> Self:
        """Return *entries* in this format; *in_range* says that none needs to be looked at."""

    @property
    @abc.abstractmethod
    def structure(self) -> tuple[jax.Array, jax.Array]:
        """The index arrays."""

    @property
    @abc.abstractmethod
    def T(self) -> SparseMatrix:
        """The transposed matrix, of the same arrays."""

    @abc.abstractmethod
    def coordinates(self) -> tuple[jax.Array, jax.Array]:
        """Return the row and the column of each entry, ``(nnz,)``; for padding those of *shape*, out of range."""

    @abc.abstractmethod
    def _is_entry(self) -> jax.Array:
        """Return which entries are no padding, ``(nnz,)``."""

    @abc.abstractmethod
    def with_data(self, data: Any) -> Self:
        """Return the matrix with other weights, and all else as it is.

        Args:
          data: the weights, ``(nnz,)``, or ``(1,)`` where all are to be equal, of any dtype that a matrix may have.

        Raises:
          ShapeError: if it has another length.
          DtypeError: if its dtype is not supported.
        """

    @abc.abstractmethod
    def _multiply(self, operand: Operand, x: jax.Array, *, transpose: bool, who: str) -> jax.Array:
        """Return the product with *x* of rank 1 or 2."""

    @abc.abstractmethod
    def _multiply_compact(self, events: CompactArray, *, transpose: bool, who: str) -> jax.Array:
        """Return the product with active numbers."""

    # What arrays have.

    @property
    def dtype(self) -> Any:
        """The dtype of the weights."""
        return self.data.dtype

    @property
    def nnz(self) -> int:
        """How many entries are stored, zeros, duplicates and padding among them."""
        return self.structure[0].shape[-1]  # symbolic where a program is exported for any number

    @property
    def homogeneous(self) -> bool:
        """Whether all entries have one weight, which *data* then holds alone."""
        return self.data.shape == (1,)

    def __repr__(self) -> str:
        leaves = (self.data, *self.structure)
        if not all(hasattr(leaf, "dtype") for leaf in leaves):  # JAX puts other things into pytrees
            return f"{type(self).__name__}({leaves}, shape={self.shape})"
        weights = ", equal weights" if self.homogeneous and self.nnz != 1 else ""
        rows, columns = self.shape
        several = self.structure[0].shape[:-1]  # as jax.vmap returns matrices
        batch = f", batch={several}" if several else ""
        return f"{type(self).__name__}({self.dtype.name}[{rows},{columns}], nnz={self.nnz}{weights}{batch})"

    def transpose(self, *axes: Any, copy: bool = False) -> SparseMatrix:
        """Return the transposed matrix, of the same arrays: `T`.

        Args:
          *axes: as the methods of JAX and SciPy take them: nothing, None, or 1 and 0, also as a tuple.
          copy: as SciPy takes it; nothing is copied, since nothing can change.

        Raises:
          ArgumentError: if *axes* are others, which would not transpose.
        """
        order = axes[0] if len(axes) == 1 else axes or None
        if order is not None and (not isinstance(order, (tuple, list)) or [as_integer(a) for a in order] != [1, 0]):
            given = ", ".join(map(repr, axes))
            raise ArgumentError(
                f"{type(self).__name__}.transpose: axes are {given}; allowed: none, None, (1, 0), or 1, 0. A matrix "
                "that is not to be transposed is A itself."
            )
        return self.T

    def astype(self, dtype: Any) -> Self:
        """Return the matrix with weights of another dtype.

        Args:
          dtype: one that a matrix may have.
        """
        return self.with_data(self.data.astype(dtype))

    def conj(self) -> Self:
        """Return the matrix with conjugated weights."""
        return self.with_data(jnp.conj(self.data))

    def copy(self) -> Self:
        """Return the matrix itself, which cannot change."""
        return self
