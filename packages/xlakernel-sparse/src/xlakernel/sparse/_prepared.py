"""What `prepare` adds to a matrix, and the products that read it.

The mirror holds the entries in the order of the other axis. A product with events walks the lines that are active, a
dense one the lines of the result; one of the two orders has these lines. The mirrored weights are a copy: derivatives
go to the weights themselves, through the products of the matrix without a mirror.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
from jax import lax
from jax.custom_derivatives import SymbolicZero

from xlakernel.core.errors import DifferentiationError
from xlakernel.core.transforms import multilinear
from xlakernel.core.transforms.multilinear import Group, Multilinear

from .operators.conversion import csr_transpose
from .operators.operand import DENSE, Operand
from .operators.product import PRODUCTS

if TYPE_CHECKING:
    from ._compressed import Compressed


class Prepared(NamedTuple):
    """The mirror of a compressed matrix.

    Attributes:
      data: the weights in the mirror's order, ``(nnz,)``; None where all are equal.
      indices: the line of each entry of the mirror, ``(nnz,)``.
      indptr: where each line of the mirror begins, ``(places + 1,)``.
      permutation: entry ``k`` of the mirror is entry ``permutation[k]`` of the matrix, ``(nnz,)``.
    """

    data: jax.Array | None
    indices: jax.Array
    indptr: jax.Array
    permutation: jax.Array

    def with_data(self, data: jax.Array) -> Prepared:
        """Return the mirror of the matrix with these weights."""
        mirrored = None if data.shape == (1,) else lax.stop_gradient(data)[self.permutation]
        return self._replace(data=mirrored)


def prepare(data: jax.Array, indices: jax.Array, indptr: jax.Array, shape: tuple[int, int]) -> Prepared:
    """Make the mirror of a matrix in compressed rows."""
    return Prepared(None, *csr_transpose(indices, indptr, shape=shape)).with_data(data)


@dataclasses.dataclass(frozen=True)
class _Product:
    """Which product: its operand, the shape of the matrix whose rows are the lines, and whether that is transposed."""

    operand: Operand
    shape: tuple[int, int]
    transpose: bool

    @property
    def of_tangents(self) -> _Product:
        return dataclasses.replace(self, operand=DENSE)

    @property
    def transposed(self) -> _Product:
        return dataclasses.replace(self, transpose=not self.transpose)


_Structure = tuple[jax.Array, jax.Array]


def multiply(matrix: Compressed, operand: Operand, x: Any, *, transpose: bool) -> jax.Array:
    """Multiply a prepared matrix, taken as one in compressed rows, by *x* of rank 1 or 2."""
    assert matrix.prepared is not None
    which = _Product(operand, matrix.line_shape, transpose)
    result: jax.Array = _multiply(which, matrix.data, matrix.structure, matrix.prepared, x)
    return result


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _multiply(which: _Product, data: Any, structure: _Structure, prepared: Prepared, x: Any) -> jax.Array:
    scatter = which.operand is not DENSE
    shape = which.shape
    if which.transpose != scatter:
        data = data if prepared.data is None else prepared.data
        structure, shape = (prepared.indices, prepared.indptr), shape[::-1]
    indices, indptr = structure
    return PRODUCTS[which.operand](_WHO, data, indices, indptr, x, shape=shape, transpose=scatter, backend=None)


@functools.partial(_multiply.defjvp, symbolic_zeros=True)
def _jvp(which: _Product, primals: Any, tangents: Any) -> Any:
    data, structure, prepared, x = primals
    of_data, _, of_prepared, of_x = tangents
    y = _multiply(which, *primals)
    if of_prepared.data is not None and not isinstance(of_prepared.data, SymbolicZero):
        raise DifferentiationError(
            "a derivative is asked for in all leaves of a prepared matrix, which holds its weights twice. Take it in "
            "A.data, and put that in with with_data: jax.grad(lambda w: loss(A.with_data(w)))(A.data)."
        )
    parts = []
    if not isinstance(of_data, SymbolicZero):
        product, (indices, indptr) = PRODUCTS[which.operand], structure
        part = product(_WHO, of_data, indices, indptr, x, shape=which.shape, transpose=which.transpose, backend=None)
        parts.append(part.astype(y.dtype))
    if not isinstance(of_x, SymbolicZero):
        like = jax.ShapeDtypeStruct(y.shape, y.dtype)
        parts.append(_along(which.of_tangents, data, structure, prepared, of_x, like))
    tangent = sum(parts[1:], parts[0]) if parts else SymbolicZero(jax.typeof(y).to_tangent_aval())
    return y, tangent


def _along(
    which: _Product, data: Any, structure: _Structure, prepared: Prepared, x: jax.Array, out: jax.ShapeDtypeStruct
) -> jax.Array:
    """Multiply by *x* such that the transpose in *x* reads the mirror too."""
    leaves, tree = jax.tree.flatten((data, structure, prepared))
    like = jax.ShapeDtypeStruct(x.shape, x.dtype)

    def evaluate(*arguments: Any) -> list[Any]:
        *matrix, x = arguments
        return [_multiply(which, *jax.tree.unflatten(tree, matrix), x).astype(out.dtype)]

    def transpose(arguments: Any, cotangents: Any) -> list[Any]:
        data, structure, prepared = jax.tree.unflatten(tree, arguments[:-1])
        return [_along(which.transposed, data, structure, prepared, cotangents[0], like)]

    group = Group((len(leaves),), transpose)
    function = Multilinear(_WHO, evaluate, (out,), (group,), smooth=evaluate)
    return multilinear.apply(function, [*leaves, x])[0]  # type: ignore[no-any-return]


_WHO = "the product with a prepared matrix"
