"""`Elements`: functions of the elements, with SciPy's names. Duplicates are added up first."""

from __future__ import annotations

import abc
import functools
import operator
from collections.abc import Callable
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from xlakernel.core.backend import jit_when_eager
from xlakernel.core.errors import ArgumentError, DtypeError, ShapeError, StructureError

from ..operators.arguments import as_integer
from ..operators.dtypes import accumulator
from .arithmetic import Arithmetic, entry_weights

_REALS = (int, float, np.integer, np.floating)


class Elements(Arithmetic, abc.ABC):
    """Functions of the elements that keep zeros, and the extremes and places of elements; a base of `SparseMatrix`.

    The result of a function has the structure of the matrix, and a weight for each entry, even if the weights of the
    matrix are all equal: places with duplicates get other weights. Without duplicates, ``A.with_data(f(A.data))`` is
    the same matrix, and keeps one weight for all entries.
    """

    __slots__ = ()

    def __abs__(self) -> Self:
        if self.homogeneous:  # equal weights cannot cancel each other
            return self.with_data(jnp.abs(self.data))
        return self._map(jnp.abs)

    def __pow__(self, n: Any) -> Self:
        return self.power(n)

    def power(self, n: float) -> Self:
        """Raise each element to a power, like ``**``.

        Args:
          n: the exponent, a number above 0. With other exponents, zeros that are not stored would become nonzero.

        Raises:
          ArgumentError: if *n* is not a number above 0.
        """
        if not isinstance(n, _REALS) or not n > 0:
            raise ArgumentError(
                f"{type(self).__name__} ** n: n is {n!r}; expected a number above 0, for which zeros stay zeros. "
                "For other powers of the entries alone write A.with_data(A.data**n); for a dense result "
                "A.todense() ** n; for a product of matrices A @ x."
            )
        return self._map(operator.pow, n)

    def maximum(self, other: float) -> Self:
        """Return the maximum of each element and a number.

        Args:
          other: a number of at most 0, so that zeros that are not stored stay zeros.

        Raises:
          ArgumentError: if *other* is not such a number.
          DtypeError: if the elements are complex.
        """
        if not isinstance(other, _REALS) or not other <= 0:
            raise self._refusal("maximum", other, "a number of at most 0")
        return self._map_real("maximum", jnp.maximum, _in_range(other, self.dtype))

    def minimum(self, other: float) -> Self:
        """Return the minimum of each element and a number.

        Args:
          other: a number of at least 0, so that zeros that are not stored stay zeros.

        Raises:
          ArgumentError: if *other* is not such a number.
          DtypeError: if the elements are complex.
        """
        if not isinstance(other, _REALS) or not other >= 0:
            raise self._refusal("minimum", other, "a number of at least 0")
        return self._map_real("minimum", jnp.minimum, _in_range(other, self.dtype))

    @property
    def real(self) -> Self:
        """The real parts of the elements."""
        return self.with_data(jnp.real(self.data))

    @property
    def imag(self) -> Self:
        """The imaginary parts of the elements."""
        return self.with_data(jnp.imag(self.data))

    def sqrt(self) -> Self:
        """Return the square root of each element."""
        return self._map(jnp.sqrt)

    def sign(self) -> Self:
        """Return the sign of each element; of a complex number z, z / abs(z)."""
        return self._map(jnp.sign)

    def sin(self) -> Self:
        """Return the sine of each element."""
        return self._map(jnp.sin)

    def tan(self) -> Self:
        """Return the tangent of each element."""
        return self._map(jnp.tan)

    def arcsin(self) -> Self:
        """Return the inverse sine of each element."""
        return self._map(jnp.arcsin)

    def arctan(self) -> Self:
        """Return the inverse tangent of each element."""
        return self._map(jnp.arctan)

    def sinh(self) -> Self:
        """Return the hyperbolic sine of each element."""
        return self._map(jnp.sinh)

    def tanh(self) -> Self:
        """Return the hyperbolic tangent of each element."""
        return self._map(jnp.tanh)

    def arcsinh(self) -> Self:
        """Return the inverse hyperbolic sine of each element."""
        return self._map(jnp.arcsinh)

    def arctanh(self) -> Self:
        """Return the inverse hyperbolic tangent of each element."""
        return self._map(jnp.arctanh)

    def expm1(self) -> Self:
        """Return exp(x) - 1 for each element x."""
        return self._map(jnp.expm1)

    def log1p(self) -> Self:
        """Return log(1 + x) for each element x."""
        return self._map(jnp.log1p)

    def rint(self) -> Self:
        """Return each element, rounded to the nearest integer, and to the even one of two that are equally near."""
        return self._map(jnp.rint)

    def floor(self) -> Self:
        """Return the largest integer that is at most x, for each element x, which must be real."""
        return self._map_real("floor", jnp.floor)

    def ceil(self) -> Self:
        """Return the smallest integer that is at least x, for each element x, which must be real."""
        return self._map_real("ceil", jnp.ceil)

    def trunc(self) -> Self:
        """Return each element without its fraction; elements must be real."""
        return self._map_real("trunc", jnp.trunc)

    def deg2rad(self) -> Self:
        """Convert each element, a real number of degrees, to radians."""
        return self._map_real("deg2rad", jnp.deg2rad)

    def rad2deg(self) -> Self:
        """Convert each element, a real number of radians, to degrees."""
        return self._map_real("rad2deg", jnp.rad2deg)

    def _map(self, function: Callable[..., Any], *numbers: Any) -> Self:
        """Return the matrix of ``function(element, *numbers)``, where the function of 0 is 0."""
        # JAX takes static arguments that are equal, 2 and 2.0, for the same; with their types, they differ.
        return self.with_data(_mapped_elements(self, function, tuple((type(number), number) for number in numbers)))

    def _map_real(self, method: str, function: Callable[..., Any], *numbers: Any) -> Self:
        self._check_real(method)
        return self._map(function, *numbers)

    def _check_real(self, method: str) -> None:
        if jnp.issubdtype(self.dtype, jnp.complexfloating):
            raise DtypeError(
                f"{type(self).__name__}.{method}: the matrix is of dtype {self.dtype}; expected integers or real "
                "numbers. A.real and A.imag are the parts of complex numbers."
            )

    def _refusal(self, method: str, other: Any, allowed: str) -> ArgumentError:
        return ArgumentError(
            f"{type(self).__name__}.{method}: other is {other!r:.100}; expected {allowed}, for which zeros stay zeros. "
            f"For a dense result write jnp.{method}(A.todense(), other)."
        )

    # Dense results.

    def max(self, axis: int | None = None, *, explicit: bool = False) -> jax.Array:
        """Return the greatest elements, NaN where an element is NaN.

        Args:
          axis: 0 or -2 for the maximum of each column, ``(columns,)``; 1 or -1 for that of each row, ``(rows,)``; None
            for that of the matrix, ``()``.
          explicit: if True, zeros that are not stored are left out. Where nothing is stored, the maximum is 0.

        Raises:
          ShapeError: if the axis does not exist, or has no elements.
          DtypeError: if the elements are complex.
        """
        return self._extreme("max", axis, explicit)

    def min(self, axis: int | None = None, *, explicit: bool = False) -> jax.Array:
        """Return the smallest elements, NaN where an element is NaN.

        Args:
          axis: 0 or -2 for the minimum of each column, ``(columns,)``; 1 or -1 for that of each row, ``(rows,)``; None
            for that of the matrix, ``()``.
          explicit: if True, zeros that are not stored are left out. Where nothing is stored, the minimum is 0.

        Raises:
          ShapeError: if the axis does not exist, or has no elements.
          DtypeError: if the elements are complex.
        """
        return self._extreme("min", axis, explicit)

    def _extreme(self, method: str, axis: int | None, explicit: bool) -> jax.Array:
        self._check_axis(method, axis)
        self._check_real(method)
        if 0 in (self.shape if axis is None else (self.shape[axis],)):
            raise ShapeError(f"{type(self).__name__}.{method}: a matrix of shape {self.shape} has no elements there.")
        found: jax.Array = _compiled_extreme(self, method, None if axis is None else axis % 2, bool(explicit))
        return found

    def trace(self, offset: int = 0) -> jax.Array:
        """Return the sum of a diagonal; see `diagonal`.

        Args:
          offset: 0 for the main diagonal, positive for those above it, negative for those below.

        Raises:
          ArgumentError: if *offset* is not an integer.
        """
        return jnp.sum(self.diagonal(offset))

    def count_nonzero(self, axis: int | None = None) -> jax.Array:
        """Count the elements that are not zero; stored zeros are not counted.

        Args:
          axis: 0 or -2 to count those of each column, ``(columns,)``; 1 or -1 for each row, ``(rows,)``; None for all.

        Raises:
          ShapeError: if the axis does not exist.
        """
        self._check_axis("count_nonzero", axis)
        return self._map(_is_nonzero).sum(axis)

    def nonzero(self, *, size: int | None = None) -> tuple[jax.Array, jax.Array]:
        """Return the rows and the columns of the elements that are not zero, in the order of the entries.

        Args:
          size: the length of the results; None: the number of these elements, which must be known: under jit, *size* is
            necessary. Results that are longer are filled up with the rows and columns of *shape*, out of range.

        Raises:
          ArgumentError: if *size* is not a number.
          StructureError: if *size* is None, and the matrix is traced.
        """
        number = None if size is None else as_integer(size)
        if (size is not None and number is None) or (number is not None and number < 0):
            raise ArgumentError(f"{type(self).__name__}.nonzero: size is {size!r}; expected a number, or None.")
        is_nonzero = self._map(_is_nonzero).data != 0
        if number is None:
            if isinstance(is_nonzero, jax.core.Tracer):
                raise StructureError(
                    f"{type(self).__name__}.nonzero: the matrix is traced, so the number of elements that are not zero "
                    "is not known. Give an upper bound: A.nonzero(size=A.nnz)."
                )
            number = int(is_nonzero.sum())
        row, column = self.coordinates()
        padded = [jnp.append(along, extent) for along, extent in zip((row, column), self.shape, strict=True)]
        (entries,) = jnp.nonzero(is_nonzero, size=number, fill_value=self.nnz)
        return padded[0][entries], padded[1][entries]


