"""``backend="auto"`` in calls with arrays: what is measured, when, and what is chosen."""

import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from xlakernel.core import auto, auto_choices, debug_mode, reset_auto_choices, tune, use_backend
from xlakernel.core.errors import ArgumentError, AutoBackendWarning, InputError

X = np.ones(5, np.float32)

pytestmark = pytest.mark.usefixtures("auto_folder")


@pytest.fixture
def op(alike):
    return alike


@pytest.fixture
def run(op, ran):
    """Return a function that calls the operator and says which backends ran, in order."""

    def run(x=X, **keywords):
        ran.clear()
        result = jax.block_until_ready(op(x, outs=jax.ShapeDtypeStruct(x.shape, x.dtype), **keywords))
        np.testing.assert_array_equal(result, 2 * np.asarray(x))
        return "".join(ran)

    return run


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
def test_all_ways_to_ask(op, run, speeds, measured, ask):
    with ask(op):
        run()
        assert run() == "b"
        assert run(backend="c") == "c"
    assert measured == [op.name]


def test_who_asks_for_another_platform_is_not_measured(op, run, speeds, measured):
    with use_backend(gpu="auto"):
        assert run() == "a"
    op.set_default("gpu", "auto")
    assert run() == "a"
    with use_backend("auto"), use_backend("c"):
        assert run() == "c"
    assert measured == []


def test_a_default_of_auto_is_told_and_followed(op, new_operator, run, speeds, measured):
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
    assert "differs from that with 'a' by up to 1" in choice.problems["b"]
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


def test_plain_jax_is_what_the_others_are_compared_with(op, run, speeds):
    op.def_kernel("a", "cpu", lambda outs: lambda x: 3 * x)
    op.def_kernel("jax", "cpu", lambda outs: lambda x: x + x)
    speeds["jax"] = 4.0
    run(backend="auto")
    assert run(backend="auto") == "b"
    assert set(auto_choices(op.name)[0].problems) == {"a"}


def test_where_no_backend_works_the_default_says_why_and_it_is_tried_once(new_operator, measured):
    op = new_operator()
    for backend in "ab":
        op.def_kernel(backend, "cpu", lambda outs, backend=backend: {}[backend])
    for _ in range(2):
        with pytest.raises(RuntimeError, match="generator of the 'a' kernel for 'cpu' failed with KeyError"):
            op(X, outs=X, backend="auto")
    assert (measured, auto_choices(op.name)) == ([op.name], [])


def test_what_is_told_of_an_error_is_short(op, run, speeds):
    def refuse(outs):
        raise ValueError("a long story\n" * 1000)

    op.def_kernel("b", "cpu", refuse)
    run(backend="auto")
    problem = auto_choices(op.name)[0].problems["b"]
    assert len(problem) == 500 and "\n" not in problem and problem.endswith("…")


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
    assert len(measured) == 2 and run(backend="auto") == ""  # d tells nobody


def test_no_backend_can_have_the_name(op):
    with pytest.raises(ArgumentError, match="no backend can be named 'auto'"):
        op.def_kernel("auto", "cpu", lambda outs: None)


# What must not be measured, or not be harmed.


def test_the_arrays_are_left_alone(new_operator, register, speeds):
    def increase(x, out):
        for i in range(x.size):
            out[i] = x[i] + 1

    target = register(increase, [("float32", 1)], [("float32", 1)])
    op = new_operator()
    aliased = {"input_output_aliases": {0: 0}}
    op.def_kernel("a", "cpu", lambda outs: jax.ffi.ffi_call(target, outs[0], **aliased))
    op.def_kernel("b", "cpu", lambda outs: lambda x: x + 1)
    x, own = jnp.zeros(5), np.zeros(5, np.float32)
    for values in (x, own):
        for _ in range(2):
            np.testing.assert_array_equal(op(values, outs=x, backend="auto"), np.ones(5))
        np.testing.assert_array_equal(values, np.zeros(5))
    assert not x.is_deleted()
    assert auto_choices(op.name)[0].problems == {}


def test_an_array_that_was_donated_is_the_error_of_jax(op, measured):
    x = jnp.ones(5)
    x.delete()
    with pytest.warns(AutoBackendWarning), pytest.raises(RuntimeError, match="deleted"):
        op(x, outs=X, backend="auto")
    assert measured == []


def test_what_is_no_array_is_refused_first(op, measured):
    with pytest.raises(InputError, match="input 0 is 'x'"):
        op("x", outs=X, backend="auto")
    assert measured == []


