"""`Elements`: functions of the elements that keep zeros, with SciPy's names. Duplicates are added up first."""

from __future__ import annotations

import abc
import functools
from collections.abc import Callable
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from xlakernel.core.errors import ArgumentError

from ..operators.arguments import is_known
from ..operators.units import in_unit, joined, linear, split
from .arithmetic import Arithmetic
from .duplicates import Known, known_of, sums_at_places
from .reductions import Reductions
from .symbolic import combine

#: The exponents that XLA compiles to products or a square root. Others are operands of one program.
_EXPONENTS = (0.5, 1, 2, 3)


class Elements(Arithmetic, Reductions, abc.ABC):
    """Functions of the elements that keep zeros; a base of `SparseMatrix`.

    The result of a function has the structure of the matrix, and a weight for each entry, even if the weights of the
    matrix are all equal: places with duplicates get other weights. Without duplicates, ``A.with_data(f(A.data))`` is
    the same matrix, and keeps one weight for all entries.
    """

    __slots__ = ()

    @linear
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
        number = _real_number(n)
        if number is None or not number > 0:
            raise ArgumentError(
                f"{type(self).__name__} ** n: n is {n!r}; expected a number above 0, for which zeros stay zeros. "
                "For other powers of the entries alone write A.with_data(A.data**n); for a dense result "
                "A.todense() ** n; for a product of matrices A @ x."
            )
        return self._map(_power(number)) if number in _EXPONENTS else self._map(jnp.power, number)

    def maximum(self, other: Any) -> Self:
        """Return the maximum of each element and a number, or of the elements of two matrices.

        Args:
          other: a number of at most 0, so that zeros that are not stored stay zeros; or a matrix of the same shape.

        Raises:
          ArgumentError: if *other* is neither.
          ShapeError: if the shapes differ.
          DtypeError: if the elements are complex.
          StructureError: if *other* is a matrix, and one of the structures is traced.
        """
        if isinstance(other, Elements):
            return self._with_other("maximum", other, jnp.maximum)
        number = _real_number(other)
        if number is None or not number <= 0:
            raise self._refusal("maximum", other, "a matrix, or a number of at most 0")
        return self._map_real("maximum", jnp.maximum, _in_range(number, self.dtype))

    def minimum(self, other: Any) -> Self:
        """Return the minimum of each element and a number, or of the elements of two matrices.

        Args:
          other: a number of at least 0, so that zeros that are not stored stay zeros; or a matrix of the same shape.

        Raises:
          ArgumentError: if *other* is neither.
          ShapeError: if the shapes differ.
          DtypeError: if the elements are complex.
          StructureError: if *other* is a matrix, and one of the structures is traced.
        """
        if isinstance(other, Elements):
            return self._with_other("minimum", other, jnp.minimum)
        number = _real_number(other)
        if number is None or not number >= 0:
            raise self._refusal("minimum", other, "a matrix, or a number of at least 0")
        return self._map_real("minimum", jnp.minimum, _in_range(number, self.dtype))

    @property
    @linear
    def real(self) -> Self:
        """The real parts of the elements."""
        return self.with_data(jnp.real(self.data))

    @property
    @linear
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
        return self.with_data(_mapped(self, function, known_of(self), *numbers))

    def _map_real(self, method: str, function: Callable[..., Any], *numbers: Any) -> Self:
        self._check_real(method)
        return self._map(function, *numbers)

    def _with_other(self, method: str, other: Elements, function: Callable[..., Any]) -> Self:
        for matrix in (self, other):
            matrix._check_real(method)
        caller = f"{type(self).__name__}.{method}"
        matrix, unit = split(self)
        other = in_unit(caller, "other", other, unit)
        found: Self = joined(combine(caller, matrix, other, function, common=False), unit)
        return found

    def _refusal(self, method: str, other: Any, allowed: str) -> ArgumentError:
        return ArgumentError(
            f"{type(self).__name__}.{method}: other is {other!r:.100}; expected {allowed}, for which zeros stay zeros. "
            f"For a dense result write jnp.{method}(A.todense(), other)."
        )


def _real_number(value: Any) -> Any:
    """Return a real number of Python or NumPy, also for a known array without dimensions; None for other objects."""
    if isinstance(value, (jax.Array, np.ndarray)) and value.ndim == 0 and is_known(value):
        value = value.item() if getattr(value, "weak_type", False) else np.asarray(value)[()]
    if isinstance(value, np.generic) and not isinstance(value, float):
        return value if jnp.issubdtype(value.dtype, jnp.integer) or jnp.issubdtype(value.dtype, jnp.floating) else None
    return value if isinstance(value, (int, float)) else None


def _in_range(number: Any, dtype: Any) -> Any:
    """Return the integer that is nearest to *number* in *dtype*, where JAX would wrap an integer of Python."""
    if isinstance(number, int) and jnp.issubdtype(dtype, jnp.integer):
        return max(int(np.iinfo(dtype).min), min(number, int(np.iinfo(dtype).max)))
    return number


@functools.lru_cache(maxsize=None, typed=True)  # the powers 2 and 2.0 have other dtypes
def _power(n: Any) -> Callable[[jax.Array], jax.Array]:
    return lambda elements: elements**n


@functools.partial(jax.jit, static_argnums=(1, 2))
def _mapped(matrix: Elements, function: Callable[..., Any], known: Known, *numbers: Any) -> jax.Array:
    """Return weights that add up, at each place, to the function of the element there."""
    elements, used = sums_at_places(matrix, known)
    # Functions and their derivatives may be infinite at 0: elements that are not used are set to 1.
    return jnp.where(used, function(jnp.where(used, elements.astype(matrix.dtype), 1), *numbers), 0)
