"""Names of handlers: each is built and registered once, and never replaced."""

import gc
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import pytest

from xlakernel.core.ffi.registry import ensure_registered, registered_targets

PAIR = (("float32", 1),)


def double(x, out):
    for i in range(out.size):
        out[i] = 2 * x[i]


def negate(x, out):
    for i in range(out.size):
        out[i] = -x[i]


def run(target, x):
    return jax.jit(jax.ffi.ffi_call(target, jax.ShapeDtypeStruct(x.shape, x.dtype)))(x)


@pytest.fixture(scope="module")
def handlers(compile_handler):
    return {kernel: compile_handler(kernel, PAIR, PAIR) for kernel in (double, negate)}


class Builder:
    """Counts its calls; slow, so that threads overlap in it."""

    def __init__(self, *results, delay=0.0):
        self.results = list(results)
        self.delay = delay
        self.calls = 0

    def __call__(self):
        self.calls += 1
        time.sleep(self.delay)
        result = self.results.pop(0)
        if isinstance(result, Exception):
            raise result
        return result


def test_a_registered_name_runs_its_handler(handlers, new_name):
    name = new_name()
    assert ensure_registered(name, "cpu", lambda: handlers[double]) == name
    assert run(name, jnp.arange(3.0)).tolist() == [0, 2, 4]


def test_a_name_is_built_once(handlers, new_name):
    name, build = new_name(), Builder(handlers[double])
    assert {ensure_registered(name, "cpu", build) for _ in range(5)} == {name}
    assert build.calls == 1
    assert registered_targets().count(name) == 1


def test_a_name_is_never_replaced(handlers, new_name):
    name = new_name()
    ensure_registered(name, "cpu", lambda: handlers[double])
    ensure_registered(name, "cpu", lambda: pytest.fail("built again"))
    ensure_registered(new_name(), "cpu", lambda: handlers[negate])
    assert run(name, jnp.ones(2)).tolist() == [2, 2]


def test_names_are_listed_in_the_order_of_registration(handlers, new_name):
    names = [new_name() for _ in range(3)]
    for name in reversed(names):
        ensure_registered(name, "cpu", lambda: handlers[double])
    assert registered_targets()[-3:] == names[::-1]


def test_eight_threads_build_once(handlers, new_name):
    name, build = new_name(), Builder(handlers[double], delay=0.05)
    together = threading.Barrier(8)

    def ask(_):
        together.wait()
        return ensure_registered(name, "cpu", build)

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(ask, range(8))) == {name}
    assert build.calls == 1
    assert registered_targets().count(name) == 1
    assert run(name, jnp.ones(2)).tolist() == [2, 2]


def test_a_known_name_is_found_while_another_is_being_built(handlers, new_name):
    known, building, done = new_name(), threading.Event(), threading.Event()
    ensure_registered(known, "cpu", lambda: handlers[double])

    def build():
        building.set()
        assert done.wait(10)
        return handlers[negate]

    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(ensure_registered, new_name(), "cpu", build)
        assert building.wait(10)
        ensure_registered(known, "cpu", lambda: pytest.fail("built again"))
        done.set()
        slow.result(10)


def test_building_one_handler_may_build_another(handlers, new_name):
    inner, outer = new_name(), new_name()

    def build():
        ensure_registered(inner, "cpu", lambda: handlers[negate])
        return handlers[double]

    ensure_registered(outer, "cpu", build)
    assert registered_targets()[-2:] == [inner, outer]
    assert run(inner, jnp.ones(2)).tolist() == [-1, -1]


def test_a_failed_build_leaves_nothing_and_can_be_repeated(handlers, new_name):
    name, build = new_name(), Builder(ZeroDivisionError("no"), handlers[double])
    with pytest.raises(ZeroDivisionError, match="no"):
        ensure_registered(name, "cpu", build)
    assert name not in registered_targets()
    assert ensure_registered(name, "cpu", build) == name
    assert run(name, jnp.ones(2)).tolist() == [2, 2]


def test_a_failed_build_does_not_stop_waiting_threads(handlers, new_name):
    name, build = new_name(), Builder(ZeroDivisionError("no"), handlers[double], delay=0.05)
    with ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(ensure_registered, name, "cpu", build) for _ in range(4)]
        failures = [future.exception(10) for future in asked]
    assert sum(failure is not None for failure in failures) == 1
    assert build.calls == 2


def test_a_refused_registration_leaves_nothing(handlers, new_name, monkeypatch):
    def refuse(*_, **__):
        raise RuntimeError("refused by XLA")

    name = new_name()
    with monkeypatch.context() as patch:
        patch.setattr(jax.ffi, "register_ffi_target", refuse)
        with pytest.raises(RuntimeError, match="refused by XLA"):
            ensure_registered(name, "cpu", lambda: handlers[double])
    assert name not in registered_targets()
    ensure_registered(name, "cpu", lambda: handlers[double])
    assert run(name, jnp.ones(2)).tolist() == [2, 2]


def test_one_name_on_two_platforms_is_two_handlers(handlers, new_name, monkeypatch):
    platforms = []
    monkeypatch.setattr(jax.ffi, "register_ffi_target", lambda name, capsule, platform: platforms.append(platform))
    name = new_name()
    for platform in ("cpu", "CUDA", "cpu"):
        ensure_registered(name, platform, lambda: handlers[double])
    assert platforms == ["cpu", "CUDA"]


def test_handlers_are_kept_alive(new_name, compile_handler):
    name = new_name()
    ensure_registered(name, "cpu", lambda: compile_handler(negate, PAIR, PAIR))  # no other reference to it
    gc.collect()
    assert run(name, jnp.ones(2)).tolist() == [-1, -1]
