"""Descriptions of Numba's compilers for the copies, fingerprints and recipes of kernels."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from ..identity.fingerprint import Examination, examine
from .declarations import Declarations

Finish = Callable[[Any], None]


class Helper(NamedTuple):
    """A kind of compiled function that kernels may call.

    Attributes:
      kind: its class.
      function: returns its Python function.
      make: ``make(original, function, options)`` returns a copy of *original* without compiled code, and a function
        that compiles the declared signatures of *original* for the copy, or None.
      filled: whether *make* needs a function with a complete namespace.
      reduce: returns the constructor and its arguments for a pickle, and for a kind with declared signatures also
        ``declare(made, signatures)``, which returns *made*, and the signatures or None. None: Numba pickles it.
    """

    kind: type
    function: Callable[[Any], types.FunctionType]
    make: Callable[[Any, types.FunctionType, Mapping[str, Any]], tuple[Any, Finish | None]]
    filled: bool = False
    reduce: Callable[[Any], tuple[Any, ...]] | None = None


@dataclasses.dataclass(frozen=True)
class Compiler:
    """The compiler of a backend, with functions that disassemble, reassemble and compare its kernels.

    Attributes:
      package: the backend's distribution, for messages.
      module: the backend's module with a ``prepare`` (see `Recipe`).
      kind: the class of its dispatchers.
      parts: returns the arguments of *make* for a dispatcher, its Python function among them; picklable if that is.
      make: returns a dispatcher.
      declarations: returns the present declarations of users.
      lock: held during compilation.
      helpers: the kinds of compiled functions that a kernel may call.
      environment: returns the versions and settings that the code of all kernels depends on.
      options: returns further data that a dispatcher's code depends on.
    """

    package: str
    module: str
    kind: type
    parts: Callable[[Any], tuple[Any, ...]]
    make: Callable[..., Any]
    declarations: Callable[[], Declarations]
    lock: AbstractContextManager[Any]
    helpers: Sequence[Helper]
    environment: Callable[[], Mapping[str, Any]]
    options: Callable[[Any], Mapping[str, Any]] = lambda _: {}

    def fresh(self, dispatcher: Any) -> Any:
        """Return a dispatcher of the same function and options, without compiled code and for any signature.

        It refers to the user's helpers, unlike `OwnCopies`.
        """
        return self.make(*self.parts(dispatcher))

    def examine(self, dispatcher: Any) -> Examination:
        """Examine a kernel and everything that it refers to."""
        return examine(dispatcher, self.options(dispatcher) or None, self.declarations())

    def fingerprint(self, dispatcher: Any) -> str:
        """Return the fingerprint of a kernel and of everything that it refers to."""
        return self.examine(dispatcher).digest
