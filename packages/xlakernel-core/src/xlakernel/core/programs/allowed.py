"""Modules that a program may import and pickles that it may open when it is loaded: ``deserialize(allow=...)``."""

from __future__ import annotations

import base64
import binascii
import contextlib
import contextvars
import hashlib
import importlib
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ..errors import ArgumentError, ExportError

# Names of allowed modules, whose submodules are allowed too, and digests of allowed pickles; None: everything.
_allowed: contextvars.ContextVar[frozenset[str] | None] = contextvars.ContextVar("allowed", default=None)
_DIGEST = re.compile("sha256:[0-9a-f]{64}")


def read_allow(allow: Any) -> frozenset[str] | None:
    """Return the names of modules and the digests of pickles in *allow*; None: everything is allowed.

    Raises:
      ArgumentError: if *allow* is neither None nor a collection of such strings.
    """
    if allow is None:
        return None
    expected = (
        'the name of a module, with dots for one in a package, or "sha256:" and 64 digits of 0-9a-f, as the error '
        "of a refused program lists them"
    )
    given = isinstance(allow, Iterable) and not isinstance(allow, (str, bytes))
    items: list[Any] = list(allow) if given else [None]
    if not all(isinstance(item, str) for item in items):
        raise ArgumentError(
            f"deserialize: allow is {allow!r}; expected a collection of strings, each {expected}, or None for "
            "everything."
        )
    for item in items:
        if not (is_module_name(item) or _DIGEST.fullmatch(item)):
            raise ArgumentError(f"deserialize: allow has {item!r}; expected {expected}.")
    return frozenset(items)


@contextlib.contextmanager
def allowing(allowed: frozenset[str] | None) -> Iterator[None]:
    """Limit `import_module`, `read_pickle` and `check_allowed` to *allowed*, a result of `read_allow`."""
    token = _allowed.set(allowed)
    try:
        yield
    finally:
        _allowed.reset(token)


def check_allowed(steps: Mapping[str, str]) -> None:
    """Raise `ExportError` unless the modules and pickles of all *steps* are allowed.

    Args:
      steps: name of a module or digest of a pickle → the import or unpickling, described for messages.
    """
    allowed = _allowed.get()
    if allowed is None:
        return
    refused = {key: step for key, step in sorted(steps.items()) if allowed.isdisjoint(_with_parents(key))}
    if refused:
        raise ExportError(
            f"deserialize: loading the program has to {', '.join(refused.values())}, which allow= does not name. None "
            f"of these steps was taken. If you trust the program, pass allow={sorted({*allowed, *refused})}."
        )


def import_module(what: str, name: Any) -> Any:
    """Import a module that a program names.

    Args:
      what: the object that needs the module, for messages: "the kernel mine.scale".
      name: the module's full name.

    Raises:
      ExportError: if *name* is invalid, or the module is not allowed or cannot be imported.
    """
    if not is_module_name(name):
        raise ExportError(f"deserialize: the program calls {what}, and {name!r} is not the name of a module.")
    check_allowed({name: f"import {name}"})
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise ExportError(
            f"deserialize: the program calls {what}, and the module {name} cannot be imported: {error}. "
            "Install it, or put its folder on sys.path."
        ) from error


def is_module_name(name: Any) -> bool:
    """Return True if *name* is a module's full name."""
    # The import system would resolve a name with a slash as a path relative to the parent package.
    return (
        isinstance(name, str) and all(name.split(".")) and name.isprintable() and {"/", "\\", ":", " "}.isdisjoint(name)
    )


def read_pickle(what: str, text: Any) -> bytes:
    """Return the pickle that a program stores as *text*, if it is allowed.

    Raises:
      ExportError: if *text* is not an encoded pickle, or the pickle is not allowed.
    """
    pickled, step = decode_pickle(what, text)
    check_allowed(step)
    return pickled


def decode_pickle(what: str, text: Any) -> tuple[bytes, dict[str, str]]:
    """Return the pickle that a program stores as *text*, and the step that opens it, for `check_allowed`.

    Raises:
      ExportError: if *text* is not an encoded pickle.
    """
    try:
        if not isinstance(text, str):
            raise TypeError(f"it is a {type(text).__name__}")
        pickled = base64.b64decode(text, validate=True)
    except (TypeError, ValueError, binascii.Error) as error:
        raise ExportError(f"deserialize: {what} has a pickle that cannot be decoded: {error}.") from error
    digest = f"sha256:{hashlib.sha256(pickled).hexdigest()}"
    return pickled, {digest: f"unpickle {what} ({digest})"}


def _with_parents(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts) + 1)]
