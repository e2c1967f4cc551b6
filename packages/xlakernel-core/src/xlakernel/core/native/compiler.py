"""Descriptions of Numba's compilers for the copies, fingerprints and recipes of kernels."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from ..identity.fingerprint import Examination, examine
from ..identity.snapshot import Snapshot
from .declarations import Declarations

Finish = Callable[[Any], Any]


class FunctionKind(NamedTuple):
    """A kind of compiled function, such as a dispatcher, with the operations that copies and pickles need.

    Attributes:
      kind: the class of the compiled functions.
      parts: ``parts(compiled)`` returns the Python function and the further arguments of *make*.
      make: ``make(*parts)`` returns a function without compiled code; *make* is at the top level of a module.
      signatures: ``signatures(compiled)`` returns the declared signatures, or None.
      declare: ``declare(made, signatures)`` compiles the signatures, and returns *made*; None: this kind declares none.
      filled: whether *make* needs a Python function with a complete namespace.
    """

    kind: type
    parts: Callable[[Any], tuple[Any, ...]]
    make: Callable[..., Any]
    signatures: Callable[[Any], Any] = lambda _: None
    declare: Callable[[Any, Any], Any] | None = None
    filled: bool = False

    def copy(self, original: Any, function: types.FunctionType) -> tuple[Any, Finish | None]:
        """Return a copy of *original* with a new Python function; and a function that declares signatures, or None."""
        made = self.make(function, *self.parts(original)[1:])
        declare, signatures = self.declare, self.signatures(original)
        return made, None if declare is None else lambda copy: declare(copy, signatures)


@dataclasses.dataclass(frozen=True)
class Compiler:
    """The compiler of a backend, with all that is needed to copy and compare the backend's kernels and helpers.

    Attributes:
      package: the backend's distribution, for messages.
      module: the backend's module with a ``prepare`` (see `Recipe`).
      kernels: the kind of the backend's kernels.
      helpers: the kinds of compiled functions that a kernel may call.
      declarations: returns the present declarations of users.
      lock: held during compilation.
      context: the class of Numba's target context, which lowers constants.
      environment: returns the versions and settings that the code of all kernels depends on.
      options: returns further data that a dispatcher's code depends on.
      without_entry: makes a new dispatcher compile its code without the entry point for Python.
    """

    package: str
    module: str
    kernels: FunctionKind
    helpers: Sequence[FunctionKind]
    declarations: Callable[[], Declarations]
    lock: AbstractContextManager[Any]
    context: type
    environment: Callable[[], Mapping[str, Any]]
    options: Callable[[Any], Mapping[str, Any]] = lambda _: {}
    without_entry: Callable[[Any], None] = lambda _: None

    def fresh(self, dispatcher: Any) -> Any:
        """Return a dispatcher of the same function and options, without compiled code and for any signature.

        The new dispatcher refers to the user's helpers; a function of `OwnCopies` refers to copies of them.
        """
        return self.kernels.make(*self.kernels.parts(dispatcher))

    def examine(self, dispatcher: Any, snapshot: Snapshot | None = None) -> Examination:
        """Examine a kernel and everything that it refers to."""
        return examine(dispatcher, self.options(dispatcher) or None, self.declarations(), snapshot=snapshot)

    def fingerprint(self, dispatcher: Any) -> str:
        """Return the fingerprint of a kernel and of everything that it refers to."""
        return self.examine(dispatcher).digest