def test_an_operator_with_side_effects_is_measured_on_request_only(new_name, ran, speeds, measured):
    op = auto_operator(new_name(), ran, has_side_effect=True)
    with pytest.warns(AutoBackendWarning, match="or with side effects"):
        op(X, outs=X, backend="auto")
    assert (ran, measured) == (["a"], [])
    (choice,) = tune(op, X, outs=X)
    assert (choice.backend, measured) == ("b", [op.name])
    ran.clear()
    op(X, outs=X, backend="auto")
    assert ran == ["b"]


def auto_operator(name, ran, **options):
    from xlakernel.core import XLACustomKernel

    def kernel(backend, outs, x):
        def double(x):
            ran.append(backend)
            return 2 * np.asarray(x)

        return jax.pure_callback(double, outs[0], x)

    op = XLACustomKernel(name, **options)
    for backend in "ab":
        op.def_kernel(backend, "cpu", lambda outs, backend=backend: lambda x: kernel(backend, outs, x))
    return op


def test_nothing_is_measured_while_debugging(run, speeds, measured):
    with debug_mode():
        with pytest.warns(AutoBackendWarning):
            assert run(backend="auto") == "a"
        assert tune(run) == []
    run(backend="auto")
    with debug_mode():
        assert run(backend="auto") == "b"
    assert len(measured) == 1


def test_nothing_is_measured_where_jit_is_disabled(run, speeds, measured):
    with jax.disable_jit(), pytest.warns(AutoBackendWarning):
        assert run(backend="auto") == "a"
    run(backend="auto")
    with jax.disable_jit():
        assert run(backend="auto") == "b"
    assert len(measured) == 1


def test_nothing_is_measured_in_one_of_several_processes(run, speeds, measured, monkeypatch):
    run(backend="auto")
    monkeypatch.setattr(auto, "_are_several_processes", lambda: True)
    with pytest.warns(AutoBackendWarning, match="in several processes"):
        assert run(backend="auto") == "a"  # all must compile the same, and only one may have measured
    assert len(measured) == 1


def test_an_array_on_several_devices_takes_what_is_known(op, made, speeds, measured):
    mesh = jax.sharding.Mesh(jax.devices("cpu")[:2], "d")
    x = jax.device_put(np.ones(6, np.float32), NamedSharding(mesh, PartitionSpec("d")))
    with pytest.warns(AutoBackendWarning, match="on several devices"):
        op(x, outs=x, backend="auto")
    assert (made, measured) == ([("cpu", "a")], [])
    op(X, outs=X, backend="auto")
    made.clear()
    np.testing.assert_array_equal(op(x, outs=x, backend="auto"), 2 * np.ones(6))
    assert (made, len(measured)) == ([("cpu", "b")], 1)


def test_a_call_on_a_mesh_is_not_measured(new_operator, measured, speeds):
    op = new_operator()
    for backend in "ab":
        op.def_kernel(backend, "cpu", lambda outs: lambda x: 2 * x)
    mesh = jax.make_mesh((2,), ("d",), axis_types=(AxisType.Auto,), devices=jax.devices("cpu")[:2])
    with jax.set_mesh(mesh), pytest.warns(AutoBackendWarning, match="on several devices"):
        jax.block_until_ready(op(X, outs=X, backend="auto"))
    op(X, outs=X, backend="auto")
    assert len(measured) == 1


def test_a_call_runs_where_its_arrays_are(op, run, speeds, measured):
    first, second, third = jax.devices("cpu")[:3]
    x = jax.device_put(X, second)
    assert op(x, outs=X, backend="auto").devices() == {second}
    with jax.default_device(third):
        assert op(X, outs=X, backend="auto").devices() == {third}
        assert op(x, outs=X, backend="auto").devices() == {second}
    assert op(X, outs=X, backend="auto").devices() == {first}
    assert len(measured) == 1


def test_settings_of_the_user_do_not_reach_the_measurement(op, monkeypatch):
    found = []

    def race(programs):
        found.append((jax.config.jax_transfer_guard_device_to_host, jax.config.jax_disable_jit))
        return dict.fromkeys(programs, 1.0)

    monkeypatch.setattr(auto, "_race", race)
    x = jnp.ones(5)
    with jax.transfer_guard("disallow"):
        tune(op, x, outs=x)
    assert found == [("allow", False)]


