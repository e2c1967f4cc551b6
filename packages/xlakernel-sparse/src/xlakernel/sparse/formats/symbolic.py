"""Sums and products of two matrices of different structures. The structure of the result is computed on the host.

JAX computes the weights of the result from those of the two matrices, which may be traced and are differentiated.
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
from ..operators.dtypes import accumulator
from .base import Format

_BITS = 32  #: of the number of a place; two numbers are one integer of 64 bits, the first in the lower half


class Places(NamedTuple):
    """The places of a matrix's entries, row by row, sorted and without duplicates.

    Attributes:
      numbers: a CSR array of SciPy: the number of each place, from 1 on.
      order: the entries, sorted by place, without padding.
      place: the place of each of these entries, from 0 on; None if there are no duplicates.
    """

    numbers: Any
    order: np.ndarray
    place: np.ndarray | None

    def weights(self, matrix: Format) -> jax.Array:
        """Return the weight of each place: the sum of the weights of its entries, in float32 for half precision."""
        wide = accumulator(matrix.dtype)
        if matrix.homogeneous and matrix.nnz != 1:
            sorted_ = jnp.broadcast_to(matrix.data, self.order.shape)
        else:
            sorted_ = matrix.data[self.order]
        sorted_ = sorted_.astype(wide)
        return sorted_ if self.place is None else jnp.zeros(self.numbers.nnz, wide).at[self.place].add(sorted_)


def places_of(caller: str, matrix: Any) -> Places:
    """Return the places of a matrix's entries.

    Raises:
      StructureError: if the structure is traced.
    """
    import scipy.sparse

    matrix._check_single()
    if any(isinstance(array, jax.core.Tracer) for array in matrix.structure):
        raise StructureError(
            f"{caller}: the places of the entries are traced, so the number of the result's entries is not known. "
            "Let the matrices be constants of the function, and only their weights arguments; or compute it outside of "
            "jit. For matrices of one structure write A.with_data(f(A.data, B.data))."
        )
    with jax.ensure_compile_time_eval():
        numbered = matrix._like(data=jnp.arange(matrix.nnz, dtype=jnp.int32))
        data, indices, indptr = map(np.array, numbered._lines(0))
    data, indices = data[: indptr[-1]], indices[: indptr[-1]]
    sorted_ = scipy.sparse.csr_array((data, indices, indptr), shape=matrix.shape)
    sorted_.sort_indices()
    data, indices, indptr = sorted_.data, sorted_.indices, sorted_.indptr
    is_first = np.ones(data.size, bool)
    is_first[1:] = indices[1:] != indices[:-1]
    is_first[indptr[:-1][indptr[:-1] < data.size]] = True
    place = None
    if not is_first.all():
        place = np.cumsum(is_first) - 1
        indices, indptr = indices[is_first], np.concatenate([[0], np.cumsum(is_first)])[indptr]
    numbers = np.arange(1, indices.size + 1, dtype=np.int64)
    return Places(scipy.sparse.csr_array((numbers, indices, indptr), shape=matrix.shape), data, place)


def combine(caller: str, a: Any, b: Any, function: Callable[[Any, Any], Any], *, common: bool) -> Any:
    """Return the matrix of ``function(element of a, element of b)``, where the function of two zeros is 0.

    Args:
      caller: what is computed, for messages.
      a: the first matrix. The result has its format.
      b: the second matrix, of any format.
      function: a function of two arrays of weights.
      common: if True, the result has the places that are in both matrices, otherwise those in either.

    Raises:
      ShapeError: if the shapes differ.
      StructureError: if a structure is traced.
    """
    if a.shape != b.shape:
        raise ShapeError(f"{caller}: the shapes are {a.shape} and {b.shape}; expected two matrices of one shape.")
    of_a, of_b = places_of(caller, a), places_of(caller, b)
    merged = of_a.numbers + of_b.numbers * (1 << _BITS)
    if common:
        merged.data[~_pairs(merged).all(axis=1)] = 0
        merged.eliminate_zeros()
    data = _combined_weights(function, of_a.weights(a), of_b.weights(b), jnp.asarray(_pairs(merged)))
    return matrix_like(a, data.astype(jnp.result_type(a.dtype, b.dtype)), merged)


def _pairs(merged: Any) -> np.ndarray:
    """Return the numbers of a place in both matrices, ``(n, 2)``; 0 where a matrix lacks the place."""
    pairs: np.ndarray = merged.data.view(np.int32).reshape(-1, 2)
    return pairs


def _combine_weights(
    function: Callable[[Any, Any], Any], of_a: jax.Array, of_b: jax.Array, pairs: jax.Array
) -> jax.Array:
    # The number 0 gets the weight in front of the others, which is 0.
    weights = [jnp.append(jnp.zeros(1, of.dtype), of)[pairs[:, i]] for i, of in enumerate((of_a, of_b))]
    combined: jax.Array = function(*weights)
    return combined


_combined_weights = jit_when_eager(_combine_weights, static_argnums=0)


def multiply(a: Any, b: Any) -> Any:
    """Return the product of two matrices, in the format of the first.

    Elements that are 0 keep their places. If weights are traced, the products of all pairs of entries are stored before
    they are added up.

    Raises:
      ShapeError: if the shapes do not fit.
      StructureError: if a structure is traced.
    """
    caller = f"{type(a).__name__} @ {type(b).__name__}"
    if a.shape[1] != b.shape[0]:
        raise ShapeError(
            f"{caller}: the shapes are {a.shape} and {b.shape}; expected as many columns of the first as rows of the "
            "second."
        )
    dtype = jnp.result_type(a.dtype, b.dtype)
    of_a, of_b = places_of(caller, a), places_of(caller, b)
    wide = accumulator(dtype)
    weights = of_a.weights(a).astype(wide), of_b.weights(b).astype(wide)
    # Sums of ones are never 0: SciPy drops elements that are.
    places = _scipy_product(*(_with_data(of.numbers, np.ones(of.numbers.nnz)) for of in (of_a, of_b)))
    is_traced = any(isinstance(each, jax.core.Tracer) for each in weights)
    if not is_traced and np.dtype(dtype).kind in "iufc" and np.dtype(dtype).itemsize >= 4:
        values = _scipy_product(
            *(_with_data(of.numbers, np.asarray(w)) for of, w in zip((of_a, of_b), weights, strict=True))
        )
        data = np.zeros(places.nnz, values.dtype)
        data[np.searchsorted(keys_of(places), keys_of(values))] = values.data
        return matrix_like(a, jnp.asarray(data), places)
    first, second, keys = _pairs_of_entries(of_a.numbers, of_b.numbers)
    terms = weights[0][first] * weights[1][second]
    sums = jnp.zeros(places.nnz, wide).at[np.searchsorted(keys_of(places), keys)].add(terms)
    return matrix_like(a, sums.astype(dtype), places)


def _pairs_of_entries(a: Any, b: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the pairs of entries whose products a matrix product adds up, and where; see `keys_of`."""
    counts = np.diff(b.indptr)[a.indices]  # entries of the second matrix for each of the first
    first = np.repeat(np.arange(a.nnz), counts)
    second = np.arange(first.size) + np.repeat(b.indptr[a.indices] - (np.cumsum(counts) - counts), counts)
    rows = np.repeat(np.arange(a.shape[0], dtype=np.int64), np.diff(a.indptr))
    return first, second, rows[first] * b.shape[1] + b.indices[second]


