"""The products of a matrix in compressed rows, as functions of arrays."""

from __future__ import annotations

from typing import Any

import jax

from .operand import BINARY, DENSE, WEIGHTED
from .products.compressed import PRODUCTS


def csrmv(
    data: Any, indices: Any, indptr: Any, x: Any, *, shape: Any, transpose: bool = False, backend: str | None = None
) -> jax.Array:
    """Multiply a matrix in compressed rows by a vector, ``y[i] = sum_j A[i, j] x[j]``.

    Args:
      data: weights, ``(nnz,)``, or ``(1,)`` if all are equal; integers, real or complex numbers.
      indices: columns of the entries, ``(nnz,)``, int32 or int64, in any order within a row; duplicates add up.
        Unlike the indices of a `CSR`, they are not checked: an index out of range may access other memory and end the
        process. On the CPU, `xlakernel.core.debug_mode` finds such an index.
      indptr: the first entry of each row, ``(rows + 1,)``, int32 or int64.
      x: the vector, ``(columns,)``, or ``(rows,)`` for the transpose; bool, integers, real or complex numbers.
      shape: the matrix's shape, (rows, columns).
      transpose: if True, multiply by the transposed matrix.
      backend: ``"numba"``, ``"warp"`` or ``"jax"`` on the CPU; ``"numba_cuda"``, ``"warp"`` or ``"jax"`` on a GPU.
        None: the backend of the `use_backend` context, or else the default.

    Returns:
      The product, ``(rows,)``, or ``(columns,)`` for the transpose, of the promoted dtype of *data* and *x*.
      float16 and bfloat16 are summed in float32.

    Raises:
      InputError: if an argument is not an array.
      ShapeError: if lengths or ranks do not fit.
      DtypeError: if a dtype is not supported.

    Example:
      >>> import jax.numpy as jnp
      >>> from xlakernel.sparse import csrmv
      >>> indptr, indices, data = jnp.array([0, 1, 3]), jnp.array([2, 0, 1]), jnp.array([1.0, 2.0, 3.0])
      >>> print(csrmv(data, indices, indptr, jnp.array([1.0, 10.0, 100.0]), shape=(2, 3)))
      [100.  32.]
    """
    return PRODUCTS[DENSE](
        "csrmv", data, indices, indptr, x, shape=shape, transpose=transpose, backend=backend, ranks=(1,)
    )


def csrmm(
    data: Any, indices: Any, indptr: Any, x: Any, *, shape: Any, transpose: bool = False, backend: str | None = None
) -> jax.Array:
    """Multiply a matrix in compressed rows by a matrix, ``Y[i, c] = sum_j A[i, j] X[j, c]``.

    Args:
      data: weights, ``(nnz,)``, or ``(1,)`` if all are equal; integers, real or complex numbers.
      indices: columns of the entries, ``(nnz,)``, int32 or int64; see `csrmv`.
      indptr: the first entry of each row, ``(rows + 1,)``, int32 or int64.
      x: the matrix, ``(columns, k)``, or ``(rows, k)`` for the transpose; bool, integers, real or complex numbers.
      shape: the sparse matrix's shape, (rows, columns).
      transpose: if True, multiply by the transposed matrix.
      backend: the backend; None: that of the `use_backend` context, or else the default.

    Returns:
      The product, ``(rows, k)``, or ``(columns, k)`` for the transpose, of the promoted dtype of *data* and *x*.

    Raises:
      InputError: if an argument is not an array.
      ShapeError: if lengths or ranks do not fit.
      DtypeError: if a dtype is not supported.

    Example:
      >>> import jax.numpy as jnp
      >>> from xlakernel.sparse import csrmm
      >>> indptr, indices, data = jnp.array([0, 1, 3]), jnp.array([2, 0, 1]), jnp.array([1.0, 2.0, 3.0])
      >>> print(csrmm(data, indices, indptr, jnp.eye(3)[:, :2], shape=(2, 3)))
      [[0. 0.]
       [2. 3.]]
    """
    return PRODUCTS[DENSE](
        "csrmm", data, indices, indptr, x, shape=shape, transpose=transpose, backend=backend, ranks=(2,)
    )


