"""Elements of a dense product at the entries of a sparse matrix: `csr_sddmm`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from xlakernel.core import XLACustomKernel
from xlakernel.core.errors import ShapeError

from .arguments import as_array, check_shape, check_structure
from .backends import register
from .dtypes import accumulator, check_dtype
from .units import joined, split

#: Inputs ``indices, indptr, u, v``; ``out[k] = sum_c u[row of k, c] v[indices[k], c]``. Static keywords: ``shape``, and
#: ``events``: "u" or "v" if zeros of this input are inactive events and add nothing, else "".
sampled_product = XLACustomKernel("csr_sddmm", "The operator behind `xlakernel.sparse.csr_sddmm`.")
register(sampled_product, "sampled_product")
sampled_product.def_tags("sparse", "csr", "sampled")


def csr_sddmm(indices: Any, indptr: Any, u: Any, v: Any, *, shape: Any, backend: str | None = None) -> jax.Array:
    """Compute elements of a dense product at the entries of a sparse matrix, ``out[k] = sum_c u[i, c] v[c, j]``.

    Here ``i`` and ``j`` are the row and the column of entry ``k``. The gradient of a product with respect to the
    weights is of this form. Another name of the operation is sampled dense-dense matrix product.

    Args:
      indices: columns of the entries, ``(nnz,)``, int32 or int64.
      indptr: the first entry of each row, ``(rows + 1,)``, int32 or int64.
      u: integers, real or complex numbers, ``(rows, c)``, or ``(rows,)`` for an outer product.
      v: integers, real or complex numbers, ``(c, columns)``, or ``(columns,)``.
      shape: the matrix's shape, (rows, columns).
      backend: the backend; None: that of the `use_backend` context, or else the default.

    Returns:
      The elements, ``(nnz,)``, of the promoted dtype of *u* and *v*; 0 for padding.

    Raises:
      InputError: if an argument is not an array.
      ShapeError: if lengths or ranks do not fit.
      DtypeError: if a dtype is not supported.

    Example:
      >>> import jax.numpy as jnp
      >>> from xlakernel.sparse import csr_sddmm
      >>> indptr, indices = jnp.array([0, 1, 3]), jnp.array([2, 0, 1])
      >>> print(csr_sddmm(indices, indptr, jnp.array([1.0, 10.0]), jnp.array([1.0, 2.0, 3.0]), shape=(2, 3)))
      [ 3. 10. 20.]
    """
    caller = "csr_sddmm"
    shape = check_shape(caller, shape)
    indices, indptr = check_structure(caller, indices, indptr, shape)
    (u, of_u), (v, of_v) = split(u), split(v)
    u, v = as_array(caller, "u", u), as_array(caller, "v", v)
    inner = u.shape[1:]
    if u.shape != (shape[0], *inner) or v.shape != (*inner, shape[1]) or len(inner) > 1:
        raise ShapeError(
            f"{caller}: u has the shape {u.shape} and v {v.shape}; at the entries of a matrix of shape {shape} they "
            f"must be ({shape[0]}, c) and (c, {shape[1]}), or ({shape[0]},) and ({shape[1]},)."
        )
    result = jnp.result_type(u, v)
    check_dtype(caller, "the product", result)
    dtype = accumulator(result)
    out = jax.ShapeDtypeStruct(indices.shape, dtype)
    entries: jax.Array
    (entries,) = sampled_product(
        indices, indptr, u.astype(dtype), v.T.astype(dtype), outs=[out], backend=backend, shape=shape, events=""
    )
    product: jax.Array = joined(entries.astype(result), of_u, of_v)
    return product
