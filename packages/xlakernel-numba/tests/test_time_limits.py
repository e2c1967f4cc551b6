"""Time limits: an exception of a signal handler is never taken for an error of what the handler interrupted."""

import contextlib
import signal
import sys
import types

import jax
import jax.numpy as jnp
import numba
import numpy as np
import pytest
from numba.core.typing import Context
from numba.extending import overload
from numpy.testing import assert_array_equal

from xlakernel.core import XLACustomKernel, cache_folder, code_files, debug_mode, deserialize, export
from xlakernel.core.backend import jit_when_eager
from xlakernel.core.identity.versioned import attributes_of
from xlakernel.core.measure import choices, race
from xlakernel.core.programs import loading
from xlakernel.numba import numba_kernel

FACTOR = 2.0


def scaled(a):
    """Replaced by Numba."""


@overload(scaled)
def _scaled(a):
    factor = FACTOR
    return lambda a: factor * a


@numba.njit
def scale(x, out):
    for i in range(x.size):
        out[i] = scaled(x[i])


@numba.njit
def double(x, out):
    for i in range(x.size):
        out[i] = 2 * x[i]


class Limit(TimeoutError, ValueError):
    """An exception like those that caches, and operations outside of jit, expect: a TimeoutError is an OSError."""


@pytest.fixture
def limit():
    """Return a function in which a signal handler raises `Limit`."""

    def handler(number, frame):
        raise Limit

    before = signal.signal(signal.SIGALRM, handler)
    yield lambda *_, **__: signal.raise_signal(signal.SIGALRM)
    signal.signal(signal.SIGALRM, before)


def call_anew(kernel):
    """Call a new wrapper of a kernel on three numbers."""
    return np.asarray(numba_kernel(kernel, outs=lambda x: x)(jnp.arange(3.0)))


def test_a_replaced_function_stays_in_the_fingerprint(monkeypatch, limit):
    """Without it, the code of another factor would be used."""
    found = Context.resolve_value_type

    def interrupted(self, value):
        return limit() if value is scaled and sys._getframe(1).f_code.co_name == "_templates" else found(self, value)

    for factor in (2.0, 5.0):
        monkeypatch.setitem(_scaled.__globals__, "FACTOR", factor)
        with monkeypatch.context() as patch:
            patch.setattr(Context, "resolve_value_type", interrupted)
            with pytest.raises(Limit):
                call_anew(scale)
        assert_array_equal(call_anew(scale), factor * np.arange(3.0))


@pytest.mark.parametrize("access", ["read_file", "replace_file"])
def test_a_cache_is_not_blamed(monkeypatch, limit, tmp_path, access):
    monkeypatch.setattr(code_files, "code_folder", lambda: tmp_path)
    monkeypatch.setattr(code_files, access, limit)
    with pytest.raises(Limit):
        code_files.read_code("00") if access == "read_file" else code_files.write_code("00", b"")


def test_choices_of_backends_are_read_or_the_limit_is_raised(monkeypatch, limit, tmp_path):
    with monkeypatch.context() as patch:
        patch.setattr(choices, "read_file", limit)
        with pytest.raises(Limit):
            choices._read(tmp_path)
    monkeypatch.setattr(cache_folder, "_opened_folder", limit)
    with pytest.raises(Limit):
        cache_folder.list_files(tmp_path)


def test_a_limit_in_a_measured_kernel_disqualifies_no_backend(limit):
    """XLA's error of a kernel in which a signal handler raises is the error of the call."""

    def run_python():
        if calls:
            limit()
        calls.append(None)

    @numba.njit
    def kernel(x, out):
        with numba.objmode():
            run_python()
        out[:] = x

    calls = []
    run = jax.jit(numba_kernel(kernel, outs=lambda x: x))
    run(jnp.ones(3))
    with pytest.raises(
        (jax.errors.JaxRuntimeError, ValueError), match=r"CANCELLED: Limit.*signal handler in kernel"
    ) as found:
        run(jnp.ones(3)).block_until_ready()
    with pytest.raises(type(found.value)):
        race._explain(found.value)


def test_a_reference_is_traced_once(limit):
    traced = []

    def reference(x):
        traced.append(x)
        limit()

    f = numba_kernel(double, outs=lambda x: x, reference=reference)
    with pytest.raises(Limit):
        jax.grad(lambda x: f(x).sum())(jnp.ones(3))
    assert len(traced) == 1


def test_a_program_is_not_damaged(monkeypatch, limit):
    data = export(jax.jit(numba_kernel(double, outs=lambda x: x)))(jnp.ones(3)).serialize()
    monkeypatch.setattr(loading, "_prepare", limit)
    monkeypatch.setattr(loading, "is_registered", lambda *_: False)
    with pytest.raises(Limit):
        deserialize(data)


def test_a_backend_is_not_blamed(limit):
    operator = XLACustomKernel("interrupted")
    operator.def_kernel("numba", "cpu", lambda outs: limit())
    with pytest.raises(Limit):
        operator(jnp.ones(3), outs=jax.ShapeDtypeStruct((3,), jnp.float32), backend="numba")


def test_an_attribute_stays_in_the_fingerprint(monkeypatch, limit):
    module = types.ModuleType("with_getattr")
    module.__getattr__ = limit
    with pytest.raises(Limit):
        attributes_of(module, ["factor"])


@pytest.mark.parametrize("where", ["objmode", "debug mode"])
def test_an_exit_is_not_an_error_of_the_kernel(limit, where):
    """As for SIGTERM, whose handler often calls `sys.exit`."""

    def handler(number, frame):
        sys.exit(7)

    def terminate():
        signal.raise_signal(signal.SIGALRM)

    def pause():
        """Return: Python raises pending exceptions in calls."""

    @numba.njit
    def kernel(x, out):
        with numba.objmode():
            terminate()
        out[:] = x

    signal.signal(signal.SIGALRM, handler)
    f = jax.jit(numba_kernel(kernel, outs=lambda x: x))

    def call():
        with contextlib.suppress(jax.errors.JaxRuntimeError, ValueError):
            f(jnp.ones(3)).block_until_ready()
        pause()  # the main thread raises the exception as soon as it runs Python

    with debug_mode(where == "debug mode"), pytest.raises(SystemExit) as found:
        call()
    assert found.value.code == 7


def test_an_operation_outside_of_jit_does_not_run_again(limit):
    calls = []

    @jit_when_eager
    def operation(x):
        calls.append(x)
        if len(calls) == 1:
            limit()
        return x

    with pytest.raises(Limit):
        operation(jnp.ones(3))
