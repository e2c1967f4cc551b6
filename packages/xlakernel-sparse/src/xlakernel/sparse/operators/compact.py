"""The sum of the active rows of a matrix: the rows whose indices are listed."""

from __future__ import annotations

import jax

from xlakernel.core import XLACustomKernel

from .backends import register
from .dtypes import accumulator, as_weights

#: Inputs ``data, indices, indptr, active, count``; static keywords ``shape, homogeneous``.
compact_product = XLACustomKernel("compact_csrmv", "The sum of active rows of a matrix in compressed rows.")
register(compact_product, "compact_product", without=("warp",))
compact_product.def_tags("sparse", "csr", "compact")


def sum_rows(
    data: jax.Array,
    indices: jax.Array,
    indptr: jax.Array,
    active: jax.Array,
    count: jax.Array,
    *,
    shape: tuple[int, int],
) -> jax.Array:
    """Add up the active rows of a matrix in compressed rows, ``y = sum_k A[active[k], :]`` for ``k < count``.

    The arrays are those of a checked matrix and of a `CompactArray`. Rows that are not active add nothing, neither to
    the sum nor to its derivatives with respect to *data*, even where a weight, tangent or cotangent is infinite or NaN.
    """
    dtype = accumulator(data.dtype)
    y: jax.Array
    (y,) = compact_product(
        as_weights(data, dtype),
        indices,
        indptr,
        active,
        count,
        outs=[jax.ShapeDtypeStruct(shape[1:], dtype)],
        shape=shape,
        homogeneous=data.shape == (1,),
    )
    return y.astype(data.dtype)
