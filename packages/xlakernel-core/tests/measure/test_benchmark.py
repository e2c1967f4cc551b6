"""Benchmarks of an operator's backends: measurements, refused arguments, and results."""

import dataclasses
import json
import re
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from xlakernel.command.install import install_command
from xlakernel.core import BenchmarkCase, BenchmarkResult, Measurement, XLACustomKernel
from xlakernel.core.errors import (
    ArgumentError,
    BackendNotFoundError,
    MissingDependencyError,
    UnknownPlatformError,
)

QUICK = {"platform": "cpu", "rounds": 3, "seconds": 1e-4}


@pytest.fixture
def op():
    """An operator with a plain kernel, a slow one, and those that are added."""
    op = XLACustomKernel("tested", replace=True)
    op.def_kernel("quick", "cpu", lambda outs: lambda x: 2 * x)
    op.def_kernel("slow", "cpu", lambda outs: lambda x: jax.pure_callback(sleep, outs[0], x))
    op.def_kernel("jax", "cpu", lambda outs: lambda x: x + x)
    return op


def sleep(x):
    time.sleep(0.002)
    return 2 * np.asarray(x)


def case(n=8, dtype=np.float32, name=None):
    x = np.arange(n).astype(dtype)
    return BenchmarkCase(name or f"n={n}", (x,), {"outs": x})


def test_backends_are_timed_and_compared(op):
    result = op.benchmark([case(8), case(64)], **QUICK)
    assert (result.operator, result.platform, result.device) == ("tested", "cpu", jax.devices("cpu")[0].device_kind)
    assert (result.cases, result.backends) == (["n=8", "n=64"], ["quick", "slow", "jax"])
    for name in result.cases:
        assert result.fastest(name) != "slow"
        assert result[name, "slow"].median >= 0.002
        assert min(result[name, "quick"].seconds) > 0
    assert all(len(found.seconds) == 3 and found.problem is None for found in result.measurements)
    assert result.versions["jax"] == jax.__version__


def test_a_wrong_backend_is_not_timed(op):
    op.def_kernel("wrong", "cpu", lambda outs: lambda x: 2 * x + 0.1)
    result = op.benchmark([case()], **QUICK)
    found = result["n=8", "wrong"]
    assert found.seconds == () and np.isnan(found.median)
    assert "its results differ from those of 'jax': output (float32[8]): element (0,) is 0.1" in found.problem
    assert result.fastest("n=8") != "wrong"
    assert f"wrong: {found.problem} (n=8)" in str(result)
    assert op.benchmark([case()], rtol=0.1, **QUICK)["n=8", "wrong"].seconds


@pytest.mark.parametrize("rtol", [-1e-3, np.inf, np.nan, True, "a"])
def test_a_tolerance_is_a_finite_number(op, rtol):
    with pytest.raises(ArgumentError, match=re.escape(f"benchmark: rtol is {rtol!r}; expected a finite number")):
        op.benchmark([case()], rtol=rtol, **QUICK)


@pytest.mark.parametrize("kind", [np.float32, np.asarray, jnp.asarray])
def test_a_tolerance_may_be_a_scalar_array(op, kind):
    assert op.benchmark([case()], rtol=kind(0.1), **QUICK)["n=8", "jax"].seconds


@pytest.mark.parametrize("dtype", ["int32", "float16", "bfloat16", "complex64", "bool"])
def test_dtypes_are_compared(op, dtype):
    def shifted(x):
        return x + jnp.ones((), dtype) if dtype != "bool" else ~(x + x)

    op.def_kernel("wrong", "cpu", lambda outs: shifted)
    result = op.benchmark([case(dtype=jnp.dtype(dtype))], backends=["jax", "wrong"], **QUICK)
    assert result["n=8", "jax"].seconds
    assert "differ from those of 'jax'" in result["n=8", "wrong"].problem


def test_numbers_that_are_not_finite_must_be_equal(op):
    op.def_kernel("nan", "cpu", lambda outs: lambda x: jnp.where(x > 6, jnp.nan, 2 * x))
    op.def_kernel("too", "cpu", lambda outs: lambda x: jnp.where(x > 6, -jnp.inf, 2 * x))
    x = np.array([1, np.inf, -np.inf, np.nan], np.float32)
    result = op.benchmark([BenchmarkCase("odd", (x,), {"outs": x})], backends=["jax", "quick", "nan", "too"], **QUICK)
    assert [bool(result["odd", backend].seconds) for backend in result.backends] == [True, True, False, False]


def test_a_backend_that_fails_does_not_stop_the_others(op):
    """Nor does one that fails in a later call."""
    calls = []

    def wear_out(x):
        calls.append(x)
        if len(calls) > 2:
            raise ValueError("worn out")
        return 2 * np.asarray(x)

    def refuse(outs):
        raise MissingDependencyError("not installed")

    op.def_kernel("absent", "cpu", refuse)
    op.def_kernel("raising", "cpu", lambda outs: lambda x: jax.pure_callback(fail, outs[0], x))
    op.def_kernel("worn", "cpu", lambda outs: lambda x: jax.pure_callback(wear_out, outs[0], x))
    op.def_kernel("wrong type", "cpu", lambda outs: lambda x: x[0] + None)
    result = op.benchmark([case()], **QUICK)
    assert "not installed" in result["n=8", "absent"].problem
    assert "worn out" in result["n=8", "worn"].problem and len(calls) == 3
    assert "TypeError" in result["n=8", "wrong type"].problem
    assert "no such luck" in result["n=8", "raising"].problem
    assert result.fastest("n=8") in ("quick", "jax")


def fail(x):
    raise ValueError("no such luck")


