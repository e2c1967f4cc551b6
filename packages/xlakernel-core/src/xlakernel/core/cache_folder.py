"""The user's cache folders, and safe access to their files.

Programs run the compiled code in these folders. Folders and files must therefore belong to the user alone: their owner
and mode are checked, as ssh does. A folder is opened once and checked while it is open, and its files are opened
through its descriptor. No other folder or link can then replace the folder between check and access. On an operating
system without such descriptors (Windows), nothing is stored.
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

from .interrupts import is_raised_by_handler

FOLDER_VARIABLE = "XLAKERNEL_CACHE_DIR"

_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_TEMPORARY = re.compile(r"\.[0-9a-f]{32}")
_ABANDONED = 3600.0  # seconds; the writer of an older temporary file is assumed to have been killed
_MAX_FILE_BYTES = 2**28

_swept: set[Path] = set()  # folders from which this process has removed the temporary files of killed writers


def cache_folder(name: str) -> Path | None:
    """Return the path of the user's folder *name* in the cache folder; None if the user has no home folder.

    The folder need not exist. The cache folder is the one that the environment variable names, or else ``xlakernel`` in
    the user's folder for caches.
    """
    name = f"{name}-{os.geteuid()}" if hasattr(os, "geteuid") else name  # several users may share one cache folder
    named = os.environ.get(FOLDER_VARIABLE)
    caches = os.environ.get("XDG_CACHE_HOME", "")
    try:
        if named:  # a shell does not expand the ~ of a quoted value
            return Path(named).expanduser() / name
        # The XDG specification requires that a relative path be ignored. A relative HOME is ignored as well: the cache
        # would be in the current folder of the process.
        parent = Path(caches) if os.path.isabs(caches) else Path.home() / ".cache"
    except RuntimeError:  # the user has no home
        return None
    return parent / "xlakernel" / name if parent.is_absolute() else None


def read_file(path: Path) -> bytes:
    """Return the content of a file of a cache folder.

    Raises:
      FileNotFoundError: if the file does not exist.
      OSError: if it cannot be read, is not a regular file, can be written by another user, or has more than 256 MiB.
    """
    with _opened_folder(path.parent, create=False) as folder:
        # O_NONBLOCK: opening a FIFO would wait for its writer.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(path.name, flags, dir_fd=folder)
        try:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                raise OSError(f"{path} is not a regular file")
            if found.st_size > _MAX_FILE_BYTES:  # a damaged file can be larger than the memory
                raise OSError(f"{path} has {found.st_size} bytes; at most {_MAX_FILE_BYTES} are read")
            _check_private(path, descriptor)
            with open(descriptor, "rb", closefd=False) as file:
                return file.read(found.st_size)
        finally:
            os.close(descriptor)


def replace_file(path: Path, content: bytes) -> None:
    """Write a file, and make its folder if needed. Other processes see the complete new file or the previous one.

    Only the user has access to the file and to a new folder: modes 0600 and 0700, or less with a stricter umask.

    Raises:
      OSError: if the file cannot be written, or is larger than `read_file` allows; no temporary file is left behind.
    """
    if len(content) > _MAX_FILE_BYTES:
        raise OSError(f"{path} would have {len(content)} bytes; at most {_MAX_FILE_BYTES} are stored")
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


def list_files(path: Path) -> list[Path]:
    """Return the files and links of a cache folder by name; [] if the folder is missing or not the user's alone."""
    try:
        with _opened_folder(path, create=False) as folder, os.scandir(folder) as entries:
            return [
                path / name
                for name in sorted(entry.name for entry in entries if not entry.is_dir(follow_symlinks=False))
            ]
    except OSError as error:
        if is_raised_by_handler(error):  # a TimeoutError, for example
            raise
        return []


def remove_file(path: Path) -> None:
    """Remove a file of a cache folder, if it exists.

    Raises:
      OSError: if the folder does not belong to the user alone, or the file cannot be removed.
    """
    with contextlib.suppress(FileNotFoundError), _opened_folder(path.parent, create=False) as folder:
        os.unlink(path.name, dir_fd=folder)


@contextlib.contextmanager
def _opened_folder(path: Path, *, create: bool) -> Iterator[int]:
    """Open a folder that belongs to the user alone; yield its descriptor."""
    if os.name != "posix":
        raise OSError(f"the owner of {path} cannot be checked on {os.name}")
    if create:
        for missing in reversed([folder for folder in (path, *path.parents) if not folder.exists()]):
            with contextlib.suppress(FileExistsError):
                missing.mkdir(0o700)
    folder = os.open(path, os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        _check_private(path, folder)
        yield folder
    finally:
        os.close(folder)


def _check_private(path: Path, descriptor: int) -> None:
    found = os.fstat(descriptor)
    if found.st_uid != os.geteuid():
        raise PermissionError(f"{path} belongs to user {found.st_uid}, not to you (user {os.geteuid()})")
    if found.st_mode & _WRITABLE_BY_OTHERS:
        raise PermissionError(f"{path} can be written by other users (mode {found.st_mode & 0o777:03o})")


def _sweep(path: Path, folder: int) -> None:
    """Remove the temporary files of killed writers, once in a process."""
    if path in _swept:
        return
    _swept.add(path)
    for name in filter(_TEMPORARY.fullmatch, os.listdir(folder)):
        with contextlib.suppress(OSError):
            age = time.time() - os.stat(name, dir_fd=folder, follow_symlinks=False).st_mtime
            if age > _ABANDONED:
                os.unlink(name, dir_fd=folder)
