"""The products of a matrix in coordinates, as functions of arrays."""

from __future__ import annotations

from typing import Any

import jax

from .operand import BINARY, DENSE, WEIGHTED
from .products.coordinates import COORDINATE_PRODUCTS


def coomv(
    data: Any,
    row: Any,
    col: Any,
    x: Any,
    *,
    shape: Any,
    transpose: bool = False,
    backend: str | None = None,
) -> jax.Array:
    """Multiply a matrix in coordinates by a vector, ``y[i] = sum_j A[i, j] x[j]``.

    Args:
      data: weights, ``(nnz,)``, or ``(1,)`` where all are equal; integers, real or complex numbers.
      row: rows of the entries, ``(nnz,)``, int32 or int64, in any order; duplicates add up. They are not checked:
        `COO` does that.
      col: their columns, ``(nnz,)``, int32 or int64. An entry whose row and column are those of *shape*, out of range,
        is padding.
      x: the vector, of the dtypes that *data* may have, ``(columns,)``, or ``(rows,)`` for the transpose.
      shape: the matrix's shape, (rows, columns).
      transpose: whether to multiply by the transposed matrix instead.
      backend: the backend to use, instead of the one chosen by context and defaults.

    Returns:
      The product, ``(rows,)``, or ``(columns,)`` for the transpose, of the dtype that *data* and *x* have together.
      float16 and bfloat16 are summed in float32.

    Raises:
      InputError: if an argument is no array.
      ShapeError: if lengths or ranks do not fit.
      DtypeError: if a dtype is not supported.

    Example:
      >>> import jax.numpy as jnp
      >>> from xlakernel.sparse import coomv
      >>> row, col, data = jnp.array([0, 1, 1]), jnp.array([2, 0, 1]), jnp.array([1.0, 2.0, 3.0])
      >>> print(coomv(data, row, col, jnp.array([1.0, 10.0, 100.0]), shape=(2, 3)))
      [100.  32.]
    """
    return COORDINATE_PRODUCTS[DENSE](
        "coomv", data, row, col, x, shape=shape, transpose=transpose, backend=backend, ranks=(1,)
    )


def coomm(
    data: Any,
    row: Any,
    col: Any,
    x: Any,
    *,
    shape: Any,
    transpose: bool = False,
    backend: str | None = None,
) -> jax.Array:
    """Multiply a matrix in coordinates by a matrix, ``Y[i, c] = sum_j A[i, j] X[j, c]``.

    Args:
      data: weights, ``(nnz,)``, or ``(1,)`` where all are equal; integers, real or complex numbers.
      row: rows of the entries, ``(nnz,)``, int32 or int64; see `coomv`.
      col: their columns, ``(nnz,)``, int32 or int64.
      x: the matrix, of the dtypes that *data* may have, ``(columns, k)``, or ``(rows, k)`` for the transpose.
      shape: the sparse matrix's shape, (rows, columns).
      transpose: whether to multiply by the transposed matrix instead.
      backend: the backend to use, instead of the one chosen by context and defaults.

    Returns:
      The product, ``(rows, k)``, or ``(columns, k)`` for the transpose, of the dtype that *data* and *x* have
      together.

    Raises:
      InputError: if an argument is no array.
      ShapeError: if lengths or ranks do not fit.
      DtypeError: if a dtype is not supported.

    Example:
      >>> import jax.numpy as jnp
      >>> from xlakernel.sparse import coomm
      >>> row, col, data = jnp.array([0, 1, 1]), jnp.array([2, 0, 1]), jnp.array([1.0, 2.0, 3.0])
      >>> print(coomm(data, row, col, jnp.eye(3)[:, :2], shape=(2, 3)))
      [[0. 0.]
       [2. 3.]]
    """
    return COORDINATE_PRODUCTS[DENSE](
        "coomm", data, row, col, x, shape=shape, transpose=transpose, backend=backend, ranks=(2,)
    )


