"""The process in which `check_kernel` loads artifacts."""

import functools
import itertools
import os
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from xlakernel.core import export
from xlakernel.core.measure.comparison import CheckFailure
from xlakernel.core.testing import _export

X = np.linspace(0.5, 2.5, 5, dtype=np.float32)


def test_errors_of_the_other_process_are_reported():
    sine = export(jax.jit(jnp.sin))(jax.ShapeDtypeStruct((5,), np.float32)).serialize()
    for artifact, inputs, message in (
        (b"no artifact", [], "in a new process: ExportError: "),
        (sine, map(os._exit, [3]), "in a new process: it ended with exit status 3"),
        (sine, map(sys.exit, [0]), "in a new process: it ended with exit status 0"),
        (b"no artifact", [], "in a new process: ExportError: "),  # the next one is not affected
    ):
        with pytest.raises(CheckFailure, match=message):
            _export._run_elsewhere(artifact, inputs)


def test_the_answer_to_an_interrupted_request_is_never_read():
    slow, sine = (export(jax.jit(fn))(X).serialize() for fn in (jnp.cos, jnp.sin))
    _export._run_elsewhere(sine, [X])  # starts the server

    def limit(number, frame):
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, limit)
    signal.setitimer(signal.ITIMER_REAL, 0.5)
    try:
        with pytest.raises(TimeoutError):
            _export._run_elsewhere(slow, map(time.sleep, [2]))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    np.testing.assert_allclose(_export._run_elsewhere(sine, [X]), np.sin(X), rtol=1e-6)


def test_a_process_that_does_not_end(monkeypatch):
    monkeypatch.setattr(_export, "_TIME_LIMIT", 1)
    sine = export(jax.jit(jnp.sin))(X).serialize()
    with pytest.raises(CheckFailure, match="it did not answer within 1 s"):
        _export._run_elsewhere(sine, map(time.sleep, [600]))


def test_a_request_that_is_not_read_ends_at_the_limit(monkeypatch):
    monkeypatch.setattr(_export, "_TIME_LIMIT", 1)
    sine = export(jax.jit(jnp.sin))(X).serialize()
    os.kill(_export._server().pid, signal.SIGSTOP)
    with pytest.raises(CheckFailure, match="it did not answer within 1 s"):
        _export._run_elsewhere(bytes(10**6), [X])  # more than a pipe holds
    monkeypatch.undo()
    np.testing.assert_allclose(_export._run_elsewhere(sine, [X]), np.sin(X), rtol=1e-6)


def test_a_server_that_ended_is_replaced():
    sine = export(jax.jit(jnp.sin))(X).serialize()
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    _export._run_elsewhere(sine, [X])
    for _ in range(2):
        os.killpg(_export._server().pid, signal.SIGKILL)
        _export._server().wait()
        np.testing.assert_allclose(_export._run_elsewhere(sine, [X]), np.sin(X), rtol=1e-6)
    if before:
        assert len(os.listdir("/proc/self/fd")) <= before + 2  # the pipes of one server


def test_each_thread_gets_its_answer():
    artifacts = [export(jax.jit(functools.partial(jnp.multiply, k)))(X).serialize() for k in range(4)]
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(_export._run_elsewhere, 2 * artifacts, itertools.repeat([X])))
    for k, answer in enumerate(answers):
        np.testing.assert_allclose(answer, k % 4 * X)