def _in_range(number: Any, dtype: Any) -> Any:
    """Return the integer that is nearest to *number* in *dtype*, where JAX would wrap an integer of Python."""
    if isinstance(number, int) and jnp.issubdtype(dtype, jnp.integer):
        return max(int(np.iinfo(dtype).min), min(number, int(np.iinfo(dtype).max)))
    return number


def _is_nonzero(element: jax.Array) -> jax.Array:
    return (element != 0).astype(jnp.result_type(int))


@functools.partial(jax.jit, static_argnums=(1, 2))  # outside of jit each call would compile its cond anew
def _mapped_elements(
    matrix: Arithmetic, function: Callable[..., Any] | None, typed: tuple[tuple[type, Any], ...] = ()
) -> Any:
    """Return weights that add up, at each place, to *function* of the element there.

    The first entry of a place (a row and column) gets the result; duplicates of the entry, and padding, get 0.

    Args:
      matrix: the matrix.
      function: a function of the elements, and of numbers. None: return the elements, and an array that is True for the
        first entries of places.
      typed: the types of the numbers and the numbers.
    """
    numbers = [number for _, number in typed]

    def finish(used: jax.Array, elements: jax.Array) -> Any:
        if function is None:
            return jnp.where(used, elements, 0), used
        # Functions and their derivatives may be infinite at 0: elements that are not used are set to 1.
        return jnp.where(used, function(jnp.where(used, elements, 1), *numbers), 0)

    def of_distinct(is_distinct: jax.Array) -> Any:
        return finish(matrix._is_entry() & is_distinct, matrix.data)  # under vmap, both branches are computed

    def of_sums(first: jax.Array) -> Any:
        weights = jnp.broadcast_to(entry_weights(matrix), matrix.nnz)
        sums = jnp.zeros(matrix.nnz, accumulator(matrix.dtype)).at[first].add(weights).astype(matrix.dtype)
        return finish(matrix._is_entry() & (first == jnp.arange(matrix.nnz)), sums)

    def search() -> Any:
        first, repeated = matrix._first_of_places()
        return jax.lax.cond(repeated == 0, lambda: of_distinct(repeated == 0), lambda: of_sums(first))

    ascends = matrix._ascends()
    return jax.lax.cond(ascends, lambda: of_distinct(ascends), search)


