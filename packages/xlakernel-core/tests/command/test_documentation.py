"""What the documentation shows is what the command prints."""

from pathlib import Path

import pytest

from xlakernel.command import backends, bench, command_line, doctor, installed
from xlakernel.command.facts import Facts
from xlakernel.core import (
    AutoChoice,
    BenchmarkCase,
    BenchmarkResult,
    Measurement,
    XLACustomKernel,
    __version__,
    auto_records,
    operators,
)

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
        "jax": {"version": "0.12.0.1", "devices": [{"platform": "cpu", "kind": "cpu", "id": 0}]},
        "core": {"ffi_major": 0, "debug": False},
        "numba": {
            "version": "0.68.1",
            "layers": {"tbb": "missing", "omp": "", "workqueue": ""},
            "threads": 2,
            "layer": "omp",
        },
        "numba_cuda": {"compiler_error": ""},
        "driver": {"found": False},
    },
)


@pytest.fixture
def documented(monkeypatch):
    """Let the command find what the page tells of, and return the page."""
    if not PAGE.exists():
        pytest.skip("the documentation is not beside the package here")
    for module in (doctor, backends, bench):
        monkeypatch.setattr(module, "collect", lambda timeout: FACTS)
    monkeypatch.setattr(backends, "own_packages", lambda: ["xlakernel.core", "xlakernel.numba", "xlakernel.cuda"])
    monkeypatch.setattr(installed, "load", lambda modules: {})
    monkeypatch.setenv("COLUMNS", "100")
    return PAGE.read_text("utf-8")


def test_doctor(documented, capsys):
    assert command_line.main(["doctor"]) == 1
    assert f"```text\n$ xlakernel doctor\n{capsys.readouterr().out}```" in documented


def test_auto(documented, capsys, monkeypatch, auto_folder):
    sizes = "float32[131072] int32[131072] int32[4096] float32[4096] -> float32[4096]"
    choice = AutoChoice(
        operator="csrmv",
        platform="cpu",
        device="AMD EPYC 7763 64-Core Processor, 2 cores",
        call=f"{sizes}; homogeneous=False; shape=(4096, 4096); transpose=False",
        backend="numba",
        seconds={"jax": 2.04e-3, "numba": 2.37e-4},
        problems={"warp": "MissingDependencyError: it is not installed"},
        date="2026-01-31",
        versions=auto_records.installed_versions(),
    )
    asked = (choice.operator, choice.platform, choice.device, choice.call, ("numba", "warp", "jax"))
    auto_records.remember(auto_records.Question(*asked), choice)
    assert command_line.main(["auto", "csrmv"]) == 0
    assert f"```text\n$ xlakernel auto csrmv\n{capsys.readouterr().out}```" in documented


def test_backends(documented, capsys, monkeypatch, new_name):
    op = XLACustomKernel(new_name())
    for backend, platform in [("numba", "cpu"), ("numba_cuda", "gpu")]:
        op.def_kernel(backend, platform, lambda outs: None)
    op.def_jax_kernel(lambda outs: None)
    for platform in ("cpu", "gpu"):  # a package registers what is not installed last
        op.def_kernel("warp", platform, lambda outs: None)
    op.name = "csrmv"
    monkeypatch.setattr(installed, "operators", lambda: {**operators(), "csrmv": op})
    assert command_line.main(["backends", "csrmv"]) == 0
    assert f"```text\n$ xlakernel backends csrmv\n{capsys.readouterr().out}```" in documented


def test_bench(documented, capsys, monkeypatch, new_name):
    times = {
        ("n=1000, 50 in a row", "numba"): (28.1e-6, 29.7e-6, 33.4e-6),
        ("n=1000, 50 in a row", "jax"): (493e-6, 522e-6, 566e-6),
        ("n=1000, 50 in a row, transposed", "numba"): (43.2e-6, 45.8e-6, 57.3e-6),
        ("n=1000, 50 in a row, transposed", "jax"): (296e-6, 350e-6, 432e-6),
    }
    op = XLACustomKernel(new_name())
    for backend in ("numba", "warp", "jax"):
        op.def_kernel(backend, "cpu", lambda outs: None)
    op.def_benchmark_data(
        lambda platform: [BenchmarkCase(case, ()) for case in dict.fromkeys(case for case, _ in times)]
    )
    op.name = "csrmv"

    def benchmark(self, cases, *, platform, backends, **_):
        rows = [Measurement(case.name, backend, times[case.name, backend]) for case in cases for backend in backends]
        return BenchmarkResult(self.name, platform, "cpu", "2026-11-22", {}, tuple(rows))

    monkeypatch.setattr(XLACustomKernel, "benchmark", benchmark)
    monkeypatch.setattr(installed, "operators", lambda: {**operators(), "csrmv": op})
    assert command_line.main(["bench", "csrmv", "--case", "n=1000,*"]) == 0
    assert f"```text\n$ xlakernel bench csrmv --case 'n=1000,*'\n{capsys.readouterr().out}```" in documented