def test_no_backend_works():
    op = XLACustomKernel("tested", replace=True)
    op.def_kernel("raising", "cpu", lambda outs: lambda x: jax.pure_callback(fail, outs[0], x))
    result = op.benchmark([case()], **QUICK)
    assert result.fastest("n=8") is None
    assert "not timed" in str(result)


def test_the_function_of_users_is_called(op):
    seen = []

    @op.def_call
    def call(x, *, factor):
        seen.append((type(factor), isinstance(x, jax.core.Tracer)))
        return factor * op(x, outs=x)

    op.benchmark([BenchmarkCase("one", (jnp.ones(3),), {"factor": 3})], **QUICK)
    assert set(seen) == {(int, True)}


def test_cases_of_the_operator(op):
    op.def_benchmark_data(lambda *, platform: (case(n, name=f"{platform} {n}") for n in (4, 8)))
    assert op.benchmark(**QUICK).cases == ["cpu 4", "cpu 8"]


def test_the_arguments_of_a_case_are_a_tuple():
    with pytest.raises(
        ArgumentError, match=r"BenchmarkCase: args is .* of type ndarray; expected a tuple of arguments"
    ):
        BenchmarkCase("n", np.ones((1, 4)))


def test_arguments_that_are_refused(op):
    with pytest.raises(ArgumentError, match=r"no cases.*def_benchmark_data"):
        op.benchmark(**QUICK)
    with pytest.raises(ArgumentError, match="different names"):
        op.benchmark([case(), case()], **QUICK)
    with pytest.raises(ArgumentError, match="different names"):
        op.benchmark([], **QUICK)
    with pytest.raises(ArgumentError, match="expected BenchmarkCase"):
        op.benchmark([np.ones(3)], **QUICK)
    with pytest.raises(ArgumentError, match=r"backends is 'jax'; expected names, as \['jax'\]"):
        op.benchmark([case()], backends="jax", **QUICK)
    with pytest.raises(ArgumentError, match=r"the case 'n=8' calls the operator, without outs.*\"outs\".*def_call"):
        op.benchmark([BenchmarkCase("n=8", case().args)], **QUICK)
    with pytest.raises(ArgumentError, match=r"called inside jax\.jit"):
        jax.jit(lambda: op.benchmark([case()], **QUICK))()
    with pytest.raises(BackendNotFoundError, match="no 'warp' kernel"):
        op.benchmark([case()], backends=["warp"], **QUICK)
    with pytest.raises(UnknownPlatformError):
        op.benchmark([case()], platform="cuda")
    with pytest.raises(BackendNotFoundError, match="no kernel for platform 'tpu'"):
        op.benchmark([case()], platform="tpu")
    op.def_kernel("jax", "tpu", lambda outs: lambda x: x)
    with pytest.raises(ArgumentError, match="no device of platform 'tpu'"):
        op.benchmark([case()], platform="tpu")


# The result


@pytest.fixture
def result():
    return BenchmarkResult(
        operator="op",
        platform="cpu",
        device="cpu",
        date="2026-01-31",
        versions={"jax": "0.10"},
        measurements=(
            Measurement("n=1", "a", (1e-6, 3e-6, 2e-6)),
            Measurement("n=1", "b", (5e-6, 4e-6, 6e-6)),
            Measurement("n=2", "a", (8e-6, 8e-6, 8e-6)),
            Measurement("n=2", "b", problem="Difference: it is wrong"),
        ),
    )


def test_a_result_is_printed_as_a_table(result):
    assert str(result).splitlines() == [
        "op, cpu (cpu), µs a call  a            b",
        "n=1                       2 (1 … 3) *  5 (4 … 6)",
        "n=2                       8 (8 … 8) *  not timed",
        "b: Difference: it is wrong (n=2)",
    ]


def test_a_problem_of_several_cases_has_one_line(result):
    missing = [Measurement(f"n={n}", "c", problem="it is missing") for n in (1, 2, 3)]
    wrong = [Measurement(f"n={n}", "d", problem="it is wrong") for n in (2, 3)]
    found = dataclasses.replace(result, measurements=(*missing, Measurement("n=1", "d", (1e-6,)), *wrong))
    assert str(found).splitlines()[4:] == ["c: it is missing (n=1, n=2, n=3)", "d: it is wrong (n=2, n=3)"]


def test_a_result_is_saved_with_every_round(result, tmp_path):
    content = json.loads(result.save(tmp_path / "result.json").read_text())
    assert content["measurements"][0]["seconds"] == [1e-6, 3e-6, 2e-6]
    assert (content["device"], content["versions"]) == ("cpu", {"jax": "0.10"})


def test_a_result_is_drawn(result, tmp_path):
    pytest.importorskip("matplotlib", reason="charts are drawn with it")
    figure = result.plot(tmp_path / "chart.png")
    (axes,) = figure.axes
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["a", "b"]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["n=1", "n=2"]
    assert (tmp_path / "chart.png").stat().st_size > 1000


def test_drawing_without_matplotlib(result, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    with pytest.raises(MissingDependencyError, match=re.escape(install_command("core", "plot"))):
        result.plot()


@pytest.mark.parametrize("key", [("n=3", "a"), ("a", "n=1"), "n=1"])
def test_missing_measurements(result, key):
    with pytest.raises(KeyError) as caught:
        result[key]
    (message,) = caught.value.args
    assert message == (
        f"op: there is no measurement of {key!r}; expected [case, backend], of the cases ['n=1', 'n=2'] and the "
        "backends ['a', 'b']"
    )


def test_missing_cases(result):
    with pytest.raises(KeyError, match=r"no measurement of \('n=3', 'a'\).* of the cases \['n=1', 'n=2'\]"):
        result.fastest("n=3")
