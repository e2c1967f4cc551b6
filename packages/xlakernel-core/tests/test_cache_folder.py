"""Where things are kept on disk."""

from pathlib import Path

import pytest

from xlakernel.core.cache_folder import cache_folder, replace_file


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch):
    for name in ("XLAKERNEL_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)


def test_it_is_among_the_users_caches(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    assert cache_folder("auto") == tmp_path / "caches" / "xlakernel" / "auto"


@pytest.mark.parametrize("nothing", [None, "", "relative"])
def test_without_such_a_folder_it_is_in_the_home_folder(monkeypatch, tmp_path, nothing):
    monkeypatch.setenv("HOME", str(tmp_path))
    if nothing is not None:
        monkeypatch.setenv("XDG_CACHE_HOME", nothing)
    assert cache_folder("code") == tmp_path / ".cache" / "xlakernel" / "code"


def test_it_can_be_named(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XLAKERNEL_CACHE_DIR", str(tmp_path / "own"))
    assert cache_folder("auto") == tmp_path / "own" / "auto"
    monkeypatch.setenv("XLAKERNEL_CACHE_DIR", "~/own")
    assert cache_folder("auto") == tmp_path / "own" / "auto"


def test_a_user_without_a_home_has_none(monkeypatch):
    def no_home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    assert cache_folder("auto") is None


def test_a_file_is_replaced_with_its_folder_made(tmp_path):
    path = tmp_path / "a" / "b"
    for content in (b"old", b"new"):
        replace_file(path, content)
        assert path.read_bytes() == content
    assert list(path.parent.iterdir()) == [path]


def test_what_cannot_be_replaced_stays_and_nothing_is_left_behind(tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    with pytest.raises(OSError, match="directory"):
        replace_file(tmp_path / "a", b"new")
    assert list(tmp_path.iterdir()) == [tmp_path / "a"]
