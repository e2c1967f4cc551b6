"""`Multiplied`: the base of matrices, with their products and sums."""

from __future__ import annotations

import abc
import functools
import math
from typing import Any, Self

import jax
import jax.numpy as jnp

from xlakernel.core.backend import jit_when_eager
from xlakernel.core.errors import InputError, ShapeError

from .._immutable import ImmutablePytree
from ..events.arrays import EventArray
from ..events.compact import CompactArray
from ..operators.arguments import as_array, as_integer
from ..operators.dtypes import accumulator
from ..operators.operand import DENSE, Operand
from ..operators.units import bilinear, linear
from .interchange import is_scipy_sparse


class Multiplied(ImmutablePytree, abc.ABC):
    """An immutable matrix: products with dense operands and events, and the results that products give."""

    __slots__ = ()
    ndim = 2

    shape: tuple[int, int]

    @property
    @abc.abstractmethod
    def dtype(self) -> Any:
        """The dtype of the weights."""

    @abc.abstractmethod
    def astype(self, dtype: Any) -> Self:
        """Return the matrix with weights of another dtype."""

    @abc.abstractmethod
    def todense(self) -> jax.Array:
        """Return the matrix as a dense array, ``(rows, columns)``."""

    @abc.abstractmethod
    def _check_single(self) -> None:
        """Raise `ShapeError` for a batch of matrices, as `jax.vmap` returns it."""

    @abc.abstractmethod
    def _multiply(self, operand: Operand, x: jax.Array, *, transpose: bool, caller: str) -> jax.Array:
        """Return the product with *x* of rank 1 or 2."""

    @abc.abstractmethod
    def _multiply_compact(self, events: CompactArray, *, transpose: bool, caller: str) -> jax.Array:
        """Return the product with the indices of active elements."""

    # Products.

    def __matmul__(self, other: Any) -> jax.Array:
        has_unit = hasattr(other, "unit") or hasattr(getattr(self, "data", None), "unit")
        multiply = _product_of_quantities if has_unit else _compiled_product
        product: jax.Array = multiply(self, other, transpose=False)
        return product

    def __rmatmul__(self, other: Any) -> jax.Array:
        has_unit = hasattr(other, "unit") or hasattr(getattr(self, "data", None), "unit")
        multiply = _product_of_quantities if has_unit else _compiled_product
        product: jax.Array = multiply(self, other, transpose=True)
        return product

    def _checked_product(self, other: Any, *, transpose: bool) -> jax.Array:
        """Return ``self @ other``; ``other @ self`` if *transpose*."""
        caller = f"x @ {type(self).__name__}" if transpose else f"{type(self).__name__} @ x"
        self._check_single()
        is_scipy = is_scipy_sparse(other)
        if isinstance(other, Multiplied) or is_scipy:
            raise InputError(
                f"{caller}: both are sparse. Only CSR, CSC and COO are multiplied by each other: "
                + ("convert the other by CSR.from_scipy." if is_scipy else "multiply one after the other, A @ (B @ x).")
            )
        if isinstance(other, CompactArray):
            other._check_single()
            self._check_extent(caller, (other.size,), transpose)
            return self._multiply_compact(other, transpose=transpose, caller=caller)
        operand, x = (other.operand, other.operand_array()) if isinstance(other, EventArray) else (DENSE, other)
        x = as_array(caller, "x", x)
        self._check_extent(caller, x.shape, transpose)
        if transpose and x.ndim == 2:
            return self._multiply(operand, x.T, transpose=True, caller=caller).T
        return self._multiply(operand, x, transpose=transpose, caller=caller)

    def _check_extent(self, caller: str, shape: tuple[int, ...], transpose: bool) -> None:
        length = self.shape[0 if transpose else 1]
        axis = -1 if transpose else 0
        if len(shape) not in (1, 2) or shape[axis] != length:
            matrix = f"(k, {length})" if transpose else f"({length}, k)"
            hint = ""
            if len(shape) in (1, 2) and shape[-1 - axis] == self.shape[1 if transpose else 0]:
                hint = f" It fits on the other side: {'A @ x' if transpose else 'x @ A'}."
            elif len(shape) == 2 and shape[-1 - axis] == length:
                hint = " It fits transposed: give x.T."
            raise ShapeError(
                f"{caller}: x has the shape {shape}; with a matrix of shape {self.shape} it must be ({length},) or "
                f"{matrix}.{hint}"
            )

    def toarray(self) -> jax.Array:
        """Return the matrix as a dense array, ``(rows, columns)``, like `todense`."""
        return self.todense()

    @linear
    def sum(self, axis: int | None = None, dtype: Any = None) -> jax.Array:
        """Add up the entries.

        Args:
          axis: 0 or -2 for the sum of each column, ``(columns,)``; 1 or -1 for the sum of each row, ``(rows,)``; None
            for the sum of all entries.
          dtype: of the result; None for the one that ``jax.numpy.sum`` gives to an array of the matrix's dtype.

        Raises:
          ShapeError: if the axis does not exist.
        """
        self._check_axis("sum", axis)
        total: jax.Array = _compiled_sum(self, axis, None if dtype is None else jnp.dtype(dtype))
        return total

    def _summed(self, axis: int | None, dtype: Any) -> jax.Array:
        """Return the sums along *axis*, 0 or 1, or of all entries if it is None, in *dtype*."""
        if axis is None:  # sums of rows may overflow half precision where the sum of all does not
            wide = accumulator(dtype)
            return jnp.sum(self.astype(wide) @ jnp.ones(self.shape[1], wide)).astype(dtype)
        matrix, ones = self.astype(dtype), jnp.ones(self.shape[axis], dtype)
        return ones @ matrix if axis == 0 else matrix @ ones

    @linear
    def mean(self, axis: int | None = None, dtype: Any = None) -> jax.Array:
        """Return the mean of the elements, including zeros that are not stored.

        Args:
          axis: 0 or -2 for the mean of each column, ``(columns,)``; 1 or -1 for the mean of each row, ``(rows,)``; None
            for the mean of all elements.
          dtype: of the result; None for the one that ``jax.numpy.mean`` gives to an array of the matrix's dtype.

        Raises:
          ShapeError: if the axis does not exist.
        """
        self._check_axis("mean", axis)
        mean: jax.Array = _compiled_mean(self, axis, None if dtype is None else jnp.dtype(dtype))
        return mean

    def _check_axis(self, method: str, axis: Any) -> None:
        if axis is not None and as_integer(axis) not in (0, 1, -1, -2):
            raise ShapeError(f"{type(self).__name__}.{method}: axis is {axis!r}; allowed: 0, 1, -1, -2 or None.")


