"""Compiled kernels on disk, for functions that are decorated with ``njit(cache=True)``.

Numba's own cache cannot be used. Its key has neither the compile options nor the helpers of a kernel. Its index lets
two processes write different kernels under one number. And the functions in its object code have names that are unique
in one process only (``helper$2``), so that code of two processes, loaded in a third, calls the wrong helper.

Here a kernel is one file of `xlakernel.core.code_files`, whose fingerprint covers all that determines the code. All
functions in its object code are internal, but for the entry, whose name is the fingerprint.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import importlib
import json
import os
import sys
from collections.abc import Sequence
from typing import Any

import llvmlite.binding as llvm
from numba.core import serialize, types
from numba.core.environment import Environment, lookup_environment
from numba.core.funcdesc import ExternalFunctionDescriptor

from xlakernel.core.backend import read_code, warn, write_code
from xlakernel.core.backend.native import compiler_facts, load_object_code
from xlakernel.core.errors import CacheWarning

# How Numba calls the address of a function that calls itself, in the code.
_UNRESOLVED = ".numba.unresolved$"
# How the variables begin that hold the Python objects which compiled code uses, as when it prints an array.
_ENVIRONMENT = "_ZN08NumbaEnv"

_LOCAL = (llvm.Linkage.internal, llvm.Linkage.private)


@dataclasses.dataclass(frozen=True)
class LoadedKernel:
    """A kernel that was read from disk, with what a handler needs of Numba's compile result.

    Attributes:
      library: Numba's, which owns the code.
      fndesc: name and types of the entry.
      target_context: the dispatcher's.
      environments: the Python objects that the code uses.
      takes_gil: whether the code calls for the GIL by itself.
    """

    library: Any
    fndesc: Any
    target_context: Any
    environments: Sequence[Any]
    takes_gil: bool


_loaded: dict[str, LoadedKernel] = {}  # by fingerprint: code is loaded once in a process, as its symbols are unique


class _NotKeptError(Exception):
    """A kernel's code cannot be used in another process; the text says why."""


def code_fingerprint(dispatcher: Any, functions: Sequence[Any], content: str, signature: Sequence[types.Type]) -> str:
    """Return a hash of all that determines the machine code of a kernel.

    Args:
      dispatcher: what compiles it.
      functions: the kernel, and all that it refers to.
      content: the fingerprint of the function, its helpers and its options.
      signature: the types of the arguments.
    """
    places = [_place(function) for function in functions]
    facts = compiler_facts(dispatcher.targetctx.codegen())
    what = (content, [str(t) for t in signature], places, facts, sys.version)
    return hashlib.sha256(repr(what).encode("utf-8", "surrogatepass")).hexdigest()


def _place(function: Any) -> tuple[Any, ...]:
    """Return what the code knows of where a function stands: its exceptions say it, a fingerprint of content does not.

    The folder of a notebook's cells is another one in each process.
    """
    function = getattr(function, "py_func", function)
    code = getattr(function, "__code__", None)
    if code is None:
        return ()
    file = code.co_filename if os.path.isfile(code.co_filename) else os.path.basename(code.co_filename)
    return function.__module__, function.__qualname__, file, code.co_firstlineno, code.co_linetable


def read_kernel(fingerprint: str, dispatcher: Any, signature: tuple[types.Type, ...]) -> LoadedKernel | None:
    """Return the kernel that was stored under *fingerprint*; None if there is none that can be used."""
    if fingerprint not in _loaded:
        content = read_code(fingerprint)
        if content is None:
            return None
        head, _, object_code = content.partition(b"\n")
        try:
            environments = [_environment(fingerprint, i, *parts) for i, parts in enumerate(json.loads(head))]
        except Exception:  # noqa: BLE001  # whatever a constant's class raises: it is another one by now
            return None
        codegen = dispatcher.targetctx.codegen()
        library = load_object_code(codegen, _entry(fingerprint), object_code, [_entry(fingerprint)])
        for environment in environments:
            codegen.set_env(environment.env_name, environment)
        entry = ExternalFunctionDescriptor(_entry(fingerprint), types.none, signature)
        takes_gil = b"numba_gil_ensure" in object_code  # among the names that it is linked to
        _loaded[fingerprint] = LoadedKernel(library, entry, dispatcher.targetctx, environments, takes_gil)
    return _loaded[fingerprint]


def write_kernel(fingerprint: str, compiled: Any) -> None:
    """Store Numba's compile result, or warn that it cannot be used in another process."""
    try:
        content = _serialized(fingerprint, compiled)
    except _NotKeptError as reason:
        name = compiled.fndesc.qualname
        warn(f"{name} is not kept on disk, as njit's cache=True asks for: {reason}", CacheWarning)
    else:
        write_code(fingerprint, content)


def _serialized(fingerprint: str, compiled: Any) -> bytes:
    """Return the names and constants of the environments as JSON, and behind it the object code."""
    library = compiled.library
    text = library.get_llvm_str()
    if _UNRESOLVED in text:
        # Numba resolves the address of such a function when it compiles it, and not when it reads it:
        # https://github.com/numba/numba/issues/6061
        raise _NotKeptError("it calls itself, or a helper does, and its code has an address in it (numba issue 6061).")
    if library.has_dynamic_globals:
        raise _NotKeptError("its code has addresses in it, as of a ctypes pointer or a large constant array.")
    if not all(lifted.can_cache for lifted in compiled.lifted):
        raise _NotKeptError("a part of it runs in the interpreter.")
    module = llvm.parse_assembly(text)
    environments: list[tuple[str, str | None]] = []
    for value in [*module.functions, *module.global_variables]:
        name = value.name
        if value.is_declaration or value.linkage in _LOCAL or name.startswith("llvm."):
            continue
        # A variable is there for every function that was inlined; most are not used any more.
        environment = lookup_environment(name) if name.startswith(_ENVIRONMENT) and text.count(name) > 1 else None
        if name == compiled.fndesc.llvm_func_name:
            value.name = _entry(fingerprint)
        elif environment is not None:
            value.name = _variable(fingerprint, len(environments))
            environments.append(_parts(environment))
        else:
            value.linkage = "internal"
    module.verify()
    # As Numba's code generator makes code of a module that it has optimised.
    return json.dumps(environments).encode() + b"\n" + bytes(library.codegen._tm.emit_object(module))


def _entry(fingerprint: str) -> str:
    return f"xlakernel_{fingerprint}"


def _variable(fingerprint: str, number: int) -> str:
    return f"xlakernel_{fingerprint}_environment_{number}"


def _parts(environment: Any) -> tuple[str, str | None]:
    """Return the module of an environment and its constants: pickled, as they can be any objects; None: it has none."""
    if not environment.can_cache():
        raise _NotKeptError("a helper is of no module.")
    try:
        constants = base64.b64encode(serialize.dumps(list(environment.consts))).decode() if environment.consts else None
    except Exception as error:  # whatever an object's own __reduce__ raises
        raise _NotKeptError(f"a constant of it cannot be pickled: {error}.") from error
    return environment.globals["__name__"], constants


def _environment(fingerprint: str, number: int, module: str, constants: str | None) -> Any:
    made = Environment(vars(importlib.import_module(module)))
    made.consts[:] = [] if constants is None else serialize.loads(base64.b64decode(constants))
    made.env_name = _variable(fingerprint, number)
    return made
