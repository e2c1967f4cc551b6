"""``xlakernel backends``: what operators offer, and why something cannot be used here."""

import importlib
import json
import os
import sys

import pytest

from xlakernel.command import backends, command_line
from xlakernel.command import operators as found_operators
from xlakernel.command.backends import PACKAGES, Offer, offers_of
from xlakernel.command.doctor import examine
from xlakernel.command.facts import Facts
from xlakernel.command.findings import Finding
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
    """Say which of our packages are installed."""

    def say(*packages):
        for module in (backends, found_operators):
            monkeypatch.setattr(module, "own_packages", lambda: ["xlakernel.core", *packages])

    say("xlakernel.numba", "xlakernel.cuda", "xlakernel.warp")
    return say


def test_the_default_of_a_platform_comes_first(op, installed):
    assert offers_of(op, [], ON_GPU) == [
        Offer("cpu", "numba", True),
        Offer("cpu", "warp", False),
        Offer("gpu", "own", True),
        Offer("gpu", "numba_cuda", False),
    ]


def test_a_package_that_is_missing_is_named_with_what_installs_it(op, installed):
    installed("xlakernel.numba")
    stopped = {offer.backend: (offer.stopped, offer.fix) for offer in offers_of(op, [], ON_GPU)}
    assert stopped == {
        "numba": (None, None),
        "warp": ("needs xlakernel-warp", "pip install xlakernel-warp"),
        "own": (None, None),
        "numba_cuda": ("needs xlakernel-cuda", 'pip install "xlakernel-cuda[cuda13]"'),
    }


@pytest.mark.parametrize("backend", PACKAGES)
def test_the_doctor_the_table_and_the_errors_give_one_advice(op, installed, backend):
    installed()
    (offer,) = [offer for offer in offers_of(op, [], ON_GPU) if offer.backend == backend]
    package = PACKAGES[backend].removeprefix("xlakernel.")
    advice = str(missing_package("op", package))
    assert offer.stopped in advice and f"`{offer.fix}`" in advice
    findings = examine(ON_CPU)
    assert offer.fix in [finding.fix for finding in findings if backend in finding.stops]


def test_what_the_doctor_finds_is_held_against_backends_and_platforms(op, installed):
    findings = [
        Finding("driver", "note", "no driver", stops=("gpu",)),
        Finding("numpy", "problem", "too new", "pip install older", stops=("numba_cuda",)),
        Finding("jax", "ok", "well"),
    ]
    stopped = {offer.backend: (offer.stopped, offer.fix) for offer in offers_of(op, findings, ON_CPU)}
    assert stopped == {
        "numba": (None, None),
        "warp": (None, None),
        "own": ("no driver", None),
        "numba_cuda": ("too new", "pip install older"),
    }


def test_a_platform_of_which_jax_has_no_device(op, installed):
    assert [offer.stopped for offer in offers_of(op, [], ON_CPU)][2:] == ["JAX has no GPU here."] * 2


@pytest.fixture
def quick(monkeypatch, installed):
    """Look at no library, and import no package but core."""
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
        "[1] cannot be used here: needs xlakernel-numba (pip install xlakernel-numba)",
        "[2] cannot be used here: needs xlakernel-warp (pip install xlakernel-warp)",
        "[3] cannot be used here: JAX has no GPU here.",
        '[4] cannot be used here: needs xlakernel-cuda (pip install "xlakernel-cuda[cuda13]")',
    ]


def test_patterns_and_tags_choose(new_name, quick, capsys):
    names = ["listed_one", "listed_two", new_name(), new_name()]
    one, two, tagged, other = ops = [XLACustomKernel(name, replace=True) for name in names]
    for op in ops:
        op.def_jax_kernel(lambda outs: None)
    tagged.def_tags("zebra_crossings")

    def listed(*arguments):
        assert command_line.main(["backends", *arguments, "--json"]) == 0
        return list(json.loads(capsys.readouterr().out)["operators"])

    assert listed("zebra_crossings", "listed_*", "listed_two") == sorted([one.name, two.name, tagged.name])
    assert listed(other.name) == [other.name]
    assert command_line.main(["backends", other.name, "zebra_crosings"]) == 2
    assert "there is no operator 'zebra_crosings'. Did you mean zebra_crossings?" in capsys.readouterr().err


def test_json(op, quick, capsys):
    assert command_line.main(["backends", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found) == ["operators", "failed"]
    offer = found["operators"][op.name][0]
    assert list(offer) == ["platform", "backend", "default", "stopped", "fix"]
    assert (offer["platform"], offer["backend"], offer["default"]) == ("cpu", "numba", True)


def test_a_name_that_is_unknown_is_answered_with_those_like_it(op, quick, capsys):
    assert command_line.main(["backends", op.name + "x"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert f"there is no operator '{op.name}x'. Did you mean {op.name}" in said.err
    assert command_line.main(["backends", "§"]) == 2
    assert "`xlakernel backends` lists" in capsys.readouterr().err


def test_a_module_that_fails_does_not_hide_the_others(op, quick, capsys, monkeypatch, tmp_path):
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


def test_where_core_cannot_be_imported_the_error_says_it(quick, capsys, monkeypatch):
    def refuse(name, known=importlib.import_module):
        if name == "xlakernel.core":
            raise ImportError("no jax")
        return known(name)

    monkeypatch.setattr(found_operators.importlib, "import_module", refuse)
    for arguments, status in ((["backends"], 1), (["auto"], 1), (["bench", "any"], 2)):
        assert command_line.main(arguments) == status
        assert capsys.readouterr().err == "xlakernel: xlakernel.core cannot be imported: ImportError: no jax\n"


def test_the_packages_that_are_installed_are_imported(run):
    done = run("backends", "--json")
    found = json.loads(done.stdout)
    assert (done.returncode, found["failed"]) == (0, {}), done.stderr
    pytest.importorskip("xlakernel.sparse")
    offered = {(offer["platform"], offer["backend"]) for offer in found["operators"]["csrmv"]}
    assert offered >= {("cpu", "numba"), ("cpu", "jax"), ("gpu", "numba_cuda"), ("gpu", "warp")}
