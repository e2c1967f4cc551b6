"""The description of Numba's CUDA compiler for `xlakernel.core`."""

from __future__ import annotations

import hashlib
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from numba import cuda
from numba.core.dispatcher import Dispatcher
from numba.cuda.dispatcher import CUDADispatcher, global_compiler_lock
from numba.cuda.target import CUDATargetContext

from xlakernel.core.backend import Examination
from xlakernel.core.backend.native import (
    Compiler,
    Declarations,
    FunctionKind,
    OwnCopies,
    dispatcher_parts,
    make_dispatcher,
)

from .._environment import versions
from .cache import KernelCache


def _parts(dispatcher: Any) -> tuple[Any, ...]:
    return dispatcher.py_func, dict(dispatcher.targetoptions)


def _dispatcher(function: Any, options: Any) -> Any:
    return cuda.jit(function, **options)


def _declared(device: Any) -> list[Any] | None:
    """Return the declared signatures of a device function; None: it may compile any signature."""
    if device._can_compile:
        return None
    return [
        (arguments, getattr(getattr(compiled, "signature", None), "return_type", None))
        for arguments, compiled in device.overloads.items()
    ]


def _declare(device: Any, signatures: Sequence[Any] | None) -> Any:
    if signatures is not None:
        for arguments, returned in signatures:
            device.compile_device(arguments, returned)
        device.disable_compile()
    return device


def _njit_parts(dispatcher: Any) -> tuple[Any, ...]:
    return *dispatcher_parts(dispatcher), dispatcher._can_compile


def _make_njit(*arguments: Any) -> Any:
    """Return an ``njit`` function. If the original has declared signatures, Numba CUDA rejects the new function too."""
    *parts, can_compile = arguments
    made = make_dispatcher(*parts)
    made.disable_compile(not can_compile)
    return made


def linked_files(dispatcher: Any) -> dict[str, list[str]]:
    """Return hashes of the files that ``cuda.jit(link=...)`` names, for the kernel's fingerprint."""
    paths = [Path(item) for item in dispatcher.targetoptions.get("link") or () if isinstance(item, str)]
    return {"link": [hashlib.sha256(path.read_bytes()).hexdigest() for path in paths if path.is_file()]}


_CUDA = FunctionKind(CUDADispatcher, _parts, _dispatcher, _declared, _declare)

COMPILER = Compiler(
    "xlakernel-cuda",
    "xlakernel.cuda._export",
    _CUDA,
    (_CUDA, FunctionKind(Dispatcher, _njit_parts, _make_njit)),
    lambda: Declarations(CUDADispatcher.targetdescr),
    global_compiler_lock,
    CUDATargetContext,
    versions,
    linked_files,
)


def copy_dispatcher(
    dispatcher: Any,
    found: Examination,
    content: str | None = None,
    *,
    checked: bool = False,
    loads: Mapping[str, str] | None = None,
) -> Any:
    """Return a dispatcher of the same function and options that has compiled nothing and may compile any signature.

    Args:
      dispatcher: the user's dispatcher.
      found: the examination of the dispatcher from which the fingerprint of its code was made.
      content: the key of its on-disk cache; None: compiled kernels are not stored.
      checked: whether compiled kernels report the exceptions that they raise.
      loads: index expressions of the parameters that are scalars in the function and arrays in the kernel, by name;
        see `_entry`.
    """
    _, options = _parts(dispatcher)
    with global_compiler_lock:
        copies = OwnCopies(COMPILER, dispatcher, found)
        if checked:
            options |= {"debug": True, "opt": False, "lineinfo": False, "lto": False}
        if loads:
            # The body is inlined, so that the kernel does not call it, except in debug mode.
            of_body = {**options, "device": True, "link": None, "forceinline": not checked}
            copies.fill(body := _dispatcher(copies.function, of_body))
            own = _dispatcher(_entry(body, loads), options)
        else:
            copies.fill(own := _dispatcher(copies.function, options))
    if content is not None:
        own._cache = KernelCache(dispatcher.py_func, content)
    compile_ = own.compile

    def compile_with_copies(signature: Any) -> Any:
        with global_compiler_lock, copies.compiling():
            kernel = compile_(signature)
        if loads and checked:  # the body raises the exceptions, and has the table of their numbers
            *_, compiled = body.overloads.values()
            kernel.call_helper = compiled.call_helper
        return kernel

    own.compile = compile_with_copies
    return own


def _entry(body: Any, loads: Mapping[str, str]) -> types.FunctionType:
    """Return a kernel with the parameters of the device function *body* that loads its scalars and calls *body*.

    The kernel has the file and line of the body for debug information, and its name for profilers.
    """
    function = body.py_func
    code = function.__code__
    names = code.co_varnames[: code.co_argcount]
    parameters = [f"p{i}" for i in range(len(names))]
    given = [f"{p}[{loads[name]}]" if name in loads else p for p, name in zip(parameters, names, strict=True)]
    source = f"def entry({', '.join(parameters)}): body({', '.join(given)})"
    space: dict[str, Any] = {"body": body, "cuda": cuda, "__name__": function.__module__}
    exec(compile("\n" * (code.co_firstlineno - 1) + source, code.co_filename, "exec"), space)  # noqa: S102
    made: types.FunctionType = space["entry"]
    # Numba searches the file for this name to make debug information.
    made.__code__ = made.__code__.replace(co_name=code.co_name, co_qualname=code.co_qualname)
    made.__name__, made.__qualname__ = function.__name__, function.__qualname__
    return made
