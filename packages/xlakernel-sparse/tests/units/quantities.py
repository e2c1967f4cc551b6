"""A minimal library of units, with the attributes by which quantities of saiunit and brainunit are recognized."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp


@dataclass(frozen=True)
class Unit:
    """A unit with a factor and the exponents of base units, ``(("V", 1), ...)``."""

    factor: float
    exponents: tuple[tuple[str, int], ...]
    __array_ufunc__ = None  # NumPy's arrays leave products with a unit to the unit

    def __mul__(self, other: Any) -> Any:
        if not isinstance(other, Unit):
            return NotImplemented
        powers = dict(self.exponents)
        for base, power in other.exponents:
            powers[base] = powers.get(base, 0) + power
        return Unit(self.factor * other.factor, tuple(sorted((base, n) for base, n in powers.items() if n)))

    def __rmul__(self, array: Any) -> Quantity:
        return Quantity(jnp.asarray(array), self)

    def __str__(self) -> str:
        return f"{self.factor:g} " + " ".join(f"{base}^{power}" for base, power in self.exponents)


class UnitMismatchError(Exception):
    """An error of the library, which is no error of Python's."""


@jax.tree_util.register_pytree_node_class
@dataclass(eq=False)
class Quantity:
    """An array with a unit; without the shape and dtype of the array, and no array to JAX and NumPy."""

    mantissa: Any
    unit: Unit
    __array_ufunc__ = None

    def tree_flatten(self) -> Any:
        return (self.mantissa,), self.unit

    @classmethod
    def tree_unflatten(cls, unit: Unit, leaves: Any) -> Quantity:
        return cls(*leaves, unit)

    def in_unit(self, unit: Unit) -> Quantity:
        if unit.exponents != self.unit.exponents:
            raise UnitMismatchError(f"{self.unit} is not {unit}")
        return Quantity(self.mantissa * (self.unit.factor / unit.factor), unit)


VOLT, MILLIVOLT = Unit(1.0, (("V", 1),)), Unit(1e-3, (("V", 1),))
SIEMENS, AMPERE = Unit(1.0, (("A", 1), ("V", -1))), Unit(1.0, (("A", 1),))
