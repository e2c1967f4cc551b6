"""The sum of active rows, given by their indices: `compact_csrmv`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from xlakernel.core import XLACustomKernel
from xlakernel.core.errors import DtypeError, ShapeError

from .arguments import as_array, check_compressed, fits, index_array
from .backends import register
from .dtypes import accumulator, as_weights

#: Inputs ``data, indices, indptr, active, count``; static keywords ``shape, homogeneous``.
compact_product = XLACustomKernel("compact_csrmv", "The operator behind `xlakernel.sparse.compact_csrmv`.")
register(compact_product, "compact_product", without=("warp",))
compact_product.def_tags("sparse", "csr", "compact")


def compact_csrmv(
    data: Any, indices: Any, indptr: Any, active: Any, count: Any, *, shape: Any, backend: str | None = None
) -> jax.Array:
    """Add up the active rows of a matrix in compressed rows, ``y = sum_k A[active[k], :]`` for ``k < count``.

    Other rows add nothing, nor to derivatives in *data*, even where a weight, tangent or cotangent is infinite or NaN.

    Args:
      data: weights, ``(nnz,)``, or ``(1,)`` where all are equal; integers, real or complex numbers.
      indices: columns of the entries, ``(nnz,)``, int32 or int64.
      indptr: the first entry of each row, ``(rows + 1,)``, int32 or int64.
      active: the active rows, ``(capacity,)``, int32 or int64, of which those from *count* on are ignored. They are not
        checked, unlike those of `CompactArray`.
      count: the number of active rows, ``()``, an integer of at most *capacity*.
      shape: the matrix's shape, (rows, columns).
      backend: the backend; None: chosen by context and defaults.

    Returns:
      The sum, ``(columns,)``, of the dtype of *data*.

    Raises:
      InputError: if an argument is not an array.
      ShapeError: if lengths or ranks do not fit.
      DtypeError: if a dtype is not supported.

    Example:
      >>> import jax.numpy as jnp
      >>> from xlakernel.sparse import compact_csrmv
      >>> indptr, indices, data = jnp.array([0, 1, 3]), jnp.array([2, 0, 1]), jnp.array([1.0, 2.0, 3.0])
      >>> print(compact_csrmv(data, indices, indptr, jnp.array([1, 0]), 1, shape=(2, 3)))
      [2. 3. 0.]
    """
    caller = "compact_csrmv"
    data, indices, indptr, shape = check_compressed(caller, data, indices, indptr, shape)
    active, count = index_array(caller, "active", active), as_array(caller, "count", count)
    if count.shape != ():
        raise ShapeError(f"{caller}: count has the shape {count.shape}; expected one integer, shape ().")
    if count.dtype.kind not in "iu":
        raise DtypeError(f"{caller}: count is of dtype {count.dtype}; expected an integer.")
    capacity = active.shape[0]
    most = capacity if fits(capacity, count.dtype) else np.iinfo(count.dtype).max  # which can be compared
    dtype = accumulator(data.dtype)
    y: jax.Array
    (y,) = compact_product(
        as_weights(data, dtype),
        indices,
        indptr,
        active,
        jnp.clip(count, 0, most).astype("int32"),
        outs=[jax.ShapeDtypeStruct(shape[1:], dtype)],
        backend=backend,
        shape=shape,
        homogeneous=data.shape == (1,),
    )
    return y.astype(data.dtype)
