"""The user's cache folder, and safe access to its files.

A folder is opened once and checked as it is open; its files are then reached through its descriptor, and checked the
same way. A link, a FIFO or a folder that takes the place of a file at any moment is therefore refused, never followed
and never waited for. A private folder and its files belong to the user alone: the owner and the mode are compared, as
ssh does. Where the operating system has no such descriptors (Windows), nothing is kept on disk.
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
    """Return the folder of this name in the user's cache folder, or in the one that the environment names.

    It need not exist. None: the user has no home folder.
    """
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


def read_file(path: Path, *, private: bool = False, most: int = 1 << 30) -> bytes:
    """Return the content of a file of a cache folder.

    Args:
      path: the file.
      private: whether only this user may have written it.
      most: bytes that it may have.

    Raises:
      FileNotFoundError: if there is none.
      OSError: if it cannot be read, is not a regular file, is too large, or may be another user's.
    """
    with _opened_folder(path.parent, private=private, create=False) as folder:
        # O_NONBLOCK: opening a FIFO would wait for its writer.
        file = os.open(path.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
        try:
            found = os.fstat(file)
            if not stat.S_ISREG(found.st_mode):
                raise OSError(f"{path} is not a regular file")
            if private:
                _check_private(path, found)
            if found.st_size > most:
                raise OSError(f"{path} has {found.st_size} bytes; at most {most} are read")
            with open(file, "rb", closefd=False) as opened:
                return opened.read(most)
        finally:
            os.close(file)


def replace_file(path: Path, content: bytes, *, private: bool = False) -> None:
    """Write a file, and its folder: other processes see all of it or what was there before.

    The user alone has access to a private file and its folder (modes 0600 and 0700), whatever the umask is. Access to
    any other file is that to the folder which its own folder is made in: who shares that folder shares the file.

    Raises:
      OSError: if that cannot be; nothing is left behind.
    """
    with _opened_folder(path.parent, private=private, create=True) as folder:
        _sweep(path.parent, folder)
        temporary = f".{uuid.uuid4().hex}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            with open(os.open(temporary, flags, 0o600, dir_fd=folder), "wb") as file:
                if not private:
                    os.fchmod(file.fileno(), os.fstat(folder).st_mode & 0o666)
                file.write(content)
            os.replace(temporary, path.name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary, dir_fd=folder)
            raise


@contextlib.contextmanager
def _opened_folder(path: Path, *, private: bool, create: bool) -> Iterator[int]:
    """Open a folder inside the cache folder, which may be a link, or be shared; yield its descriptor."""
    if os.name != "posix":
        raise OSError(f"the owner of {path} cannot be checked on {os.name}")
    root = _open_root(path.parent, create=create)
    try:
        folder = _open_or_make(path.name, root, private=private, create=create)
        try:
            if private:
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


def _open_or_make(name: str, root: int, *, private: bool, create: bool) -> int:
    try:
        return os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=root)
    except FileNotFoundError:
        if not create:
            raise
    made = False
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, 0o700, dir_fd=root)
        made = True
    folder = os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=root)
    if made and not private:
        with contextlib.suppress(OSError):  # what cannot be shared is the user's alone
            os.fchmod(folder, os.fstat(root).st_mode & 0o7777)
    return folder


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