def binary_csrmv(
    data: Any,
    indices: Any,
    indptr: Any,
    events: Any,
    *,
    shape: Any,
    transpose: bool = False,
    backend: str | None = None,
) -> jax.Array:
    """Multiply a matrix in compressed rows by a vector of events, ``y[i] = sum_j A[i, j]`` over active ``j``.

    Elements of *events* that are not zero are active and count as 1; `BinaryArray` describes the derivatives.

    Args:
      data: weights, ``(nnz,)``, or ``(1,)`` if all are equal; integers, real or complex numbers.
      indices: columns of the entries, ``(nnz,)``, int32 or int64; see `csrmv`.
      indptr: the first entry of each row, ``(rows + 1,)``, int32 or int64.
      events: bool, integers or real numbers, ``(columns,)``, or ``(rows,)`` for the transpose.
      shape: the matrix's shape, (rows, columns).
      transpose: if True, multiply by the transposed matrix.
      backend: the backend; None: that of the `use_backend` context, or else the default.

    Returns:
      The product, ``(rows,)``, or ``(columns,)`` for the transpose, of the dtype of *data*.

    Raises:
      InputError: if an argument is not an array.
      ShapeError: if lengths or ranks do not fit.
      DtypeError: if a dtype is not supported.

    Example:
      >>> import jax.numpy as jnp
      >>> from xlakernel.sparse import binary_csrmv
      >>> indptr, indices, data = jnp.array([0, 1, 3]), jnp.array([2, 0, 1]), jnp.array([1.0, 2.0, 3.0])
      >>> print(binary_csrmv(data, indices, indptr, jnp.array([True, False, True]), shape=(2, 3)))
      [1. 2.]
    """
    return PRODUCTS[BINARY](
        "binary_csrmv", data, indices, indptr, events, shape=shape, transpose=transpose, backend=backend, ranks=(1,)
    )


def binary_csrmm(
    data: Any,
    indices: Any,
    indptr: Any,
    events: Any,
    *,
    shape: Any,
    transpose: bool = False,
    backend: str | None = None,
) -> jax.Array:
    """Multiply a matrix in compressed rows by several event arrays at once, the columns of *events*.

    Elements of *events* that are not zero are active and count as 1; `BinaryArray` describes the derivatives.

    Args:
      data: weights, ``(nnz,)``, or ``(1,)`` if all are equal; integers, real or complex numbers.
      indices: columns of the entries, ``(nnz,)``, int32 or int64; see `csrmv`.
      indptr: the first entry of each row, ``(rows + 1,)``, int32 or int64.
      events: bool, integers or real numbers, ``(columns, k)``, or ``(rows, k)`` for the transpose.
      shape: the sparse matrix's shape, (rows, columns).
      transpose: if True, multiply by the transposed matrix.
      backend: the backend; None: that of the `use_backend` context, or else the default.

    Returns:
      The product, ``(rows, k)``, or ``(columns, k)`` for the transpose, of the dtype of *data*.

    Raises:
      InputError: if an argument is not an array.
      ShapeError: if lengths or ranks do not fit.
      DtypeError: if a dtype is not supported.

    Example:
      >>> import jax.numpy as jnp
      >>> from xlakernel.sparse import binary_csrmm
      >>> indptr, indices, data = jnp.array([0, 1, 3]), jnp.array([2, 0, 1]), jnp.array([1.0, 2.0, 3.0])
      >>> print(binary_csrmm(data, indices, indptr, jnp.eye(3)[:, :2], shape=(2, 3)))
      [[0. 0.]
       [2. 3.]]
    """
    return PRODUCTS[BINARY](
        "binary_csrmm", data, indices, indptr, events, shape=shape, transpose=transpose, backend=backend, ranks=(2,)
    )


