"""`Compressed`: matrices stored line by line, in compressed rows or in compressed columns."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np

from xlakernel.core.backend import jit_when_eager
from xlakernel.core.errors import ArgumentError

from ..events.compact import CompactArray
from ..operators.arguments import bits, check_data, check_room, check_shape, check_structure, copied, empty
from ..operators.compact import sum_rows
from ..operators.conversion import compress, csr_to_csc
from ..operators.lines import csr_slice_rows, diagonal_of
from ..operators.operand import BINARY, DENSE, Operand
from ..operators.places import ascends, coordinates_of_rows, firsts
from ..operators.products.compressed import PRODUCTS
from ..operators.sampled import csr_sddmm
from ..operators.units import joined, linear, split
from .base import Arrays, Format, Numbers, Values, picked, values_of
from .interchange import check_on_host, host_data
from .prepared import Prepared, prepare
from .validation import check_compressed_values, should_check, three_arrays


class Compressed(Format):
    """A matrix stored line by line; a base of `CSR`, where the lines are rows, and of `CSC`, where they are columns."""

    __slots__ = ("has_new_weights", "indices", "indptr", "prepared")
    _leaves = ("data", "indices", "indptr", "prepared")
    #: True if `with_data` set the weights of a prepared matrix in this program; a slot without a value means False.
    has_new_weights: bool

    #: The axis that numbers the lines: 0 for rows, 1 for columns.
    _axis: ClassVar[int]
    #: The names of a line and of a place in it, for messages.
    _names: ClassVar[tuple[str, str]]

    indices: jax.Array
    indptr: jax.Array
    prepared: Prepared | None

    def __init__(self, arrays: Any, shape: Any = None, *, check: bool | None = None) -> None:
        caller = type(self).__name__
        data, indices, indptr = three_arrays(caller, arrays, "data, indices, indptr")
        shape = check_shape(caller, shape)
        lines = _line_shape(self._axis, shape)
        indices, indptr = check_structure(caller, indices, indptr, lines, lines=f"{self._names[0]}s")
        data, unit = split(data)
        data = joined(check_data(caller, data, indices.shape[0]), unit)
        if should_check(caller, check, indices, indptr):
            check_compressed_values(caller, indices, indptr, lines[1], self._names)
        self._set(data=data, indices=indices, indptr=indptr, shape=shape, prepared=None)

    @property
    def structure(self) -> tuple[jax.Array, jax.Array]:
        """The index arrays: ``(indices, indptr)``."""
        return self.indices, self.indptr

    @property
    @abc.abstractmethod
    def T(self) -> Compressed:
        """The transposed matrix, which shares the arrays."""

    @property
    def line_shape(self) -> tuple[int, int]:
        """The number of lines, and the number of places in a line."""
        return _line_shape(self._axis, self.shape)

    def coordinates(self) -> tuple[jax.Array, jax.Array]:
        """Return the row and the column of each entry, ``(nnz,)``; padding has those of *shape*, out of range."""
        self._check_single()
        line, place = coordinates_of_rows(*self.structure, self.line_shape)
        return (line, place) if self._axis == 0 else (place, line)

    def _is_entry(self) -> jax.Array:
        self._check_single()
        return jnp.arange(self.nnz) < self.indptr[-1]

    def _with_data(self, data: jax.Array) -> Self:
        if self.prepared is None:
            return self._like(data=data)
        # In a program whose products take the weights through the permutations, XLA drops the copies of the weights.
        is_new = isinstance(data, jax.core.Tracer)
        return self._like(data=data, prepared=self.prepared.with_data(data))._set(has_new_weights=is_new)

    @linear
    def prepare(self, *, blocks: bool | None = None) -> Self:
        """Return the matrix prepared for fast products on both sides.

        The entries are stored once more, in the order of the other axis. ``events @ A`` and ``A @ events`` then both
        read only the active rows or columns, and a dense product reads the entries of one result after the other. The
        memory doubles; if all weights are equal, only indices are added. Call this method once, outside of loops; it
        also works inside of ``jax.jit``.

        A prepared matrix stores copies of its weights. Derivatives are those with respect to *data*, and `with_data`
        sets all copies. A derivative with respect to the matrix as a whole is an error, because separate updates of the
        matrix's leaves would make the copies differ.

        Args:
          blocks: if True, add two more orders, which the GPU's kernels for dense vectors read fastest. The entries are
            then in blocks of columns that fit in shared memory, with 16-bit column numbers. None: True if JAX's default
            device is a GPU.

        Raises:
          ArgumentError: if *blocks* is invalid.
        """
        if blocks is not None and not isinstance(blocks, bool):
            raise ArgumentError(f"{type(self).__name__}.prepare: blocks is {blocks!r}; allowed: True, False or None.")
        self._check_single()
        blocks = jax.default_backend() == "gpu" if blocks is None else blocks
        return self._like(prepared=prepare(self._weights, *self.structure, self.line_shape, blocks=blocks))

    def __repr__(self) -> str:
        text = super().__repr__()
        return text if self.prepared is None else f"{text[:-1]}, prepared)"

    # Products; the lines are the rows of the multiplied matrix.

    def _multiply(self, operand: Operand, x: jax.Array, *, transpose: bool, caller: str) -> jax.Array:
        arrays = caller, self._weights, *self.structure, x
        across = transpose != (self._axis == 1)
        if self.prepared is not None:
            permuted = operand is not DENSE and getattr(self, "has_new_weights", False)
            return self.prepared.multiply(operand, *arrays, shape=self.line_shape, transpose=across, permuted=permuted)
        return PRODUCTS[operand](*arrays, shape=self.line_shape, transpose=across, backend=None)

    def _multiply_compact(self, events: CompactArray, *, transpose: bool, caller: str) -> jax.Array:
        if transpose == (self._axis == 1):  # the events select places, not lines
            return self._multiply(BINARY, events.value, transpose=transpose, caller=caller)
        return sum_rows(self._weights, *self.structure, events.indices, events.count, shape=self.line_shape)

    def _dense(self) -> jax.Array:
        dense: jax.Array = _compiled_dense(self)
        return dense

    def _diagonal(self, offset: int) -> jax.Array:
        self._check_single()
        offset = offset if self._axis == 0 else -offset
        return diagonal_of(self._weights, *self.structure, offset, self.line_shape)

    def _part(self, numbers: Mapping[int, Numbers], values: Values) -> tuple[Sequence[Any], Sequence[Any]]:
        self._check_single()
        indices, indptr = map(np.asarray, self.structure)
        if self._axis in numbers:
            caller = f"{type(self).__name__}[...]"
            indptr, (indices, *values) = _copied_lines(caller, indptr, numbers[self._axis], [indices, *values])
        else:
            indices = indices[: indptr[-1]]
        if 1 - self._axis in numbers:
            entries, indices = picked(indices, numbers[1 - self._axis], self.line_shape[1])
            values = values_of(values, entries)
            indptr = np.searchsorted(entries, indptr).astype(indptr.dtype)
        return (indices, indptr), values

    def _with_structure(self, data: jax.Array, indices: jax.Array, indptr: jax.Array, shape: tuple[int, int]) -> Any:
        return self._general()._of(data=data, indices=indices, indptr=indptr, shape=shape, prepared=None)

    def _line(self, axis: int, number: Any) -> jax.Array:
        if axis == self._axis:
            line: jax.Array = _sliced_line(self, number)
            return line
        return super()._line(axis, number)

    def _at_entries(self, row: jax.Array | None, column: jax.Array | None) -> jax.Array:
        self._check_single()
        factors = [row, column] if self._axis == 0 else [column, row]
        dtype = jnp.result_type(*(factor for factor in factors if factor is not None))
        line, place = (
            jnp.ones(extent, dtype) if factor is None else factor
            for factor, extent in zip(factors, self.line_shape, strict=True)
        )
        products = csr_sddmm(*self.structure, line, place, shape=self.line_shape)
        return jnp.where(self._is_entry(), products, jnp.ones((), products.dtype))

    def _indptr(self, axis: int) -> jax.Array | None:
        self._check_single()
        return self.indptr if axis == self._axis else None

    def _ascends(self) -> jax.Array:
        self._check_single()
        return ascends(*self.structure)

    def _first_of_places(self) -> tuple[jax.Array, jax.Array]:
        self._check_single()
        return firsts(*self.structure, self.line_shape)

    # Conversion.

    @classmethod
    def _of_coordinates(cls, arrays: Arrays, shape: tuple[int, int], *, in_range: bool = False) -> Self:
        data, *places = arrays
        line, place = places if cls._axis == 0 else places[::-1]
        lines = compress(data, line, place, _line_shape(cls._axis, shape), in_range=in_range)
        return cls._of_arrays(lines, shape, check=False)

    @classmethod
    def _of_lines(cls, axis: int, arrays: Arrays, shape: tuple[int, int]) -> Self:
        if axis != cls._axis:
            arrays = csr_to_csc(*arrays, shape=_line_shape(axis, shape))
        return cls._of_arrays(arrays, shape, check=False)

    def _lines(self, axis: int) -> Arrays:
        self._check_single()
        arrays = self._weights, *self.structure
        return arrays if axis == self._axis else csr_to_csc(*arrays, shape=self.line_shape)

    def to_scipy(self) -> Any:
        """Return a SciPy sparse array of the same format, on the host and without padding.

        float16 and bfloat16, which SciPy does not support, become float32.

        Raises:
          StructureError: if the matrix is traced.
        """
        import scipy.sparse

        self._check_single()
        check_on_host(self)
        indices, indptr = (np.array(array) for array in self.structure)  # copies, because SciPy sorts in place
        data = host_data(self._weights, self.nnz)
        kind = getattr(scipy.sparse, self._scipy[0])
        return kind((data[: indptr[-1]], indices[: indptr[-1]], indptr), shape=self.shape)


def _line_shape(axis: int, shape: tuple[int, int]) -> tuple[int, int]:
    return shape if axis == 0 else shape[::-1]


def _copied_lines(
    caller: str, indptr: np.ndarray, numbers: Numbers, values: Values
) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return the first entry of each of the lines *numbers*, and the *values* of their entries, as new arrays."""
    if isinstance(numbers, range):
        ends = indptr[numbers.start : numbers.stop + 1]
        begin, end = ends[0], ends[-1]
        return ends - begin, [
            np.arange(begin, end, dtype=indptr.dtype) if every is None else copied(every[begin:end]) for every in values
        ]
    from ..kernels.numba.lines import copy_lines, first_entries

    ends = np.empty(numbers.size + 1, indptr.dtype)
    entries = first_entries(indptr, numbers, ends)
    check_room(caller, "numbers of entries", indptr.dtype, entries)
    found = [empty(entries, (indptr if every is None else every).dtype) for every in values]
    for every, chosen in zip(values, found, strict=True):
        copy_lines(None if every is None else bits(every), indptr, numbers, bits(chosen))
    return ends, found


def _slice_line(matrix: Compressed, number: Any) -> jax.Array:
    matrix._check_single()
    numbers = jnp.asarray(number).reshape(1)
    return csr_slice_rows(matrix._weights, *matrix.structure, numbers, shape=matrix.line_shape)[0]


_sliced_line = jit_when_eager(_slice_line)


def _dense(matrix: Compressed) -> jax.Array:
    matrix._check_single()
    rows, columns = matrix.line_shape
    if 0 in (rows, columns):
        return jnp.zeros(matrix.shape, matrix.dtype)
    numbers = jnp.arange(rows, dtype=matrix.indptr.dtype)
    dense = csr_slice_rows(matrix._weights, *matrix.structure, numbers, shape=matrix.line_shape)
    return dense if matrix._axis == 0 else dense.T


_compiled_dense = jit_when_eager(_dense)