def _sum(matrix: Multiplied, axis: int | None, dtype: Any) -> jax.Array:
    return matrix._summed(None if axis is None else axis % 2, _dtype_of(jnp.sum, matrix, dtype))


def _mean(matrix: Multiplied, axis: int | None, dtype: Any) -> jax.Array:
    dtype = _dtype_of(jnp.mean, matrix, dtype)
    # Divide by a float, because the number of all elements may exceed JAX's integers.
    places = float(math.prod(matrix.shape) if axis is None else matrix.shape[axis])
    return (matrix.astype(accumulator(dtype)).sum(axis) / places).astype(dtype)


def _dtype_of(function: Any, matrix: Multiplied, dtype: Any) -> Any:
    """Return the dtype of *function* of an array of the matrix's dtype, where *dtype* is asked for."""
    return jax.eval_shape(functools.partial(function, dtype=dtype), jax.ShapeDtypeStruct((1,), matrix.dtype)).dtype


_compiled_sum = jit_when_eager(_sum, static_argnums=(1, 2))
_compiled_mean = jit_when_eager(_mean, static_argnums=(1, 2))


def _checked_product(matrix: Multiplied, other: Any, *, transpose: bool) -> jax.Array:
    return matrix._checked_product(other, transpose=transpose)


_compiled_product = jit_when_eager(_checked_product, static_argnames="transpose")
_product_of_quantities = bilinear(_compiled_product)
