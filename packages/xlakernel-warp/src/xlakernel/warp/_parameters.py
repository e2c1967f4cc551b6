"""Parameters of Warp kernels, and of functions that launch them: arrays, and scalars passed by value."""

from __future__ import annotations

import dataclasses
import inspect
import weakref
from collections.abc import Sequence
from typing import Any, TypeVar

import jax
import numpy as np
import warp

from xlakernel.core.backend import Struct
from xlakernel.core.errors import DtypeError, ExportError, InputError, KernelTypeError, StaticArgumentError

from ._internals import code, compilation
from ._internals.lock import lock
from ._types import PYTHON_SCALARS, jaxtype_to_warptype, split_warptype, warptype_to_jaxtype


@dataclasses.dataclass(frozen=True)
class Parameter:
    """A parameter: an array, or a scalar passed by value.

    Attributes:
      name: its name.
      dtype: Warp's type of the scalar, or of the array's elements; None: generic, taken from the argument.
      ndim: number of the array's dimensions, without those of its vectors or matrices; None: a scalar.
      inner: extents of an element that is a vector or matrix.
      choices: the types allowed for a generic parameter; empty: any.
    """

    name: str
    dtype: Any
    ndim: int | None = None
    inner: tuple[int, ...] = ()
    choices: tuple[Any, ...] = ()

    @property
    def is_array(self) -> bool:
        """True for an array, False for a scalar."""
        return self.ndim is not None

    @property
    def rank(self) -> int:
        """The rank of the JAX array that is passed for the parameter."""
        return (self.ndim or 0) + len(self.inner)

    @property
    def jax_dtype(self) -> np.dtype[Any] | None:
        """The dtype of the JAX array that is passed for the parameter; None: any."""
        return None if self.dtype is None else warptype_to_jaxtype(self.dtype)

    @property
    def annotation(self) -> Any:
        """The parameter's annotation, with `typing.Any` for a generic type."""
        dtype = Any if self.dtype is None else PYTHON_SCALARS.get(self.dtype, self.dtype)
        return warp.array(dtype=dtype, ndim=self.ndim) if self.is_array else dtype

    def outer(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return the array's extents in Warp, given the JAX array's *shape*; a 0-d array has the shape ``(1,)``."""
        return tuple(map(int, shape[: len(shape) - len(self.inner)])) or (1,)

    def check(self, struct: Struct, kernel: str, where: str) -> None:
        """Check an argument.

        Raises:
          ExportError: if its shape is symbolic.
          DtypeError: if it has another dtype.
          InputError: if it has another rank, or elements of other extents.
        """
        if not all(isinstance(extent, (int, np.integer)) for extent in struct.shape):
            raise ExportError(
                f"{kernel}: {where} has the symbolic shape {struct.shape}. A recorded launch holds for one shape: "
                "export the program for each shape that it is called with. (A symbolic batch works, under jax.vmap.)"
            )
        wanted = self.jax_dtype
        if wanted is None:
            self._check_choice(jaxtype_to_warptype(struct.dtype), DtypeError, f"{kernel}: {where}, {self.name!r},")
        elif struct.dtype != wanted:
            given = where.startswith("input")
            fix = f"Convert it with astype({wanted.name!r})" if given else f"Give outs the dtype {wanted.name}"
            raise DtypeError(
                f"{kernel}: Invalid data type for array argument {self.name!r} ({where}), expected {wanted.name}, got "
                f"{struct.dtype.name}. {fix}, or annotate the parameter otherwise."
            )
        is_single = self.ndim == 1 and len(struct.shape) == len(self.inner)
        if len(struct.shape) != self.rank and not is_single:
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
        """Return a scalar argument as xlakernel.core takes it: a Python number, or a NumPy scalar of a dtype of XLA.

        Raises:
          StaticArgumentError: if it is traced, or a 64-bit scalar of NumPy for a generic parameter.
        """
        if isinstance(given, jax.core.Tracer):
            raise StaticArgumentError(
                f"{kernel}: Argument {self.name!r} must be a static value, but is traced ({given}). Name it in "
                "static_argnames of jax.jit; or annotate the parameter as an array, pass an array of one element, and "
                f"read {self.name}[0]."
            )
        if isinstance(given, (jax.Array, np.ndarray)) and not given.shape:
            given = np.asarray(given)[()]
        is_wide = isinstance(given, np.generic) and given.dtype.kind in "iuf" and given.dtype.itemsize == 8
        if self.dtype is None and is_wide:
            kind, narrow = type(given.item()).__name__, given.dtype.name.replace("64", "32")
            raise StaticArgumentError(
                f"{kernel}: the static scalar {self.name!r} is {given!r}; its parameter is generic, and takes a Python "
                f"number as one of 32 bits: expected {kind}({self.name}) or np.{narrow}({self.name}). For 64 bits, "
                f"annotate the parameter with wp.{given.dtype.name}."
            )
        is_half = isinstance(given, np.generic) and given.dtype.itemsize == 2 and self.dtype is not None
        return given.item() if is_half else given

    def value_of(self, value: np.generic, kernel: str) -> np.generic:
        """Return a scalar as it is passed to Warp. 16-bit floats are rounded by NumPy's rule, not by Warp's.

        Raises:
          StaticArgumentError: if the parameter's type cannot represent the value (Warp would convert 2**32 to int32 0).
        """
        kind, number = self.type_for(value), value.item()
        self._check_choice(kind, StaticArgumentError, f"{kernel}: the static scalar {self.name!r}, {number!r},")
        wanted = warptype_to_jaxtype(kind)
        if wanted.kind in "iu":
            limits = np.iinfo(wanted)
            fits = isinstance(number, int) and limits.min <= number <= limits.max
            allowed = f"an integer from {limits.min} to {limits.max}"
        elif wanted.kind == "b":
            fits, allowed = isinstance(number, int) and number in (0, 1), "True or False"
        else:
            with np.errstate(over="ignore"):
                fits = not isinstance(number, complex) and bool(
                    np.isfinite(np.asarray(number).astype(wanted)) or not np.isfinite(number)
                )
            allowed = f"a real number that {wanted.name} can represent"
        if not fits:
            why = ", because it is generic" if self.dtype is None else ""
            raise StaticArgumentError(
                f"{kernel}: the static scalar {self.name!r} is {number!r}; its parameter takes {wanted.name}{why}: "
                f"expected {allowed}. Convert it, or annotate the parameter with another Warp type."
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
        # Warp treats Python's numbers as 32-bit types.
        return PYTHON_SCALARS.get(type(argument.item())) or jaxtype_to_warptype(argument.dtype)


def number_arrays(parameters: Sequence[Parameter], in_out: Sequence[str], inputs: int) -> dict[str, int]:
    """Return the number of each array parameter among a call's arrays: first the *inputs* inputs, then the outputs.

    A parameter that is both input and output has the number of its output, which begins with the input's values.
    """
    names = [parameter.name for parameter in parameters if parameter.is_array]
    outputs = [*in_out, *names[inputs:]]
    return {
        **{name: number for number, name in enumerate(names[:inputs])},
        **{name: number for number, name in enumerate(outputs, inputs)},
    }


def parameters_of(kernel: Any, asked_by: str) -> tuple[Parameter, ...]:
    """Return the parameters of a Warp kernel.

    Raises:
      KernelTypeError: if it is not a kernel, or if a parameter is neither an array of scalars, vectors or matrices, nor
        a scalar.
    """
    if not isinstance(kernel, warp.Kernel):
        raise KernelTypeError(_wrong_kernel(kernel, asked_by))
    where = f"{asked_by}: {name_of(kernel)}"
    return tuple(parameter(name, kind, where) for name, kind in code.arguments(kernel))


def _wrong_kernel(kernel: Any, asked_by: str) -> str:
    name = getattr(kernel, "__name__", None) or getattr(kernel, "key", repr(kernel))
    message = f"{asked_by}: {name} is of type {type(kernel).__name__}; expected a kernel decorated with warp.kernel."
    if hasattr(kernel, "xlakernel"):
        return f"{message} This one is wrapped already; wrap the warp.kernel function, under a name of its own."
    if isinstance(kernel, warp.Function):
        return f"{message} This is a function (warp.func), which kernels call: decorate it with warp.kernel."
    if inspect.isfunction(kernel):
        return f"{message} Decorate the plain Python function: {asked_by}(warp.kernel({name}), ...)."
    return message


def parameter(name: str, kind: Any, where: str) -> Parameter:
    """Return a parameter with the annotation *kind*; see `parameters_of`."""
    if _is_array(kind):
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


def _is_array(kind: Any) -> bool:
    """Return True for an annotation of a plain ``wp.array``, False for an indexed array or one of Fabric."""
    return warp.types.is_array(kind) and issubclass(getattr(kind, "_concrete_cls", type(kind)), warp.array)


def _choices(kind: Any) -> tuple[Any, ...] | None:
    """Return the types allowed for a generic annotation, ``()`` for all; None if it is not generic."""
    if kind is Any:
        return ()
    if not isinstance(kind, TypeVar):  # such as wp.Float
        return None
    return tuple(dict.fromkeys(PYTHON_SCALARS.get(choice, choice) for choice in kind.__constraints__))


def _inner(name: str, dtype: Any, where: str) -> tuple[int, ...]:
    """Return the extents of an array's elements."""
    try:
        inner = split_warptype(dtype)[1]
        if all(inner):  # a generic length is 0
            return inner
    except DtypeError:
        pass
    raise KernelTypeError(
        f"{where} has the parameter {name}: Invalid data type for array argument {name!r}, expected scalar, vector, or "
        f"matrix, got {dtype!r}. Vectors and matrices of any type need a kernel of their own: "
        "warp.overload(kernel, [types])."
    )


def name_of(kernel: Any) -> str:
    """Return a kernel's name, for messages."""
    return str(kernel.func.__name__)


# Overloads are kept: if an overload were made again, Warp would load its module again.
_overloads: weakref.WeakKeyDictionary[Any, dict[Any, Any]] = weakref.WeakKeyDictionary()


def concrete(kernel: Any, given: Sequence[tuple[Parameter, Any]]) -> Any:
    """Return a kernel, or a generic kernel's overload for *given*: parameters, each with its struct or scalar."""
    if not kernel.is_generic:
        return kernel
    types = tuple(parameter.type_for(argument) for parameter, argument in given)
    with lock:
        known = _overloads.setdefault(kernel, {})
        if types not in known:
            annotations = [
                warp.array(dtype=kind, ndim=parameter.ndim) if parameter.is_array else kind
                for (parameter, _), kind in zip(given, types, strict=True)
            ]
            known[types] = compilation.overload(kernel, annotations)
        compilation.restore_overload(known[types])
        return known[types]


def annotated(func: Any) -> list[Parameter]:
    """Return the parameters of a function, read from its annotations.

    Raises:
      KernelTypeError: if it is not a function of arrays and scalars.
    """
    name = getattr(func, "__name__", repr(func))
    if not callable(func) or isinstance(func, (type, warp.Kernel)):
        advice = " This is a kernel, which jax_kernel takes." if isinstance(func, warp.Kernel) else ""
        raise KernelTypeError(
            f"jax_callable: {name} is of type {type(func).__name__}; expected a function that launches Warp kernels."
            f"{advice}"
        )
    try:
        signature = inspect.signature(func, eval_str=True)
    except NameError as error:
        raise KernelTypeError(
            f"jax_callable: the annotations of {name} are strings, and one uses a name that is not global: {error}. "
            "Leave out `from __future__ import annotations` in a file where annotations use local names."
        ) from error
    if signature.return_annotation not in (None, inspect.Signature.empty):
        raise KernelTypeError(f"jax_callable: {name}: Function must not return a value, and has a return annotation.")
    found = []
    for own in signature.parameters.values():
        if own.annotation is inspect.Parameter.empty or own.kind is not inspect.Parameter.POSITIONAL_OR_KEYWORD:
            raise KernelTypeError(
                f"jax_callable: Incomplete argument annotations on function {name}: {own}. Annotate each parameter as "
                "a kernel's: x: wp.array(dtype=float), s: float."
            )
        found.append(parameter(own.name, own.annotation, f"jax_callable: {name}"))
    return found
