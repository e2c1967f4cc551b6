"""Event arrays: arrays with few nonzero elements. Products with sparse matrices skip the zeros."""

from __future__ import annotations

import abc
import functools
import math
import operator
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np

from xlakernel.core.backend import jit_when_eager
from xlakernel.core.errors import DtypeError, InputError, ShapeError

from .._immutable import ImmutablePytree
from ..operators.arguments import as_array
from ..operators.dtypes import SUPPORTED, check_dtype
from ..operators.operand import BINARY, WEIGHTED, Operand, ones_where_active
from ..operators.products.dense import multiply_rows
from ..operators.units import bilinear


class EventArray(ImmutablePytree, abc.ABC):
    """The abstract base of event arrays. Products with sparse matrices skip inactive elements, which are zeros.

    An event array is an immutable pytree, and an array wherever ``jax.numpy`` or NumPy expect one:
    ``jnp.asarray(events)``, ``events.sum()``, ``events * 2``, ``events @ dense``.
    """

    __slots__ = ()

    #: The kind of operand in products.
    operand: ClassVar[Operand] = BINARY
    #: Event arrays have no hash, because ``==`` compares their elements.
    __hash__ = None  # type: ignore[assignment]

    def __new__(cls, *_: Any, **__: Any) -> Self:  # noqa: D102  # the subclasses describe their arguments
        if cls is EventArray:
            raise InputError(
                "EventArray is an abstract base class. Spikes are BinaryArray(x); graded events WeightedArray(x); "
                "BitPackedArray(x) and CompactArray(x) take less memory."
            )
        return super().__new__(cls)

    @property
    @abc.abstractmethod
    def value(self) -> jax.Array:
        """The events as a plain array."""

    def operand_array(self) -> jax.Array:
        """Return the array that products read."""
        return self.value

    # The interface of arrays.

    @property
    @abc.abstractmethod
    def shape(self) -> tuple[int, ...]:
        """The extents."""

    @property
    @abc.abstractmethod
    def dtype(self) -> Any:
        """The dtype of the plain array."""

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return int(np.prod(self.shape))

    @property
    def T(self) -> Self:
        """The array with its axes in reverse order, of the same kind."""
        return self.transpose()

    def transpose(self, *axes: Any) -> Self:
        """Return the array with its axes in another order, of the same kind, like the method of JAX's arrays.

        Args:
          *axes: the axes in their new order, as several integers or one tuple; none, or None: the reverse order.
        """
        return type(self)(self.operand_array().transpose(*axes)) if self.ndim > 1 or axes else self  # type: ignore[call-arg]

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError(f"len() of a {type(self).__name__} without dimensions")
        return self.shape[0]

    def __jax_array__(self) -> jax.Array:
        return self.value

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        # NumPy before 2.0 does not accept copy=None.
        return np.asarray(self.value, dtype) if copy is None else np.array(self.value, dtype, copy=copy)

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    def __bool__(self) -> bool:
        return bool(self.value)

    def __repr__(self) -> str:
        leaves = jax.tree.leaves(self, is_leaf=lambda leaf: leaf is None)
        if not all(hasattr(leaf, "dtype") for leaf in leaves):  # JAX puts other objects into pytrees
            return f"{type(self).__name__}({', '.join(map(repr, leaves))})"
        return f"{type(self).__name__}({self.dtype.name}[{','.join(map(str, self.shape))}])"

    def sum(self, axis: Any = None, dtype: Any = None, out: None = None, keepdims: bool = False) -> jax.Array:
        """Add up the elements, like ``jax.numpy.sum``.

        Args:
          axis: the axis, or axes; None: all.
          dtype: the dtype of the result; None: the one that ``jax.numpy.sum`` chooses.
          out: only None is allowed; ``numpy.sum`` passes it.
          keepdims: if True, axes that are summed stay, with an extent of 1.
        """
        return jnp.sum(self.value, axis=axis, dtype=dtype, out=out, keepdims=keepdims)

    def astype(self, dtype: Any) -> jax.Array:
        """Return a plain array of another dtype.

        Args:
          dtype: the dtype.
        """
        return self.value.astype(dtype)

    def __getitem__(self, index: Any) -> Any:
        """Return a part of the array, of the same kind if the kind allows the part's dimensions, else a plain array."""
        part = self.value[index]
        return type(self)(part) if part.ndim else part  # type: ignore[call-arg]  # each takes an array

    def __matmul__(self, other: Any) -> Any:
        if not _is_plain(other) and not hasattr(other, "mantissa"):  # neither an array nor a quantity
            return NotImplemented
        return _dense_product(self, other, transpose=False)

    # For NumPy arrays on the left: JAX's arrays convert events by `__jax_array__` and multiply themselves.
    def __rmatmul__(self, other: Any) -> Any:
        if not _is_plain(other) and not hasattr(other, "mantissa"):  # neither an array nor a quantity
            return NotImplemented
        return _dense_product(self, other, transpose=True)


