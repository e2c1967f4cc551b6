"""`ShardedMatrix`: a matrix with its rows or columns spread over the devices of a mesh."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from xlakernel.core.errors import ArgumentError, InputError, ShapeError, StructureError

from .._compat import reshard
from .._immutable import ImmutablePytree
from ..events.arrays import BinaryArray, EventArray
from ..events.bit_packed import BitPackedArray
from ..events.compact import CompactArray
from ..operators.arguments import as_array, strong
from ..operators.units import bilinear
from .compressed import Compressed


@jax.tree_util.register_pytree_with_keys_class
class ShardedMatrix(ImmutablePytree):
    """A matrix with its rows or columns spread over the devices of a mesh; `CSR.shard` and `CSC.shard` make it.

    Each device holds the entries of the same number of rows (or columns), and multiplies only by these entries. If the
    rows are spread, the result of ``A @ x`` is spread likewise and needs no communication; ``x @ A`` is added up over
    the devices (``jax.lax.psum``). If the columns are spread, ``A @ x`` is added up, and the result of ``x @ A`` is
    spread. Weights and operands are differentiable.

    Attributes:
      blocks: the devices' parts as one matrix; its arrays have a leading dimension, one for each device.
      shape: (rows, columns).
      mesh: the devices.
      axis_name: the mesh axis that the matrix is spread over.
      axis: 0 if rows are spread, 1 if columns are.
    """

    __slots__ = ("axis", "axis_name", "blocks", "mesh", "shape")
    _leaves = ("blocks",)
    _static = ("shape", "mesh", "axis_name", "axis")
    ndim = 2

    blocks: Compressed
    shape: tuple[int, int]
    mesh: Mesh
    axis_name: str
    axis: int

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        # Without this method NumPy would make an array of one object.
        raise InputError(
            f"ShardedMatrix: {self!r} is not converted to a dense array implicitly. A.todense() returns a dense "
            "array; a product is A @ x."
        )

    @property
    def data(self) -> jax.Array:
        """The weights, ``(devices, entries of a device)``, or ``(1,)`` where all are equal."""
        return self.blocks.data

    @property
    def dtype(self) -> Any:
        """The dtype of the weights."""
        return self.blocks.data.dtype

    @property
    def T(self) -> ShardedMatrix:
        """The transposed matrix, which shares the arrays."""
        return self._like(blocks=self.blocks.T, shape=self.shape[::-1], axis=1 - self.axis)

    def __repr__(self) -> str:
        rows, columns = self.shape
        lines = ("rows", "columns")[self.axis]
        return f"ShardedMatrix({self.dtype.name}[{rows},{columns}], {lines} over {self.axis_name!r})"

    def with_data(self, data: Any) -> Self:
        """Return the matrix with other weights, in the order of `data`, and the same structure; it stays prepared.

        Args:
          data: the weights, of the shape of `data`.

        Raises:
          InputError: if *data* is not an array.
          ShapeError: if *data* has another shape.
          DtypeError: if the dtype of *data* is not supported.
        """
        data = as_array("ShardedMatrix.with_data", "data", data)
        if data.shape != self.data.shape:
            raise ShapeError(f"ShardedMatrix.with_data: data has the shape {data.shape}; expected {self.data.shape}.")
        data = self._spread(strong("ShardedMatrix.with_data", "data", data), self._spec_of_data)
        matrix = self._like(blocks=self.blocks._like(data=data))
        if self.blocks.prepared is None:
            return matrix
        return matrix._prepared(lambda block: block.with_data(block.data))

    def prepare(self, *, blocks: bool | None = None) -> Self:
        """Return the matrix prepared for fast products on both sides, as by `CSR.prepare` on each device.

        Args:
          blocks: as for `CSR.prepare`.
        """
        return self._prepared(lambda block: block.prepare(blocks=blocks))

    def _prepared(self, prepare: Callable[[Compressed], Compressed]) -> Self:
        def local(block: Compressed) -> Any:
            return jax.tree.map(lambda leaf: leaf[None], prepare(block).prepared)

        prepared = self._on_each_device(local, (), (), PartitionSpec(self.axis_name))
        return self._like(blocks=self.blocks._like(prepared=prepared))

    def todense(self) -> jax.Array:
        """Return the matrix as a dense array, ``(rows, columns)``."""
        return self @ BinaryArray(jnp.eye(self.shape[1], dtype=bool))  # dense zeros times infinite weights are NaN

    @bilinear
    def __matmul__(self, other: Any) -> jax.Array:
        return self._checked_product(other, transpose=False)

    @bilinear
    def __rmatmul__(self, other: Any) -> jax.Array:
        return self._checked_product(other, transpose=True)

    def _checked_product(self, other: Any, *, transpose: bool) -> jax.Array:
        """Return ``self @ other``; ``other @ self`` if *transpose*."""
        caller = "x @ ShardedMatrix" if transpose else "ShardedMatrix @ x"
        x = other if isinstance(other, EventArray) else as_array(caller, "x", other)
        if isinstance(x, (CompactArray, BitPackedArray)):
            x = BinaryArray(x.value)
        summed = len(x.shape) - 1 if transpose else 0  # the axis
        length = self.shape[0 if transpose else 1]
        if len(x.shape) not in (1, 2) or x.shape[summed] != length:
            form = f"(k, {length})" if transpose else f"({length}, k)"
            raise ShapeError(
                f"{caller}: x has the shape {x.shape}; with a matrix of shape {self.shape} it must be ({length},) or "
                f"{form}."
            )
        product: jax.Array = _multiply(self, x, transpose)
        return product

    def _on_each_device(self, function: Callable[..., Any], operands: Any, in_specs: Any, out_specs: Any) -> Any:
        """Return the results of *function*, called on each device with its part of the matrix and the operands."""
        blocks = self.blocks
        spread = PartitionSpec(self.axis_name)

        def local(data: Any, rest: Any, *operands: Any) -> Any:
            indices, indptr, prepared = jax.tree.map(lambda leaf: leaf[0], rest)
            data = data if data.ndim == 1 else data[0]
            return function(blocks._like(data=data, indices=indices, indptr=indptr, prepared=prepared), *operands)

        operands = [self._spread(x, spec) for x, spec in zip(operands, in_specs, strict=True)]
        in_specs = (self._spec_of_data, spread, *in_specs)
        mapped = jax.shard_map(local, mesh=self.mesh, in_specs=in_specs, out_specs=out_specs)
        return mapped(blocks.data, (blocks.indices, blocks.indptr, blocks.prepared), *operands)

    @property
    def _spec_of_data(self) -> PartitionSpec:
        return PartitionSpec() if self.blocks.data.ndim == 1 else PartitionSpec(self.axis_name)

    def _spread(self, x: Any, spec: PartitionSpec) -> Any:
        """Spread *x* over the devices of a mesh with explicit axes; for other meshes, JAX does so itself."""
        if AxisType.Explicit not in self.mesh.axis_types:
            return x
        return reshard(x, NamedSharding(self.mesh, spec))


@functools.partial(jax.jit, static_argnums=2)  # outside of jit each call would compile its shard_map anew
def _multiply(matrix: ShardedMatrix, x: Any, transpose: bool) -> jax.Array:
    """Return the product with *x*, an operand of a checked shape."""
    axis = len(x.shape) - 1 if transpose else 0  # the axis of *x* to sum over, and of the result to spread
    length, result = matrix.shape if transpose else matrix.shape[::-1]
    spread, whole = PartitionSpec(*[None] * axis, matrix.axis_name), PartitionSpec()
    adds_up = transpose == (matrix.axis == 0)  # True: the product is summed over the devices
    if adds_up:
        missing = matrix.blocks.shape[matrix.axis] * matrix.mesh.shape[matrix.axis_name] - length
        x = jax.tree.map(lambda leaf: _padded(leaf, axis, missing), x)

    def local(block: Compressed, x: Any) -> jax.Array:
        y: jax.Array = x @ block if transpose else block @ x
        return jax.lax.psum(y, matrix.axis_name) if adds_up else y

    in_spec, out_spec = (spread, whole) if adds_up else (whole, spread)
    y: jax.Array = matrix._on_each_device(local, (x,), (in_spec,), out_spec)
    if y.shape[axis] == result:
        return y
    # An extent that the number of devices does not divide cannot be spread in an explicit mesh.
    return jax.lax.slice_in_dim(matrix._spread(y, whole), 0, result, axis=axis)


def _padded(array: jax.Array, axis: int, missing: int) -> jax.Array:
    """Return the array with *missing* zeros after its elements along *axis*, so that all devices get equal parts."""
    return jnp.pad(array, [(0, missing if i == axis else 0) for i in range(array.ndim)])


def shard(matrix: Compressed, mesh: Any, axis_name: Any) -> ShardedMatrix:
    """Spread the lines of *matrix* over a mesh axis; see `CSR.shard`."""
    caller = f"{type(matrix).__name__}.shard"
    matrix._check_single()
    if not isinstance(mesh, Mesh):
        raise InputError(f"{caller}: mesh is {mesh!r}; expected a jax.sharding.Mesh, as jax.make_mesh makes it.")
    if axis_name not in mesh.shape:
        raise ArgumentError(f"{caller}: the mesh has no axis {axis_name!r}; it has {list(mesh.shape)}.")
    if any(isinstance(array, jax.core.Tracer) for array in matrix.structure):
        raise StructureError(
            f"{caller}: the matrix is traced, so the number of entries of each device is not known yet. Shard it "
            "outside of jit, and pass it in."
        )
    if isinstance(matrix.data, jax.core.Tracer):
        raise StructureError(
            f"{caller}: the weights are traced, and only known values can be spread over devices here. Shard the "
            "matrix first, and set weights after that: sharded.with_data(weights), in the order of sharded.data."
        )
    devices = mesh.shape[axis_name]
    lines, places = matrix.line_shape
    each = -(-lines // devices)
    known, starts, weights = (np.asarray(array) for array in (*matrix.structure, matrix._weights))
    cuts = starts[np.minimum(np.arange(devices + 1) * each, lines)]
    room = int(np.diff(cuts).max(initial=0))
    ends = np.minimum(np.arange(devices)[:, None] * each + np.arange(each + 1), lines)
    spread = NamedSharding(mesh, PartitionSpec(axis_name))
    indices = _placed(_stacked(known, cuts, room), spread)
    indptr = _placed((starts[ends] - cuts[:-1, None]).astype(starts.dtype), spread)
    if matrix.homogeneous:
        data = _placed(weights, NamedSharding(mesh, PartitionSpec()))
    else:
        data = _placed(_stacked(weights, cuts, room), spread)
    axis = matrix._axis
    local = (each, places) if axis == 0 else (places, each)
    blocks = matrix._with_structure(data, indices, indptr, local)
    return ShardedMatrix._of(blocks=blocks, shape=matrix.shape, mesh=mesh, axis_name=axis_name, axis=axis)


def _stacked(values: np.ndarray, cuts: np.ndarray, room: int) -> np.ndarray:
    """Return the values between the cuts, filled up with zeros, ``(parts, room)``."""
    stacked = np.zeros((cuts.size - 1, room), values.dtype)
    for part, first, last in zip(stacked, cuts[:-1], cuts[1:], strict=True):
        part[: last - first] = values[first:last]
    return stacked


def _placed(array: np.ndarray, sharding: NamedSharding) -> jax.Array:
    """Put an array on the devices, some of which may belong to other processes."""
    return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])
