"""``backend="auto"`` in calls with arrays: measurements and choices."""

import time

import jax
import numpy as np
import pytest

from xlakernel.core import auto_choices, reset_auto_choices, use_backend
from xlakernel.core.errors import ArgumentError

X = np.ones(5, np.float32)

pytestmark = pytest.mark.usefixtures("auto_folder")


@pytest.fixture
def op(alike):
    return alike


def test_the_fastest_is_used_from_the_first_call_on(new_operator, measured):
    def slow(x):
        time.sleep(0.005)
        return 2 * np.asarray(x)

    op = new_operator()
    op.def_kernel("slow", "cpu", lambda outs: lambda x: jax.pure_callback(slow, outs[0], x))
    op.def_kernel("quick", "cpu", lambda outs: lambda x: 2 * x)
    for _ in range(3):
        np.testing.assert_array_equal(op(X, outs=X, backend="auto"), 2 * X)
    (choice,) = auto_choices(op.name)
    assert measured == [op.name]
    assert choice.backend == "quick"
    assert choice.seconds["quick"] < 0.005 <= choice.seconds["slow"] < 1
    assert (choice.operator, choice.platform, choice.call) == (op.name, "cpu", "float32[8] -> float32[8]")
    assert (choice.problems, choice.versions["jax"]) == ({}, jax.__version__)


def test_a_measurement_runs_each_backend_and_then_one(run, speeds):
    assert run(backend="auto") == "abcb"
    assert run(backend="auto") == "b"


def by_default(op):
    op.set_default("cpu", "auto")
    return use_backend(gpu="auto")


@pytest.mark.parametrize(
    "ask",
    [lambda op: use_backend("auto"), lambda op: use_backend(cpu="auto"), by_default],
    ids=["all", "cpu", "default"],
)
def test_all_ways_to_select_auto(op, run, speeds, measured, ask):
    with ask(op):
        run()
        assert run() == "b"
        assert run(backend="c") == "c"
    assert measured == [op.name]


def test_calls_for_another_platform_are_not_measured(op, run, speeds, measured):
    with use_backend(gpu="auto"):
        assert run() == "a"
    op.set_default("gpu", "auto")
    assert run() == "a"
    with use_backend("auto"), use_backend("c"):
        assert run() == "c"
    assert measured == []


def test_a_default_of_auto_is_reported_and_followed(op, new_operator, run, speeds, measured):
    follower = new_operator()
    for backend in "ab":
        follower.def_kernel(backend, "cpu", op.entry("cpu", backend).kernel_generator)
    follower.def_default_of(op)
    op.set_default("cpu", "auto")
    assert (op.get_default("cpu"), op.defaults["cpu"], follower.get_default("cpu")) == ("auto", "auto", "auto")
    follower(X, outs=X)
    assert [(choice.operator, choice.backend) for choice in auto_choices()] == [(follower.name, "b")]
    op.set_default("cpu", "a")
    assert (op.get_default("cpu"), run()) == ("a", "a")
    assert measured == [follower.name]


@pytest.mark.parametrize(
    ("shape", "keywords", "again"),
    [
        ((8,), {}, False),
        ((4,), {}, True),
        ((9,), {}, True),
        ((5, 1), {}, True),
        ((0,), {}, True),
        ((5,), {"size": 1}, True),
    ],
)
def test_calls_of_other_sizes(run, speeds, measured, shape, keywords, again):
    run(backend="auto")
    run(np.ones(shape, np.float32), backend="auto", **keywords)
    assert len(measured) == 1 + again


def test_calls_of_other_dtypes(run, speeds, measured):
    for dtype in (np.float32, np.float16, np.int32):
        for _ in range(2):
            run(X.astype(dtype), backend="auto")
    assert len(measured) == 3


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (100, 128, True),
        ((3, 100), (3, 65), True),
        (128, 129, False),
        (3, 4, False),
        (1, True, False),
        (1.0, 1, False),
        (100.0, 128.0, False),
        (("a", None), ("a", None), True),
        ("a", "b", False),
        (lambda x: x, lambda x: x, True),  # of one name; where they lie is not theirs
        (-100, -128, False),
    ],
)
def test_static_keywords(run, speeds, measured, one, other, same):
    run(backend="auto", k=one)
    run(backend="auto", k=other)
    assert len(measured) == 2 - same