def binary_coomv(
    data: Any,
    row: Any,
    col: Any,
    events: Any,
    *,
    shape: Any,
    transpose: bool = False,
    backend: str | None = None,
) -> jax.Array:
    """Add up the columns of a matrix in coordinates where there are events, ``y[i] = sum_j A[i, j]``.

    What is not zero is an event, and counts as 1, NaN too. Zeros add nothing, whatever the weight, nor to derivatives
    in *data*, whatever the tangent or cotangent. As a function of *events* it is differentiated as `coomv`, as if they
    were dense: zeros have a derivative too.

    Args:
      data: weights, ``(nnz,)``, or ``(1,)`` where all are equal; integers, real or complex numbers.
      row: rows of the entries, ``(nnz,)``, int32 or int64; see `coomv`.
      col: their columns, ``(nnz,)``, int32 or int64.
      events: bool, integers or real numbers, ``(columns,)``, or ``(rows,)`` for the transpose.
      shape: the matrix's shape, (rows, columns).
      transpose: whether to multiply by the transposed matrix instead.
      backend: the backend to use, instead of the one chosen by context and defaults.

    Returns:
      The product, ``(rows,)``, or ``(columns,)`` for the transpose, of the dtype of *data*.

    Raises:
      InputError: if an argument is no array.
      ShapeError: if lengths or ranks do not fit.
      DtypeError: if a dtype is not supported.

    Example:
      >>> import jax.numpy as jnp
      >>> from xlakernel.sparse import binary_coomv
      >>> row, col, data = jnp.array([0, 1, 1]), jnp.array([2, 0, 1]), jnp.array([1.0, 2.0, 3.0])
      >>> print(binary_coomv(data, row, col, jnp.array([True, False, True]), shape=(2, 3)))
      [1. 2.]
    """
    return COORDINATE_PRODUCTS[BINARY](
        "binary_coomv", data, row, col, events, shape=shape, transpose=transpose, backend=backend, ranks=(1,)
    )


def binary_coomm(
    data: Any,
    row: Any,
    col: Any,
    events: Any,
    *,
    shape: Any,
    transpose: bool = False,
    backend: str | None = None,
) -> jax.Array:
    """Multiply a matrix in coordinates by several event arrays at once, the columns of *events*.

    What is not zero is an event, and counts as 1, NaN too. Zeros add nothing, whatever the weight, nor to derivatives
    in *data*, whatever the tangent or cotangent. As a function of *events* it is differentiated as `coomm`, as if they
    were dense: zeros have a derivative too.

    Args:
      data: weights, ``(nnz,)``, or ``(1,)`` where all are equal; integers, real or complex numbers.
      row: rows of the entries, ``(nnz,)``, int32 or int64; see `coomv`.
      col: their columns, ``(nnz,)``, int32 or int64.
      events: bool, integers or real numbers, ``(columns, k)``, or ``(rows, k)`` for the transpose.
      shape: the sparse matrix's shape, (rows, columns).
      transpose: whether to multiply by the transposed matrix instead.
      backend: the backend to use, instead of the one chosen by context and defaults.

    Returns:
      The product, ``(rows, k)``, or ``(columns, k)`` for the transpose, of the dtype of *data*.

    Raises:
      InputError: if an argument is no array.
      ShapeError: if lengths or ranks do not fit.
      DtypeError: if a dtype is not supported.

    Example:
      >>> import jax.numpy as jnp
      >>> from xlakernel.sparse import binary_coomm
      >>> row, col, data = jnp.array([0, 1, 1]), jnp.array([2, 0, 1]), jnp.array([1.0, 2.0, 3.0])
      >>> print(binary_coomm(data, row, col, jnp.eye(3)[:, :2], shape=(2, 3)))
      [[0. 0.]
       [2. 3.]]
    """
    return COORDINATE_PRODUCTS[BINARY](
        "binary_coomm", data, row, col, events, shape=shape, transpose=transpose, backend=backend, ranks=(2,)
    )


