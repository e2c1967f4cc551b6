"""Helpers without an entry for Python, which takes a sixth of the time of their compilation."""

from __future__ import annotations

import functools
from typing import Any

from xlakernel.core.backend.native import dispatcher_parts, make_dispatcher


def without_entry(dispatcher: Any) -> None:
    """Make *dispatcher*, which has no code yet, compile without its entry for Python.

    If Python calls it all the same, as the definition of an ``overload`` may, it is compiled once more with an entry.
    """

    @functools.cache
    def with_entry() -> Any:
        made = make_dispatcher(*dispatcher_parts(dispatcher))
        made.targetoptions["no_cpython_wrapper"] = False
        return made

    def add_overload(result: Any) -> None:
        # Numba would also add the entry to the table that calls from Python use.
        dispatcher.overloads[tuple(result.signature.args)] = result

    dispatcher.targetoptions["no_cpython_wrapper"] = True
    dispatcher.add_overload = add_overload
    dispatcher._compile_for_args = lambda *arguments: with_entry()._compile_for_args(*arguments)
