"""``xlakernel bench`` and ``xlakernel auto``: operators, output and exit statuses."""

from pathlib import Path

import numpy as np
import pytest

from xlakernel.command import command_line
from xlakernel.command import operators as found_operators
from xlakernel.core import AutoChoice, BenchmarkCase, XLACustomKernel, auto_choices
from xlakernel.core.errors import MissingDependencyError
from xlakernel.core.measure import choices
from xlakernel.core.measure.descriptions import installed_versions


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Import no package but core, and measure for no time."""
    monkeypatch.setattr(found_operators, "own_packages", lambda: ["xlakernel.core"])
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
    assert "wrong: Difference: the result differs from that with 'jax'" in capsys.readouterr().out


def test_a_library_that_is_missing_is_not(make_op, capsys):
    def refuse(outs):
        raise MissingDependencyError("it is not installed")

    op = make_op()
    op.def_kernel("absent", "cpu", refuse)
    assert bench(op.name) == 0
    assert "absent: MissingDependencyError: it is not installed (n=8, n=64)" in capsys.readouterr().out


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


# xlakernel auto


@pytest.fixture
def remembered(auto_folder):
    """Remember a choice for each of two operators."""
    for operator in ("csrmv", "fft"):
        calls = (operator, "cpu", "a CPU, 2 cores", "float32[8] -> float32[8]")
        choice = AutoChoice(
            *(*calls, "numba"),
            seconds={"jax": 2.5e-4, "numba": 1.2e-5},
            problems={"warp": "it is not installed"},
            date="2026-01-31",
            versions=installed_versions(),
        )
        choices.remember(choices.Question(*calls, ("jax", "numba", "warp")), choice)
    return auto_folder


def auto(*arguments):
    return command_line.main(["auto", *arguments])


def test_choices_are_listed(remembered, capsys):
    assert auto("csrmv") == 0
    assert capsys.readouterr().out == f"{auto_choices('csrmv')[0]}\n"
    assert auto() == 0
    assert len(capsys.readouterr().out.splitlines()) == 2


@pytest.mark.parametrize("options", [[], ["--reset"]])
def test_the_choices_of_a_name_that_is_unknown(remembered, capsys, options):
    assert auto("ftf", *options) == 2
    said = capsys.readouterr()
    assert said.out == "" and "there is no operator 'ftf'. Did you mean fft?" in said.err
    assert len(auto_choices()) == 2


def test_an_operator_without_choices(auto_folder, make_op, capsys):
    assert auto(make_op().name) == 0
    assert capsys.readouterr().out.startswith("No choice is remembered.")


def test_choices_are_forgotten(remembered, capsys):
    assert auto("--reset", "fft") == 0
    assert capsys.readouterr().out == "Forgot 1 choice.\n"
    assert [choice.operator for choice in auto_choices()] == ["csrmv"]
    assert auto("--reset") == 0
    assert auto_choices() == [] and list(remembered.iterdir()) == []


def test_a_choice_that_cannot_be_forgotten(remembered, capsys, monkeypatch):
    def refuse(self, missing_ok=False):
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "unlink", refuse)
    assert auto("--reset") == 1
    assert "a choice cannot be forgotten: [Errno 13] Permission denied" in capsys.readouterr().err
