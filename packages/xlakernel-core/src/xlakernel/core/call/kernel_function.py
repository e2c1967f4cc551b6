"""The result of wrapping a kernel: a function of JAX arrays that has a name and a signature and can be pickled."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import pickle
import types
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from ..identity.fingerprint import examine
from ..identity.kinds import describe
from .pickling import MissingKernel, callers_module, find, name_in_module

# NotImplementedError and RecursionError are RuntimeErrors.
_NOT_PICKLED = (pickle.PicklingError, AttributeError, ImportError, RuntimeError, TypeError, ValueError)


class KernelFunction(functools.partial):  # type: ignore[type-arg]
    """A kernel as a function of JAX arrays.

    It is a `functools.partial` that binds no arguments. A call takes at most 50 ns longer than a call of a plain
    function. A plain function could be pickled only by its own name, which is the kernel's, and leads to the kernel.

    If the wrapper has a name in its module, the pickle contains this name, as for a function, and a digest of the
    kernel and its options. Unpickling wraps the pickled kernel anew, with the pickled options, if another process has
    no kernel or a different kernel under the name, or if the wrapper has no name. Kernel and options must be picklable
    for that.
    """

    __name__: str
    __qualname__: str
    __signature__: inspect.Signature
    xlakernel: Any
    _pieces: tuple[Callable[..., Any], dict[str, Any]]

    @classmethod
    def of(
        cls,
        call: Callable[..., Any],
        make: Callable[..., Any],
        arguments: Mapping[str, Any],
        parameters: Mapping[str, Any],
    ) -> KernelFunction:
        """Return *call* as a `KernelFunction` that ``make(**arguments)`` makes again; ``kernel`` is one of *arguments*.

        *parameters* are the kernel's parameters, name → default or `inspect.Parameter.empty`.
        """
        made = cls(call)
        made.__module__ = callers_module()
        made.__name__, made.__qualname__, made.__doc__ = call.__name__, call.__qualname__, call.__doc__
        made.__signature__ = _signature(parameters)
        made.xlakernel = arguments["kernel"]  # the attribute by which wrappers refuse a wrapped kernel
        made._pieces = make, dict(arguments)
        return made

    def __repr__(self) -> str:
        """Return the kernel's name, and the module that made the wrapper."""
        return f"<{self.xlakernel!r} as a function of JAX arrays, in {self.__module__}>"

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        """Bind the wrapper as a method, like a function in a class."""
        return self if instance is None else types.MethodType(self, instance)

    def __reduce__(self) -> Any:
        """Return the wrapper's pieces, their digest, and the wrapper's name in its module, if it has one.

        The pieces are the function that made the wrapper, and its arguments. With a name, they need not be picklable.
        If a piece cannot be compared, there is no digest, and only the pieces are pickled.
        """
        name, digest = name_in_module(self, self.__name__), _digest(self._pieces)
        if digest is None:
            return _make_again, self._pieces
        if name is None:
            return _make_same, (self._pieces, self.__name__, digest)
        try:
            pieces = pickle.dumps(self._pieces)
        except _NOT_PICKLED:  # the name is enough if it leads to the same kernel
            pieces = None
        return _find_again, (self.__module__, name, digest, pieces)

    def __copy__(self) -> KernelFunction:
        """Return itself, as for a function."""
        return self

    def __deepcopy__(self, memo: Any) -> KernelFunction:
        """Return itself, as for a function."""
        return self


def _make_again(make: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    return make(**arguments)


def _make_same(pieces: tuple[Callable[..., Any], Mapping[str, Any]], name: str, digest: str) -> Any:
    """Return a wrapper of the pieces; if its digest differs, an object that raises an error when it is called."""
    made = _make_again(*pieces)
    if _digest(made._pieces) == digest:
        return made
    return MissingKernel(
        "kernel",
        name,
        "another kernel",
        "The globals that the kernel refers to must be the same in each process; pass what changes as an argument.",
    )


def _find_again(module: str, name: str, digest: str, pieces: bytes | None) -> Any:
    """Return the module's wrapper of that name if it has the same digest, else one made from the pickled pieces."""
    found = find(module, name)
    is_wrapper = isinstance(found, KernelFunction)
    if is_wrapper and _digest(found._pieces) == digest:
        return found
    if pieces is not None:
        made = _make_again(*pickle.loads(pieces))
        if _digest(made._pieces) == digest:
            return made
    return MissingKernel(
        "kernel",
        f"{module}.{name}",
        "nothing" if found is None else "another kernel" if is_wrapper else f"{found!r:.80}",
        f"Bind the wrapper once, at the top level of {module}, to a name of its own, and not below if __name__ == "
        "'__main__'. The globals that the kernel refers to must be the same in each process. A wrapper whose outs= and "
        "derivatives are functions at the top level of a module needs no name.",
    )


def _digest(pieces: Any) -> str | None:
    """Return the digest of a wrapper's pieces; None if one of them cannot be compared."""
    found = examine(pieces, describe=_describe)
    return None if found.unknown else found.content


def _describe(value: Any) -> Any:
    """Describe the pieces of wrappers, for `examine`: equal descriptions mean interchangeable objects."""
    kind = type(value)
    if isinstance(value, KernelFunction):
        return value._pieces
    if isinstance(value, types.MappingProxyType):
        return dict(value)
    if isinstance(value, jax.Array) and not isinstance(value, jax.core.Tracer) and isinstance(value.dtype, np.dtype):
        return np.asarray(value) if value.is_fully_addressable else None
    if isinstance(value, jax.ShapeDtypeStruct):
        return [value.shape, str(value.dtype), str(value.sharding)]
    if kind.__module__.startswith("jaxlib") and isinstance(getattr(value, "__wrapped__", None), types.FunctionType):
        return [value.__wrapped__]  # a function that jax.jit returned
    # A backend's ``content`` of a kernel covers declarations for functions, which the walk alone does not find.
    is_own = kind.__module__.startswith("xlakernel.")  # checked first: reading an attribute may run a user's code
    if is_own and (content := getattr(value, "content", None)) is not None:
        return [content]
    if is_own and dataclasses.is_dataclass(kind):
        return [(field.name, getattr(value, field.name)) for field in dataclasses.fields(value)]
    return describe(value)


def _signature(parameters: Mapping[str, Any]) -> inspect.Signature:
    """Return the signature ``(*inputs, name=default, ..., **static)``, where the keywords are scalars with a default.

    ``inputs`` and ``static`` are renamed if a parameter has this name: `jax.jit` refuses a keyword of the same name.
    """
    kind, empty = inspect.Parameter, inspect.Parameter.empty
    scalars = [kind(name, kind.KEYWORD_ONLY, default=value) for name, value in parameters.items() if value is not empty]
    inputs, rest = (
        next(name for name in (own, f"_{own}", f"__{own}") if name not in parameters) for own in ("inputs", "static")
    )
    return inspect.Signature([kind(inputs, kind.VAR_POSITIONAL), *scalars, kind(rest, kind.VAR_KEYWORD)])
