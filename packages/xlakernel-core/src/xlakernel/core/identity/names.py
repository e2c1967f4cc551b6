"""Names in bytecode."""

from __future__ import annotations

import dis
import functools
import itertools
import types
from collections.abc import Iterable, Iterator
from typing import Any

# The instructions that access globals. Class bodies use `LOAD_NAME` and `LOAD_FROM_DICT_OR_GLOBALS`.
_OF_GLOBALS = {"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS", "STORE_GLOBAL", "DELETE_GLOBAL"}


@functools.lru_cache(maxsize=4096)
def globals_in(code: types.CodeType) -> tuple[str, ...]:
    """Return the names of globals and builtins in *code* and the functions inside it."""
    inner = [globals_in(const) for const in code.co_consts if isinstance(const, types.CodeType)]
    own = {found.argval for found in dis.get_instructions(code) if found.opname in _OF_GLOBALS} if code.co_names else ()
    return tuple(sorted({*own, *itertools.chain.from_iterable(inner)}))


@functools.lru_cache(maxsize=4096)
def attributes_in(code: types.CodeType) -> frozenset[str]:
    """Return the names that may be attributes in *code* and the functions inside it: also strings, for ``getattr``."""
    inner = [attributes_in(const) for const in code.co_consts if isinstance(const, types.CodeType)]
    return frozenset({*code.co_names, *_strings(code.co_consts), *itertools.chain.from_iterable(inner)})


@functools.lru_cache(maxsize=4096)
def imports_in(code: types.CodeType) -> tuple[str, ...]:
    """Return the modules that *code* and the functions inside it import; relative ones begin with dots.

    Parents come before their children: ``import a.b`` binds ``a``. ``from a import b`` contributes ``a.b`` as well,
    since ``b`` may be a module.
    """
    inner = [imports_in(const) for const in code.co_consts if isinstance(const, types.CodeType)]
    found = dis.get_instructions(code) if code.co_names else ()
    instructions = [one for one in found if one.opname != "EXTENDED_ARG"]
    own: set[str] = set()
    for level, names, module in zip(instructions, instructions[1:], instructions[2:], strict=False):
        if module.opname == "IMPORT_NAME":
            dots, path = "." * int(level.argval), list(filter(None, str(module.argval).split(".")))
            paths = [path[:length] for length in range(0 if dots else 1, len(path) + 1)]
            paths += [[*path, name] for name in names.argval or () if name != "*"]
            own |= {dots + ".".join(parts) for parts in paths}
    return tuple(sorted({*own, *itertools.chain.from_iterable(inner)}))


def _strings(consts: Iterable[Any]) -> Iterator[str]:
    for const in consts:
        if isinstance(const, str):
            yield const
        elif isinstance(const, types.CodeType):
            yield from _strings(const.co_consts)
        elif isinstance(const, (tuple, frozenset)):  # a frozenset: `for name in {"a", "b"}`
            yield from _strings(const)
