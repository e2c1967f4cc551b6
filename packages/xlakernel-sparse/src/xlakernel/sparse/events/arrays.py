"""Event arrays: arrays of which most elements are zero, and whose products with sparse matrices skip them."""

from __future__ import annotations

import abc
import operator
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np

from xlakernel.core.errors import DtypeError, InputError, ShapeError

from ..operators.arguments import as_array, as_integer
from ..operators.dtypes import check_dtype
from ..operators.operand import BINARY, WEIGHTED, Operand, ones_where_active


class EventArray(abc.ABC):
    """An array whose products with sparse matrices cost what its active elements cost; the base of all of them.

    It is an immutable pytree, and an array wherever ``jax.numpy`` or NumPy expect one: ``jnp.asarray(events)``,
    ``events.sum()``, ``events * 2``, ``events @ dense``.
    """

    __slots__ = ()

    #: What products take it for.
    operand: ClassVar[Operand] = BINARY
    #: NumPy leaves operators between its arrays and these to us.
    __array_ufunc__ = None
    #: Equality is that of the elements.
    __hash__ = None  # type: ignore[assignment]

    def __new__(cls, *_: Any, **__: Any) -> Self:  # noqa: D102  # the subclasses describe their arguments
        if cls is EventArray:
            raise InputError(
                "EventArray is what event arrays have in common, and is not made itself. Spikes are BinaryArray(x); "
                "WeightedArray(x) where values count, BitPackedArray(x) and CompactArray(x) for less memory."
            )
        return super().__new__(cls)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"{type(self).__name__} is immutable: {name} cannot be set.")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{type(self).__name__} is immutable: {name} cannot be deleted.")

    def __setstate__(self, state: Any) -> None:
        _, attributes = state  # what pickle and copy found in the slots
        self._set(**attributes)

    def _set(self, **attributes: Any) -> Self:
        for name, value in attributes.items():
            object.__setattr__(self, name, value)
        return self

    @property
    @abc.abstractmethod
    def value(self) -> jax.Array:
        """The array as a plain one."""

    def operand_array(self) -> jax.Array:
        """Return what products are given."""
        return self.value

    # What arrays have.

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
        return self if self.ndim < 2 else self._transposed()

    def _transposed(self, axes: Any = None) -> Self:
        return type(self)(jnp.transpose(self.value, axes))  # type: ignore[call-arg]  # each takes an array

    def transpose(self, *axes: Any) -> Self:
        """Return the array with its axes in another order, of the same kind, as the method of JAX's arrays does.

        Args:
          *axes: the axes in their new order, as several integers or one tuple; without any, or with None, in reverse.
        """
        order = axes[0] if len(axes) == 1 and as_integer(axes[0]) is None else axes or None
        return self.T if order is None else self._transposed(order)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError(f"len() of a {type(self).__name__} without dimensions")
        return self.shape[0]

    def __jax_array__(self) -> jax.Array:
        return self.value

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        # NumPy before 2.0 knows no copy=None.
        return np.asarray(self.value, dtype) if copy is None else np.array(self.value, dtype, copy=copy)

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    def __bool__(self) -> bool:
        return bool(self.value)

    def __repr__(self) -> str:
        leaves = jax.tree.leaves(self, is_leaf=lambda leaf: leaf is None)
        if not all(hasattr(leaf, "dtype") for leaf in leaves):  # JAX puts other things into pytrees
            return f"{type(self).__name__}({', '.join(map(repr, leaves))})"
        return f"{type(self).__name__}({self.dtype.name}[{','.join(map(str, self.shape))}])"

    def sum(self, axis: Any = None, dtype: Any = None, out: None = None, keepdims: bool = False) -> jax.Array:
        """Add up the elements, as ``jax.numpy.sum`` does.

        Args:
          axis: which axis, or axes; None: all.
          dtype: of the result; None: that of ``jax.numpy.sum``.
          out: None, which ``numpy.sum`` passes.
          keepdims: whether to keep axes that are summed, with an extent of 1.
        """
        return jnp.sum(self.value, axis=axis, dtype=dtype, out=out, keepdims=keepdims)

    def astype(self, dtype: Any) -> jax.Array:
        """Return a plain array of another dtype.

        Args:
          dtype: the dtype.
        """
        return self.value.astype(dtype)

    def __getitem__(self, index: Any) -> Any:
        """Return part of the array, of the same kind if that can have its dimensions; one element is plain."""
        return self._part(self.value[index])

    def _part(self, part: jax.Array) -> Any:
        return type(self)(part) if part.ndim else part  # type: ignore[call-arg]  # each takes an array

    def __matmul__(self, other: Any) -> Any:
        if not _is_plain(other):
            return NotImplemented
        _check_product(f"{type(self).__name__} @ x", self.shape, other.shape, "right")
        return self.value @ other

    def __rmatmul__(self, other: Any) -> Any:
        if not _is_plain(other):
            return NotImplemented
        _check_product(f"x @ {type(self).__name__}", other.shape, self.shape, "left")
        return other @ self.value


