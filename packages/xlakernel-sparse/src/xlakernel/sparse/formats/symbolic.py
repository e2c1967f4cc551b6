"""Sums and products of two matrices of different structures.

The structure of the result is computed from known structures, also while JAX traces. The weights of
both matrices may be traced and are differentiated.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from xlakernel.core.backend import jit_when_eager
from xlakernel.core.errors import ShapeError, StructureError

from ..operators.arguments import check_room
from ..operators.conversion import csr_to_csc
from ..operators.dtypes import accumulator
from ..operators.merging import merge
from ..operators.multiplication import product_structure, product_weights
from ..operators.units import bilinear
from .base import Format
from .duplicates import evaluated, known_of, sums_at_places


class Places(NamedTuple):
    """The places of a matrix's entries, line by line, sorted and without duplicates and padding.

    Attributes:
      indices: the position of each place in its line.
      indptr: the first place of each line, and the number of places.
      entries: the first entry at each place; None if these are the first entries of the matrix.
    """

    indices: jax.Array
    indptr: jax.Array
    entries: jax.Array | None

    def weights(self, matrix: Format) -> jax.Array:
        """Return the element at each place, in float32 for half precision."""
        if self.entries is None:
            weights = jnp.broadcast_to(matrix._weights, matrix.nnz)[: self.indices.size]
            return weights.astype(accumulator(matrix.dtype))
        return sums_at_places(matrix, known_of(matrix))[0][self.entries]

    def numbers(self, shape: tuple[int, int]) -> Any:
        """Return a CSR array of SciPy of the number of each place, from 1 on, if the lines are rows."""
        import scipy.sparse

        numbers = np.arange(1, self.indices.size + 1)
        return scipy.sparse.csr_array((numbers, np.array(self.indices), np.array(self.indptr)), shape=shape)


_SAME = " For matrices of one structure write A.with_data(f(A.data, B.data))."


def places_of(caller: str, matrix: Any, axis: int, hint: str = "") -> Places:
    """Return the places of a matrix's entries, in rows if *axis* is 0, else in columns.

    Raises:
      StructureError: if the structure is traced; the message ends with *hint*.
    """
    matrix._check_single()
    if any(isinstance(array, jax.core.Tracer) for array in matrix._index_arrays):
        raise StructureError(
            f"{caller}: the places of the entries are traced; they must be known, because the structure of the result "
            "depends on them. Let the matrices be constants of the function, and only their weights arguments; or "
            f"compute it outside of jit.{hint}"
        )
    with evaluated():
        if matrix._indptr(axis) is not None and known_of(matrix).distinct:
            indices, indptr = matrix.structure
            return Places(indices[: int(indptr[-1])], indptr, None)
        # Lines of the other axis, transposed, are sorted.
        numbered = matrix._like(data=jnp.arange(matrix.nnz, dtype=jnp.int32))
        across = matrix.shape if axis == 1 else matrix.shape[::-1]
        entries, indices, indptr = map(np.asarray, csr_to_csc(*numbered._lines(1 - axis), shape=across))
        entries, indices = entries[: indptr[-1]], indices[: indptr[-1]]
        is_first = np.ones(entries.size, bool)
        is_first[1:] = indices[1:] != indices[:-1]
        is_first[indptr[:-1][indptr[:-1] < entries.size]] = True
        if not is_first.all():
            before = np.concatenate([[0], np.cumsum(is_first)]).astype(indptr.dtype)
            entries, indices, indptr = entries[is_first], indices[is_first], before[indptr]
        return Places(*map(jnp.asarray, (indices, indptr, entries)))


def combine(caller: str, a: Any, b: Any, function: Callable[[Any, Any], Any], *, common: bool) -> Any:
    """Return the matrix of ``function(element of a, element of b)``, where the function of two zeros is 0.

    Args:
      caller: what is computed, for messages.
      a: the first matrix. The result has its format.
      b: the second matrix, of any format.
      function: a function of two arrays of weights, which JAX compiles once.
      common: if True, the result has the places that are in both matrices, otherwise those in either.

    Raises:
      ShapeError: if the shapes differ.
      StructureError: if a structure is traced.
    """
    if a.shape != b.shape:
        raise ShapeError(f"{caller}: the shapes are {a.shape} and {b.shape}; expected two matrices of one shape.")
    axis = axis_of(a)
    of_a, of_b = (places_of(caller, matrix, axis, _SAME) for matrix in (a, b))
    with evaluated():
        indices, indptr, *entries = merge(*_in_one_dtype(of_a, of_b), common=common)
    data = _combined_weights(function, (a, b), (of_a, of_b), entries)
    return matrix_like(a, axis, data, indices, indptr, a.shape)


def _combine_weights(
    function: Callable[[Any, Any], Any], matrices: Any, places: tuple[Places, ...], entries: list[jax.Array]
) -> jax.Array:
    dtype = jnp.result_type(*(matrix.dtype for matrix in matrices))
    weights = (
        _gathered(of.weights(matrix), numbers) for matrix, of, numbers in zip(matrices, places, entries, strict=True)
    )
    combined: jax.Array = function(*weights)
    return combined.astype(dtype)


def _gathered(weights: jax.Array, entries: jax.Array) -> jax.Array:
    """Return the weights of the entries, 0 for those out of range."""
    if not weights.size:  # JAX cannot gather from an empty array
        return jnp.zeros(entries.shape, weights.dtype)
    return weights.at[entries].get(mode="fill", fill_value=0)


_combined_weights = jit_when_eager(_combine_weights, static_argnums=0)


@bilinear
def multiply(a: Any, b: Any) -> Any:
    """Return the product of two matrices, in the format of the first.

    Elements that are 0 keep their places. Derivatives store the products of all pairs of entries before they are added.

    Raises:
      ShapeError: if the shapes do not fit.
      DtypeError: if the index arrays have dtypes that are too narrow.
      StructureError: if a structure is traced.
    """
    caller = f"{type(a).__name__} @ {type(b).__name__}"
    if a.shape[1] != b.shape[0]:
        raise ShapeError(
            f"{caller}: the shapes are {a.shape} and {b.shape}; expected as many columns of the first as rows of the "
            "second."
        )
    axis, shape = axis_of(a), (a.shape[0], b.shape[1])
    matrices = (a, b) if axis == 0 else (b, a)  # columns are the rows of the transposes, in the other order
    places = tuple(places_of(caller, matrix, axis) for matrix in matrices)
    with evaluated():
        first, second = _in_one_dtype(*places)
        check_room(caller, "rows and columns", first[0].dtype, max(shape))
        structure, static = product_structure(first, second, shape[1 - axis])
    data = _multiplied_weights(matrices, places, structure, tuple(static.items()))
    return matrix_like(a, axis, data, *structure, shape)


def _multiply_weights(matrices: Any, places: tuple[Places, ...], structure: Any, static: Any) -> jax.Array:
    dtype = jnp.result_type(*(matrix.dtype for matrix in matrices))
    wide = accumulator(dtype)
    of_a, of_b = ((of.weights(matrix).astype(wide), *of[:2]) for matrix, of in zip(matrices, places, strict=True))
    outs = [jax.ShapeDtypeStruct(structure[0].shape, wide)]
    data: jax.Array
    (data,) = product_weights(*of_a, *of_b, *structure, outs=outs, **dict(static))
    return data.astype(dtype)


_multiplied_weights = jit_when_eager(_multiply_weights, static_argnums=3)


def _in_one_dtype(*places: Places) -> list[tuple[jax.Array, jax.Array]]:
    """Return the index arrays of the places, all in the widest of their dtypes."""
    dtype = jnp.result_type(*(array.dtype for of in places for array in of[:2]))
    return [(of.indices.astype(dtype), of.indptr.astype(dtype)) for of in places]


def axis_of(matrix: Any) -> int:
    """Return 1 if the matrix is stored in columns, else 0."""
    return 0 if matrix._indptr(1) is None else 1


def matrix_like(like: Any, axis: int, data: jax.Array, indices: Any, indptr: Any, shape: tuple[int, int]) -> Any:
    """Return the matrix of these weights in lines along the axis of *like*, see `axis_of`, in its format.

    The index arrays have the dtype of those of *like*; of *indices*, if it is an array of JAX and wider.

    Raises:
      DtypeError: if the dtype is too narrow.
    """
    index = like.structure[0].dtype
    if isinstance(indices, jax.Array):
        index = jnp.promote_types(index, indices.dtype)
    check_room(type(like).__name__, "rows, columns and entries", index, max(*shape, indices.size))
    with evaluated():  # the structure is known to further operations, also under jit
        arrays = jnp.zeros(1, data.dtype), jnp.asarray(indices, index), jnp.asarray(indptr, index)
        known = like._general()._of_lines(axis, arrays, shape)
    return known.with_data(data)
