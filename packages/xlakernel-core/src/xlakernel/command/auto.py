"""``xlakernel auto``: what ``backend="auto"`` chose on this machine, and how to make it choose anew."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from .installed import find, unknown
from .text import Printer, complain, counted

if TYPE_CHECKING:
    from xlakernel.core import AutoChoice


def auto(name: str | None, *, reset: bool, as_json: bool) -> int:
    """Print the choices that are remembered, or forget them.

    Args:
      name: the one operator that it is about; None: all.
      reset: whether to forget them.
      as_json: whether to print JSON.

    Returns:
      The exit status: 0; 1 if xlakernel.core cannot be imported, or a file cannot be removed; 2 if there is neither a
      choice nor an operator of this name.
    """
    try:
        from xlakernel.core import auto_choices, reset_auto_choices
    except Exception as error:  # noqa: BLE001  # whatever it is, the doctor knows more
        complain(f"xlakernel.core cannot be imported: {error}. Run `xlakernel doctor`.")
        return 1
    refused = None if name is None else _refuse(name)
    if refused is not None:
        complain(refused)
        return 2
    printer = Printer()
    if not reset:
        choices = auto_choices(name)
        if as_json:
            printer.line(json.dumps({"choices": [dataclasses.asdict(choice) for choice in choices]}, indent=2))
        else:
            _show(printer, name, choices)
        return 0
    try:
        forgotten = reset_auto_choices(name)
    except OSError as error:
        complain(f"a choice cannot be forgotten: {error}")
        return 1
    printer.line(json.dumps({"forgotten": forgotten}) if as_json else f"Forgot {counted(forgotten, 'choice')}.")
    return 0


def _refuse(name: str) -> str | None:
    """Return why there is nothing to say of an operator; None if there may be something."""
    from xlakernel.core import auto_choices
    from xlakernel.core.errors import ArgumentError

    try:
        auto_choices(name)
    except ArgumentError:
        # A package's operators are there when it is imported, which takes seconds: not before they are looked for.
        with contextlib.redirect_stdout(sys.stderr):
            known, _ = find(())
        if name not in known:
            remembered = (choice.operator for choice in auto_choices())
            return f"no choice of {name!r} is remembered, and {unknown(name, {*known, *remembered})}"
    return None


def _show(printer: Printer, name: str | None, choices: Sequence[AutoChoice]) -> None:
    if not choices:
        of = "" if name is None else f" of {name}"
        printer.line(f'No choice{of} is remembered. A call with backend="auto" measures the backends and makes one.')
        return
    for (operator, platform, device), group in groupby(choices, lambda c: (c.operator, c.platform, c.device)):
        printer.title(f"{operator}, {platform} ({device})")
        for choice in group:
            printer.line(f"  {choice.call}")
            times = [
                f"{backend}{'*' if backend == choice.backend else ''} {seconds * 1e6:.3g} µs"
                for backend, seconds in sorted(choice.seconds.items(), key=lambda item: item[1])
            ]
            printer.line(f"    {'  '.join(times)}  {printer.paint(choice.date, 'weak')}")
            for backend, problem in choice.problems.items():
                printer.line(printer.paint(f"    not {backend}: {problem}", "weak"))
    printer.line()
    printer.line("* is used for calls of these dtypes and sizes, sizes up to the next power of two")
