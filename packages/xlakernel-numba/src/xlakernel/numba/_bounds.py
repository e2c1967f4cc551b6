"""Bounds checks with errors that contain the index, the axis and its extent, and the line.

Numba's own message is only "index is out of bounds", because its check raises an exception with constant arguments.
Kernels that are compiled for debug mode have the check of this module instead. It raises an exception with run-time
arguments.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numba
from llvmlite import ir
from numba.core import cgutils, lowering, types
from numba.core.compiler_lock import global_compiler_lock

_NUMBA = str(Path(numba.__file__).parent)


class OutOfBounds(IndexError):
    """Constructor of an `IndexError`. It is a class, because Numba's code raises an exception by calling its class."""

    def __new__(cls, index: int, axis: int | None, extent: int) -> IndexError:  # type: ignore[misc]
        """Return a plain `IndexError` with a message like NumPy's."""
        where = "" if axis is None else f"axis {axis} with "
        return IndexError(f"index {index} is out of bounds for {where}size {extent}")


@contextmanager
def explained_bounds() -> Iterator[None]:
    """Compile bounds checks in this context with errors that name the index and the line."""
    statements: list[Any] = []  # (function, location) of the statements being lowered, innermost last
    check, lower_inst, forced = cgutils.do_boundscheck, lowering.Lower.lower_inst, numba.config.BOUNDSCHECK

    def tracked_lower_inst(self: Any, inst: Any) -> Any:
        statements.append((self.func_ir.func_id.func_name, self.loc))
        try:
            return lower_inst(self, inst)
        finally:
            statements.pop()

    def explained_check(context: Any, builder: Any, index: Any, extent: Any, axis: Any = None) -> None:
        if getattr(builder, "_in_try_block", False):  # Numba cannot catch exceptions with run-time arguments
            check(context, builder, index, extent, axis)
        else:
            _emit_check(context, builder, index, extent, axis, _statement_of_user(statements))

    with global_compiler_lock._lock:
        cgutils.do_boundscheck = explained_check
        lowering.Lower.lower_inst = tracked_lower_inst
        numba.config.BOUNDSCHECK = forced or None  # NUMBA_BOUNDSCHECK=0 would disable the checks
        try:
            yield
        finally:
            cgutils.do_boundscheck, lowering.Lower.lower_inst = check, lower_inst
            numba.config.BOUNDSCHECK = forced


def _statement_of_user(statements: list[Any]) -> tuple[str | None, Any]:
    """Return the function and the location of the innermost statement outside Numba itself."""
    users = (s for s in reversed(statements) if not str(s[1].filename).startswith(_NUMBA))
    return next(users, (None, None))


def _emit_check(context: Any, builder: Any, index: Any, extent: Any, axis: Any, statement: tuple[Any, Any]) -> None:
    """Emit the bounds check. Its comparison is unsigned, so that a negative index exceeds every extent."""
    with cgutils.if_unlikely(builder, builder.icmp_unsigned(">=", index, extent)):
        arguments = (_as_written(index, extent), axis, extent)
        kinds = [types.intp if isinstance(argument, ir.Value) else None for argument in arguments]
        name, location = statement
        context.call_conv.return_dynamic_user_exc(builder, OutOfBounds, arguments, kinds, loc=location, func_name=name)


def _as_written(index: Any, extent: Any) -> Any:
    """Return the index as the source code has it, before Numba adds the extent to a negative index."""
    if isinstance(index, ir.instructions.SelectInstr):
        _, counted, written = index.operands
        if getattr(counted, "opname", None) == "add" and set(counted.operands) == {written, extent}:
            return written
    return index
