"""``backend="auto"`` in several threads, and in a kernel that calls an operator itself."""

import threading

import jax
import numpy as np
import pytest

from xlakernel.core import tune
from xlakernel.core.measure import auto
from xlakernel.core.measure import race as racing

X = np.ones(5, np.float32)

pytestmark = pytest.mark.usefixtures("auto_folder")


@pytest.fixture
def op(alike):
    return alike


def test_two_threads_measure_once(op, run, ran, measured, monkeypatch):
    inside, go_on = threading.Event(), threading.Event()

    def time(programs, pace):
        inside.set()
        assert go_on.wait(30)
        return dict(zip("abc", ([3.0], [1.0], [2.0]), strict=True)), {}

    monkeypatch.setattr(racing, "_time", time)
    thread = threading.Thread(target=lambda: op(X, outs=X, backend="auto"))
    thread.start()
    assert inside.wait(30)
    assert run(backend="auto") == "a"  # without waiting
    go_on.set()
    thread.join()
    assert run(backend="auto") == "b"
    assert len(measured) == 1


def test_a_choice_of_another_thread_is_not_measured_again(op, run, speeds, measured, monkeypatch):
    class Lock:
        """Let another thread measure before this one does."""

        def acquire(self, blocking):
            monkeypatch.setattr(auto, "_measuring", known)
            thread = threading.Thread(target=lambda: op(X, outs=X, backend="auto"))
            thread.start()
            thread.join()
            return known.acquire(blocking)

        def release(self):
            known.release()

    known = auto._measuring
    monkeypatch.setattr(auto, "_measuring", Lock())
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
