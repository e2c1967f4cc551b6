"""Warnings that point at the user's line, however deep they are raised."""

from __future__ import annotations

import sys
import warnings

# What lies between the line that calls a kernel and ours: our packages, the libraries that call us back, and what of
# Python's these call through.
_INSIDE = {
    "xlakernel",
    "jax",
    "jaxlib",
    "llvmlite",
    "numba",
    "warp",
    "concurrent",
    "contextlib",
    "functools",
    "threading",
}


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn, and name the innermost line outside of xlakernel and of the libraries that call it.

    From Python 3.12 on, ``warnings.warn(..., skip_file_prefixes=...)`` does so by folders.
    """
    frame = sys._getframe(1)
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).partition(".")[0] in _INSIDE:
        frame = frame.f_back
    module = frame.f_globals.get("__name__", "<unknown>")
    registry = frame.f_globals.setdefault("__warningregistry__", {})
    warnings.warn_explicit(message, category, frame.f_code.co_filename, frame.f_lineno, module, registry)
