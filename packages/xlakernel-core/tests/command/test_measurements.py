"""``xlakernel bench`` and ``xlakernel auto``: operators, output and exit statuses."""

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
    """Import no package but core, and measure on the CPU, where the kernels are, for no time."""
    monkeypatch.setattr(found_operators, "own_packages", lambda: ["xlakernel.core"])
    measure = XLACustomKernel.benchmark
    monkeypatch.setattr(XLACustomKernel, "benchmark", lambda op: measure(op, platform="cpu", rounds=2, seconds=1e-5))


def cases(*, platform):
    for n in (8, 64):
        x = np.arange(n, dtype=np.float32)
        yield BenchmarkCase(f"n={n}", (x,), {"outs": x})


@pytest.fixture
def make_op(new_name):
    """Return a function that makes an operator with two kernels, and with cases by default."""

    def make(data=cases, *tags, **kernels):
        op = XLACustomKernel(new_name())
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
    header, *rows = capsys.readouterr().out.strip().splitlines()
    assert header.split()[-2:] == ["quick", "jax"]
    assert [row.split()[0] for row in rows] == ["n=8", "n=64"]


def test_wrong_results_are_in_the_exit_status(make_op, capsys):
    assert bench(make_op(wrong=lambda x: 2 * x + 1).name) == 1
    assert "wrong: its results differ from those of 'jax': output" in capsys.readouterr().out


def test_a_missing_library_is_no_failure(make_op, capsys):
    def refuse(outs):
        raise MissingDependencyError("it is not installed")

    op = make_op()
    op.def_kernel("absent", "cpu", refuse)
    assert bench(op.name) == 0
    assert "absent: MissingDependencyError: it is not installed (n=8, n=64)" in capsys.readouterr().out


def test_an_operator_without_a_usable_backend(new_name, capsys):
    def refuse(outs):
        raise MissingDependencyError("it is not installed")

    op = XLACustomKernel(new_name())
    op.def_kernel("absent", "cpu", refuse)
    op.def_benchmark_data(cases)
    assert bench(op.name) == 1
    assert f"{op.name}: no backend can be used here" in capsys.readouterr().err


def test_a_tag_chooses_all_its_operators(make_op, capsys):
    one, two = make_op(cases, "of_this_test"), make_op(None, "of_this_test")
    assert bench("of_this_test") == 1
    said = capsys.readouterr()
    assert one.name in said.out
    assert f"{two.name} has no cases of its own" in said.err


def test_an_operator_that_is_not_there(make_op, capsys):
    op = make_op(None)
    assert bench(op.name + "x") == 2
    assert f"no operator has the name or tag '{op.name}x'" in capsys.readouterr().err


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


def test_an_operator_without_choices(auto_folder, make_op, capsys):
    assert auto(make_op().name) == 0
    assert capsys.readouterr().out.startswith("No choice is remembered.")


@pytest.mark.parametrize("reset", [[], ["--reset"]])
def test_choices_of_an_operator_that_is_not_there(remembered, capsys, reset):
    assert auto(*reset, "ff") == 2
    assert "no choice is remembered for 'ff', and the installed packages have no operator" in capsys.readouterr().err
    assert len(auto_choices()) == 2


def test_choices_are_forgotten(remembered, capsys):
    assert auto("--reset", "fft") == 0
    assert capsys.readouterr().out == "Choices that were forgotten: 1.\n"
    assert [choice.operator for choice in auto_choices()] == ["csrmv"]
    assert auto("--reset") == 0
    assert auto_choices() == [] and list(remembered.iterdir()) == []


def test_an_operator_that_ends_the_process_is_a_failure(make_op, capsys):
    op = make_op()

    @op.def_benchmark_data
    def cases(platform):
        raise SystemExit(0)

    assert bench(op.name) == 1
    assert "called sys.exit(0)" in capsys.readouterr().err


def test_an_operator_that_fails_does_not_hide_the_others(make_op, capsys):
    broken, fine = make_op(), make_op()

    @broken.def_benchmark_data
    def fail(platform):
        raise ValueError("no data")

    assert bench(broken.name, fine.name) == 1
    out, err = capsys.readouterr()
    assert fine.name in out and "ValueError: no data" in err


def test_a_module_that_cannot_be_imported_is_a_failure(make_op, capsys):
    assert bench(make_op().name, "--import", "no_such_module") == 1
    assert "no_such_module cannot be imported" in capsys.readouterr().err


# Control characters, which a terminal would obey

CONTROL = "\x1b[2J\x1b]0;title\x07\r\x9b1m\x08\u202e\udc80"
ESCAPED = r"\x1b[2J\x1b]0;title\x07\r\x9b1m\x08\u202e\udc80"


def test_control_characters_of_a_remembered_choice_are_escaped(auto_folder, capsys):
    calls = ("csrmv", "cpu", f"a CPU{CONTROL}\nanother line", f"float32[8]{CONTROL}")
    problems = {f"warp{CONTROL}": f"it is not installed{CONTROL}"}
    choice = AutoChoice(*calls, "numba", {"numba": 1.2e-5}, problems, "2026-01-31", installed_versions())
    choices.remember(choices.Question(*calls, ("numba", *problems)), choice)
    choices._known.clear()  # so that the choice is read from its file
    assert auto() == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line.isprintable() and line.count(ESCAPED) == 4 and r"\nanother line" in line


def test_control_characters_of_a_measurement_are_escaped(make_op, capsys):
    def named(*, platform):
        yield BenchmarkCase(f"n=8{CONTROL}", (np.ones(8, np.float32),), {"outs": np.ones(8, np.float32)})

    def refuse(x):
        raise ValueError(f"refused{CONTROL}")

    def refuse_cases(*, platform):
        raise ValueError(f"no data{CONTROL}")

    assert bench(make_op(named, **{f"own{CONTROL}": refuse}).name, make_op(refuse_cases).name) == 1
    out, err = capsys.readouterr()
    assert all(line.isprintable() for line in (out + err).split("\n"))
    assert all(f"{text}{ESCAPED}" in out for text in ("own", "n=8")) and "refused\\x1b[2J" in out
    assert f"no data{ESCAPED}" in err
