"""Machine code on disk: the content that was written is read, and any failure is a cache miss."""

import hashlib
import os
import resource
import warnings

import pytest

from xlakernel.core import code_files
from xlakernel.core.cache_folder import cache_folder
from xlakernel.core.code_files import code_folder, read_code, write_code
from xlakernel.core.errors import CacheWarning

pytestmark = pytest.mark.versions

ONE, TWO = (hashlib.sha256(name).hexdigest() for name in (b"one", b"two"))


@pytest.fixture(autouse=True)
def root(monkeypatch, tmp_path):
    """A cache folder that does not exist yet, and no warning so far."""
    monkeypatch.setattr(code_files, "_warned", set())
    monkeypatch.setenv("XLAKERNEL_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_written_code_is_read_back():
    assert read_code(ONE) is None
    for content in (b"", b"some code", os.urandom(100_000)):
        write_code(ONE, content)
        assert read_code(ONE) == content
    assert read_code(TWO) is None
    assert [file.name for file in code_folder().iterdir()] == [f"{ONE}.code"]


DAMAGES = {
    "empty": lambda content: b"",
    "zeros": lambda content: bytes(len(content)),
    "magic": lambda content: b"X" + content[1:],
    "header": lambda content: content[:40],
    "short": lambda content: content[:-1],
    "long": lambda content: content + b"\0",
    "a bit": lambda content: content[:-3] + bytes([content[-3] ^ 1]) + content[-2:],
    "a bit of the fingerprint": lambda content: content[:30] + bytes([content[30] ^ 1]) + content[31:],
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_file_is_none_and_is_written_again(damage):
    write_code(ONE, b"some code")
    (file,) = code_folder().iterdir()
    file.write_bytes(damage(file.read_bytes()))
    assert read_code(ONE) is None
    write_code(ONE, b"some code")
    assert read_code(ONE) == b"some code"


def test_a_file_that_is_too_large_is_none_and_is_written_again():
    write_code(ONE, b"some code")
    (file,) = code_folder().iterdir()
    os.truncate(file, 2**40)  # a hole, which takes no space
    with pytest.warns(CacheWarning, match="has 1099511627776 bytes; at most 268435456 are read"):
        assert read_code(ONE) is None
    write_code(ONE, b"some code")
    assert read_code(ONE) == b"some code"


def test_a_file_under_another_name_is_none():
    write_code(ONE, b"some code")
    (file,) = code_folder().iterdir()
    file.rename(file.with_name(f"{TWO}.code"))
    assert read_code(TWO) is None


def test_a_foreign_file_is_one_warning():
    write_code(ONE, b"some code")
    code_folder().chmod(0o777)
    with pytest.warns(CacheWarning, match=r"cannot be read from .*can be written by other users.*chmod -R go-w"):
        assert read_code(ONE) is None
    write_code(ONE, b"some code")  # a warning would be an error
    assert read_code(ONE) is None
    code_folder().chmod(0o700)
    assert read_code(ONE) == b"some code"


def test_users_of_one_cache_folder_have_separate_folders(root, monkeypatch):
    root.mkdir()
    root.chmod(0o1777)
    write_code(ONE, b"mine")
    monkeypatch.setattr(code_files, "code_folder", lambda: cache_folder("code-12345"))
    assert read_code(ONE) is None
    write_code(ONE, b"yours")
    assert sorted(path.stat().st_mode & 0o777 for path in root.iterdir()) == [0o700] * 2


def test_a_file_in_place_of_the_folder_is_one_warning(root):
    root.write_text("not a folder")
    with pytest.warns(CacheWarning, match="compiled code cannot be read from .*Not a directory"):
        assert read_code(ONE) is None
    write_code(ONE, b"some code")


def test_a_user_without_a_home_gets_one_warning(monkeypatch):
    monkeypatch.delenv("XLAKERNEL_CACHE_DIR")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", "relative")
    assert read_code(ONE) is None
    with pytest.warns(CacheWarning, match="there is no home folder"):
        write_code(ONE, b"some code")
    write_code(ONE, b"some code")


def test_a_size_limit_leaves_nothing_behind():
    """RLIMIT_FSIZE, as a quota or a full disk: the limit cuts the file short."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        with pytest.warns(CacheWarning, match=r"File too large.*free space on its disk"):
            write_code(ONE, bytes(100_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list(code_folder().iterdir()) == []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert read_code(ONE) is None


def test_a_full_disk_is_a_warning(monkeypatch):
    """Everything that is written goes to /dev/full."""
    write_code(TWO, b"")
    full = os.open("/dev/full", os.O_WRONLY)
    real = os.open
    monkeypatch.setattr(
        os, "open", lambda path, flags, *a, **k: full if flags & os.O_CREAT else real(path, flags, *a, **k)
    )
    monkeypatch.setattr(os, "replace", None)
    with pytest.warns(CacheWarning, match="No space left"):
        write_code(ONE, b"some code")
