"""The output of the command as the documentation shows it."""

from pathlib import Path

import pytest

from xlakernel.command import backends, command_line, doctor, install
from xlakernel.command.facts import Facts
from xlakernel.core import XLACustomKernel, __version__

PAGE = Path(__file__).parents[4] / "docs" / "reference" / "core.md"

FACTS = Facts(
    python="3.12.1, Linux x86_64",
    versions={
        **dict.fromkeys(("xlakernel-core", "xlakernel-cuda", "xlakernel-numba", "xlakernel-sparse"), __version__),
        "jax": "0.12.0.1",
        "jaxlib": "0.12.0.1",
        "numpy": "2.5.5",
        "scipy": "1.18.1",
        "numba": "0.68.1",
        "llvmlite": "0.50.0",
        "numba-cuda": "0.30.4",
        "cuda-bindings": "13.5.0",
        "cuda-core": "1.2.2",
        "cuda-toolkit": "13.5.0",
    },
    answers={
        "jax": {"devices": [{"platform": "cpu", "kind": "cpu"}]},
        "core": {"ffi_major": 0},
        "numba": {},
        "numba_cuda": {},
        "driver": {"found": False},
    },
)


@pytest.fixture
def documented(monkeypatch):
    """Give the command the facts of the page, and return the page."""
    if not PAGE.exists():
        pytest.skip("the documentation is not beside the package here")
    for module in (doctor, backends):
        monkeypatch.setattr(module, "collect", lambda timeout: FACTS)
    monkeypatch.setattr(backends, "own_packages", lambda: ["xlakernel.core", "xlakernel.numba", "xlakernel.cuda"])
    monkeypatch.setattr(install, "source", lambda: install.Source(None, "index"))
    monkeypatch.setenv("COLUMNS", "100")
    return PAGE.read_text("utf-8")


def test_doctor(documented, capsys):
    assert command_line.main(["doctor"]) == 1
    assert f"```text\n$ xlakernel doctor\n{capsys.readouterr().out}```" in documented


def test_backends(documented, capsys, monkeypatch, new_name):
    op = XLACustomKernel(new_name())
    for backend, platform in [("numba", "cpu"), ("numba_cuda", "gpu")]:
        op.def_kernel(backend, platform, lambda outs: None)
    op.def_jax_kernel(lambda outs: None)
    for platform in ("cpu", "gpu"):  # a package registers what is not installed last
        op.def_kernel("warp", platform, lambda outs: None)
    op.name = "csrmv"
    monkeypatch.setattr(backends, "find", lambda modules: ({"csrmv": op}, True))
    assert command_line.main(["backends", "csrmv"]) == 0
    assert f"```text\n$ xlakernel backends csrmv\n{capsys.readouterr().out}```" in documented
