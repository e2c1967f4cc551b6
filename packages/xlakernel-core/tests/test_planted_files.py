"""A FIFO, socket, device or folder in place of a file or folder of the cache: a warning and a cache miss, no hang."""

import hashlib
import os
import signal
import socket
import stat
import sys

import numpy as np
import pytest

from xlakernel.core import auto_choices, code_files, reset_auto_choices
from xlakernel.core.code_files import code_folder, read_code, write_code
from xlakernel.core.errors import AutoBackendWarning, CacheWarning

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="nothing is stored without file modes")

FINGERPRINT = hashlib.sha256(b"a kernel").hexdigest()
X = np.ones(5, np.float32)


@pytest.fixture(autouse=True)
def no_hang():
    """Raise in the main thread after 20 seconds, also inside of a call that waits."""

    def stop(*_):
        raise AssertionError("it waited for 20 s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(20)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(autouse=True)
def no_warning_so_far(auto_folder, monkeypatch):
    """A cache folder that does not exist yet, and no warning so far."""
    monkeypatch.setattr(code_files, "_warned", set())


def plant_socket(path):
    with socket.socket(socket.AF_UNIX) as bound:
        before = os.getcwd()
        os.chdir(path.parent)  # the path of a socket is at most 107 bytes long
        try:
            bound.bind(path.name)
        finally:
            os.chdir(before)


def plant_device(path):
    try:
        os.mknod(path, 0o600 | stat.S_IFCHR, os.makedev(1, 5))  # /dev/zero, which never ends
        os.close(os.open(path, os.O_RDONLY))
    except PermissionError:
        pytest.skip("only root can make a device")


PLANTS = {"FIFO": os.mkfifo, "socket": plant_socket, "device": plant_device, "folder": lambda path: path.mkdir(0o700)}
each = pytest.mark.parametrize("plant", PLANTS.values(), ids=PLANTS)
each_but_a_folder = pytest.mark.parametrize("plant", list(PLANTS.values())[:-1], ids=list(PLANTS)[:-1])


@each
def test_a_file_of_compiled_code(plant):
    write_code(FINGERPRINT, b"some code")
    (file,) = code_folder().iterdir()
    file.unlink()
    plant(file)
    with pytest.warns(CacheWarning, match=r"compiled code cannot be read from .*compiled in each process"):
        assert read_code(FINGERPRINT) is None
    write_code(FINGERPRINT, b"some code")  # a second warning would be an error
    assert read_code(FINGERPRINT) == (None if file.is_dir() else b"some code")


@each_but_a_folder
@pytest.mark.parametrize("of_user", [False, True], ids=["cache folder", "folder of code"])
def test_a_folder_of_compiled_code(plant, of_user):
    folder = code_folder() if of_user else code_folder().parent
    folder.parent.mkdir(parents=True, exist_ok=True)
    plant(folder)
    with pytest.warns(CacheWarning, match="compiled code cannot be read from .*Not a directory"):
        assert read_code(FINGERPRINT) is None
    write_code(FINGERPRINT, b"some code")
    assert read_code(FINGERPRINT) is None and not folder.is_dir()


@each
def test_a_file_of_a_choice(plant, auto_folder, alike, measured, monkeypatch):
    alike(X, outs=X, backend="auto")
    (file,) = auto_folder.iterdir()
    file.unlink()
    plant(file)
    monkeypatch.setattr("xlakernel.core.measure.choices._known", {})
    assert auto_choices() == []
    if file.is_dir():
        with pytest.warns(AutoBackendWarning, match="cannot be kept in .*directory"):
            alike(X, outs=X, backend="auto")
    else:
        alike(X, outs=X, backend="auto")
        assert file.is_file()
    assert measured == [alike.name] * 2
    assert reset_auto_choices() == 1


@pytest.mark.parametrize("how", ["link", "writable by others", "of another user"])
def test_files_of_another_folder_are_not_removed(auto_folder, tmp_path, how):
    other = tmp_path / "project"
    other.mkdir()
    (other / "package.json").write_text("{}")
    auto_folder.parent.mkdir(parents=True)
    if how == "link":
        auto_folder.symlink_to(other)
    else:
        other.rename(auto_folder)
        if how == "of another user":
            if os.geteuid():
                pytest.skip("only root can give a folder away")
            os.chown(auto_folder, 12345, 12345)
        else:
            auto_folder.chmod(0o777)
    assert reset_auto_choices() == 0
    assert (auto_folder / "package.json").exists()


@each_but_a_folder
def test_the_folder_of_choices(plant, auto_folder, alike, measured):
    auto_folder.parent.mkdir(parents=True)
    plant(auto_folder)
    assert auto_choices() == []
    with pytest.warns(AutoBackendWarning, match="cannot be kept in .*Not a directory"):
        alike(X, outs=X, backend="auto")
    assert measured == [alike.name]
    assert reset_auto_choices() == 1 and not auto_folder.is_dir()
