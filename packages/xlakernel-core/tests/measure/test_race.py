"""Number and duration of the measurements of a race."""

import signal

import jax
import numpy as np
import pytest

from xlakernel.core.measure import race as racing
from xlakernel.core.measure.auto import _PACE
from xlakernel.core.measure.race import Pace


class FakeProgram:
    """A program with calls that take a number of seconds of a fake clock."""

    def __init__(self, clock, seconds):
        self.clock, self.seconds, self.calls = clock, seconds, []

    def time(self, calls):
        self.clock[0] += calls * self.seconds
        self.calls.append(calls)
        return self.seconds


@pytest.fixture
def race(monkeypatch):
    """Return a function that races programs of given speeds by a fake clock; it returns their calls and the time."""

    def race(pace=_PACE, **seconds):
        clock = [0.0]
        monkeypatch.setattr(racing.time, "perf_counter", lambda: clock[0])
        programs = {backend: FakeProgram(clock, took) for backend, took in seconds.items()}
        found, problems = racing._time(programs, pace)
        assert ({backend: min(took) for backend, took in found.items()}, problems) == (seconds, {})
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


def test_a_benchmark_runs_all_its_rounds(race):
    calls, took = race(Pace(rounds=4, seconds=0.1), a=1e-3, b=1.0)
    assert calls == {"a": [1] + [100] * 4, "b": [1, 1, 1, 1, 1]}
    assert took > 4


def test_no_backend(race):
    assert race() == ({}, 0.0)


@pytest.fixture
def time_limit():
    """Make SIGALRM raise a TimeoutError, as the time limits of users do."""

    def stop(number, frame):
        raise TimeoutError("the caller's limit")

    before = signal.signal(signal.SIGALRM, stop)
    yield
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("method", ["run", "time"])
def test_a_time_limit_of_the_caller_is_no_problem_of_a_backend(time_limit, monkeypatch, method):
    monkeypatch.setattr(racing._Program, method, lambda program, calls: signal.raise_signal(signal.SIGALRM))
    with pytest.raises(TimeoutError, match="the caller's limit"):
        racing.race({"slow": abs}, (np.ones(3),), {}, jax.devices("cpu")[0], Pace(rounds=2, seconds=1e-5))
