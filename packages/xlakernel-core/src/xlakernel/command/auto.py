"""``xlakernel auto``: what ``backend="auto"`` chose on this machine, and how to make it choose anew."""

from __future__ import annotations

import contextlib
import sys

from .installed import find
from .text import Printer, complain, counted


def auto(name: str | None, *, reset: bool) -> int:
    """Print the choices that are remembered, or forget them.

    Args:
      name: the one operator that it is about; None: all.
      reset: whether to forget them.

    Returns:
      The exit status: 0; 1 if xlakernel.core cannot be imported, or a file cannot be removed; 2 if there is neither a
      choice nor an operator of this name.
    """
    try:
        from xlakernel.core import auto_choices, reset_auto_choices
        from xlakernel.core.errors import ArgumentError
    except Exception as error:  # noqa: BLE001  # whatever it is, the doctor knows more
        complain(f"xlakernel.core cannot be imported: {error}. Run `xlakernel doctor`.")
        return 1
    printer = Printer()
    if name is not None:  # an operator of an installed package is there when that is imported
        with contextlib.redirect_stdout(sys.stderr):
            find(())
    try:
        if reset:
            printer.line(f"Forgot {counted(reset_auto_choices(name), 'choice')}.")
        else:
            choices = auto_choices(name)
            for choice in choices:
                printer.line(str(choice))
            if not choices:
                printer.line('No choice is remembered. A call with backend="auto" measures the backends and makes one.')
    except ArgumentError as error:
        complain(str(error))
        return 2
    except OSError as error:
        complain(f"a choice cannot be forgotten: {error}")
        return 1
    return 0
