"""Products of two matrices in compressed rows."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from xlakernel.core import XLACustomKernel

from .arguments import check_entries
from .backends import register
from .entries import rows_of_entries

_Struct = jax.ShapeDtypeStruct

#: Inputs ``indices, indptr`` of two matrices without padding. Static keywords: *columns* of the second one, and the
#: number of *pairs* of entries whose products are added up. Result: the first entry of each row of the product.
product_rows = XLACustomKernel("csr_product_rows", "The first entry of each row of a product of two matrices.")
#: The same inputs, and the result of `product_rows`. Result: the columns of the entries, ascending in each row.
product_entries = XLACustomKernel("csr_product_entries", "The columns of the entries of a product of two matrices.")
#: Inputs ``data, indices, indptr`` of both matrices, and ``indices, indptr`` of the product. Result: its weights.
product_weights = XLACustomKernel("csr_product_weights", "The weights of a product of two matrices.")
for _op in (product_rows, product_entries, product_weights):
    register(_op, _op.name.removeprefix("csr_"), plain=("warp",))
    _op.def_tags("sparse", "csr", "products")

_Structure = tuple[jax.Array, jax.Array]


def product_structure(a: _Structure, b: _Structure, columns: int) -> tuple[_Structure, dict[str, Any]]:
    """Return the index arrays of a product of two known structures, and the static keywords of the operators.

    Raises:
      DtypeError: if there are more entries than *indptr* can number.
    """
    lengths = np.diff(np.asarray(b[1]))  # entries of the second matrix for each of the first
    static: dict[str, Any] = {"columns": columns, "pairs": int(lengths[np.asarray(a[0])].sum(dtype=np.int64))}
    indptr: jax.Array
    (indptr,) = product_rows(*a, *b, outs=[_Struct(a[1].shape, a[1].dtype)], **static)
    entries = check_entries("A @ B", indptr)
    (indices,) = product_entries(*a, *b, indptr, outs=[_Struct((entries,), a[0].dtype)], **static)
    return (indices, indptr), static


def sorted_pairs(a: jax.Array, a_start: jax.Array, b: jax.Array, b_start: jax.Array, pairs: int) -> Any:
    """Return the pairs of entries whose products are added up, sorted by place.

    Returns:
      The row of each pair, its column, the entries of both matrices, and True for the first pair of each place.
    """
    counts = jnp.diff(b_start)[a]
    first = jnp.repeat(jnp.arange(a.size), counts, total_repeat_length=pairs)
    second = jnp.arange(pairs) + (b_start[a] - (jnp.cumsum(counts) - counts))[first]
    row = rows_of_entries(a_start, a.size)[first]
    row, column, first, second = jax.lax.sort((row, b[second], first, second), num_keys=2, is_stable=True)
    is_new = jnp.ones(pairs, bool).at[1:].set((row[1:] != row[:-1]) | (column[1:] != column[:-1]))
    return row, column, first, second, is_new


@product_weights.def_reference
def product_weights_in_jax(
    a_data: jax.Array,
    a: jax.Array,
    a_start: jax.Array,
    b_data: jax.Array,
    b: jax.Array,
    b_start: jax.Array,
    *_: jax.Array,
    outs: Any,
    columns: int,
    pairs: int,
) -> Any:
    """Compute `product_weights` by operations of JAX."""
    (out,) = outs
    if not pairs:
        return [jnp.zeros(out.shape, out.dtype)]
    *_, first, second, is_new = sorted_pairs(a, a_start, b, b_start, pairs)
    terms = a_data[first] * b_data[second]
    return [jax.ops.segment_sum(terms, jnp.cumsum(is_new) - 1, out.shape[0], indices_are_sorted=True)]
