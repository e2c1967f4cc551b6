"""The parameters of a Warp kernel, and what JAX's arrays are to them."""

from __future__ import annotations

import dataclasses
import inspect
import math
import weakref
from collections.abc import Sequence
from typing import Any, TypeVar

import jax
import numpy as np
import warp

from xlakernel.core.backend import Struct
from xlakernel.core.errors import DtypeError, ExportError, InputError, KernelTypeError, StaticArgumentError

from . import _inside
from ._types import PYTHON_SCALARS, jaxtype_to_warptype, split_warptype, warptype_to_jaxtype


@dataclasses.dataclass(frozen=True)
class Parameter:
    """A parameter: an array, or a scalar that is passed by value.

    Attributes:
      name: its name.
      dtype: Warp's type of it, or of the array's elements; None: a scalar type, as its argument has.
      ndim: extents of the array, without those of a vector or matrix; None: it is a scalar.
      inner: extents of the vector or matrix that an element is.
      choices: where *dtype* is None, the types that it may be; none: any.
    """

    name: str
    dtype: Any
    ndim: int | None = None
    inner: tuple[int, ...] = ()
    choices: tuple[Any, ...] = ()

    @property
    def is_array(self) -> bool:
        """Whether it is an array."""
        return self.ndim is not None

    @property
    def rank(self) -> int:
        """The rank of the JAX array that it takes."""
        return (self.ndim or 0) + len(self.inner)

    @property
    def jax_dtype(self) -> np.dtype[Any] | None:
        """The dtype of the JAX array that it takes; None: any."""
        return None if self.dtype is None else warptype_to_jaxtype(self.dtype)

    def outer(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return the extents of the array in Warp's sense, given the JAX array's."""
        return tuple(shape[: len(shape) - len(self.inner)])

    def check(self, struct: Struct, kernel: str, where: str) -> None:
        """Raise what is wrong with an argument.

        Raises:
          ExportError: if its shape is symbolic.
          DtypeError: if its dtype is another one.
          InputError: if its rank is, or the extents of its vectors or matrices.
        """
        if not all(isinstance(extent, (int, np.integer)) for extent in struct.shape):
            raise ExportError(
                f"{kernel}: {where} has the symbolic shape {struct.shape}. A recorded launch holds for one shape: "
                "export the program for each shape that it is to be called with. (A symbolic batch works, under "
                "jax.vmap.)"
            )
        wanted = self.jax_dtype
        if wanted is None:
            self._check_choice(jaxtype_to_warptype(struct.dtype), DtypeError, f"{kernel}: {where}, {self.name!r},")
        elif struct.dtype != wanted:
            given = where.startswith("input")
            remedy = f"Convert it with astype({wanted.name!r})" if given else f"Let outs ask for {wanted.name}"
            raise DtypeError(
                f"{kernel}: Invalid data type for array argument {self.name!r} ({where}), expected {wanted.name}, got "
                f"{struct.dtype.name}. {remedy}, or annotate the parameter otherwise."
            )
        alone = self.ndim == 1 and len(struct.shape) == len(self.inner)  # a 0-d array is one of shape (1,) to Warp
        if len(struct.shape) != self.rank and not alone:
            vectors = f" ({self.ndim} of the array and {len(self.inner)} of its elements)" if self.inner else ""
            raise InputError(
                f"{kernel}: Invalid dimensionality for array argument {self.name!r} ({where}), expected {self.rank} "
                f"dimensions{vectors}, got {len(struct.shape)}: {struct.shape}."
            )
        if self.inner and tuple(struct.shape[-len(self.inner) :]) != self.inner:
            raise InputError(
                f"{kernel}: Invalid inner dimensions for array argument {self.name!r} ({where}), expected {self.inner},"
                f" got {tuple(struct.shape[-len(self.inner) :])}: an element is a {self.dtype.__name__}."
            )

    def _check_choice(self, kind: Any, error: type[Exception], what: str) -> None:
        if self.choices and kind not in self.choices:
            allowed = ", ".join(choice.__name__ for choice in self.choices)
            raise error(f"{what} is of Warp's type {kind.__name__}; its generic type allows {allowed}. Convert it.")

    def number(self, given: Any, kernel: str) -> Any:
        """Return a scalar that a call gives as core takes it: one of Python's, or of NumPy's that XLA has too.

        Raises:
          StaticArgumentError: if it is traced.
        """
        if isinstance(given, jax.core.Tracer):
            raise StaticArgumentError(
                f"{kernel}: Argument {self.name!r} must be a static value, and is traced ({given}). Name it in "
                "static_argnames of the jax.jit that it comes from; or annotate the parameter as an array, give it one "
                f"of one element, and read {self.name}[0]."
            )
        if isinstance(given, (jax.Array, np.ndarray)) and not given.shape:
            given = np.asarray(given)[()]
        half = isinstance(given, np.generic) and given.dtype.itemsize == 2 and self.dtype is not None
        return given.item() if half else given

    def value_of(self, value: np.generic, kernel: str) -> np.generic:
        """Return what Warp is given for a scalar: of 16 bits as NumPy rounds it; Warp rounds ties away from zero.

        Raises:
          StaticArgumentError: for a scalar that its type does not have: to Warp, 2**32 is 0 in 32 bits.
        """
        kind, number = self.type_for(value), value.item()
        self._check_choice(kind, StaticArgumentError, f"{kernel}: the static scalar {self.name!r}, {number!r},")
        wanted = warptype_to_jaxtype(kind)
        if isinstance(number, complex):
            fits, allowed = False, "a real number"
        elif wanted.kind in "iu":
            limits = np.iinfo(wanted)
            fits = isinstance(number, int) and limits.min <= number <= limits.max
            allowed = f"an integer from {limits.min} to {limits.max}"
        elif wanted.kind == "b":
            fits, allowed = isinstance(number, int) and number in (0, 1), "True or False"
        else:
            with np.errstate(over="ignore"):
                fits = bool(np.isfinite(np.asarray(number).astype(wanted))) or not math.isfinite(number)
            allowed = f"a number that {wanted.name} has"
        if not fits:
            why = ", as one of any type does for such a number" if self.dtype is None else ""
            raise StaticArgumentError(
                f"{kernel}: the static scalar {self.name!r} is {number!r}; its parameter takes {wanted.name}{why}: "
                f"expected {allowed}. Convert it, or annotate the parameter with another type of Warp's."
            )
        if wanted.itemsize == 2 and wanted.kind not in "iu":
            return np.float32(np.asarray(number).astype(wanted))
        return value

    def type_for(self, argument: Any) -> Any:
        """Return Warp's type of a scalar, or of an element of the array with this struct."""
        if self.dtype is not None:
            return self.dtype
        if self.is_array or argument.dtype.itemsize < 8:
            return jaxtype_to_warptype(argument.dtype)
        return PYTHON_SCALARS[type(argument.item())]  # of 32 bits, as Warp takes Python's numbers


def parameters_of(kernel: Any, asked_by: str) -> tuple[Parameter, ...]:
    """Return the parameters of a Warp kernel.

    Raises:
      KernelTypeError: if one is neither an array of scalars, vectors or matrices, nor a scalar.
    """
    return tuple(parameter(name, kind, f"{asked_by}: {name_of(kernel)}") for name, kind in _inside.parameters(kernel))


def parameter(name: str, kind: Any, where: str) -> Parameter:
    """Return a parameter with the annotation *kind*; see `parameters_of`."""
    if _inside.is_array(kind):
        if (choices := _choices(kind.dtype)) is not None:
            return Parameter(name, None, kind.ndim, choices=choices)
        return Parameter(name, kind.dtype, kind.ndim, _inner(name, kind.dtype, where))
    if (choices := _choices(kind)) is not None:
        return Parameter(name, None, choices=choices)
    try:
        if not split_warptype(kind)[1]:
            return Parameter(name, kind)
    except DtypeError:
        pass
    raise KernelTypeError(
        f"{where} has the parameter {name}: Invalid type for argument {name!r}, expected array or scalar, got {kind!r}."
        " Pass the parts of a struct, vector or matrix as scalars, or in an array; and an indexed array as the array "
        "and its indices."
    )


def _choices(kind: Any) -> tuple[Any, ...] | None:
    """Return what a generic type may be, ``()`` for all; None: it is not generic."""
    if kind is Any:
        return ()
    if not isinstance(kind, TypeVar):  # such as wp.Float
        return None
    return tuple(dict.fromkeys(PYTHON_SCALARS.get(choice, choice) for choice in kind.__constraints__))


def _inner(name: str, dtype: Any, where: str) -> tuple[int, ...]:
    """Return the extents of an array's elements."""
    try:
        inner = split_warptype(dtype)[1]
        if all(inner):
            return inner
        wrong: Exception | None = None  # one of any length has the length 0
    except DtypeError as error:
        wrong = error
    raise KernelTypeError(
        f"{where} has the parameter {name}: Invalid data type for array argument {name!r}, expected scalar, vector, or "
        f"matrix, got {dtype!r}. Vectors and matrices of any type want a kernel of their own: "
        "warp.overload(kernel, [types])."
    ) from wrong


def name_of(kernel: Any) -> str:
    """Return a kernel's name, for messages."""
    return str(kernel.func.__name__)


# Overloading a kernel again has Warp load its module again.
_overloads: weakref.WeakKeyDictionary[Any, dict[Any, Any]] = weakref.WeakKeyDictionary()


def concrete(kernel: Any, given: Sequence[tuple[Parameter, Any]]) -> Any:
    """Return the kernel for these arguments: an overload, if it is generic.

    Args:
      kernel: the user's.
      given: each parameter with the struct of its array, or its scalar.
    """
    if not kernel.is_generic:
        return kernel
    types = tuple(parameter.type_for(argument) for parameter, argument in given)
    with _inside.lock:
        known = _overloads.setdefault(kernel, {})
        if types not in known:
            annotations = [
                warp.array(dtype=kind, ndim=parameter.ndim) if parameter.is_array else kind
                for (parameter, _), kind in zip(given, types, strict=True)
            ]
            known[types] = _inside.overload(kernel, annotations)
        _inside.restore_overload(known[types])
        return known[types]


def annotated(func: Any) -> list[Parameter]:
    """Return the parameters of a function, by their annotations.

    Raises:
      KernelTypeError: if it is no function of arrays and scalars.
    """
    name = getattr(func, "__name__", repr(func))
    if not callable(func) or isinstance(func, (type, warp.Kernel)):
        what = " This is a kernel, which jax_kernel takes." if isinstance(func, warp.Kernel) else ""
        raise KernelTypeError(
            f"jax_callable: {name} is of type {type(func).__name__}; expected a function that launches Warp "
            f"kernels.{what}"
        )
    try:
        signature = inspect.signature(func, eval_str=True)
    except (
        NameError
    ) as error:  # with `from __future__ import annotations` they are strings, without a function's locals
        raise KernelTypeError(
            f"jax_callable: the annotations of {name} are strings, and one has a name that is not global: {error}. "
            "Leave out `from __future__ import annotations` where annotations are made in a function."
        ) from error
    if signature.return_annotation not in (None, inspect.Signature.empty):
        raise KernelTypeError(f"jax_callable: {name}: Function must not return a value, and is annotated to.")
    found = []
    for own in signature.parameters.values():
        if own.annotation is inspect.Parameter.empty or own.kind is not inspect.Parameter.POSITIONAL_OR_KEYWORD:
            raise KernelTypeError(
                f"jax_callable: Incomplete argument annotations on function {name}: {own}. Annotate each parameter "
                "as a kernel's: x: wp.array(dtype=float), s: float."
            )
        found.append(parameter(own.name, own.annotation, f"jax_callable: {name}"))
    return found
