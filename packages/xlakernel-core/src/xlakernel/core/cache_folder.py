"""The user's cache folders, and safe access to their files.

A folder is opened once and checked as it is open; its files are then reached through its descriptor, and checked the
same way. A link, a FIFO or a folder that takes the place of a file at any moment is therefore refused, never followed
and never waited for. Folders and files belong to the user alone: the owner and the mode are compared, as ssh does. On
an operating system without such descriptors (Windows), nothing is kept on disk.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

FOLDER_VARIABLE = "XLAKERNEL_CACHE_DIR"

_NOT_OURS = stat.S_IWGRP | stat.S_IWOTH  # a file with one of these bits may hold what another user wrote
_TEMPORARY = re.compile(r"\.[0-9a-f]{32}")
_ABANDONED = 3600.0  # seconds after which the writer of a temporary file is taken for dead

_swept: set[Path] = set()  # folders in which this process has removed the temporary files of dead writers


def cache_folder(name: str) -> Path | None:
    """Return the folder of this name and user in the user's cache folder, or in the one that the environment names.

    It need not exist. None: the user has no home folder.
    """
    name = f"{name}-{os.geteuid()}" if hasattr(os, "geteuid") else name  # users may name one folder for all of them
    named = os.environ.get(FOLDER_VARIABLE)
    caches = os.environ.get("XDG_CACHE_HOME", "")
    try:
        if named:  # a shell leaves the ~ of a quoted value to the program
            return Path(named).expanduser() / name
        # The specification of XDG says that a relative path is ignored. A relative HOME is ignored as well: the cache
        # would be in whatever folder a process happens to run in.
        parent = Path(caches) if os.path.isabs(caches) else Path.home() / ".cache"
    except RuntimeError:  # the user has no home
        return None
    return parent / "xlakernel" / name if parent.is_absolute() else None


def read_file(path: Path) -> bytes:
    """Return the content of a file of a cache folder.

    Raises:
      FileNotFoundError: if there is none.
      OSError: if it cannot be read, is not a regular file, or may be another user's.
    """
    with _opened_folder(path.parent, create=False) as folder:
        # O_NONBLOCK: opening a FIFO would wait for its writer.
        file = os.open(path.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
        try:
            found = os.fstat(file)
            if not stat.S_ISREG(found.st_mode):
                raise OSError(f"{path} is not a regular file")
            _check_private(path, found)
            with open(file, "rb", closefd=False) as opened:
                return opened.read()
        finally:
            os.close(file)


def replace_file(path: Path, content: bytes) -> None:
    """Write a file, and its folder: other processes see all of it or what was there before.

    The user alone has access to the file and its folder (modes 0600 and 0700), whatever the umask is.

    Raises:
      OSError: if that cannot be; nothing is left behind.
    """
    with _opened_folder(path.parent, create=True) as folder:
        _sweep(path.parent, folder)
        temporary = f".{uuid.uuid4().hex}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            with open(os.open(temporary, flags, 0o600, dir_fd=folder), "wb") as file:
                file.write(content)
            os.replace(temporary, path.name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary, dir_fd=folder)
            raise


@contextlib.contextmanager
def _opened_folder(path: Path, *, create: bool) -> Iterator[int]:
    """Open a folder inside the cache folder, which may be a link, or be shared; yield its descriptor."""
    if os.name != "posix":
        raise OSError(f"the owner of {path} cannot be checked on {os.name}")
    root = _open_root(path.parent, create=create)
    try:
        folder = _open_or_make(path.name, root, create=create)
        try:
            _check_private(path, os.fstat(folder))
            yield folder
        finally:
            os.close(folder)
    finally:
        os.close(root)


_FOLDER = getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0)


def _open_root(path: Path, *, create: bool) -> int:
    try:
        return os.open(path, _FOLDER)
    except FileNotFoundError:
        if not create:
            raise
    # As the specification of XDG has it, a folder that is made here is the user's alone.
    missing = [path]
    while not missing[-1].parent.exists():
        missing.append(missing[-1].parent)
    for folder in reversed(missing):
        with contextlib.suppress(FileExistsError):
            folder.mkdir(0o700)
    return os.open(path, _FOLDER)


def _open_or_make(name: str, root: int, *, create: bool) -> int:
    try:
        return os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=root)
    except FileNotFoundError:
        if not create:
            raise
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, 0o700, dir_fd=root)
    return os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=root)


def _check_private(path: Path, found: os.stat_result) -> None:
    if found.st_uid != os.geteuid():
        raise PermissionError(f"{path} belongs to user {found.st_uid}, not to you (user {os.geteuid()})")
    if found.st_mode & _NOT_OURS:
        raise PermissionError(f"{path} can be written by other users (mode {found.st_mode & 0o777:03o})")


def _sweep(path: Path, folder: int) -> None:
    """Remove what writers left behind that were killed."""
    if path in _swept:
        return
    _swept.add(path)
    for name in filter(_TEMPORARY.fullmatch, os.listdir(folder)):
        with contextlib.suppress(OSError):
            age = time.time() - os.stat(name, dir_fd=folder, follow_symlinks=False).st_mtime
            if age > _ABANDONED:
                os.unlink(name, dir_fd=folder)
