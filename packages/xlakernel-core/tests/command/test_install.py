"""Installation commands, for each place that the packages may have come from."""

import importlib.metadata
import json
import shlex
from pathlib import Path

import pytest

from xlakernel.command import install
from xlakernel.command.install import Source, install_command, pip_arguments


@pytest.fixture
def from_source(monkeypatch):
    return lambda folder, kind: monkeypatch.setattr(install, "source", lambda: Source(folder, kind))


def test_from_an_index(from_source):
    from_source(None, "index")
    assert install_command("warp") == "pip install xlakernel-warp"
    assert install_command("cuda", "cuda12") == 'pip install "xlakernel-cuda[cuda12]"'
    assert install_command("sparse") == "pip install xlakernel-numba xlakernel-sparse"


def test_from_a_clone(from_source):
    from_source(Path("/clone/packages"), "clone")
    assert install_command("warp") == "pip install /clone/packages/xlakernel-warp"
    assert install_command("sparse") == ("pip install /clone/packages/xlakernel-numba /clone/packages/xlakernel-sparse")
    from_source(Path("/my clone/packages"), "editable")
    assert install_command("numba") == 'pip install -e "/my clone/packages/xlakernel-numba"'
    assert pip_arguments("core", "export") == '-e "/my clone/packages/xlakernel-core[export]"'


def test_from_a_repository(from_source):
    from_source("git+https://example.org/x.git@0123#subdirectory=packages/", "repository")
    address = "git+https://example.org/x.git@0123#subdirectory=packages/xlakernel"
    assert install_command("warp", "cuda13") == f'pip install "xlakernel-warp[cuda13] @ {address}-warp"'
    assert install_command("sparse") == (
        f'pip install "xlakernel-numba @ {address}-numba" "xlakernel-sparse @ {address}-sparse"'
    )


@pytest.mark.parametrize("name", ["a b", "a&b", "a;b", "a$HOME", "a(b)", "a'b", 'a"b', "a`b", "a\\b"])
def test_a_folder_is_one_argument_of_a_shell(from_source, name):
    from_source(Path("/", name), "clone")
    assert shlex.split(pip_arguments("warp")) == [f"/{name}/xlakernel-warp"]


def test_from_a_folder_of_wheels(from_source):
    from_source(Path("/dist"), "wheels")
    assert install_command("cuda", "cuda13") == 'pip install --find-links /dist "xlakernel-cuda[cuda13]"'


class Distribution:
    def __init__(self, found):
        self.found = found

    def read_text(self, name):
        assert name == "direct_url.json"
        return self.found if isinstance(self.found, str | None) else json.dumps(self.found)


@pytest.mark.parametrize(
    "kind",
    ["index", "repository", "clone", "editable", "wheels", "moved", "damaged", "a list", "null", "without a commit"],
)
def test_where_core_comes_from(monkeypatch, tmp_path, kind):
    folder = tmp_path / "a clone" / "xlakernel-core"
    folder.mkdir(parents=True)
    wheel = folder.parent / "xlakernel_core-0.1.0-py3-none-any.whl"
    wheel.touch()
    found = {
        "index": None,
        "repository": {
            "url": "https://example.org/x.git",
            "subdirectory": "packages/xlakernel-core",
            "vcs_info": {"vcs": "git", "commit_id": "0123"},
        },
        "damaged": '{"url',
        "a list": "[]",
        "null": "null",
        "without a commit": {"url": "u", "vcs_info": {"vcs": "git"}},
        "clone": {"url": folder.as_uri(), "dir_info": {}},
        "editable": {"url": folder.as_uri(), "dir_info": {"editable": True}},
        "wheels": {"url": wheel.as_uri(), "archive_info": {}},
        "moved": {"url": (tmp_path / "absent").as_uri(), "dir_info": {}},
    }[kind]
    monkeypatch.setattr(importlib.metadata, "distribution", lambda name: Distribution(found))
    expected = Source(folder.parent, kind) if kind in ("clone", "editable", "wheels") else Source(None, "index")
    if kind == "repository":
        expected = Source("git+https://example.org/x.git@0123#subdirectory=packages/", kind)
    assert install.source.__wrapped__() == expected


def test_sources_on_the_path(monkeypatch):
    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", missing)
    found = install.source.__wrapped__()
    assert found.kind == ("index" if found.location is None else "editable")
    assert found.location is None or (found.location / "xlakernel-core/pyproject.toml").is_file()
