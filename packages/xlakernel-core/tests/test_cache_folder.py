"""The user's cache folder: its place, its access rights, and the files that are refused."""

import os
import sys
import time
from pathlib import Path

import pytest

from xlakernel.core import cache_folder as module
from xlakernel.core.cache_folder import cache_folder, read_file, replace_file

AUTO, CODE = (f"{name}-{os.geteuid()}" for name in ("auto", "code"))

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="nothing is stored without file modes")


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch):
    for name in ("XLAKERNEL_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)


def test_the_folder_is_among_the_users_caches(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    assert cache_folder("auto") == tmp_path / "caches" / "xlakernel" / AUTO


@pytest.mark.parametrize("nothing", [None, "", "relative"])
def test_without_xdg_cache_home_the_folder_is_in_the_home_folder(monkeypatch, tmp_path, nothing):
    monkeypatch.setenv("HOME", str(tmp_path))
    if nothing is not None:
        monkeypatch.setenv("XDG_CACHE_HOME", nothing)
    assert cache_folder("code") == tmp_path / ".cache" / "xlakernel" / CODE


def test_the_environment_can_name_the_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XLAKERNEL_CACHE_DIR", str(tmp_path / "own"))
    assert cache_folder("auto") == tmp_path / "own" / AUTO
    monkeypatch.setenv("XLAKERNEL_CACHE_DIR", "~/own")
    assert cache_folder("auto") == tmp_path / "own" / AUTO


def test_a_user_without_a_home_has_no_folder(monkeypatch):
    def no_home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    assert cache_folder("auto") is None


@pytest.mark.parametrize("home", ["relative", "./here"])
def test_a_relative_home_is_ignored(monkeypatch, tmp_path, home):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", home)
    assert cache_folder("auto") is None


@pytest.fixture
def umask():
    """Return a function that sets the umask for the rest of the test."""
    before = os.umask(0)
    yield os.umask
    os.umask(before)


def mode_of(path):
    return path.stat().st_mode & 0o7777


def test_a_file_is_replaced_and_its_folder_is_made(tmp_path):
    path = tmp_path / "a" / "b" / "c" / "d"
    for content in (b"old", b"new"):
        replace_file(path, content)
        assert read_file(path) == content
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("mask", [0o000, 0o002, 0o022, 0o077])
@pytest.mark.parametrize("shared", [0o755, 0o777, 0o1777])
def test_only_the_user_has_access_to_a_file(tmp_path, umask, mask, shared):
    umask(mask)
    replace_file(tmp_path / "home" / "cache" / "code" / "file", b"")
    assert [mode_of(tmp_path / "home" / path) for path in ("", "cache", "cache/code")] == [0o700] * 3
    assert mode_of(tmp_path / "home/cache/code/file") == 0o600
    tmp_path.chmod(shared)
    replace_file(tmp_path / "code" / "file", b"")
    assert (mode_of(tmp_path / "code"), mode_of(tmp_path / "code" / "file")) == (0o700, 0o600)


def test_a_file_that_would_not_be_read_is_not_written(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_MAX_FILE_BYTES", 3)
    replace_file(tmp_path / "code" / "small", b"abc")
    assert read_file(tmp_path / "code" / "small") == b"abc"
    with pytest.raises(OSError, match="would have 4 bytes; at most 3 are stored"):
        replace_file(tmp_path / "code" / "large", b"abcd")
    assert os.listdir(tmp_path / "code") == ["small"]


def test_a_failed_replacement_changes_nothing(tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    with pytest.raises(OSError, match="directory"):
        replace_file(tmp_path / "a", b"new")
    assert list(tmp_path.iterdir()) == [tmp_path / "a"]


@pytest.fixture
def path(tmp_path):
    """A file."""
    path = tmp_path / "code" / "file"
    replace_file(path, b"content")
    return path


def foreign(path):
    if os.geteuid() != 0:
        pytest.skip("only root can give a file to another user")
    os.chown(path, 12345, -1)


def to_link(path):
    moved = path.rename(path.with_name("elsewhere"))
    path.symlink_to(moved)


def to_fifo(path):
    path.unlink()
    os.mkfifo(path)


def to_folder(path):
    path.unlink()
    path.mkdir(mode=0o700)


REFUSED = {
    "foreign": (foreign, "belongs to user 12345, not to you"),
    "foreign folder": (lambda path: foreign(path.parent), "belongs to user 12345, not to you"),
    "group": (lambda path: path.chmod(0o620), r"can be written by other users \(mode 620\)"),
    "world": (lambda path: path.chmod(0o602), r"can be written by other users \(mode 602\)"),
    "group folder": (lambda path: path.parent.chmod(0o770), r"can be written by other users \(mode 770\)"),
    "world folder": (lambda path: path.parent.chmod(0o1777), r"can be written by other users \(mode 777\)"),
    "link": (to_link, "symbolic links"),
    "link to a folder": (lambda path: to_link(path.parent), "Not a directory|symbolic links"),
    "FIFO": (to_fifo, "is not a regular file"),
    "folder": (to_folder, "is not a regular file"),
}


@pytest.mark.parametrize(("plant", "error"), REFUSED.values(), ids=REFUSED)
def test_files_that_another_user_may_have_written_are_refused(path, plant, error):
    plant(path)
    with pytest.raises(OSError, match=error):
        read_file(path)


@pytest.mark.parametrize("plant", [foreign, to_link, lambda path: path.chmod(0o666)])
def test_a_planted_file_is_replaced_and_the_target_of_a_link_is_not(path, plant):
    plant(path)
    replace_file(path, b"new")
    assert read_file(path) == b"new"
    assert mode_of(path) == 0o600
    elsewhere = path.with_name("elsewhere")
    assert not elsewhere.exists() or elsewhere.read_bytes() == b"content"


@pytest.mark.parametrize("plant", [foreign, to_link, lambda folder: folder.chmod(0o777)])
def test_nothing_is_written_into_a_planted_folder(path, plant):
    plant(path.parent)
    with pytest.raises(OSError, match=r"belongs to|directory|symbolic|can be written"):
        replace_file(path, b"new")
    assert path.read_bytes() == b"content"


def test_temporary_files_of_killed_writers_are_removed(tmp_path):
    folder = tmp_path / "code"
    folder.mkdir(mode=0o700)
    dead, alive, other = (folder / name for name in (f".{'0' * 32}", f".{'1' * 32}", ".other"))
    for file in (dead, alive, other):
        file.touch()
    for file in (dead, other):
        os.utime(file, (time.time() - 4000,) * 2)
    replace_file(folder / "file", b"")
    assert sorted(folder.iterdir()) == sorted([alive, other, folder / "file"])
