"""Definitions of functions, in a form that different versions of Python agree on.

Bytecode changes from one Python to the next; the text of a function changes with its comments. In between is the
syntax tree, written out without positions. It is read from the file, which may have been edited since the function was
made: so the file is compiled once more, and its bytecode must be the function's.
"""

from __future__ import annotations

import ast
import functools
import linecache
import types
from collections.abc import Iterator

from .fingerprint import code_digest


class SourceError(LookupError):
    """The source that a function was compiled from is missing."""


def definition(function: types.FunctionType) -> bytes:
    """Return the definition of *function* without comments, positions and decorators.

    Raises:
      SourceError: if there is no source, or it is not what the function was compiled from.
    """
    code = function.__code__
    linecache.checkcache(code.co_filename)
    text = "".join(linecache.getlines(code.co_filename, function.__globals__))
    tree, codes = _parse(text, code.co_filename)
    where = f"{code.co_filename}:{code.co_firstlineno}"
    here = codes.get((code.co_name, code.co_firstlineno), ())
    if code_digest(code) not in map(code_digest, here):
        raise SourceError(f"{where}: the file does not hold the source that {code.co_name} was compiled from")
    nodes = [node for node in ast.walk(tree) if _begins_at(node, code)]
    if len(nodes) != 1:
        raise SourceError(f"{where}: {len(nodes)} definitions of {code.co_name} begin here")
    return " ".join(_write(nodes[0])).encode()


_Codes = dict[tuple[str, int], list[types.CodeType]]


@functools.lru_cache(maxsize=16)
def _parse(text: str, filename: str) -> tuple[ast.Module, _Codes]:
    """Return the syntax tree of a file, and the code objects in it by name and first line."""
    try:
        tree = ast.parse(text, filename)
        module = compile(text, filename, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        raise SourceError(f"{filename}: {error}") from error
    codes: _Codes = {}
    for code in _inside(module):
        codes.setdefault((code.co_name, code.co_firstlineno), []).append(code)
    return tree, codes


def _inside(code: types.CodeType) -> Iterator[types.CodeType]:
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield const
            yield from _inside(const)


def _begins_at(node: ast.AST, code: types.CodeType) -> bool:
    if isinstance(node, ast.Lambda):
        return code.co_name == "<lambda>" and node.lineno == code.co_firstlineno
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
        return node.name == code.co_name and first == code.co_firstlineno
    return False


def _write(value: object) -> Iterator[str]:
    """Write a syntax tree out, without what is empty: a newer Python has more fields, which older code leaves so."""
    if isinstance(value, ast.AST):
        yield f"({type(value).__name__}"
        for name, field in ast.iter_fields(value):
            if name not in ("decorator_list", "kind", "type_comment") and field not in (None, []):
                yield f"{name}="
                yield from _write(field)
        yield ")"
    elif isinstance(value, list):
        yield "["
        for item in value:
            yield from _write(item)
        yield "]"
    else:
        yield f"{type(value).__name__}:{value!r}"
