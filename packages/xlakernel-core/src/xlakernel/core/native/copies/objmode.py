"""Handling of signals before an ``objmode`` block of a kernel."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from numba.core import cgutils
from numba.core.lowering import Lower

from ..machine.frame import I32, call_symbol


@contextlib.contextmanager
def signals_before_blocks() -> Iterator[None]:
    """In this context, Numba handles pending signals before ``objmode`` blocks. Numba's compiler lock must be held.

    Before a block, Numba's code calls Python functions that find the block and convert its variables. If a signal
    handler raises in these functions (Ctrl-C, a time limit), Numba loses the exception, or raises another one.
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