def _with_data(matrix: Any, data: np.ndarray) -> Any:
    return type(matrix)((data, matrix.indices, matrix.indptr), shape=matrix.shape)


def _scipy_product(a: Any, b: Any) -> Any:
    """Return the product of two CSR arrays of SciPy, with sorted indices."""
    product = a @ b
    product.sort_indices()
    return product


def keys_of(matrix: Any) -> np.ndarray:
    """Return the number of each entry's place, row by row, in a CSR array of SciPy; these ascend."""
    rows = np.repeat(np.arange(matrix.shape[0], dtype=np.int64), np.diff(matrix.indptr))
    keys: np.ndarray = rows * matrix.shape[1] + matrix.indices
    return keys


def matrix_like(like: Any, data: jax.Array, structure: Any) -> Any:
    """Return the matrix of these weights with the structure of a CSR array of SciPy, in the format of *like*.

    Raises:
      DtypeError: if the index arrays of *like* have a dtype that is too narrow.
    """
    index = like.structure[0].dtype
    check_room(type(like).__name__, "rows, columns and entries", index, max(*structure.shape, structure.nnz))
    with jax.ensure_compile_time_eval():  # the structure is known to further operations, also under jit
        entries = jnp.arange(structure.nnz, dtype=jnp.int32)
        arrays = entries, jnp.asarray(structure.indices, index), jnp.asarray(structure.indptr, index)
        known = type(like)._of_lines(0, arrays, structure.shape)
        order = np.asarray(known.data)
    return known.with_data(data[order])
