"""Compilation of a Numba function for the types of a call, and registration of its handler, which XLA calls."""

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

from xlakernel.core.backend import (
    Examination,
    Handler,
    Kernel,
    Scalar,
    Struct,
    Target,
    ensure_registered,
    fingerprint,
)
from xlakernel.core.backend.native import (
    SUPPORTED,
    Argument,
    NumbaFunction,
    OwnCopies,
    array_type,
    build_handler,
    compile_error,
    is_importable,
    is_of_numba,
    numba_dtype,
    on_xla_threads,
    write_recipe,
)
from xlakernel.core.errors import CompileError

from ._bounds import explained_bounds
from ._cache import code_fingerprint, read_kernel, write_kernel
from ._recipe import COMPILER, environment
from .pickles import dump_function, load_function

_Scalars = Mapping[str, Scalar]

# Only handlers call our copies of dispatchers, so that these need no entry for Python or C.
_NO_WRAPPERS = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}


def _unpickled(dispatcher: bytes) -> NumbaKernel:
    return NumbaKernel(load_function(dispatcher))


@dataclasses.dataclass(frozen=True, eq=False)
class NumbaKernel(Kernel):
    """A Numba dispatcher as a kernel. Kernels with the same dispatcher are equal."""

    dispatcher: Any  # Numba's Dispatcher; its type stubs lack most of what is used here

    platforms = ("cpu",)
    takes_scalars = True

    @property
    def name(self) -> str:  # type: ignore[override]  # read-only here
        """The kernel's name."""
        return str(self.dispatcher.__name__)

    @property
    def content(self) -> str | None:
        """The fingerprint for comparison with another process; None if the kernel cannot be compared."""
        with COMPILER.lock:  # while another thread compiles, implementations may be replaced
            found = COMPILER.examine(self.dispatcher)
        return None if found.unknown else found.content

    def __reduce__(self) -> Any:
        """Pickle the dispatcher with the present values of its globals."""
        return _unpickled, (dump_function(self.dispatcher),)

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
        """Compile and register the kernel for these types, unless it is registered."""
        arguments = self._arguments(inputs, outs, scalars)
        # The name depends on the present values of all references, which may have changed since the last trace.
        return Target(self.register(arguments, {"ordered": ordered, "debug": debug}))

    def _arguments(self, inputs: Sequence[Struct], outs: Sequence[Struct], scalars: _Scalars) -> list[Argument]:
        """Return the argument for each of the kernel's parameters."""
        buffers = iter(
            argument(f"{self.name}: {source} {i}", source, i, struct.dtype, len(struct.shape))
            for source, structs in (("input", inputs), ("output", outs))
            for i, struct in enumerate(structs)
        )
        by_name = {
            name: argument(f"{self.name}: {name}", "input", len(inputs) + i, scalar.struct.dtype, 0, scalar.dtype)
            for i, (name, scalar) in enumerate(scalars.items())
        }
        return [by_name[name] if name in by_name else next(buffers) for name in self.parameters]

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of the kernel's parameters."""
        code = self.dispatcher.py_func.__code__
        return tuple(code.co_varnames[: code.co_argcount])

    def register(self, arguments: Sequence[Argument], mode: Mapping[str, bool], target: str | None = None) -> str:
        """Register the kernel and return its name: *target*, or a name that identifies its code."""
        function = self.dispatcher.py_func
        types_ = ", ".join(f"{a.source[0]}{a.index} {a.content}" for a in arguments)
        # `ensure_registered` holds the registry's lock while it builds the kernel, which acquires Numba's lock. Numba's
        # lock is acquired here first, so that all threads acquire the two in one order and cannot deadlock. It also
        # keeps other threads from compiling a helper between fingerprint and use. `_lock` is the lock in C: Numba's own
        # object would stay locked if a signal handler raised an exception at the end of the wait.
        with global_compiler_lock._lock:
            found = COMPILER.examine(self.dispatcher)
            digest = found.digest  # the recipe is kept; a reference to *found* would keep its copies of arrays too
            content = fingerprint(digest, {**environment(), **mode})
            # The fingerprint of a kernel with unknown references is different in each process, so that a file would
            # never be read. Hidden helpers are not copied, so their code may be older than the fingerprint
            # (`Examination`).
            wants = self.dispatcher.stats.cache_path is not None
            on_disk = content if wants and not found.unknown and not found.hidden else None
            name = f"xlakernel.numba/{function.__module__}.{function.__qualname__}({types_})#{content}"
            return ensure_registered(
                target or name + self._place_suffix(),
                "cpu",
                lambda: self._build(arguments, found, on_disk, mode),
                lambda: write_recipe(COMPILER, self.dispatcher, content=digest, call=_call(arguments, mode)),
            )

    def _place_suffix(self) -> str:
        """Return a suffix that distinguishes equal code at two places, so that errors name the right line.

        An importable function has one place and no suffix: its target has the same name on every machine.
        """
        if is_importable(self.dispatcher):
            return ""
        return f"@{hashlib.sha256(self._location.encode()).hexdigest()[:8]}"

    @property
    def _location(self) -> str:
        code = self.dispatcher.py_func.__code__
        return f"{code.co_filename}:{code.co_firstlineno}"

    def _build(
        self, arguments: Sequence[Argument], found: Examination, content: str | None, mode: Mapping[str, bool]
    ) -> Handler:
        signature = tuple(argument.type for argument in arguments)
        copies = OwnCopies(COMPILER, self.dispatcher, found, {"boundscheck": True} if mode["debug"] else None)
        # Parallel loops of the kernel and its helpers are compiled for XLA's threads.
        options = [getattr(function, "targetoptions", {}) for function in found.functions]
        parallel = SUPPORTED and any(given.get("parallel") for given in [*options, *copies.declared_options])
        own = self._own_dispatcher(copies, debug=mode["debug"])
        with contextlib.ExitStack() as stack:
            if parallel:
                stack.enter_context(on_xla_threads())
            if mode["debug"]:
                stack.enter_context(explained_bounds())
                content = None
            compiled = self._load_or_compile(own, signature, content, found)
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
        self, own: Any, signature: tuple[types.Type, ...], content: str | None, found: Examination
    ) -> Any:
        """Return Numba's compile result, through the on-disk cache unless *content* is None."""
        if content is None:
            return self._compile(own, signature)
        fingerprint = code_fingerprint(own, found.functions, content, signature)
        loaded = read_kernel(fingerprint, own, signature)
        if loaded is not None:
            return loaded
        compiled = self._compile(own, signature)
        write_kernel(fingerprint, compiled, found.owned)
        return compiled

    def _compile(self, own: Any, signature: tuple[types.Type, ...]) -> Any:
        try:
            own.compile(signature)
        except Exception as error:
            if not is_of_numba(error):
                raise
            given = dict(zip(self.parameters, signature, strict=True))
            # By default the cause is omitted: its frames are internal to Numba, and our message contains its message.
            cause = error if numba.config.FULL_TRACEBACKS else None
            raise compile_error(self.name, given, error, _HINTS, lambda other: own.compile(tuple(other))) from cause
        compiled = own.overloads[signature]
        if compiled.objectmode:
            raise CompileError(
                f"{self.name}: compiled in object mode, which runs in the Python interpreter; decorate the "
                "kernel with numba.njit."
            )
        if compiled.fndesc.restype != types.none:
            raise CompileError(
                f"{self.name}: returns {compiled.fndesc.restype}; a kernel returns nothing. Write the result into an "
                "output parameter: out[...] = result."
            )
        return compiled

    def _own_dispatcher(self, copies: OwnCopies, *, debug: bool) -> Any:
        """Return a copy of the dispatcher that calls copies of the helpers.

        The user's dispatcher may be limited to declared signatures, and may hold code that was compiled before a global
        changed. The cache file of the user's dispatcher must not contain code for handlers.
        """
        own, _ = COMPILER.kernels.copy(self.dispatcher, copies.function)
        own.targetoptions.update({"boundscheck": True} if debug else _NO_WRAPPERS)
        copies.fill(own)
        compile_ = own._compiler.compile

        def compile_with_copies(*arguments: Any) -> Any:
            with copies.compiling():
                return compile_(*arguments)

        own._compiler.compile = compile_with_copies
        return own


_HINTS = ((r"Untyped global name '(\w+)'.*<class 'function'>", r"Decorate \1 with numba.njit too."),)


def _call(arguments: Sequence[Argument], mode: Mapping[str, bool]) -> dict[str, Any]:
    """Return the types and modes of a handler as JSON data, which `_export.prepare` reads."""
    described = [[a.source, a.index, a.dtype, a.ndim, a.scalar] for a in arguments]
    return {"arguments": described, "mode": dict(mode)}


def argument(where: str, source: Any, index: int, dtype: Any, ndim: int, scalar: str = "") -> Argument:
    """Return the argument for buffer *index* of the inputs or outputs (*source*); *where* is for messages."""
    if scalar:
        kind = numba_dtype(jnp.dtype(scalar), where)
    else:
        kind = array_type(dtype, ndim, where, readonly=source == "input")
    return Argument(source, index, dtype.name, ndim, kind, scalar)
