"""Products of events and dense matrices: `binary_densemv`, `binary_densemm`, and ``events @ dense``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.interpreters import ad

from xlakernel.core import XLACustomKernel
from xlakernel.core.backend import jit_when_eager
from xlakernel.core.errors import DtypeError, ShapeError

from ..arguments import as_array
from ..backends import register
from ..dtypes import accumulator, as_weights, check_dtype
from ..operand import BINARY, WEIGHTED, Operand
from ..units import joined, split

_Struct = jax.ShapeDtypeStruct


def _operator(operand: Operand) -> XLACustomKernel:
    op = XLACustomKernel(f"{operand.prefix}densemm", "A product of events and a dense matrix.")
    register(op, "dense_product", operand=operand, plain=("warp",))
    op.def_tags("sparse", "dense", "events")
    return op


#: Inputs: a matrix, ``(n, m)``, or ``(m, n)`` if the static keyword *across* is True; and events, ``(k, n)``. Result:
#: ``(k, m)``.
DENSE_PRODUCTS = {operand: _operator(operand) for operand in (BINARY, WEIGHTED)}


def binary_densemv(weights: Any, spikes: Any, *, transpose: bool = False, backend: str | None = None) -> jax.Array:
    """Multiply a dense matrix by a vector of events: ``weights @ spikes``, or ``spikes @ weights`` if *transpose*.

    If few events are active, only the columns, or rows, of active events are read; under `jax.vmap`, a GPU may read the
    whole matrix, see `binary_densemm`. Inactive events add nothing to the product, nor to its derivatives with respect
    to the weights, even where a weight, tangent or cotangent is infinite or NaN. With respect to the events, the
    product is differentiated as if they were a dense operand. ``BinaryArray(spikes) @ weights`` is the product if
    *transpose*.

    Args:
      weights: the matrix, ``(m, n)``, or ``(n, m)`` if *transpose*; integers, real or complex numbers.
      spikes: bool, integers or real numbers, ``(n,)``; elements that are not zero are active and count as 1.
      transpose: if True, return ``spikes @ weights``.
      backend: the backend; None: that of the `use_backend` context, or else the default.

    Returns:
      The product, ``(m,)``, of the dtype of *weights*.

    Raises:
      InputError: if an argument is not an array.
      ShapeError: if shapes do not fit.
      DtypeError: if a dtype is not supported.

    Example:
      >>> import jax.numpy as jnp
      >>> from xlakernel.sparse import binary_densemv
      >>> print(binary_densemv(jnp.array([[1.0, 2.0], [3.0, 4.0]]), jnp.array([False, True])))
      [2. 4.]
    """
    return _multiply("binary_densemv", 1, weights, spikes, transpose=bool(transpose), backend=backend)


def binary_densemm(weights: Any, spikes: Any, *, transpose: bool = False, backend: str | None = None) -> jax.Array:
    """Multiply a dense matrix by columns of events: ``weights @ spikes``, or ``weights.T @ spikes`` if *transpose*.

    See `binary_densemv`. A GPU reads the whole matrix, as for dense operands, if *transpose* is False and *k* is more
    than 1, or if *k* is more than 32.

    Args:
      weights: the matrix, ``(m, n)``, or ``(n, m)`` if *transpose*; integers, real or complex numbers.
      spikes: bool, integers or real numbers, ``(n, k)``; elements that are not zero are active and count as 1.
      transpose: if True, return ``weights.T @ spikes``.
      backend: the backend; None: that of the `use_backend` context, or else the default.

    Returns:
      The product, ``(m, k)``, of the dtype of *weights*.

    Raises:
      InputError: if an argument is not an array.
      ShapeError: if shapes do not fit.
      DtypeError: if a dtype is not supported.

    Example:
      >>> import jax.numpy as jnp
      >>> from xlakernel.sparse import binary_densemm
      >>> print(binary_densemm(jnp.array([[1.0, 2.0], [3.0, 4.0]]), jnp.array([[0, 1], [1, 1]])))
      [[2. 3.]
       [4. 7.]]
    """
    return _multiply("binary_densemm", 2, weights, spikes, transpose=bool(transpose), backend=backend)


def _multiply(caller: str, rank: int, weights: Any, spikes: Any, **keywords: Any) -> jax.Array:
    """Check the arguments of the function *caller*, and multiply."""
    (weights, of_weights), (spikes, of_spikes) = split(weights), split(spikes)
    product: jax.Array = joined(_checked(caller, rank, weights, spikes, **keywords), of_weights, of_spikes)
    return product


def _check_and_multiply(
    caller: str, rank: int, weights: Any, spikes: Any, *, transpose: bool, backend: str | None
) -> jax.Array:
    weights, spikes = as_array(caller, "weights", weights), as_array(caller, "spikes", spikes)
    if weights.ndim != 2:
        raise ShapeError(f"{caller}: weights has the shape {weights.shape}; expected two dimensions.")
    length = weights.shape[0 if transpose else 1]
    if spikes.ndim != rank or spikes.shape[0] != length:
        form = f"({length},)" if rank == 1 else f"({length}, k)"
        raise ShapeError(
            f"{caller}: spikes has the shape {spikes.shape}; with weights of shape {weights.shape} it must be {form}."
        )
    check_dtype(caller, "weights", weights.dtype)
    if spikes.dtype != bool:
        check_dtype(caller, "spikes", spikes.dtype)
    if spikes.dtype.kind == "c":
        raise DtypeError(f"{caller}: spikes is of dtype {spikes.dtype}; expected bool, integers or real numbers.")
    columns = spikes[:, None] if rank == 1 else spikes
    product = multiply_rows(BINARY, columns.T, weights, across=not transpose, backend=backend).T
    return product[:, 0] if rank == 1 else product


_checked = jit_when_eager(_check_and_multiply, static_argnums=(0, 1), static_argnames=("transpose", "backend"))


def multiply_rows(
    operand: Operand, events: jax.Array, matrix: jax.Array, *, across: bool = False, backend: str | None = None
) -> jax.Array:
    """Return the products of vectors of events, ``(k, n)``, and a checked matrix, ``(k, m)``; see `DENSE_PRODUCTS`."""
    result = operand.result_dtype(matrix, events)
    dtype = accumulator(result)
    product: jax.Array
    (product,) = DENSE_PRODUCTS[operand](
        as_weights(matrix, dtype),
        events if operand is BINARY else events.astype(dtype),
        outs=[_Struct((events.shape[0], matrix.shape[0 if across else 1]), dtype)],
        backend=backend,
        across=across,
    )
    return product.astype(result)


def _define(operand: Operand) -> None:
    op = DENSE_PRODUCTS[operand]

    @op.def_batching_rule
    def _(ins: Sequence[Any], axes: Sequence[int | None], *, outs: Any, dispatch: Any, **static: Any) -> Any:
        """Multiply the events of all elements of a batch at once, if only they are batched."""
        matrix, events = ins
        if axes[0] is not None or axes[1] is None:
            size = next(x.shape[axis] for x, axis in zip(ins, axes, strict=True) if axis is not None)
            return op.primitive.bind(*ins, outs=outs, dispatch=dispatch.batched(axes, size), **static), [0]
        (out,) = outs
        events = jnp.moveaxis(events, axes[1], 0)
        size, count = events.shape[:2]
        folded = [_Struct((size * count, out.shape[1]), out.dtype)]
        rows = events.reshape(size * count, events.shape[2])
        (product,) = op.primitive.bind(matrix, rows, outs=folded, dispatch=dispatch, **static)
        return [product.reshape(size, count, out.shape[1])], [0]

    @op.def_jvp_rule
    def _(primals: Sequence[Any], tangents: Sequence[Any], *, across: bool, **params: Any) -> Any:
        matrix, events = primals
        of_matrix, of_events = tangents
        (product,) = op.primitive.bind(*primals, across=across, **params)
        tangent: Any = ad.Zero(jax.typeof(product).to_tangent_aval())
        if not isinstance(of_matrix, ad.Zero):
            (tangent,) = op.primitive.bind(of_matrix, events, across=across, **params)
        if not isinstance(of_events, ad.Zero) and jnp.issubdtype(product.dtype, jnp.inexact):
            # As if the events were dense.
            dense = matrix.T if across else matrix
            change = jnp.matmul(of_events.astype(product.dtype), dense.astype(product.dtype))
            tangent = change if isinstance(tangent, ad.Zero) else tangent + change
        return [product], [tangent]

    @op.def_transpose_rule
    def _(cotangents: Sequence[Any], matrix: Any, events: Any, *, outs: Any, dispatch: Any, across: bool) -> Any:
        (cotangent,) = cotangents
        if isinstance(cotangent, ad.Zero):
            return [None, None]
        if ad.is_undefined_primal(events):  # as if the events were dense
            dense = (matrix if across else matrix.T).astype(cotangent.dtype)
            return [None, jnp.matmul(cotangent, dense).astype(events.aval.dtype)]
        # The cotangent of the matrix is a product of the same kind: each of its rows sums the active vectors.
        outs = [_Struct((events.shape[1], cotangent.shape[1]), cotangent.dtype)]
        (found,) = op.primitive.bind(cotangent, events.T, outs=outs, dispatch=dispatch, across=False)
        return [(found.T if across else found).astype(matrix.aval.dtype), None]


for _operand in DENSE_PRODUCTS:
    _define(_operand)
