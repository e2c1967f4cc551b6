"""Compilation of helpers that only compiled code calls, without an entry for Python and without machine code.

By default Numba generates machine code for each helper, although callers link the helper's optimised LLVM code and
generate machine code from it again.
"""

from __future__ import annotations

import functools
import types
import weakref
from collections.abc import MutableMapping, Sequence
from typing import Any, ClassVar

from llvmlite.binding import Linkage, parse_assembly
from numba.core.codegen import JITCodeLibrary, RuntimeLinker
from numba.core.compiler import Compiler

from xlakernel.core.backend.native import dispatcher_parts, make_dispatcher


def without_entry(dispatcher: Any) -> None:
    """Make *dispatcher*, which has no code yet, compile only for calls from compiled code.

    If Python calls it nevertheless, as the definition of an ``overload`` may, a copy is compiled with an entry.
    """

    @functools.cache
    def with_entry() -> Any:
        function, *others = dispatcher_parts(dispatcher)
        # The function is copied: Numba mistakes a call between two dispatchers of one function for a recursion.
        made = make_dispatcher(_copy(function), *others)
        made.targetoptions["no_cpython_wrapper"] = False
        return made

    def add_overload(result: Any) -> None:
        # Numba's own method would also add the entry, which is missing, to the table for calls from Python.
        dispatcher.overloads[tuple(result.signature.args)] = result

    dispatcher.targetoptions["no_cpython_wrapper"] = True
    dispatcher.add_overload = add_overload
    dispatcher._compile_for_args = lambda *arguments: with_entry()._compile_for_args(*arguments)
    if dispatcher._compiler.pipeline_class is Compiler:
        dispatcher._compiler.pipeline_class = _LinkedCompiler


def _copy(function: Any) -> Any:
    made = types.FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    made.__kwdefaults__ = function.__kwdefaults__
    return functools.update_wrapper(made, function)


class _LinkedCompiler(Compiler):  # type: ignore[misc]  # Numba has no stubs
    """A compiler that puts its result into a `_LinkedLibrary`."""

    def __init__(self, typing_context: Any, context: Any, library: Any, *arguments: Any) -> None:
        super().__init__(typing_context, context, library or _LinkedLibrary(context.codegen(), "helper"), *arguments)


class _LinkedLibrary(JITCodeLibrary):  # type: ignore[misc]
    """LLVM code for other libraries to link. Machine code is generated only when the address of a function is needed.

    A recursive call uses the address of a function, which Numba resolves once the function has machine code. A library
    with such a call is therefore generated at once, after the libraries that contain the functions called.
    """

    #: The libraries without machine code, by the names of their functions.
    _waiting: ClassVar[MutableMapping[str, _LinkedLibrary]] = weakref.WeakValueDictionary()
    _has_machine_code = False

    def _finalize_final_module(self) -> None:
        called = self._called_by_address()
        if called:
            self._generate(called)
            return
        self._finalize_dynamic_globals()
        self._verify_declare_only_symbols()
        self._define_environments()
        self._finalized = True
        for function in self.get_defined_functions():
            self._waiting.setdefault(function.name, self)

    def get_pointer_to_function(self, name: str) -> int:
        """Return the address of a function, or 0 if the library has none of this name."""
        self._ensure_finalized()
        if not self._has_machine_code:
            if name not in {function.name for function in self.get_defined_functions()}:
                return 0
            self._generate(self._called_by_address())
        return int(super().get_pointer_to_function(name))

    def _generate(self, called: Sequence[str]) -> None:
        self._has_machine_code = True
        for name in called:
            library = self._waiting.get(name)
            if library is not None and not library._has_machine_code:
                library._generate(library._called_by_address())
        super()._finalize_final_module()

    def _called_by_address(self) -> list[str]:
        """Return the names of the functions that recursive calls refer to."""
        prefix, variables = RuntimeLinker.PREFIX, self._final_module.global_variables
        return [variable.name.removeprefix(prefix) for variable in variables if variable.name.startswith(prefix)]

    def _define_environments(self) -> None:
        """Define the variables of Numba's environments. Numba sets them, and code that links this library uses them."""
        variables = [str(v) for v in self._final_module.global_variables if v.linkage == Linkage.common]
        if variables:
            self._codegen._add_module(parse_assembly("\n".join(variables)))
            self._codegen._engine.finalize_object()
