"""Where is kept on disk what later processes need not find out again."""

from __future__ import annotations

import contextlib
import os
import uuid
from pathlib import Path

FOLDER_VARIABLE = "XLAKERNEL_CACHE_DIR"


def cache_folder(name: str) -> Path | None:
    """Return the folder of this name among the user's, or in the one that the environment names; None: there is none.

    It need not exist.
    """
    named = os.environ.get(FOLDER_VARIABLE)
    caches = os.environ.get("XDG_CACHE_HOME", "")
    try:
        if named:  # a shell leaves the ~ of a quoted value, and a file of settings any, to whoever reads it
            return Path(named).expanduser() / name
        # The specification of XDG wants a relative path to be ignored.
        parent = Path(caches) if os.path.isabs(caches) else Path.home() / ".cache"
    except RuntimeError:  # the user has no home
        return None
    return parent / "xlakernel" / name


def replace_file(path: Path, content: bytes) -> None:
    """Write a file, and its folder: other processes see all of it or what was there before.

    Raises:
      OSError: if that cannot be; nothing is left behind.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # Not by tempfile, whose files are their owner's alone: in a folder that users share, others are to read it.
    temporary = path.with_name(f".{uuid.uuid4().hex}")
    try:
        temporary.write_bytes(content)
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