def weighted_coomv(
    data: Any,
    row: Any,
    col: Any,
    events: Any,
    *,
    shape: Any,
    transpose: bool = False,
    backend: str | None = None,
) -> jax.Array:
    """Multiply a matrix in coordinates by a vector of which most is zero, ``y[i] = sum_j A[i, j] x[j]``.

    Zeros add nothing, whatever the weight, nor to derivatives in *data*, whatever the tangent or cotangent; and little
    is done for them. As a function of *events* it is differentiated as `coomv`, as if they were dense: zeros have a
    derivative too.

    Args:
      data: weights, ``(nnz,)``, or ``(1,)`` where all are equal; integers, real or complex numbers.
      row: rows of the entries, ``(nnz,)``, int32 or int64; see `coomv`.
      col: their columns, ``(nnz,)``, int32 or int64.
      events: the values, of the dtypes that *data* may have, ``(columns,)``, or ``(rows,)`` for the transpose.
      shape: the matrix's shape, (rows, columns).
      transpose: whether to multiply by the transposed matrix instead.
      backend: the backend to use, instead of the one chosen by context and defaults.

    Returns:
      The product, ``(rows,)``, or ``(columns,)`` for the transpose, of the dtype that *data* and *events* have
      together.

    Raises:
      InputError: if an argument is no array.
      ShapeError: if lengths or ranks do not fit.
      DtypeError: if a dtype is not supported.

    Example:
      >>> import jax.numpy as jnp
      >>> from xlakernel.sparse import weighted_coomv
      >>> row, col, data = jnp.array([0, 1, 1]), jnp.array([2, 0, 1]), jnp.array([1.0, 2.0, 3.0])
      >>> print(weighted_coomv(data, row, col, jnp.array([0.5, 0.0, 2.0]), shape=(2, 3)))
      [2. 1.]
    """
    return COORDINATE_PRODUCTS[WEIGHTED](
        "weighted_coomv", data, row, col, events, shape=shape, transpose=transpose, backend=backend, ranks=(1,)
    )


def weighted_coomm(
    data: Any,
    row: Any,
    col: Any,
    events: Any,
    *,
    shape: Any,
    transpose: bool = False,
    backend: str | None = None,
) -> jax.Array:
    """Multiply a matrix in coordinates by a matrix of which most is zero, ``Y[i, c] = sum_j A[i, j] X[j, c]``.

    Zeros add nothing, whatever the weight, nor to derivatives in *data*, whatever the tangent or cotangent; and little
    is done for them. As a function of *events* it is differentiated as `coomm`, as if they were dense: zeros have a
    derivative too.

    Args:
      data: weights, ``(nnz,)``, or ``(1,)`` where all are equal; integers, real or complex numbers.
      row: rows of the entries, ``(nnz,)``, int32 or int64; see `coomv`.
      col: their columns, ``(nnz,)``, int32 or int64.
      events: the values, of the dtypes that *data* may have, ``(columns, k)``, or ``(rows, k)`` for the transpose.
      shape: the sparse matrix's shape, (rows, columns).
      transpose: whether to multiply by the transposed matrix instead.
      backend: the backend to use, instead of the one chosen by context and defaults.

    Returns:
      The product, ``(rows, k)``, or ``(columns, k)`` for the transpose, of the dtype that *data* and *events* have
      together.

    Raises:
      InputError: if an argument is no array.
      ShapeError: if lengths or ranks do not fit.
      DtypeError: if a dtype is not supported.

    Example:
      >>> import jax.numpy as jnp
      >>> from xlakernel.sparse import weighted_coomm
      >>> row, col, data = jnp.array([0, 1, 1]), jnp.array([2, 0, 1]), jnp.array([1.0, 2.0, 3.0])
      >>> print(weighted_coomm(data, row, col, jnp.eye(3)[:, :2], shape=(2, 3)))
      [[0. 0.]
       [2. 3.]]
    """
    return COORDINATE_PRODUCTS[WEIGHTED](
        "weighted_coomm", data, row, col, events, shape=shape, transpose=transpose, backend=backend, ranks=(2,)
    )
