"""Compiled kernels on disk, for functions decorated with ``njit(cache=True)``.

Numba's own cache cannot be used. Its key contains neither the compile options nor the helpers of a kernel. Its index
lets two processes write different kernels under one number. The functions in its object code have names, such as
``helper$2``, that are unique only within one process: code of two processes, loaded in a third, calls wrong helpers.

Here a kernel is one file of `xlakernel.core.code_files`, named by a fingerprint of everything that determines the code.
All functions in its object code are internal, except the entry; the name of the entry contains the fingerprint.
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

from xlakernel.core.backend import is_raised_by_handler, read_code, uninterrupted, warn, write_code
from xlakernel.core.backend.native import compiler_facts, load_object_code
from xlakernel.core.errors import CacheWarning

# Prefix of the symbol for the address of a recursive function.
_UNRESOLVED = ".numba.unresolved$"
# Prefix of the variables with the Python objects that compiled code uses, for example to print an array.
_ENVIRONMENT = "_ZN08NumbaEnv"

# In the names of functions that Numba compiled.
_MANGLED = "_ZN"

_LOCAL = (llvm.Linkage.internal, llvm.Linkage.private)


@dataclasses.dataclass(frozen=True)
class LoadedKernel:
    """A kernel read from disk, with the attributes of Numba's compile result that a handler uses.

    Attributes:
      library: Numba's library, which owns the code.
      fndesc: name and types of the entry.
      target_context: the target context of the dispatcher.
      environments: the Python objects that the code uses.
      takes_gil: whether the code takes the GIL itself.
    """

    library: Any
    fndesc: Any
    target_context: Any
    environments: Sequence[Any]
    takes_gil: bool


_loaded: dict[str, LoadedKernel] = {}  # by fingerprint; each kernel is loaded once, because symbols must be unique


class _NotStorableError(Exception):
    """A kernel's code cannot be used in another process, for the reason in the message."""


def code_fingerprint(dispatcher: Any, functions: Sequence[Any], content: str, signature: Sequence[types.Type]) -> str:
    """Return a hash of everything that determines the machine code of a kernel.

    Args:
      dispatcher: the dispatcher that compiles the kernel.
      functions: the kernel and the functions that it refers to.
      content: the fingerprint of the function, its helpers and its options.
      signature: the types of the arguments.
    """
    places = [_place(function) for function in functions]
    facts = compiler_facts(dispatcher.targetctx.codegen())
    what = (content, [str(t) for t in signature], places, facts, sys.version)
    return hashlib.sha256(repr(what).encode("utf-8", "surrogatepass")).hexdigest()


def _place(function: Any) -> tuple[Any, ...]:
    """Return the source location of a function. Its exceptions contain the location; a fingerprint of content does not.

    For a notebook's cell, the folder is left out, because it is different in each process.
    """
    function = getattr(function, "py_func", function)
    code = getattr(function, "__code__", None)
    if code is None:
        return ()
    file = code.co_filename if os.path.isfile(code.co_filename) else os.path.basename(code.co_filename)
    return function.__module__, function.__qualname__, file, code.co_firstlineno, code.co_linetable


def read_kernel(fingerprint: str, dispatcher: Any, signature: tuple[types.Type, ...]) -> LoadedKernel | None:
    """Return the kernel stored under *fingerprint*, or None on a cache miss."""
    if fingerprint not in _loaded:
        content = read_code(fingerprint)
        if content is None:
            return None
        head, _, object_code = content.partition(b"\n")
        try:
            environments = [_environment(fingerprint, i, *parts) for i, parts in enumerate(json.loads(head))]
        except Exception as error:  # e.g. a constant's class has changed since
            if is_raised_by_handler(error):
                raise
            return None
        codegen = dispatcher.targetctx.codegen()
        entry = ExternalFunctionDescriptor(_entry(fingerprint), types.none, signature)
        takes_gil = b"numba_gil_ensure" in object_code  # the symbol of a function that the code calls
        with uninterrupted():  # LLVM cannot load the code a second time
            library = load_object_code(codegen, _entry(fingerprint), object_code, [_entry(fingerprint)])
            for environment in environments:
                codegen.set_env(environment.env_name, environment)
            _loaded[fingerprint] = LoadedKernel(library, entry, dispatcher.targetctx, environments, takes_gil)
    return _loaded[fingerprint]