def test_a_wrong_or_failing_backend_is_not_chosen(op, run, speeds):
    op.def_kernel("b", "cpu", lambda outs: lambda x: 3 * x)
    op.def_kernel("c", "cpu", lambda outs: 1 / 0)
    run(backend="auto")
    assert run(backend="auto") == "a"
    (choice,) = auto_choices(op.name)
    assert (choice.backend, set(choice.seconds), set(choice.problems)) == ("a", {"a"}, {"b", "c"})
    assert "differ from those of 'a': output[0] (float32[5]): element (0,) is 3.0, expected 2.0" in choice.problems["b"]
    assert "ZeroDivisionError" in choice.problems["c"]


@pytest.mark.parametrize("good", [1, 2], ids=["timed once", "timed in turn"])
def test_a_backend_that_fails_while_it_is_timed_is_not_chosen(op, run, auto_folder, good):
    calls = []

    def wear_out(x):
        calls.append(x)
        if len(calls) > good:
            raise ValueError("worn out")
        return 2 * np.asarray(x)

    op.def_kernel("b", "cpu", lambda outs: lambda x: jax.pure_callback(wear_out, outs[0], x))
    run(backend="auto")
    (choice,) = auto_choices(op.name)
    assert (set(choice.seconds), set(choice.problems)) == ({"a", "c"}, {"b"})
    assert "error calling callback" in choice.problems["b"]
    assert len(calls) == good + 1


def test_the_others_are_compared_with_plain_jax(op, run, speeds):
    op.def_kernel("a", "cpu", lambda outs: lambda x: 3 * x)
    op.def_kernel("jax", "cpu", lambda outs: lambda x: x + x)
    speeds["jax"] = 4.0
    run(backend="auto")
    assert run(backend="auto") == "b"
    assert set(auto_choices(op.name)[0].problems) == {"a"}


def test_the_error_of_the_default_is_raised_if_no_backend_works(new_operator, measured):
    op = new_operator()
    for backend in "ab":
        op.def_kernel(backend, "cpu", lambda outs, backend=backend: {}[backend])
    for _ in range(2):
        with pytest.raises(RuntimeError, match="generator of the 'a' kernel for 'cpu' failed with KeyError"):
            op(X, outs=X, backend="auto")
    assert (measured, auto_choices(op.name)) == ([op.name], [])


def test_an_error_is_remembered_without_its_middle(op, run, speeds):
    def refuse(outs):
        raise ValueError("a long story\n" * 1000)

    op.def_kernel("b", "cpu", refuse)
    run(backend="auto")
    problem = auto_choices(op.name)[0].problems["b"]
    assert len(problem) == 503 and "\n" not in problem and " … " in problem


@pytest.mark.parametrize(("seconds", "backend"), [(0.97, "a"), (0.9, "b")])
def test_the_default_gives_way_to_more_than_noise(run, speeds, seconds, backend):
    speeds.update(a=1.0, b=seconds)
    run(backend="auto")
    assert run(backend="auto") == backend


def test_one_backend_is_no_choice(new_operator, measured):
    op = new_operator(lambda x: 2 * x)
    np.testing.assert_array_equal(op(X, outs=X, backend="auto"), 2 * X)
    np.testing.assert_array_equal(jax.jit(lambda x: op(x, outs=x, backend="auto"))(X), 2 * X)
    assert measured == []


def test_a_new_backend_is_measured(op, run, speeds, measured):
    run(backend="auto")
    op.def_kernel("d", "cpu", lambda outs: lambda x: 2 * x)
    speeds["d"] = 0.1
    run(backend="auto")
    assert len(measured) == 2 and run(backend="auto") == ""  # d does not record that it ran


def test_no_backend_can_have_the_name(op):
    with pytest.raises(ArgumentError, match="no backend can be named 'auto'"):
        op.def_kernel("auto", "cpu", lambda outs: None)


def test_a_reset_makes_the_next_call_measure(op, run, speeds, measured):
    run(backend="auto")
    assert run(backend="auto") == "b"
    speeds["c"] = 0.5
    assert reset_auto_choices(op.name) == 1
    run(backend="auto")
    assert run(backend="auto") == "c"
    assert len(measured) == 2
