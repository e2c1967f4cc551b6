"""Functions that launch GPU work (``cuda_callable``, ``jax_callable``) in exported programs."""

from __future__ import annotations

import dataclasses
import types
import weakref
from collections.abc import Mapping
from typing import Any

from ..errors import ExportError
from ..identity.fingerprint import Examination, examine, fingerprint
from ..identity.kinds import describe
from ..identity.names import globals_in
from ..identity.versioned import is_versioned, python_function, wraps_function
from .comparison import Compared, refers_to
from .reference import Reference

# The attribute of a wrapper's `xlakernel` that is the function.
_ATTRIBUTE = "function"

# Name of a module → its globals at the first use of one of its functions. A module that is executed anew has a new
# dictionary.
_namespaces: dict[str, dict[str, Any]] = {}
# Kernel or helper → its digest when it was first examined, if that was before its first compilation.
_first_seen: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
_older: weakref.WeakKeyDictionary[Any, _CompiledBefore] = weakref.WeakKeyDictionary()


class _CompiledBefore:
    """Stand-in, in a fingerprint, for a kernel or helper that may have been compiled with older values of globals."""

    def __init__(self, name: str) -> None:
        self.name = name


@dataclasses.dataclass(frozen=True)
class Callables:
    """A function that launches work, and the functions among its wrapper's options.

    Attributes:
      function: the function.
      others: the options by name. An option is a function, or a string or None if the option allows that.
    """

    function: Any
    others: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def name(self) -> str:
        """The function's module and name."""
        module, qualname = (getattr(self.function, name, None) for name in ("__module__", "__qualname__"))
        return f"{module}.{qualname or repr(self.function)}"

    @property
    def parts(self) -> tuple[Any, ...]:
        """The function and the others."""
        return self.function, *self.others.values()

    @property
    def identity(self) -> str:
        """Suffix that distinguishes the targets of functions that run through Python.

        The name of a target depends on a function's code and values. Two functions with equal code and values may
        differ at a later call, since Python reads variables of closures, globals and defaults at each call. The suffix
        is empty for a function without defaults at the top level of a module, unless the module was executed anew since
        the first use of one of its functions.
        """
        function = self.function
        own = [getattr(function, name, None) for name in ("__closure__", "__defaults__", "__kwdefaults__")]
        if isinstance(function, types.FunctionType) and not any(own):
            reference = Reference(function.__module__, function.__qualname__, _ATTRIBUTE)
            space = function.__globals__
            if reference.leads_to(function) and _namespaces.setdefault(function.__module__, space) is space:
                return ""
        return f"@{id(function):x}"

    def examine(self) -> Examination:
        """Return the present fingerprint of all parts and of everything that they refer to."""
        return examine(self.parts, describe=_describe)

    def write(self, content: str) -> dict[str, Any]:
        """Return the names and the fingerprint of the parts, for `find` and `check_same` in another process.

        Args:
          content: the digest of `examine` when the function's work was recorded.

        Raises:
          ExportError: if a part cannot be found by a name in another process, cannot be compared, or has changed.
        """
        what = f"the function {self.name}"
        references = {"function": _reference(what, self.function)}
        references |= {key: _reference(f"{key}={part!r} of {what}", part) for key, part in self.others.items()}
        compared = self._compared(what)
        compared.check_exportable(content)
        return {"name": self.name, **references, "checks": compared.checks()}

    @staticmethod
    def find(written: Mapping[str, Any], *others: str) -> Callables:
        """Return the functions that have the written names in this process.

        Args:
          written: the result of `write`.
          others: the keys of the other functions in *written*.

        Raises:
          ExportError: if a name leads to nothing, or to something that cannot be called.
        """
        function, *rest = (_find(written["name"], written[what]) for what in ("function", *others))
        return Callables(function, dict(zip(others, rest, strict=True)))

    def check_same(self, written: Mapping[str, Any], place: str, changed: str = "") -> None:
        """Raise `ExportError` if the functions differ from those that were written.

        Args:
          written: the result of `write`.
          place: file and line of the function, for messages.
          changed: other things that may have changed, for messages.
        """
        self._compared(f"the function {written['name']} ({place})").check_same(written["checks"], changed)

    def _compared(self, what: str) -> Compared:
        return Compared(what, self.examine, _reason)


def _reference(what: str, part: Any) -> Any:
    if part is None or isinstance(part, str):
        return part
    reference = Reference(getattr(part, "__module__", None) or "", getattr(part, "__qualname__", ""), _ATTRIBUTE)
    if not reference.leads_to(part):
        raise ExportError(
            f"export: {what} cannot be imported by its name, and functions that launch work cannot be stored in the "
            "program. Define it at the top level of a module that can be imported where the program is loaded."
        )
    return reference.data


def _find(name: str, written: Any) -> Any:
    if not isinstance(written, Mapping):
        return written
    reference = Reference(written["module"], written["qualname"], _ATTRIBUTE)
    return reference.find(
        f"the function {name}",
        # Refuse a function that the module imports from another module, which the program does not name.
        lambda found: callable(found) and getattr(found, "__module__", None) == reference.module,
    )


def _describe(value: Any) -> Any:
    is_dispatcher = wraps_function(value) and hasattr(value, "overloads")
    return _compiled_before(value) if is_dispatcher else describe(value)


def _compiled_before(kernel: Any) -> Any:
    """Return a stand-in for a kernel or helper that may have been compiled with older values of globals, else None.

    Machine code contains the values that globals had at its compilation.
    """
    now = fingerprint(kernel)
    if kernel not in _first_seen and not kernel.overloads:
        _first_seen[kernel] = now
    if _first_seen.get(kernel) == now or not _refers_to_values(python_function(kernel)):
        return None
    return _older.setdefault(kernel, _CompiledBefore(kernel.__name__))


def _refers_to_values(function: Any) -> bool:
    """Return True if *function* uses a value that may change: a closure's cell, or a global of its module."""
    names, space = globals_in(function.__code__), function.__globals__
    return bool(function.__closure__) or any(name in space and not is_versioned(space[name]) for name in names)


def _reason(value: Any) -> str:
    if isinstance(value, _CompiledBefore):
        return (
            f"launches {value.name}, which was compiled before, with globals that may have changed since. Call the "
            "wrapped function once before anything else compiles its kernels."
        )
    return refers_to(
        value,
        "Pass an array as an input; make anything else inside the function, or in a helper decorated with "
        "functools.cache.",
    )