def weighted_csrmv(
    data: Any,
    indices: Any,
    indptr: Any,
    events: Any,
    *,
    shape: Any,
    transpose: bool = False,
    backend: str | None = None,
) -> jax.Array:
    """Multiply a matrix in compressed rows by a vector of graded events, ``y[i] = sum_j A[i, j] x[j]``.

    Zeros of *events* are skipped; `WeightedArray` describes the derivatives.

    Args:
      data: weights, ``(nnz,)``, or ``(1,)`` if all are equal; integers, real or complex numbers.
      indices: columns of the entries, ``(nnz,)``, int32 or int64; see `csrmv`.
      indptr: the first entry of each row, ``(rows + 1,)``, int32 or int64.
      events: bool, integers, real or complex numbers, ``(columns,)``, or ``(rows,)`` for the transpose.
      shape: the matrix's shape, (rows, columns).
      transpose: if True, multiply by the transposed matrix.
      backend: the backend; None: that of the `use_backend` context, or else the default.

    Returns:
      The product, ``(rows,)``, or ``(columns,)`` for the transpose, of the promoted dtype of *data* and *events*.

    Raises:
      InputError: if an argument is not an array.
      ShapeError: if lengths or ranks do not fit.
      DtypeError: if a dtype is not supported.

    Example:
      >>> import jax.numpy as jnp
      >>> from xlakernel.sparse import weighted_csrmv
      >>> indptr, indices, data = jnp.array([0, 1, 3]), jnp.array([2, 0, 1]), jnp.array([1.0, 2.0, 3.0])
      >>> print(weighted_csrmv(data, indices, indptr, jnp.array([0.5, 0.0, 2.0]), shape=(2, 3)))
      [2. 1.]
    """
    return PRODUCTS[WEIGHTED](
        "weighted_csrmv", data, indices, indptr, events, shape=shape, transpose=transpose, backend=backend, ranks=(1,)
    )


def weighted_csrmm(
    data: Any,
    indices: Any,
    indptr: Any,
    events: Any,
    *,
    shape: Any,
    transpose: bool = False,
    backend: str | None = None,
) -> jax.Array:
    """Multiply a matrix in compressed rows by a matrix of graded events, ``Y[i, c] = sum_j A[i, j] X[j, c]``.

    Zeros of *events* are skipped; `WeightedArray` describes the derivatives.

    Args:
      data: weights, ``(nnz,)``, or ``(1,)`` if all are equal; integers, real or complex numbers.
      indices: columns of the entries, ``(nnz,)``, int32 or int64; see `csrmv`.
      indptr: the first entry of each row, ``(rows + 1,)``, int32 or int64.
      events: bool, integers, real or complex numbers, ``(columns, k)``, or ``(rows, k)`` for the transpose.
      shape: the sparse matrix's shape, (rows, columns).
      transpose: if True, multiply by the transposed matrix.
      backend: the backend; None: that of the `use_backend` context, or else the default.

    Returns:
      The product, ``(rows, k)``, or ``(columns, k)`` for the transpose, of the promoted dtype of *data* and *events*.

    Raises:
      InputError: if an argument is not an array.
      ShapeError: if lengths or ranks do not fit.
      DtypeError: if a dtype is not supported.

    Example:
      >>> import jax.numpy as jnp
      >>> from xlakernel.sparse import weighted_csrmm
      >>> indptr, indices, data = jnp.array([0, 1, 3]), jnp.array([2, 0, 1]), jnp.array([1.0, 2.0, 3.0])
      >>> print(weighted_csrmm(data, indices, indptr, jnp.eye(3)[:, :2], shape=(2, 3)))
      [[0. 0.]
       [2. 3.]]
    """
    return PRODUCTS[WEIGHTED](
        "weighted_csrmm", data, indices, indptr, events, shape=shape, transpose=transpose, backend=backend, ranks=(2,)
    )