def write_kernel(fingerprint: str, compiled: Any, owned: Sequence[Any]) -> None:
    """Store Numba's compile result, or warn that it cannot be stored; *owned* is ``Examination.owned``."""
    try:
        if owned:  # in another process, an objmode block would change copies of these objects
            kind = type(owned[0]).__name__
            raise _NotStorableError(f"its objmode block may use an object in a closure or a default value ({kind}).")
        content = _serialized(fingerprint, compiled)
    except _NotStorableError as reason:
        name = compiled.fndesc.qualname
        warn(f"{name} is not cached on disk despite njit's cache=True: {reason}", CacheWarning)
    else:
        write_code(fingerprint, content)


def _serialized(fingerprint: str, compiled: Any) -> bytes:
    """Return the names and constants of the environments as JSON, followed by the object code."""
    library = compiled.library
    text = library.get_llvm_str()
    if _UNRESOLVED in text:
        # Numba resolves the address of a recursive function when it compiles the code, but not when it loads the code:
        # https://github.com/numba/numba/issues/6061
        raise _NotStorableError("it or a helper is recursive, and the code contains an address (numba issue 6061).")
    if library.has_dynamic_globals:
        raise _NotStorableError(
            "its code contains addresses, such as that of a ctypes pointer or a large constant array."
        )
    if not all(lifted.can_cache for lifted in compiled.lifted):
        raise _NotStorableError("a part of it runs in the interpreter.")
    module = llvm.parse_assembly(text)
    if any(value.is_declaration and _MANGLED in value.name for value in module.functions):
        raise _NotStorableError("its code calls a Numba function that it does not contain.")
    environments: list[tuple[str, str | None]] = []
    for value in [*module.functions, *module.global_variables]:
        name = value.name
        if value.is_declaration or value.linkage in _LOCAL or name.startswith("llvm."):
            continue
        # There is a variable for each function that was inlined; most of the variables are unused.
        environment = lookup_environment(name) if name.startswith(_ENVIRONMENT) and text.count(name) > 1 else None
        if name == compiled.fndesc.llvm_func_name:
            value.name = _entry(fingerprint)
        elif environment is not None:
            value.name = _variable(fingerprint, len(environments))
            environments.append(_parts(environment))
        else:
            value.linkage = "internal"
    module.verify()
    # The last step of Numba's code generator; the module is optimised already.
    return json.dumps(environments).encode() + b"\n" + bytes(library.codegen._tm.emit_object(module))


def _entry(fingerprint: str) -> str:
    return f"xlakernel_{fingerprint}"


def _variable(fingerprint: str, number: int) -> str:
    return f"xlakernel_{fingerprint}_environment_{number}"


def _parts(environment: Any) -> tuple[str, str | None]:
    """Return the module of an environment and its pickled constants; None without constants."""
    if not environment.can_cache():
        raise _NotStorableError("a helper has no module.")
    try:
        constants = base64.b64encode(serialize.dumps(list(environment.consts))).decode() if environment.consts else None
    except Exception as error:  # raised by the __reduce__ of any object
        if is_raised_by_handler(error):
            raise
        raise _NotStorableError(f"a constant of it cannot be pickled: {error}.") from error
    return environment.globals["__name__"], constants


def _environment(fingerprint: str, number: int, module: str, constants: str | None) -> Any:
    made = Environment(vars(importlib.import_module(module)))
    made.consts[:] = [] if constants is None else serialize.loads(base64.b64decode(constants))
    made.env_name = _variable(fingerprint, number)
    return made
