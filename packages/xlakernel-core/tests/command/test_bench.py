"""``xlakernel bench``: what is measured of which operators, and what the exit status says."""

import numpy as np
import pytest

from xlakernel.command import command_line
from xlakernel.command import installed as installed_operators
from xlakernel.core import BenchmarkCase, XLACustomKernel
from xlakernel.core.errors import MissingDependencyError


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Import no package but core, and measure for no time."""
    monkeypatch.setattr(installed_operators, "own_packages", lambda: ["xlakernel.core"])
    measure = XLACustomKernel.benchmark
    monkeypatch.setattr(XLACustomKernel, "benchmark", lambda op: measure(op, rounds=2, seconds=1e-5))


def cases(*, platform):
    print("a library is loaded")
    for n in (8, 64):
        x = np.arange(n, dtype=np.float32)
        yield BenchmarkCase(f"n={n}", (x,), {"outs": x})


@pytest.fixture
def make_op(new_name):
    """Return a function that makes an operator with two kernels, and cases unless told otherwise."""

    def make(data=cases, *tags, name=None, **kernels):
        op = XLACustomKernel(name or new_name(), replace=name is not None)
        op.def_tags(*tags)
        for backend, kernel in {"quick": lambda x: 2 * x, "jax": lambda x: x + x, **kernels}.items():
            op.def_kernel(backend, "cpu", lambda outs, kernel=kernel: kernel)
        if data is not None:
            op.def_benchmark_data(data)
        return op

    return make


def bench(*arguments):
    return command_line.main(["bench", *arguments])


def test_an_operator_is_measured_with_its_own_cases(make_op, capsys):
    assert bench(make_op().name) == 0
    said = capsys.readouterr()
    header, *rows = said.out.strip().splitlines()
    assert header.split()[-2:] == ["quick", "jax"]
    assert [row.split()[0] for row in rows] == ["n=8", "n=64"]
    assert said.err == "a library is loaded\n"


def test_wrong_results_are_in_the_exit_status(make_op, capsys):
    assert bench(make_op(wrong=lambda x: 2 * x + 1).name) == 1
    assert "n=8, wrong: Difference: the result differs from that with 'jax'" in capsys.readouterr().out


def test_a_library_that_is_missing_is_not(make_op, capsys):
    def refuse(outs):
        raise MissingDependencyError("it is not installed")

    op = make_op()
    op.def_kernel("absent", "cpu", refuse)
    assert bench(op.name) == 0
    assert "absent, all 2 cases: MissingDependencyError: it is not installed" in capsys.readouterr().out


def test_patterns_and_tags_choose(make_op, capsys):
    one, two = make_op(cases, "of_this_test"), make_op(None, "of_this_test")
    make_op(name="chosen_by_pattern")
    assert bench("of_this_test", "chosen_*") == 0
    said = capsys.readouterr()
    assert one.name in said.out and "chosen_by_pattern" in said.out
    assert f"{two.name} has no cases of its own" in said.err


def test_a_name_with_brackets_is_a_name_before_it_is_a_pattern(make_op, capsys):
    make_op(name="bracketed[a]"), make_op(name="bracketeda")
    assert bench("bracketed[a]") == 0
    assert "bracketed[a], cpu" in capsys.readouterr().out
    assert bench("bracketed[ab]") == 0
    assert "bracketeda, cpu" in capsys.readouterr().out


def test_an_operator_that_is_not_there(make_op, capsys):
    op = make_op(None)
    assert bench(op.name + "x") == 2
    assert f"there is no operator '{op.name}x'. Did you mean {op.name}" in capsys.readouterr().err
    assert bench(op.name) == 2  # there is nothing to measure


@pytest.mark.parametrize("text", [None, "1 / 0"], ids=["absent", "broken"])
def test_a_module_that_cannot_be_imported_is_an_error_before_anything_is_measured(
    make_op, capsys, monkeypatch, tmp_path, text
):
    monkeypatch.syspath_prepend(tmp_path)
    if text is not None:
        (tmp_path / "module_of_a_user.py").write_text(text, "utf-8")
    assert bench(make_op().name, "--import", "module_of_a_user") == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "xlakernel: module_of_a_user cannot be imported: " in said.err


def test_an_operator_that_breaks_does_not_stop_the_others(make_op, capsys):
    def broken(*, platform):
        raise ValueError("no such luck")

    first, second = make_op(broken), make_op()
    assert bench(first.name, second.name) == 1
    said = capsys.readouterr()
    assert f"{first.name}: ValueError: no such luck" in said.err and second.name in said.out


def test_ctrl_c(make_op, capsys):
    def interrupted(*, platform):
        raise KeyboardInterrupt

    assert bench(make_op(interrupted).name) == 130
    assert capsys.readouterr().err == "xlakernel: interrupted\n"
