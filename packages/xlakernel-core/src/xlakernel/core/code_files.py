"""Machine code on disk: one file for each fingerprint, in a folder that belongs to the user alone.

A file ``<fingerprint>.code`` contains a magic word, the fingerprint, the digest of the content, and the content. The
first three are checked before the content is used. A file that is missing, damaged or refused is a cache miss: the code
is compiled, and stored again. A failing disk therefore costs only time. There is no index file, since two processes
might change it at once.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from .cache_folder import FOLDER_VARIABLE, cache_folder, read_file, replace_file
from .errors import CacheWarning
from .interrupts import is_raised_by_handler
from .warning import warn

_MAGIC = b"xlakernel machine code 1\n"

_warned: set[Path | None] = set()  # the folders that a warning has named


def code_folder() -> Path | None:
    """Return the folder of the files, or None if the user has no home folder."""
    return cache_folder("code")


def read_code(fingerprint: str) -> bytes | None:
    """Return the content that `write_code` stored under *fingerprint*, or None on a cache miss.

    Args:
      fingerprint: a hash, in hexadecimal digits, of everything that determines the content.
    """
    folder = code_folder()
    if folder is None:
        return None
    try:
        found = read_file(_path(folder, fingerprint))
    except FileNotFoundError:
        return None
    except OSError as error:
        if is_raised_by_handler(error):  # a TimeoutError, for example
            raise
        _warn_once("read from", folder, error)
        return None
    content = found[len(_head(fingerprint, b"")) :]
    return content if found == _head(fingerprint, content) + content else None


def write_code(fingerprint: str, content: bytes) -> None:
    """Store *content*, or warn once that it cannot be stored."""
    folder = code_folder()
    try:
        if folder is None:
            raise OSError("there is no home folder")
        replace_file(_path(folder, fingerprint), _head(fingerprint, content) + content)
    except OSError as error:
        if is_raised_by_handler(error):
            raise
        _warn_once("stored in", folder, error)


def _path(folder: Path, fingerprint: str) -> Path:
    return folder / f"{fingerprint}.code"


def _head(fingerprint: str, content: bytes) -> bytes:
    return _MAGIC + bytes.fromhex(fingerprint) + hashlib.sha256(content).digest()


def _warn_once(done: str, folder: Path | None, error: OSError) -> None:
    if folder not in _warned:
        _warned.add(folder)
        warn(
            f"compiled code cannot be {done} {folder or 'a file'}: {error}. It is compiled in each process. Remove "
            f"other users' access to the folder (chmod -R go-w), free space on its disk, or set {FOLDER_VARIABLE} to "
            "another folder.",
            CacheWarning,
        )
