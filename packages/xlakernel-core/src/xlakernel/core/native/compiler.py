"""Descriptions of Numba's compilers, from which copies, fingerprints and recipes of kernels are made."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from ..identity.fingerprint import Examination, examine
from .declared import Declarations

Finish = Callable[[Any], None]


class Helper(NamedTuple):
    """A kind of compiled function, and how one is made anew.

    Attributes:
      kind: its class.
      function: returns its Python function.
      make: ``make(original, function, options)`` returns one like *original* that has compiled nothing, and a function
        that compiles for it the signatures that *original* declares, or None.
      filled: whether *make* needs a function whose namespace is complete.
      reduce: returns a function and its arguments, with which a pickle makes one like the given one; if it may have
        declared signatures, also ``declare(made, signatures)``, which returns *made*, and these, or None. No function:
        Numba pickles it.
    """

    kind: type
    function: Callable[[Any], types.FunctionType]
    make: Callable[[Any, types.FunctionType, Mapping[str, Any]], tuple[Any, Finish | None]]
    filled: bool = False
    reduce: Callable[[Any], tuple[Any, ...]] | None = None


@dataclasses.dataclass(frozen=True)
class Compiler:
    """The compiler of a backend: how its kernels are taken apart, put together and compared.

    Attributes:
      package: the backend's distribution, for messages.
      module: the backend's module with a ``prepare`` (see `Recipe`).
      kind: the class of its dispatchers.
      parts: returns what a dispatcher is made of, its Python function among them; picklable if these are.
      make: makes a dispatcher of these.
      declarations: returns what users have declared so far.
      lock: held while it compiles.
      helpers: the kinds of compiled functions that a kernel may call.
      environment: returns what the code of all kernels depends on: versions and settings.
      options: returns what else a dispatcher's code depends on.
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
        """Return a dispatcher of the same function and options that has compiled nothing and may compile anything.

        It refers to the user's helpers; `OwnCopies` makes copies of them.
        """
        return self.make(*self.parts(dispatcher))

    def examine(self, dispatcher: Any) -> Examination:
        """Examine a kernel with all that it refers to."""
        return examine(dispatcher, self.options(dispatcher) or None, self.declarations())

    def fingerprint(self, dispatcher: Any) -> str:
        """Return the fingerprint of a kernel and of all that it refers to."""
        return self.examine(dispatcher).digest
