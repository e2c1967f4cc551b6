"""`Coordinates`: matrices stored entry by entry, in any order."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from xlakernel.core.errors import ShapeError

from ..events.compact import CompactArray
from ..operators.arguments import check_data, check_room, check_shape, index_array
from ..operators.conversion import compress
from ..operators.dtypes import accumulator
from ..operators.operand import BINARY, Operand
from ..operators.places import coordinates_of_rows, firsts
from ..operators.products.compressed import PRODUCTS
from ..operators.units import joined, split
from .base import Arrays, Format, Numbers, Values, picked, values_of
from .interchange import check_on_host, host_data
from .validation import check_coordinate_values, should_check, three_arrays

#: Methods of compressed matrices, for messages.
_OF_COMPRESSED = (
    *("prepare", "shard", "delay_deliver"),
    *("update_on_pre", "update_on_post", "apply_on_pre", "apply_on_post"),
)


class Coordinates(Format):
    """A matrix stored entry by entry; a base of `COO`."""

    __slots__ = ("col", "row")
    _leaves = ("data", "row", "col")
    _scipy = ("coo_array", ("data", "row", "col"))
    row: jax.Array
    col: jax.Array

    def __init__(self, arrays: Any, shape: Any = None, *, check: bool | None = None) -> None:
        caller = type(self).__name__
        data, row, col = three_arrays(caller, arrays, "data, row, col")
        shape = check_shape(caller, shape)
        row, col = index_array(caller, "row", row), index_array(caller, "col", col)
        if row.shape != col.shape:
            raise ShapeError(
                f"{caller}: row has {row.shape[0]} elements and col {col.shape[0]}; expected equally many."
            )
        for array in (row, col):  # padding has the numbers of *shape*, which transposition swaps
            check_room(caller, "rows and columns", array.dtype, max(shape))
        data, unit = split(data)
        data = joined(check_data(caller, data, row.shape[0]), unit)
        if should_check(caller, check, row, col):
            check_coordinate_values(caller, row, col, shape)
        self._set(data=data, row=row, col=col, shape=shape)

    def __getattr__(self, name: str) -> Any:
        if name in _OF_COMPRESSED:
            raise AttributeError(f"{type(self).__name__} has no {name}; compress it first: A.tocsr().{name}(...).")
        return self.__getattribute__(name)  # raises Python's own error

    @property
    def structure(self) -> tuple[jax.Array, jax.Array]:
        """The index arrays: ``(row, col)``."""
        return self.row, self.col

    def coordinates(self) -> tuple[jax.Array, jax.Array]:
        """Return the row and the column of each entry, ``(nnz,)``; padding has those of *shape*, out of range."""
        self._check_single()
        return self.structure

    def _is_entry(self) -> jax.Array:
        self._check_single()
        return self.row < self.shape[0]

    def _multiply(self, operand: Operand, x: jax.Array, *, transpose: bool, caller: str) -> jax.Array:
        return PRODUCTS[operand](caller, *self._lines(0), x, shape=self.shape, transpose=transpose, backend=None)

    def _multiply_compact(self, events: CompactArray, *, transpose: bool, caller: str) -> jax.Array:
        return self._multiply(BINARY, events.value, transpose=transpose, caller=caller)

    def _dense(self) -> jax.Array:
        self._check_single()
        dense: jax.Array = _sums_at(self._weights, self.structure, self.shape)
        return dense

    def _diagonal(self, offset: int) -> jax.Array:
        self._check_single()
        elements: jax.Array = _diagonal(self._weights, *self.structure, offset, self.shape)
        return elements

    def _part(self, numbers: Mapping[int, Numbers], values: Values) -> tuple[Sequence[Any], Sequence[Any]]:
        self._check_single()
        places = list(map(np.asarray, self.structure))
        entries = np.flatnonzero(places[0] < self.shape[0])
        places = [along[entries] for along in places]
        for axis, chosen in numbers.items():
            selected, places[axis] = picked(places[axis], chosen, self.shape[axis])
            places[1 - axis] = places[1 - axis][selected]
            entries = entries[selected]
        return places, values_of(values, entries)

    def _with_structure(self, data: jax.Array, row: jax.Array, col: jax.Array, shape: tuple[int, int]) -> Self:
        return self._of(data=data, row=row, col=col, shape=shape)

    def _at_entries(self, row: jax.Array | None, column: jax.Array | None) -> jax.Array:
        self._check_single()
        factors = [
            of.at[places].get(mode="fill", fill_value=1)
            for of, places in zip((row, column), self.structure, strict=True)
            if of is not None
        ]
        return math.prod(factors[1:], start=factors[0])

    def _indptr(self, axis: int) -> jax.Array | None:
        return None

    def _ascends(self) -> jax.Array:
        self._check_single()
        row, col = self.structure
        # Padding has one place, out of range.
        after = (row[1:] > row[:-1]) | ((row[1:] == row[:-1]) & (col[1:] > col[:-1])) | (row[1:] >= self.shape[0])
        return jnp.all(after)

    def _first_of_places(self) -> tuple[jax.Array, jax.Array]:
        self._check_single()
        first: jax.Array
        repeated: jax.Array
        first, repeated = _first_of_places(*self.structure, self.shape)
        return first, repeated

    # Conversion.

    @classmethod
    def _of_coordinates(cls, arrays: Arrays, shape: tuple[int, int], *, in_range: bool = False) -> Self:
        return cls(arrays, shape=shape, check=False)

    @classmethod
    def _of_lines(cls, axis: int, arrays: Arrays, shape: tuple[int, int]) -> Self:
        data, indices, indptr = arrays
        row, col = coordinates_of_rows(indices, indptr, shape if axis == 0 else shape[::-1])
        return cls((data, row, col) if axis == 0 else (data, col, row), shape=shape, check=False)

    def _lines(self, axis: int) -> Arrays:
        line, place = self.coordinates() if axis == 0 else self.coordinates()[::-1]
        return compress(self._weights, line, place, self.shape if axis == 0 else self.shape[::-1])

    def to_scipy(self) -> Any:
        """Return a SciPy sparse array of the same format, on the host and without padding.

        float16 and bfloat16, which SciPy does not support, become float32.

        Raises:
          StructureError: if the matrix is traced.
        """
        import scipy.sparse

        check_on_host(self)
        row, col = (np.asarray(array) for array in self.coordinates())
        is_entry = row < self.shape[0]
        data = host_data(self._weights, self.nnz)[is_entry]
        return scipy.sparse.coo_array((data, (row[is_entry], col[is_entry])), shape=self.shape)


@functools.partial(jax.jit, static_argnums=2)
def _sums_at(data: jax.Array, places: tuple[jax.Array, ...], shape: tuple[int, ...]) -> jax.Array:
    """Return an array of *shape* with each weight added at its place, except for places out of range."""
    if 0 in shape:  # JAX does not differentiate a scatter into an array without elements
        return jnp.zeros(shape, data.dtype)
    wide = accumulator(data.dtype)  # duplicates of half precision are added up in float32, as in products
    return jnp.zeros(shape, wide).at[places].add(data.astype(wide), mode="drop").astype(data.dtype)


@functools.partial(jax.jit, static_argnums=(3, 4))
def _diagonal(data: jax.Array, row: jax.Array, column: jax.Array, offset: int, shape: tuple[int, int]) -> jax.Array:
    rows, columns = shape
    first = max(-offset, 0)
    length = max(min(rows - first, columns - max(offset, 0)), 0)
    place = jnp.where((column - row == offset) & (row < rows), row - first, length)
    elements: jax.Array = _sums_at(data, (place,), (length,))
    return elements


@functools.partial(jax.jit, static_argnums=2)
def _first_of_places(row: jax.Array, col: jax.Array, shape: tuple[int, int]) -> tuple[jax.Array, jax.Array]:
    """Return the first entry of each entry's place, and the number of entries that are not first."""
    order, indices, indptr = compress(jnp.arange(row.shape[0], dtype=row.dtype), row, col, shape)
    first, repeated = firsts(indices, indptr, shape)
    return jnp.zeros_like(order).at[order].set(order[first], unique_indices=True), repeated
