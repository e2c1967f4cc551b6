"""Modules, names and pickles that lead to the kernels of an exported program, and the check that they are allowed."""

from __future__ import annotations

import base64
import binascii
import contextlib
import contextvars
import dataclasses
import hashlib
import importlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

from ..errors import ExportError

# What the program that is being loaded may import and unpickle: names and digests; None: everything.
_allowed: contextvars.ContextVar[frozenset[str] | None] = contextvars.ContextVar("allowed", default=None)


@dataclasses.dataclass(frozen=True)
class Reference:
    """A module and a name in it.

    Attributes:
      module: the module's name.
      qualname: the name in it, with dots for what is in a class.
      inside: the attribute, of what a backend's wrapper has as ``xlakernel``, that holds the thing itself: where the
        wrapper was applied as a decorator, the name is that of the wrapped function.
    """

    module: str
    qualname: str
    inside: str

    @property
    def data(self) -> dict[str, str]:
        """Module and name, for an artifact."""
        return {"module": self.module, "qualname": self.qualname}

    def here(self) -> Any:
        """Return what the name leads to in this process; None: nothing, or the module is not loaded."""
        return self._in(sys.modules.get(self.module))

    def leads_to(self, *things: Any) -> bool:
        """Whether another process finds one of *things* under the name, which ``__main__`` never is."""
        found = self.here()
        return self.module != "__main__" and found is not None and any(found is thing for thing in things)

    def find(self, what: str, is_right: Callable[[Any], bool], name: str | None = None) -> Any:
        """Import the module, and return what the name leads to.

        Args:
          what: what is looked for, for messages: "the kernel mine.scale".
          is_right: whether it can be that.
          name: what messages call the name; None: the one in *what*.

        Raises:
          ExportError: if the module cannot be imported, or has something else under the name.
        """
        module = import_module(what, self.module)
        found = self._in(module)
        if not is_right(found):
            there = "nothing" if found is None else f"a {type(found).__name__}"
            file = getattr(module, "__file__", None) or "no file"
            raise ExportError(
                f"deserialize: the program calls {what}, but {self.module} ({file}) has {there} under "
                f"{f'the name {name}' if name else 'that name'}. Bring back the source that was exported, or export "
                "the program again."
            )
        return found

    def _in(self, module: Any) -> Any:
        found = module
        for part in self.qualname.split("."):
            found = getattr(found, part, None)
        return getattr(getattr(found, "xlakernel", None), self.inside, found)


def import_module(what: str, name: str) -> Any:
    """Import a module that a program names.

    Args:
      what: what needs it, for messages: "the kernel mine.scale".
      name: its full name.

    Raises:
      ExportError: if it cannot be imported, or the name is none.
    """
    if not is_module_name(name):
        raise ExportError(f"deserialize: the program calls {what}, and {name!r} is not the name of a module.")
    if not is_allowed(name):
        raise _not_allowed(f"import {name}")
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise ExportError(
            f"deserialize: the program calls {what}, and the module {name} cannot be imported: {error}. "
            "Install it, or put its folder on sys.path."
        ) from error


def is_module_name(name: Any) -> bool:
    """Return True if *name* is a module's full name."""
    # Python takes a path as a name, and looks for it below the package before the last dot.
    return (
        isinstance(name, str) and all(name.split(".")) and name.isprintable() and {"/", "\\", ":", " "}.isdisjoint(name)
    )


@contextlib.contextmanager
def allowing(allowed: frozenset[str] | None) -> Iterator[None]:
    """Limit `import_module` and `read_pickle` to modules (each with all below it) and digests; None: no limit."""
    token = _allowed.set(allowed)
    try:
        yield
    finally:
        _allowed.reset(token)


def is_allowed(name: str) -> bool:
    """Return True if a module, or the pickle of a digest, may be used by the program that is being loaded."""
    allowed = _allowed.get()
    if allowed is None:
        return True
    parts = name.split(".")
    return any(".".join(parts[:count]) in allowed for count in range(1, len(parts) + 1))


def digest_of(pickled: bytes) -> str:
    """Return what ``allow=`` calls a pickle."""
    return f"sha256:{hashlib.sha256(pickled).hexdigest()}"


def decode_pickle(what: str, text: Any) -> bytes:
    """Return the pickle that a program has as *text*, unopened.

    Raises:
      ExportError: if *text* is not one.
    """
    try:
        if not isinstance(text, str):
            raise TypeError(f"it is a {type(text).__name__}")
        return base64.b64decode(text, validate=True)
    except (TypeError, ValueError, binascii.Error) as error:
        raise ExportError(f"deserialize: {what} has a pickle that cannot be decoded: {error}.") from error


def read_pickle(what: str, text: Any) -> bytes:
    """Return the pickle that a program has as *text*, to be opened.

    Raises:
      ExportError: if *text* is not one, or is not allowed.
    """
    pickled = decode_pickle(what, text)
    if not is_allowed(digest_of(pickled)):
        raise _not_allowed(f"unpickle {what} ({digest_of(pickled)})")
    return pickled


def _not_allowed(step: str) -> ExportError:
    return ExportError(f"deserialize: the program is to {step}, which allow= does not name. Add it if you trust it.")
