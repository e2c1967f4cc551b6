"""Additions to Warp's hash of a function's code: objects that the code refers to and that Warp's hash leaves out.

Warp uses the hash to decide whether machine code in memory or in its cache belongs to a kernel. Warp hashes the text,
the users' types and functions that the text calls, and constants as 32-bit numbers. The generated code depends on other
objects too: a builtin under another name, a function that is an argument (``wp.tile_map(f, …)``), a ``dtype=``, the
default of a parameter, all bits of a constant. Kernels that differ only in such objects would have the same hash, and
all of them would run the code of the first. Some cases are in https://github.com/NVIDIA/warp/issues/637.

A function without such objects keeps Warp's own hash, so that it is found in Warp's cache.
"""

from __future__ import annotations

import ast
import functools
import hashlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import warp

from xlakernel.core.backend import fingerprint

from . import static_expressions

_Hash = Callable[[Any, Any], bytes]


def complete(hash_adjoint: _Hash) -> _Hash:
    """Return Warp's ``ModuleHasher.hash_adjoint`` with the additions."""

    @functools.wraps(hash_adjoint)
    def completed(hasher: Any, adjoint: Any) -> bytes:
        digest = hash_adjoint(hasher, adjoint)
        described = [(name, _describe(hasher, value)) for name, value in _left_out(adjoint)]
        added = [(name, text) for name, text in described if text is not None]
        return hashlib.sha256(digest + repr(added).encode()).digest() if added else digest

    return completed


def _left_out(adjoint: Any) -> Iterator[tuple[str, Any]]:
    """Yield name and value of each object that a function's code depends on and that Warp's hash leaves out."""
    function = adjoint.func
    yield from ((f"default {number}", value) for number, value in enumerate(function.__defaults__ or ()))
    yield from (function.__kwdefaults__ or {}).items()
    yield from adjoint.resolved_static_expressions.items()
    yield from static_expressions.statics(adjoint)
    called: dict[int, str] = {}
    for path, is_called, within in _paths(adjoint.source):
        if within and _object(adjoint, within) is warp.static:
            continue  # in ``wp.static(…)``, only the value of the expression matters
        name, value = ".".join(path), _resolve(adjoint, path)
        if is_called and (_is_type(value) or (isinstance(value, warp.Function) and not value.is_builtin())):
            # Warp hashes each called function once, without the names that the code calls it by.
            if (first := called.setdefault(id(value), name)) != name:
                yield name, first
        elif value is not None:
            yield name, value


def _describe(hasher: Any, value: Any) -> str | None:
    """Return a text that is the same for the same object in every process; None if no code depends on it."""
    value = value if isinstance(value, warp.Function) else getattr(value, "func", value)  # in `wp.grad(f)`
    if isinstance(value, warp.Function):
        if value.is_builtin() or value in hasher.functions_in_progress:
            return str(value.key)
        return str(hasher.hash_function(value).hex())
    kind = value if isinstance(value, type) else type(value)
    is_plain = issubclass(kind, (int, float, str, np.generic)) or _is_type(kind) or _is_type(value)
    return fingerprint(value) if is_plain else None


def _is_type(value: Any) -> bool:
    """Return True for the types of Warp's numbers, vectors and matrices, and for structs."""
    return warp.types.type_is_struct(value) or (isinstance(value, type) and warp.types.type_is_value(value))


def _resolve(adjoint: Any, path: tuple[str, ...]) -> Any:
    """Return the object that a dotted name is bound to outside of a function; None if the name alone identifies it."""
    if path[0] in adjoint.func.__code__.co_varnames:
        return None
    if adjoint.resolve_external_reference(path[0]) is warp:
        return None
    value = _object(adjoint, path)
    is_builtin = isinstance(value, warp.Function) and value.is_builtin()
    return None if is_builtin and value.key == path[-1] else value


def _object(adjoint: Any, path: tuple[str, ...]) -> Any:
    value = adjoint.resolve_external_reference(path[0])
    for name in path[1:]:
        value = getattr(value, name, None)
    return value


@functools.lru_cache(maxsize=4096)
def _paths(source: str) -> tuple[tuple[tuple[str, ...], bool, tuple[str, ...]], ...]:
    """Return each dotted name in a function's body, True if it is called there, and the *within* of `_walk`."""
    definition = ast.parse(source).body[0]
    parts = [*definition.body, definition.returns] if isinstance(definition, ast.FunctionDef) else [definition]
    nodes = [node for part in parts if part is not None for node in _walk(part)]
    called = {id(node.func) for node, _ in nodes if isinstance(node, ast.Call)}
    paths = {(path, id(node) in called, within): None for node, within in nodes if (path := _path(node))}
    return tuple(paths)


def _walk(node: ast.AST, within: tuple[str, ...] = ()) -> Iterator[tuple[ast.AST, tuple[str, ...]]]:
    """Yield a node and all nodes in it, each with the dotted name of the ``static`` function that it is passed to."""
    yield node, within
    called = node.func if isinstance(node, ast.Call) else None
    path = _path(called) if called is not None else ()
    inside = within or (path if path[-1:] == ("static",) else ())
    for child in ast.iter_child_nodes(node):
        yield from _walk(child, within if child is called else inside)


def _path(node: ast.AST) -> tuple[str, ...]:
    if isinstance(node, ast.Attribute) and (start := _path(node.value)):
        return (*start, node.attr)
    return (node.id,) if isinstance(node, ast.Name) else ()
