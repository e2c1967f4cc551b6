"""Fingerprints of Numba functions, for other packages of xlakernel."""

from __future__ import annotations

from typing import Any

from xlakernel.core.backend import examine

from ._recipe import COMPILER


def fingerprint(functions: Any) -> str:
    """Return the fingerprint of *functions*, and of everything that they and implementations for the CPU refer to.

    Unlike that of `xlakernel.core.backend`, it contains what is declared with ``numba.extending``.
    """
    with COMPILER.lock:
        return examine(functions, None, COMPILER.declarations()).digest