def _is_plain(value: Any) -> bool:
    return isinstance(value, (jax.Array, np.ndarray, EventArray))


def _fit(left: tuple[int, ...], right: tuple[int, ...]) -> bool:
    """Return whether arrays of these shapes have the extent in common that ``left @ right`` sums over."""
    return bool(left and right) and left[-1] == right[-2 if len(right) > 1 else 0]


def _check_product(who: str, left: tuple[int, ...], right: tuple[int, ...], side: str) -> None:
    """Raise `ShapeError` unless ``left @ right``, a product of events with an array on their *side*, can be made."""
    if _fit(left, right):
        return
    events, x = (left, right) if side == "right" else (right, left)
    if not events or not x:
        advice = "both need at least one dimension; multiply by a number with *."
    else:
        length = left[-1] if side == "right" else right[-2 if len(right) > 1 else 0]
        forms = f"({length},) or (..., {length}, k)" if side == "right" else f"({length},) or (..., k, {length})"
        other_side, transposed = ((x, events), (left, x[::-1])) if side == "right" else ((events, x), (x[::-1], right))
        advice = f"with events of shape {events} it must be {forms}."
        if _fit(*other_side):
            advice += f" It fits on the other side: {'x @ events' if side == 'right' else 'events @ x'}."
        elif len(x) == 2 and _fit(*transposed):
            advice += " It fits transposed: give x.T."
    raise ShapeError(f"{who}: x has the shape {x}; {advice}")


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


def checked(kind: type, value: Any, *, real: bool) -> jax.Array:
    """Return *value* as the plain array that an event array of this kind is made of.

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
    """An event array that holds the array that it was made of."""

    __slots__ = ("raw",)
    raw: jax.Array

    def _transposed(self, axes: Any = None) -> Self:
        return type(self)(jnp.transpose(self.raw, axes))

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents."""
        return self.raw.shape

    @property
    def dtype(self) -> Any:
        """The dtype of the array that it was made of."""
        return self.raw.dtype

    def tree_flatten(self) -> Any:
        """Return the leaves and what is static; for JAX, in each jitted call."""
        return (self.raw,), None

    def tree_flatten_with_keys(self) -> Any:
        """Return the leaves and what is static; for JAX."""
        return [(jax.tree_util.GetAttrKey("raw"), self.raw)], None

    @classmethod
    def tree_unflatten(cls, _: Any, leaves: Any) -> Self:
        """Return the array that was flattened; for JAX."""
        return object.__new__(cls)._set(raw=leaves[0])


@jax.tree_util.register_pytree_with_keys_class
class BinaryArray(_Unpacked):
    """Spikes: what is not zero is active and counts as 1, whatever its value; NaN is active.

    What is not active adds nothing to products with sparse matrices, nor to their derivatives in the weights, whatever
    weight, tangent or cotangent it meets. (With a dense array, ``events @ dense`` is JAX's own product.)

    As functions of the array, products are differentiated as if it were dense: the gradient with respect to an array of
    real numbers reaches all of its elements, so that a surrogate gradient can pass it on to what made the spikes. (They
    are of the weights' dtype; where that is an integer one they have, as all integers in JAX, no derivative.) A
    gradient with respect to the object itself is in its `raw`: JAX makes gradients objects of the kind that they belong
    to, and the `value` of this kind is 0 and 1.

    Args:
      value: the array, of bool, integers or real numbers, of any shape.

    Attributes:
      raw: the array as it was given.

    Raises:
      DtypeError: if it is of another dtype.

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
        self._set(raw=checked(type(self), value, real=True))

    @property
    def value(self) -> jax.Array:
        """The array as a plain one: 1 where it is active, else 0, of its own dtype."""
        ones: jax.Array = ones_where_active(self.raw)
        return ones

    def operand_array(self) -> jax.Array:
        """Return the array as it was given; products look for what is not zero themselves."""
        return self.raw

    def __getitem__(self, index: Any) -> Any:
        part = self.raw[index]
        return self._part(part) if part.ndim else ones_where_active(part)


@jax.tree_util.register_pytree_with_keys_class
class WeightedArray(_Unpacked):
    """An array of which most elements are zero: its values count, and for zeros nothing is done.

    Zeros add nothing even where the weight is infinite or not a number, unlike those of a dense array; nor to
    derivatives in the weights, whatever tangent or cotangent they meet. As a function of the array, a product is
    differentiated as if it were dense.

    Args:
      value: the array, of bool, integers, real or complex numbers, of any shape.

    Attributes:
      raw: the array as it was given, which is its `value`.

    Raises:
      DtypeError: if it is of another dtype.

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
        self._set(raw=checked(type(self), value, real=False))

    @property
    def value(self) -> jax.Array:
        """The array as a plain one."""
        return self.raw
