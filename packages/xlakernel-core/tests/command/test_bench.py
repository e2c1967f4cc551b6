"""``xlakernel bench``: what is measured of which operators, what is written, and what the exit status says."""

import contextlib
import io
import json
import os
import pty
import sys

import numpy as np
import pytest

from xlakernel.command import bench, command_line
from xlakernel.command import installed as installed_operators
from xlakernel.command.facts import Facts
from xlakernel.command.progress import Progress
from xlakernel.core import BenchmarkCase, BenchmarkResult, XLACustomKernel
from xlakernel.core.errors import MissingDependencyError

JAX = {"version": "0.12.0", "devices": [{"platform": "cpu", "kind": "cpu", "id": 0}]}
QUICK = ["--rounds", "2", "--seconds", "1e-5"]


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Look at no library, and import no package but core."""
    monkeypatch.setattr(installed_operators, "own_packages", lambda: ["xlakernel.core"])
    monkeypatch.setattr("xlakernel.command.backends.own_packages", lambda: ["xlakernel.core", "xlakernel.numba"])
    monkeypatch.setattr(bench, "collect", lambda timeout: Facts(versions={"jax": "1"}, answers={"jax": JAX}))


def cases(*, platform):
    assert platform == "cpu"
    for n in (8, 64):
        x = np.arange(n, dtype=np.float32)
        yield BenchmarkCase(f"n={n}", (x,), {"outs": x})


@pytest.fixture
def make_op(new_name):
    """Return a function that makes an operator with two kernels, and cases unless told otherwise."""

    def make(data=cases, *tags, name=None, **kernels):
        op = XLACustomKernel(name or new_name())
        op.def_tags(*tags)
        for backend, kernel in {"quick": lambda x: 2 * x, "jax": lambda x: x + x, **kernels}.items():
            op.def_kernel(backend, "cpu", lambda outs, kernel=kernel: kernel)
        if data is not None:
            op.def_benchmark_data(data)
        return op

    return make


def measure(*arguments):
    return command_line.main(["bench", *arguments, *QUICK])


def test_an_operator_is_measured_with_its_own_cases(make_op, capsys):
    op = make_op()
    assert measure(op.name) == 0
    said = capsys.readouterr()
    header, *rows, _, last = said.out.splitlines()
    assert header.split()[-2:] == ["quick", "jax"]
    assert [row.split()[0] for row in rows] == ["n=8", "n=64"]
    assert last == "1 operator measured, 0 problems."
    assert said.err == f"{op.name} (1 of 1)\n"


def test_json_has_every_round(make_op, capsys, tmp_path):
    op, path = make_op(), tmp_path / "result.json"
    assert measure(op.name, "--json", str(path)) == 0
    found = json.loads(path.read_text("utf-8"))
    assert list(found) == ["ok", "results", "failed", "skipped", "interrupted"]
    assert (found["ok"], found["failed"], found["skipped"], found["interrupted"]) == (True, {}, {}, False)
    one = tmp_path / "one.json"
    one.write_text(json.dumps(found["results"][0]), "utf-8")
    assert str(BenchmarkResult.load(one)) in capsys.readouterr().out
    assert len(BenchmarkResult.load(one)["n=8", "quick"].seconds) == 2


def test_json_stands_alone_on_stdout_whatever_libraries_print(make_op, capsys):
    def talking(*, platform):
        print("a library is loaded")
        return cases(platform=platform)

    op = make_op(talking)
    assert measure(op.name, "--json", "-") == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["results"][0]["operator"] == op.name
    assert "a library is loaded" in said.err and "n=64" in said.err


def test_wrong_results_and_failures_are_in_the_exit_status(make_op, capsys, tmp_path):
    def refuse(outs):
        raise NotImplementedError("not for this")

    op = make_op(wrong=lambda x: 2 * x + 1)
    op.def_kernel("absent", "cpu", refuse)
    path = tmp_path / "result.json"
    assert measure(op.name, "--case", "n=8", "--json", str(path)) == 1
    out = capsys.readouterr().out
    assert "n=8, wrong: Difference: the result differs from that with 'jax'" in out
    assert "not for this" in out and "1 operator measured, 2 problems." in out
    assert not json.loads(path.read_text("utf-8"))["ok"]


def test_a_backend_that_fails_in_every_case_is_one_problem(make_op, capsys):
    def refuse(outs):
        raise MissingDependencyError("it is not installed")

    op = make_op()
    op.def_kernel("absent", "cpu", refuse)
    assert measure(op.name) == 1
    out = capsys.readouterr().out
    assert out.count("it is not installed") == 1
    assert "\nabsent, all 2 cases: MissingDependencyError: it is not installed\n" in out
    assert "1 operator measured, 1 problem." in out


def test_an_operator_that_breaks_does_not_stop_the_others(make_op, capsys):
    def broken(*, platform):
        raise ValueError("no such luck")

    first, second = make_op(broken), make_op()
    assert measure(first.name, second.name) == 1
    out = capsys.readouterr().out
    assert f"failed: {first.name}: ValueError: no such luck\n1 operator measured, 1 problem." in out


def test_patterns_tags_backends_and_cases_choose(make_op, capsys):
    one, two, three = make_op(cases, "of_this_test"), make_op(None, "of_this_test"), make_op(name="chosen_by_pattern")
    assert measure("of_this_test", "chosen_*", "--backend", "jax", "--case", "n=6*") == 0
    out = capsys.readouterr().out
    assert f"not measured: {two.name}: it has no cases of its own" in out
    assert all(op.name in out for op in (one, three))
    assert "n=64" in out and "n=8" not in out and "quick" not in out


def test_a_name_with_brackets_is_a_name_before_it_is_a_pattern(capsys):
    for name in ("bracketed[a]", "bracketeda"):
        op = XLACustomKernel(name, replace=True)
        op.def_jax_kernel(lambda outs: lambda x: 2 * x)
        op.def_benchmark_data(cases)
    assert measure("bracketed[a]") == 0
    out = capsys.readouterr().out
    assert "bracketed[a], cpu" in out and "1 operator measured" in out
    assert measure("bracketed[ab]") == 0
    assert "bracketeda, cpu" in capsys.readouterr().out


def test_what_cannot_be_used_here_is_left_out_and_measured_if_asked_for(make_op, capsys):
    op = make_op(warp=lambda x: 2 * x)  # of a package that is not installed here, as `own_packages` says
    assert measure(op.name) == 0
    assert (
        f"not measured: {op.name}, warp: needs xlakernel-warp (pip install xlakernel-warp)" in capsys.readouterr().out
    )
    assert measure(op.name, "--backend", "warp") == 0
    assert "not measured" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--backend", "other"], "it has no other for cpu; there is quick, jax"),
        (["--case", "n=9"], "it has no case like 'n=9'; it has 'n=8', 'n=64'"),
        (["--platform", "tpu"], "it has no kernel for tpu; there is none"),
    ],
)
def test_nothing_to_measure(make_op, capsys, arguments, why):
    op = make_op()
    assert measure(op.name, *arguments) == 2
    assert f"not measured: {op.name}: {why}" in capsys.readouterr().out


def test_an_operator_that_is_not_there(make_op, capsys):
    op = make_op()
    assert measure(op.name, op.name + "x") == 2
    assert f"there is no operator '{op.name}x'. Did you mean {op.name}" in capsys.readouterr().err


@pytest.mark.parametrize("text", [None, "1 / 0"], ids=["absent", "broken"])
def test_a_module_that_cannot_be_imported_is_said_before_anything_is_measured(
    make_op, capsys, monkeypatch, tmp_path, text
):
    def never(*, platform):
        raise AssertionError("it was measured")

    monkeypatch.syspath_prepend(tmp_path)
    if text is not None:
        (tmp_path / "module_of_a_user.py").write_text(text, "utf-8")
    assert measure(make_op(never).name, "--import", "module_of_a_user") == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "xlakernel: module_of_a_user cannot be imported: " in said.err
    assert said.err.endswith("xlakernel: nothing is measured, as a module that was asked for cannot be imported.\n")


def test_what_cannot_be_written_is_said_before_anything_is_measured(make_op, capsys, monkeypatch, tmp_path):
    op = make_op()
    assert measure(op.name, "--json", str(tmp_path / "absent" / "result.json")) == 2
    assert "--json: there is no folder" in capsys.readouterr().err
    monkeypatch.setattr(bench, "is_present", lambda module: False)
    assert measure(op.name, "--plot", str(tmp_path / "chart.png")) == 2
    said = capsys.readouterr()
    assert said.out == "" and 'pip install "xlakernel-core[plot]"' in said.err


def test_charts(make_op, tmp_path):
    pytest.importorskip("matplotlib")
    one, two = make_op(), make_op()
    path = tmp_path / "chart.png"
    assert measure(one.name, "--plot", str(path)) == 0
    assert [found.name for found in tmp_path.iterdir()] == ["chart.png"]
    path.unlink()
    assert measure(one.name, two.name, "--plot", str(path)) == 0
    assert {found.name for found in tmp_path.iterdir()} == {f"chart-{op.name}.png" for op in (one, two)}
    assert all(found.read_bytes().startswith(b"\x89PNG") for found in tmp_path.iterdir())


def test_what_cannot_be_written_after_all_is_a_problem(make_op, capsys, tmp_path):
    pytest.importorskip("matplotlib")
    op = make_op()
    assert measure(op.name, "--plot", str(tmp_path / "chart.abc"), "--json", str(tmp_path)) == 1
    out = capsys.readouterr().out
    assert "chart.abc: ValueError" in out and f"{tmp_path}: IsADirectoryError" in out
    assert "1 operator measured, 2 problems." in out


def test_what_was_measured_before_ctrl_c_stays(make_op, capsys, tmp_path):
    def interrupted(*, platform):
        raise KeyboardInterrupt

    first, second, path = make_op(), make_op(interrupted), tmp_path / "result.json"
    assert measure(first.name, second.name, "--json", str(path)) == 130
    assert "interrupted: 1 operator measured" in capsys.readouterr().out
    found = json.loads(path.read_text("utf-8"))
    assert [result["operator"] for result in found["results"]] == [first.name]
    assert found["interrupted"] and not found["ok"]


def test_ctrl_c_before_that(make_op, capsys, monkeypatch):
    def stop(timeout):
        raise KeyboardInterrupt

    monkeypatch.setattr(bench, "collect", stop)
    assert measure(make_op().name) == 130
    assert capsys.readouterr().err == "xlakernel: interrupted\n"


@pytest.mark.parametrize(
    ("option", "value", "allowed"),
    [
        ("--rounds", "0", "expected a number of 1 or more; got 0"),
        ("--rounds", "few", "expected a number of 1 or more; got few"),
        ("--seconds", "0", "expected a positive number of seconds; got 0"),
        ("--seconds", "1s", "expected a positive number of seconds; got 1s"),
        ("--platform", "abacus", "choose from"),
    ],
)
def test_numbers_that_make_no_sense(option, value, allowed, capsys):
    with pytest.raises(SystemExit) as stopped:
        command_line.main(["bench", "any", option, value])
    assert stopped.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("usage: xlakernel bench")
    assert allowed in said


def test_progress_is_a_line_for_each_part_where_there_is_no_terminal():
    out = io.StringIO()
    progress = Progress(out)
    progress.begin("first (1 of 2)")
    progress.step(1, 2, "half")
    progress.clear()
    print("of a library", file=progress)
    assert out.getvalue() == "first (1 of 2)\nof a library\n"


def read_all(terminal):
    """Return what was written to a terminal that nobody writes to any more."""
    said = b""
    with contextlib.suppress(OSError):  # so Linux says that it ends
        while part := os.read(terminal, 4000):
            said += part
    os.close(terminal)
    return said.decode()


@pytest.mark.skipif(sys.platform == "win32", reason="there are no pseudo-terminals")
@pytest.mark.parametrize("term", ["xterm", "dumb"])
def test_progress_is_a_bar_in_a_terminal(monkeypatch, term):
    monkeypatch.setenv("TERM", term)
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w", encoding="utf-8") as out:
        progress = Progress(out)
        progress.begin("first")
        progress.step(1, 2, "what " + "x" * 200)
        print("of a library", file=progress)
        progress.step(2, 2, "done")
        progress.clear()
        progress.clear()
    said = read_all(ours)
    if term == "dumb":
        assert said == "first\r\nof a library\r\n"
        return
    half, rest = said.split("\r\033[K", 1)
    assert half.startswith("\rfirst [############------------]  50 %  what x") and len(half) == len("\r\033[K") + 79
    assert rest.startswith("of a library\r\n\rfirst [########################] 100 %  done\033[K")
    assert rest.endswith("done\033[K\r\033[K")
