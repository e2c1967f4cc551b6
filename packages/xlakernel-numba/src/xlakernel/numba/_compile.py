"""From a Numba function and the types of a call to a registered handler."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numba
from numba.core import types
from numba.core.compiler_lock import global_compiler_lock

from xlakernel.core.backend import Handler, Kernel, Scalar, Struct, Target, ensure_registered, examine, fingerprint
from xlakernel.core.backend.native import (
    SUPPORTED,
    Argument,
    ChangedError,
    NumbaFunction,
    OwnCopies,
    array_type,
    build_handler,
    changed,
    compile_error,
    is_importable,
    numba_dtype,
    on_xla_threads,
    until_unchanged,
    write_recipe,
)
from xlakernel.core.errors import CompileError

from ._bounds import explained_bounds
from ._cache import code_fingerprint, read_kernel, write_kernel
from ._recipe import COMPILER, environment

_Scalars = Mapping[str, Scalar]

# Only a handler calls our own dispatchers: they need no code to be called by Python and by C.
_NO_WRAPPERS = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}


@dataclasses.dataclass(frozen=True, eq=False)
class NumbaKernel(Kernel):
    """A Numba dispatcher as a kernel; equal to another one of the same dispatcher."""

    dispatcher: Any  # Numba's Dispatcher; its type stubs lack most of what is used here

    platforms = ("cpu",)
    takes_scalars = True

    @property
    def name(self) -> str:  # type: ignore[override]  # read-only here
        """The kernel's name."""
        return str(self.dispatcher.__name__)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NumbaKernel) and other.dispatcher is self.dispatcher

    def __hash__(self) -> int:
        return hash(id(self.dispatcher))

    def __repr__(self) -> str:
        return f"Numba kernel {self.name}"

    def target(
        self,
        inputs: Sequence[Struct],
        outs: Sequence[Struct],
        scalars: _Scalars,
        *,
        ordered: bool = False,
        debug: bool = False,
        levels: int = 0,
    ) -> Target:
        """Compile the kernel for these types, unless that was done before."""
        arguments = self._arguments(inputs, outs, scalars)
        # By the present values of all that it refers to, which may be others than when it was traced last.
        return Target(self._register(arguments, {"ordered": ordered, "debug": debug}))

    def _arguments(self, inputs: Sequence[Struct], outs: Sequence[Struct], scalars: _Scalars) -> list[Argument]:
        """Say where each of the kernel's parameters comes from."""
        buffers = iter(
            [self._buffer("input", i, struct) for i, struct in enumerate(inputs)]
            + [self._buffer("output", i, struct) for i, struct in enumerate(outs)]
        )
        by_name = {
            name: scalar_argument(f"{self.name}: {name}", len(inputs) + i, scalar.dtype, scalar.struct.dtype.name)
            for i, (name, scalar) in enumerate(scalars.items())
        }
        return [by_name[name] if name in by_name else next(buffers) for name in self._parameters]

    def _buffer(self, source: Any, index: int, struct: Struct) -> Argument:
        where = f"{self.name}: {source} {index}"
        kind = array_type(struct.dtype, len(struct.shape), where, readonly=source == "input")
        return Argument(source, index, struct.dtype.name, len(struct.shape), kind)

    @property
    def _parameters(self) -> tuple[str, ...]:
        code = self.dispatcher.py_func.__code__
        return tuple(code.co_varnames[: code.co_argcount])

    @property
    def count(self) -> int:
        """The number of its parameters."""
        return len(self._parameters)

    def register_as(self, target: str, arguments: Sequence[Argument], mode: Mapping[str, bool]) -> None:
        """Register the kernel under the name that an exported program calls it by."""
        self._register(arguments, mode, target)

    def _register(self, arguments: Sequence[Argument], mode: Mapping[str, bool], target: str | None = None) -> str:
        """Register the kernel under *target*, or under the name that says all that it depends on."""
        return until_unchanged(lambda: self._register_now(arguments, mode, target))

    def _register_now(self, arguments: Sequence[Argument], mode: Mapping[str, bool], target: str | None) -> str:
        function = self.dispatcher.py_func
        types_ = ", ".join(f"{a.source[0]}{a.index} {a.content}" for a in arguments)
        # Building takes this lock, and a thread that holds it may want to register a kernel: so it comes before the
        # registry's. Inside it, no helper is compiled between being hashed and being used.
        with global_compiler_lock:
            found = COMPILER.examine(self.dispatcher)
            content = fingerprint(found.digest, {**environment(), **mode})
            # What no other process can name would be written by each one, and never read.
            on_disk = content if self.dispatcher.stats.cache_path is not None and not found.unknown else None
            name = f"xlakernel.numba/{function.__module__}.{function.__qualname__}({types_})#{content}"
            return ensure_registered(
                target or name + self._place_mark(),
                "cpu",
                lambda: self._build(arguments, found.digest, on_disk, mode),
                lambda: write_recipe(COMPILER, self.dispatcher, content=found.digest, call=_call(arguments, mode)),
            )

    def _place_mark(self) -> str:
        """Return what tells equal code at two places apart, so that errors point to the right line.

        A function that others can import has one place, and a name that says nothing of it: it is found again
        wherever it is installed.
        """
        if is_importable(self.dispatcher):
            return ""
        return f"@{hashlib.sha256(self._location.encode()).hexdigest()[:8]}"

    @property
    def _location(self) -> str:
        code = self.dispatcher.py_func.__code__
        return f"{code.co_filename}:{code.co_firstlineno}"

    def _build(
        self, arguments: Sequence[Argument], code: str, content: str | None, mode: Mapping[str, bool]
    ) -> Handler:
        signature = tuple(argument.type for argument in arguments)
        # Parallel loops, also those of helpers, are compiled for XLA's threads: in copies that only handlers call.
        declarations = COMPILER.declarations()
        functions = examine(self.dispatcher, None, declarations).functions
        options = [getattr(function, "targetoptions", {}) for function in functions]
        options += [getattr(declared, "_jit_options", None) or {} for declared in declarations.met]
        parallel = SUPPORTED and any(given.get("parallel") for given in options)
        own = self._own_dispatcher(code, debug=mode["debug"])
        with contextlib.ExitStack() as stack:
            if parallel:
                stack.enter_context(on_xla_threads())
            if mode["debug"]:
                stack.enter_context(explained_bounds())
                content = None
            compiled = self._load_or_compile(own, signature, content, functions)
        handler: Handler = build_handler(
            NumbaFunction(compiled, arguments, self.name, self._location, parallel=parallel),
            arguments,
            kernel=self.name,
            place=self._location,
            keep=content is not None,
            **mode,
        )
        return handler

    def _load_or_compile(
        self, own: Any, signature: tuple[types.Type, ...], content: str | None, functions: Sequence[Any]
    ) -> Any:
        """Return Numba's compile result, or what stands for it; with *content*, the fingerprint, it is kept on disk."""
        if content is None:
            return self._compile(own, signature)
        fingerprint = code_fingerprint(own, functions, content, signature)
        loaded = read_kernel(fingerprint, own, signature)
        if loaded is not None:
            return loaded
        compiled = self._compile(own, signature)
        write_kernel(fingerprint, compiled)
        return compiled

    def _compile(self, own: Any, signature: tuple[types.Type, ...]) -> Any:
        try:
            own.compile(signature)
        except (OSError, MemoryError, ChangedError):  # not of the kernel
            raise
        except Exception as error:  # noqa: BLE001  # Numba lets AttributeError and others of its own escape
            # Numba's frames are its own inside, and what it says is in the message.
            raise self._explain(own, error, signature) from (error if numba.config.FULL_TRACEBACKS else None)
        compiled = own.overloads[signature]
        if compiled.objectmode:
            raise CompileError(
                f"{self.name}: compiled in object mode, which needs the interpreter for every step; decorate the "
                "kernel with numba.njit."
            )
        if compiled.fndesc.restype != types.none:
            raise CompileError(
                f"{self.name}: returns {compiled.fndesc.restype}; a kernel returns nothing. Write the result into an "
                "output parameter: out[...] = result."
            )
        return compiled

    def _own_dispatcher(self, code: str, *, debug: bool) -> Any:
        """Return a dispatcher of our own for the same function, which calls copies of its helpers.

        The user's may be limited to the signatures it was declared with, and may hold code compiled before a global
        changed; and what is compiled for a handler should not appear in the user's cache file.
        """
        copies = OwnCopies(COMPILER, self.dispatcher, {"boundscheck": True} if debug else None)
        if copies.content != code:
            raise changed(self.name)
        kind, _, *parts = COMPILER.parts(self.dispatcher)
        own = COMPILER.make(kind, copies.function, *parts)
        own.targetoptions.update({"boundscheck": True} if debug else _NO_WRAPPERS)
        copies.fill(own)
        compile_ = own._compiler.compile

        def compile_with_copies(*arguments: Any) -> Any:
            with copies.compiling():
                return compile_(*arguments)

        own._compiler.compile = compile_with_copies
        return own

    def _explain(self, own: Any, error: Exception, signature: Sequence[types.Type]) -> CompileError:
        given = ", ".join(f"{n}: {t}" for n, t in zip(self._parameters, signature, strict=True))
        writes = self._compiles_with_writable_inputs(own, signature)
        return compile_error(f"{self.name}({given})", error, _HINTS, writes_to_input=writes)

    def _compiles_with_writable_inputs(self, own: Any, signature: Sequence[types.Type]) -> bool:
        """Return True if the kernel compiles once its inputs are writable."""
        writable = [t.copy(readonly=False) if isinstance(t, types.Array) else t for t in signature]
        try:
            own.compile(tuple(writable))
        except Exception:  # noqa: BLE001  # whatever it is, the first error tells
            return False
        return True


_HINTS = ((r"Untyped global name '(\w+)'.*<class 'function'>", r"Decorate \1 with numba.njit too."),)


def _call(arguments: Sequence[Argument], mode: Mapping[str, bool]) -> dict[str, Any]:
    """Return what a handler was built for, made of what JSON has; `_export.prepare` reads it."""
    described = [[a.source, a.index, a.dtype, a.ndim, a.scalar] for a in arguments]
    return {"arguments": described, "mode": dict(mode)}


def scalar_argument(where: str, index: int, dtype: str, buffer: str) -> Argument:
    """Return the argument for a scalar of *dtype*, whose operand is input *index* and has the dtype *buffer*."""
    return Argument("input", index, buffer, 0, numba_dtype(jnp.dtype(dtype), where), dtype)