def test_numbers_that_are_no_error_of_a_backend_are_measured(new_operator, measured):
    op = new_operator()
    for backend in "ab":
        op.def_kernel(backend, "cpu", lambda outs: lambda x: x + x)
    with jax.debug_nans(True), pytest.raises(FloatingPointError):
        op(np.full(5, np.nan, np.float32), outs=X, backend="auto")
    op(X, outs=X, backend="auto")
    assert measured == [op.name]
    assert set(auto_choices(op.name)[0].seconds) == {"a", "b"}


def test_numbers_are_arrays(op, measured):
    for _ in range(2):
        assert op(3.0, outs=jax.ShapeDtypeStruct((), jnp.float32), backend="auto") == 6
    assert auto_choices(op.name)[0].call == "float32[] -> float32[]"
    assert len(measured) == 1


# Threads.


def test_two_threads_measure_once(op, run, ran, measured, monkeypatch):
    inside, go_on = threading.Event(), threading.Event()

    def race(programs):
        inside.set()
        assert go_on.wait(30)
        return dict(zip("abc", (3.0, 1.0, 2.0), strict=True))

    monkeypatch.setattr(auto, "_race", race)
    thread = threading.Thread(target=lambda: op(X, outs=X, backend="auto"))
    thread.start()
    assert inside.wait(30)
    assert run(backend="auto") == "a"  # without waiting
    go_on.set()
    thread.join()
    assert run(backend="auto") == "b"
    assert len(measured) == 1


def test_what_another_thread_just_measured_is_not_measured_again(op, run, speeds, measured, monkeypatch):
    def alone(known=auto._alone):
        monkeypatch.setattr(auto, "_alone", known)
        thread = threading.Thread(target=lambda: op(X, outs=X, backend="auto"))
        thread.start()
        thread.join()
        return known()

    monkeypatch.setattr(auto, "_alone", alone)
    assert run(backend="auto")[-1] == "b"
    assert len(measured) == 1


def test_a_kernel_may_call_an_operator_in_python(op, new_operator, speeds, measured):
    outer = new_operator()
    outer.def_kernel("a", "cpu", lambda outs: lambda x: jax.pure_callback(inner, outs[0], x))
    outer.def_kernel("b", "cpu", lambda outs: lambda x: 2 * x)

    def inner(x):
        return np.asarray(op(np.asarray(x), outs=X, backend="auto"))

    for measure in (lambda: outer(X, outs=X, backend="auto"), lambda: tune(outer, X, outs=X)):
        measure()
    assert measured == [outer.name] * 2


# The time that it takes.


class FakeProgram:
    """A program of which each call takes so many seconds of a clock of its own."""

    def __init__(self, clock, seconds):
        self.clock, self.seconds, self.calls = clock, seconds, []

    def time(self, calls):
        self.clock[0] += calls * self.seconds
        self.calls.append(calls)
        return self.seconds


@pytest.fixture
def race(monkeypatch):
    """Return a function that races programs of given speeds by a clock of theirs: the result, calls, and the time."""
    known = auto._race
    monkeypatch.undo()  # the settings of `auto_folder` too

    def race(**seconds):
        clock = [0.0]
        monkeypatch.setattr(auto.time, "perf_counter", lambda: clock[0])
        programs = {backend: FakeProgram(clock, took) for backend, took in seconds.items()}
        found = known(programs)
        assert found == seconds
        return {backend: program.calls for backend, program in programs.items()}, clock[0]

    return race


def test_quick_backends_are_timed_for_some_rounds(race):
    calls, took = race(a=1e-3, b=2e-3)
    assert calls == {"a": [1] + [10] * 7, "b": [1] + [5] * 7}
    assert took < 0.2


def test_slow_backends_are_timed_for_about_a_second(race):
    calls, took = race(a=0.3, b=0.4)
    assert calls == {"a": [1, 1, 1], "b": [1, 1, 1]}
    assert took == pytest.approx(0.7 + 1.4)


def test_very_slow_backends_are_called_once_more_than_the_limit(race):
    calls, _ = race(a=30.0, b=20.0)
    assert calls == {"a": [1, 1], "b": [1, 1]}


def test_a_hopeless_backend_is_timed_once(race):
    calls, _ = race(a=1e-3, b=1.0)
    assert calls == {"a": [1] + [10] * 7, "b": [1]}


def test_nobody_to_race(race):
    assert race() == ({}, 0.0)


# After a reset.


def test_what_was_reset_is_measured_anew(op, run, speeds, measured):
    run(backend="auto")
    assert run(backend="auto") == "b"
    speeds["c"] = 0.5
    assert reset_auto_choices(op.name) == 1
    run(backend="auto")
    assert run(backend="auto") == "c"
    assert len(measured) == 2
