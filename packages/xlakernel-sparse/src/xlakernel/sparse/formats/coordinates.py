"""`Coordinates`: matrices stored entry by entry, in any order."""

from __future__ import annotations

from typing import Any, Self

import jax
import numpy as np

from xlakernel.core.errors import ShapeError

from ..events.compact import CompactArray
from ..operators.arguments import check_data, check_room, check_shape, index_array
from ..operators.conversion import compress
from ..operators.entries import coordinates_of_rows
from ..operators.operand import BINARY, Operand
from ..operators.products.compressed import PRODUCTS
from .base import Arrays, Format
from .interchange import host_data
from .validation import check_coordinate_values, should_check, three_arrays


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
        data = check_data(caller, data, row.shape[0])
        if should_check(caller, check, row, col):
            check_coordinate_values(caller, row, col, shape)
        self._set(data=data, row=row, col=col, shape=shape)

    def __getattr__(self, name: str) -> Any:
        if name in ("prepare", "shard"):  # methods of compressed matrices
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
        return compress(self.data, line, place, self.shape if axis == 0 else self.shape[::-1])

    def to_scipy(self) -> Any:
        """Return a SciPy sparse array of the same format, on the host and without padding.

        float16 and bfloat16, which SciPy does not support, become float32.
        """
        import scipy.sparse

        row, col = (np.asarray(array) for array in self.coordinates())
        is_entry = row < self.shape[0]
        data = host_data(self.data, self.nnz)[is_entry]
        return scipy.sparse.coo_array((data, (row[is_entry], col[is_entry])), shape=self.shape)