def _is_plain(value: Any) -> bool:
    return isinstance(value, (jax.Array, np.ndarray, EventArray))


@bilinear
def _dense_product(events: EventArray, x: Any, *, transpose: bool) -> Any:
    """Return ``events @ x`` with a dense array or with events; ``x @ events`` if *transpose*.

    Raises:
      ShapeError: if the shapes do not fit each other.
    """
    caller = f"x @ {type(events).__name__}" if transpose else f"{type(events).__name__} @ x"
    if not events.shape:
        raise ShapeError(f"{caller}: events of shape () have no product with x; write events * x.")
    length, batch = events.shape[-2:][0] if transpose else events.shape[-1], events.shape[:-2]
    shape = np.shape(x)
    try:
        fits = shape[-1 if transpose else -2 :][:1] == (length,)
        np.broadcast_shapes(batch, shape[:-2])
    except ValueError:
        fits = False
    if not fits:
        matrix = f"(..., k, {length})" if transpose else f"(..., {length}, k)"
        leading = f", with leading dimensions that broadcast to {batch}" if batch else ""
        raise ShapeError(
            f"{caller}: x has the shape {shape}; with events of shape {events.shape} it must be ({length},) or "
            f"{matrix}{leading}."
        )
    if transpose:
        return x @ events.value
    x = x.value if isinstance(x, EventArray) else x
    return _products_with_dense(events.operand, events.operand_array(), x)


def _multiply_dense(operand: Operand, events: jax.Array, x: Any) -> jax.Array:
    """Return the product of events, ``(..., n)`` or ``(..., k, n)``, and a dense array that fits."""
    x = as_array("events @ x", "x", x)
    if x.dtype.name not in SUPPORTED:  # bool, for example
        values: jax.Array = operand.values(events, jnp.result_type(events, x)) @ x
        return values
    rows = events if events.ndim > 1 else events[None]
    matrix = x if x.ndim > 1 else x[:, None]
    if matrix.ndim == 2:
        product = multiply_rows(operand, rows.reshape(math.prod(rows.shape[:-1]), rows.shape[-1]), matrix)
        product = product.reshape(*rows.shape[:-1], matrix.shape[1])
    else:
        multiply = functools.partial(multiply_rows, operand)
        product = jnp.vectorize(multiply, signature="(k,n),(n,m)->(k,m)")(rows, matrix)
    product = product[..., 0] if x.ndim == 1 else product
    return product if events.ndim > 1 else product[0] if x.ndim == 1 else product[..., 0, :]


_products_with_dense = jit_when_eager(_multiply_dense, static_argnums=0)


def _of_plain(function: Callable[[Any], Any]) -> Callable[[EventArray], Any]:
    return lambda self: function(self.value)


def _as_plain(function: Callable[..., Any], *, reflected: bool = False) -> Callable[..., Any]:
    """Return an operator that treats an event array as a plain one."""

    def apply(self: EventArray, other: Any) -> Any:
        if not _is_plain(other) and not isinstance(other, (bool, int, float, complex, np.generic)):
            return NotImplemented
        other = other.value if isinstance(other, EventArray) else other
        return function(other, self.value) if reflected else function(self.value, other)

    return apply


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and_", "or_", "xor"):
    _function, _name = getattr(operator, _name), _name.rstrip("_")
    setattr(EventArray, f"__{_name}__", _as_plain(_function))
    setattr(EventArray, f"__r{_name}__", _as_plain(_function, reflected=True))
for _name in ("lt", "le", "eq", "ne", "gt", "ge"):
    setattr(EventArray, f"__{_name}__", _as_plain(getattr(operator, _name)))