def _extreme(matrix: Elements, method: str, axis: int | None, explicit: bool) -> jax.Array:
    """Return the maxima or minima along *axis*, 0 or 1, or of all elements if it is None."""
    elements, used = _mapped_elements(matrix, None)
    is_max = method == "max"
    if jnp.issubdtype(matrix.dtype, jnp.inexact):
        worst: Any = -jnp.inf if is_max else jnp.inf
    else:
        worst = np.iinfo(matrix.dtype).min if is_max else np.iinfo(matrix.dtype).max
    better = jnp.maximum if is_max else jnp.minimum
    elements = jnp.where(used, elements, jnp.asarray(worst, matrix.dtype))
    if axis is None:
        found = jnp.max(elements, initial=worst) if is_max else jnp.min(elements, initial=worst)
        stored, places = jnp.sum(used), matrix.shape[0] * matrix.shape[1]
    else:
        reduce = jax.ops.segment_max if is_max else jax.ops.segment_min
        line, places = matrix.coordinates()[1 - axis], matrix.shape[axis]
        found = reduce(elements, line, matrix.shape[1 - axis])
        stored = jax.ops.segment_sum(used.astype(jnp.int32), line, matrix.shape[1 - axis])
    if explicit:
        return jnp.where(stored == 0, jnp.zeros((), matrix.dtype), found)
    if places > np.iinfo(stored.dtype).max:  # more than there are entries
        return better(found, jnp.zeros((), matrix.dtype))
    return jnp.where(stored < places, better(found, jnp.zeros((), matrix.dtype)), found)


_compiled_extreme = jit_when_eager(_extreme, static_argnums=(1, 2, 3))
