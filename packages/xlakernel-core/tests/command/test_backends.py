"""``xlakernel backends``: kernels of operators, and reasons why one cannot be used here."""

import importlib
import os
import re
import sys

import pytest

from xlakernel.command import backends, command_line
from xlakernel.command import operators as found_operators
from xlakernel.command.backends import PACKAGES, why_unusable
from xlakernel.command.doctor import examine
from xlakernel.command.facts import Facts
from xlakernel.command.findings import Finding
from xlakernel.command.install import install_command
from xlakernel.core import XLACustomKernel
from xlakernel.core.missing import missing_package

JAX, GPU = ({"devices": [{"platform": name, "kind": name}]} for name in ("cpu", "gpu"))
ON_CPU, ON_GPU = (Facts(versions={"jax": "0.12.0"}, answers={"jax": answer}) for answer in (JAX, GPU))


@pytest.fixture
def op(new_name):
    op = XLACustomKernel(new_name())
    for backend, platform in [("numba", "cpu"), ("warp", "cpu"), ("numba_cuda", "gpu"), ("own", "gpu")]:
        op.def_kernel(backend, platform, lambda outs: None)
    op.set_default("gpu", "own")
    return op


@pytest.fixture
def installed(monkeypatch):
    """Return a function that sets the installed packages."""

    def set_packages(*packages):
        for module in (backends, found_operators):
            monkeypatch.setattr(module, "own_packages", lambda: ["xlakernel.core", *packages])

    set_packages("xlakernel.numba", "xlakernel.cuda", "xlakernel.warp")
    return set_packages


def test_a_package_that_is_missing_is_named_with_the_command_that_installs_it(installed):
    installed("xlakernel.numba")
    assert why_unusable("cpu", "numba", [], ON_GPU) is None
    assert why_unusable("cpu", "warp", [], ON_GPU) == f"needs xlakernel-warp ({install_command('warp')})"
    assert why_unusable("gpu", "own", [], ON_GPU) is None
    needed = f"needs xlakernel-cuda ({install_command('cuda', 'cuda13')})"
    assert why_unusable("gpu", "numba_cuda", [], ON_GPU) == needed


@pytest.mark.parametrize("backend", PACKAGES)
def test_the_doctor_the_table_and_the_errors_give_one_advice(installed, backend):
    installed()
    needed, _, fix = why_unusable("cpu", backend, [], ON_GPU).removesuffix(")").partition(" (")
    advice = str(missing_package("op", PACKAGES[backend].removeprefix("xlakernel.")))
    assert needed in advice and f"`{fix}`" in advice
    assert fix in [finding.fix for finding in examine(ON_CPU) if backend in finding.stops]


def test_findings_of_the_doctor_stop_backends_and_platforms(installed):
    findings = [
        Finding("driver", "note", "no driver", stops=("gpu",)),
        Finding("numpy", "problem", "too new", "pip install older", stops=("numba_cuda",)),
        Finding("jax", "ok", "well"),
    ]
    assert why_unusable("cpu", "numba", findings, ON_CPU) is None
    assert why_unusable("gpu", "own", findings, ON_CPU) == "no driver"
    assert why_unusable("gpu", "numba_cuda", findings, ON_CPU) == "too new (pip install older)"


def test_a_platform_of_which_jax_has_no_device(installed):
    assert why_unusable("gpu", "own", [], ON_CPU) == "JAX has no GPU here."


@pytest.fixture
def quick(monkeypatch, installed):
    """Probe no library, and import no package but core."""
    installed()
    monkeypatch.setattr(backends, "collect", lambda timeout: ON_CPU)


def test_one_operator(op, quick, capsys):
    assert command_line.main(["backends", op.name]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        f"{op.name}  cpu  numba*[1]  warp[2]",
        f"{' ' * len(op.name)}  gpu  own*[3]  numba_cuda[4]",
        "",
        "* the default of its platform",
        f"[1] cannot be used here: needs xlakernel-numba ({install_command('numba')})",
        f"[2] cannot be used here: needs xlakernel-warp ({install_command('warp')})",
        "[3] cannot be used here: JAX has no GPU here.",
        f"[4] cannot be used here: needs xlakernel-cuda ({install_command('cuda', 'cuda13')})",
    ]


def test_names_and_tags_choose(new_name, quick, capsys):
    one, two, tagged, other = ops = [XLACustomKernel(new_name()) for _ in range(4)]
    for op in ops:
        op.def_jax_kernel(lambda outs: None)
    tagged.def_tags("zebra_crossings")

    def listed(*arguments):
        assert command_line.main(["backends", *arguments]) == 0
        return {line.split()[0] for line in capsys.readouterr().out.splitlines() if line} & {op.name for op in ops}

    assert listed("zebra_crossings", one.name, two.name) == {one.name, two.name, tagged.name}
    assert listed(other.name) == {other.name}
    assert command_line.main(["backends", other.name, "zebra_crosings"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "no operator has the name or tag 'zebra_crosings'. `xlakernel backends` lists all" in said.err


def test_a_broken_module_does_not_hide_the_others(op, quick, capsys, monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "broken_operators.py").write_text("raise SystemExit('half done')", "utf-8")
    own = "from xlakernel.core import XLACustomKernel\nXLACustomKernel('of_my_own').def_jax_kernel(lambda outs: None)\n"
    (tmp_path / "my_operators.py").write_text(own, "utf-8")
    imports = ["--import", "broken_operators", "--import", "my_operators"]
    assert command_line.main(["backends", "of_my_own", *imports]) == 1
    said = capsys.readouterr()
    assert "xlakernel: broken_operators cannot be imported: SystemExit: half done" in said.err
    assert said.out.splitlines()[0].split() == ["of_my_own", "cpu", "jax*"]


def test_a_module_in_the_current_folder_is_found(quick, capsys, monkeypatch, tmp_path):
    """Python has no such entry on its path where a console script runs."""
    own = "from xlakernel.core import XLACustomKernel\nXLACustomKernel('of_this_folder').def_jax_kernel(lambda outs: 0)"
    (tmp_path / "operators_of_this_folder.py").write_text(own)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry not in ("", os.getcwd())])
    assert command_line.main(["backends", "of_this_folder", "--import", "operators_of_this_folder"]) == 0
    assert "of_this_folder" in capsys.readouterr().out


def test_an_error_says_that_core_cannot_be_imported(quick, capsys, monkeypatch):
    def refuse(name, known=importlib.import_module):
        if name == "xlakernel.core":
            raise ImportError("no jax")
        return known(name)

    monkeypatch.setattr(found_operators.importlib, "import_module", refuse)
    assert command_line.main(["backends"]) == 1
    assert capsys.readouterr().err == "xlakernel: xlakernel.core cannot be imported: ImportError: no jax\n"


@pytest.mark.process
def test_the_packages_that_are_installed_are_imported(run):
    done = run("backends")
    assert (done.returncode, done.stderr) == (0, "")
    pytest.importorskip("xlakernel.sparse")
    cells = re.search(r"^csrmv +cpu  (.*)\n +gpu  (.*)$", done.stdout, re.MULTILINE)
    assert {"numba", "jax"} <= set(re.findall(r"\w+", cells[1])) and {"numba_cuda", "warp"} <= set(
        re.findall(r"\w+", cells[2])
    )
