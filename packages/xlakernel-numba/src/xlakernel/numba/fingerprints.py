"""Fingerprints of Numba functions, for other packages of xlakernel."""

from __future__ import annotations

from typing import Any

from xlakernel.core.backend import examine

from ._recipe import COMPILER


def fingerprint(functions: Any) -> str:
    """Return the fingerprint of *functions*, their references, and implementations declared with ``numba.extending``.

    The implementations are those for the CPU. A thread may replace them while it compiles, hence the lock.
    """
    with COMPILER.lock:
        return examine(functions, None, COMPILER.declarations()).digest
