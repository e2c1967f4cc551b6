"""Warnings with the file and line of the user's call."""

from __future__ import annotations

import sys
import warnings
from types import FrameType

# The frames of these packages are skipped in the search for the user's call: this project, the libraries that call it
# back, and modules of the standard library that these libraries use.
_LIBRARIES = {
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
    """Warn, with the file and line of the innermost frame outside of `_LIBRARIES`.

    From Python 3.12 on, ``warnings.warn(..., skip_file_prefixes=...)`` can skip the frames of folders.
    """
    frame = _frame_of_user()
    module = frame.f_globals.get("__name__", "<unknown>")
    registry = frame.f_globals.setdefault("__warningregistry__", {})
    warnings.warn_explicit(message, category, *_place(frame), module, registry)


def place_of_user() -> tuple[str, int]:
    """Return the file and line that `warn` would name, for a later warning from another thread."""
    return _place(_frame_of_user())


def _place(frame: FrameType) -> tuple[str, int]:
    return frame.f_code.co_filename, frame.f_lineno


def _frame_of_user() -> FrameType:
    frame = sys._getframe(2)
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).partition(".")[0] in _LIBRARIES:
        frame = frame.f_back
    return frame
