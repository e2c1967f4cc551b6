"""The origin of an exception: a compiler's own code, or other code that ran meanwhile."""

from __future__ import annotations

import traceback


def is_raised_in(error: BaseException, *packages: str) -> bool:
    """Return True if code of one of *packages* raised *error*, and not code that it called.

    A signal handler, for example of a time limit by SIGALRM, may raise its exception anywhere in a compiler.
    """
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return bool(frames) and frames[-1].f_globals.get("__name__", "").partition(".")[0] in packages
