"""The object that a backend's wrapper returns: a function of JAX arrays with a name, a signature, and a pickle."""

from __future__ import annotations

import functools
import inspect
import sys
import types
from collections.abc import Callable, Mapping
from typing import Any

# Where wrappers are made; the module that asks for one is the first outside.
_MAKERS = ("xlakernel.core", "xlakernel.numba", "xlakernel.cuda", "xlakernel.warp")


class KernelFunction(functools.partial):  # type: ignore[type-arg]
    """A kernel as a function of JAX arrays.

    It is a `functools.partial` with nothing bound: that is called as fast as a plain function, within 50 ns, and can be
    pickled, which a plain function cannot unless its own name leads to it.

    A wrapper that its module has under some name is pickled as that name, as a function is. Any other one is pickled
    with its kernel and its options, if these can be.
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
        """Return *call* as an object.

        Args:
          call: what runs the kernel.
          make: makes the object again from *arguments*.
          arguments: by name; the kernel among them.
          parameters: the kernel's, with the defaults of static scalars.
        """
        made = cls(call)
        made.__module__ = _callers_module()
        made.__name__, made.__qualname__, made.__doc__ = call.__name__, call.__qualname__, call.__doc__
        made.__signature__ = _signature(parameters)
        made.xlakernel = arguments["kernel"]  # so that wrapping it again can be told from a plain function
        made._pieces = make, dict(arguments)
        return made

    def __repr__(self) -> str:
        """Return the kernel's name, and where the wrapper was made."""
        return f"<{self.xlakernel!r} as a function of JAX arrays, in {self.__module__}>"

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        """Bind it as a method, as a function in a class is."""
        return self if instance is None else types.MethodType(self, instance)

    def __reduce__(self) -> Any:
        """Return the name that its module has for it, or what it is made of."""
        name = self._name_in_module()
        return name if name is not None else (_make_again, self._pieces)

    def __copy__(self) -> KernelFunction:
        """Return itself, as for a function."""
        return self

    def __deepcopy__(self, memo: Any) -> KernelFunction:
        """Return itself, as for a function."""
        return self

    def _name_in_module(self) -> str | None:
        space = getattr(sys.modules.get(self.__module__), "__dict__", {})
        return next((name for name in (self.__name__, *space) if space.get(name) is self), None)


def _make_again(make: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    return make(**arguments)


def _callers_module() -> str:
    """Return the module whose code asks for a wrapper, as `collections.namedtuple` does."""
    frame = sys._getframe(1)
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).startswith(_MAKERS):
        frame = frame.f_back
    return str(frame.f_globals.get("__name__", "__main__"))


def _signature(parameters: Mapping[str, Any]) -> inspect.Signature:
    """Return inputs by position, and scalars by name: those with a default first."""
    kind, empty = inspect.Parameter, inspect.Parameter.empty
    scalars = [kind(name, kind.KEYWORD_ONLY, default=value) for name, value in parameters.items() if value is not empty]
    rest = next(name for name in ("static", "_static", "__static") if name not in parameters)
    return inspect.Signature([kind("inputs", kind.VAR_POSITIONAL), *scalars, kind(rest, kind.VAR_KEYWORD)])
