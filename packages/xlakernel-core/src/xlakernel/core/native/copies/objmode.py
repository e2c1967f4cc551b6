"""Signals before an ``objmode`` block of a kernel."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from numba.core import cgutils
from numba.core.lowering import Lower

from ..machine.frame import I32, call_symbol


@contextlib.contextmanager
def signals_before_blocks() -> Iterator[None]:
    """Make Numba's compiler, whose lock must be held, emit the handling of pending signals before ``objmode`` blocks.

    Before the block, Numba calls Python functions to find it and to convert its variables. If the handler of a signal
    raises there (Ctrl-C, a time limit), Numba loses the exception, or raises another one.
    """
    lower_block = Lower._lower_call_ObjModeDispatcher

    def lower(self: Any, *arguments: Any) -> Any:
        self.init_pyapi()
        gil = self.pyapi.gil_ensure()
        raised = cgutils.is_not_null(self.builder, call_symbol(self.builder, "PyErr_CheckSignals", I32))
        self.pyapi.gil_release(gil)
        with self.builder.if_then(raised, likely=False):
            self.call_conv.return_exc(self.builder)
        return lower_block(self, *arguments)

    Lower._lower_call_ObjModeDispatcher = lower
    try:
        yield
    finally:
        Lower._lower_call_ObjModeDispatcher = lower_block