for _name in ("neg", "pos", "abs", "invert"):
    setattr(EventArray, f"__{_name}__", _of_plain(getattr(operator, _name)))


def event_values(kind: type, value: Any, *, real: bool) -> jax.Array:
    """Return *value* as the plain array for an event array of this kind.

    Raises:
      DtypeError: if its dtype is not supported, or complex where *real* is required.
    """
    array = value.value if isinstance(value, EventArray) else as_array(kind.__name__, "value", value)
    if array.dtype != jnp.bool_:
        check_dtype(kind.__name__, "value", array.dtype)
    if real and array.dtype.kind == "c":
        raise DtypeError(
            f"{kind.__name__}: value is of dtype {array.dtype}; expected bool, integers or real numbers. WeightedArray "
            "takes complex values."
        )
    return array


class _Unpacked(EventArray):
    """An event array that stores the given array as it is."""

    __slots__ = ("raw",)
    _leaves = ("raw",)
    raw: jax.Array

    def operand_array(self) -> jax.Array:
        """Return the array as it was given; products test for zeros themselves."""
        return self.raw

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents."""
        return self.raw.shape

    @property
    def dtype(self) -> Any:
        """The dtype of the given array."""
        return self.raw.dtype

    def __getitem__(self, index: Any) -> Any:
        part = type(self)(self.raw[index])  # type: ignore[call-arg]  # each takes an array
        return part if part.ndim else part.value


@jax.tree_util.register_pytree_with_keys_class
class BinaryArray(_Unpacked):
    """Spikes: every element that is not zero is active and counts as 1, whatever its value; NaN is active.

    Inactive elements add nothing to products, nor to their derivatives with respect to the weights, even where a
    weight, tangent or cotangent is infinite or NaN. (A product with a dense array of JAX on the left, ``dense @
    events``, is JAX's own: write `binary_densemv`.)

    With respect to the events, products are differentiated as if the array were dense. If the events are real numbers,
    their gradient has a value for each element, active or not, which a surrogate gradient can pass on to the
    computation of the spikes. (With integer weights there is no derivative, as always in JAX.) JAX returns a gradient
    with respect to a `BinaryArray` as a `BinaryArray`: read its `raw`, because its `value` is 0 or 1.

    Args:
      value: the array, of bool, integers or real numbers, of any shape.

    Attributes:
      raw: the array as it was given.

    Raises:
      DtypeError: if *value* is of another dtype.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from xlakernel.sparse import BinaryArray, CSR
      >>> A = CSR.from_dense(jnp.array([[0.0, 1.0], [2.0, 3.0]]))
      >>> print(BinaryArray(jnp.array([False, True])) @ A)
      [2. 3.]
      >>> print(jax.grad(lambda spikes: (spikes @ A).sum())(BinaryArray(jnp.array([0.0, 1.0]))).raw)
      [1. 5.]
    """

    __slots__ = ()

    def __init__(self, value: Any) -> None:
        self._set(raw=event_values(type(self), value, real=True))

    @property
    def value(self) -> jax.Array:
        """The events as a plain array: 1 where active, else 0, of the dtype of `raw`."""
        ones: jax.Array = ones_where_active(self.raw)
        return ones


@jax.tree_util.register_pytree_with_keys_class
class WeightedArray(_Unpacked):
    """Graded events: an array with few nonzero elements, which keep their values.

    Zeros are inactive. Unlike the zeros of a dense array, they add nothing to products, nor to their derivatives with
    respect to the weights, even where a weight, tangent or cotangent is infinite or NaN. With respect to the events,
    products are differentiated as if the array were dense.

    Args:
      value: the array, of bool, integers, real or complex numbers, of any shape.

    Attributes:
      raw: the array as it was given, like `value`.

    Raises:
      DtypeError: if *value* is of another dtype.

    Example:
      >>> import jax.numpy as jnp
      >>> from xlakernel.sparse import CSR, WeightedArray
      >>> A = CSR.from_dense(jnp.array([[0.0, 1.0], [2.0, 3.0]]))
      >>> print(A @ WeightedArray(jnp.array([0.0, 0.5])))
      [0.5 1.5]
    """

    __slots__ = ()
    operand = WEIGHTED

    def __init__(self, value: Any) -> None:
        self._set(raw=event_values(type(self), value, real=False))

    @property
    def value(self) -> jax.Array:
        """The events as a plain array."""
        return self.raw
