"""Faults that each check of `check_kernel` finds, with their place, and correct kernels that pass."""

import ctypes
import itertools
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numba
import numpy as np
import pytest

from xlakernel.command.install import install_command
from xlakernel.core.testing import check_kernel
from xlakernel.core.testing._table import CHECKS

pytestmark = pytest.mark.slow

X = np.linspace(0.5, 2.5, 5, dtype=np.float32)
Y = np.linspace(-1, 1, 5, dtype=np.float32)


@jax.custom_jvp
def cumulative(x, y):
    return jnp.cumsum(x) * jnp.sin(y)


cumulative.defjvp(lambda primals, tangents: jax.jvp(lambda x, y: jnp.cumsum(x) * jnp.sin(y), primals, tangents))


def test_a_correct_kernel_passes_everything():
    report = check_kernel(
        cumulative,
        X,
        Y,
        reference=lambda x, y: np.cumsum(x) * np.sin(y),
        grad_order=2,
    )
    assert [outcome.check for outcome in report.passed] == list(CHECKS)


def test_wrong_values(assert_caught, assert_passes):
    def fn(x):
        return x.at[3].add(1)

    assert_caught("eager", "element (3,) is 4, expected 3; 1 of 5", fn, np.arange(5), reference=lambda x: x)
    assert_passes("eager", lambda x: x + 1, X, reference=lambda x: x + 1)


@pytest.mark.parametrize(
    ("fn", "reference", "text"),
    [
        (lambda x: x // 2, lambda x: x / 2, "element (1,) is 0, expected 0.5"),
        (lambda x: x > 0, lambda x: x, "element (2,) is True, expected 2"),
        (lambda x: x * 1.0, lambda x: x + 1j * (x == 3), "element (3,) is 3.0, expected (3+1j)"),
        (lambda x: x, lambda x: np.where(x == 4, np.nan, x), "element (4,) is 4, expected nan"),
    ],
    ids=["fraction", "bool", "complex", "NaN"],
)
def test_a_reference_of_another_kind_is_not_rounded(assert_caught, fn, reference, text):
    assert_caught("eager", text, fn, np.arange(5), reference=reference)


def test_a_reference_of_integers_wraps_as_the_kernel_does(assert_passes):
    x = np.full(3, 100, np.int8)
    assert_passes("eager", lambda x: x + x, x, reference=lambda x: x.astype(np.int16) * 2)


def differences(x):
    y = x.copy()
    y[1:] -= x[:-1]
    return y


def changed_twice(x):
    x += 1  # of NumPy's arrays in place
    return jnp.concatenate([x[:1] - 1, x.at[1:].add(-x[:-1])[1:]])


REFERENCES = {
    "methods": lambda x: x.at[1:].add(-x[:-1]),
    "a loop": lambda x: jax.lax.fori_loop(1, x.size, lambda i, y: y.at[i].set(x[i] - x[i - 1]), jnp.asarray(x)),
    "traced indices": lambda x: jax.lax.map(lambda i: jnp.where(i > 0, x[i] - x[i - 1], x[0]), jnp.arange(x.size)),
    "elements that are set": differences,
    "changes in place, first": changed_twice,
}


@pytest.mark.parametrize("reference", REFERENCES.values(), ids=REFERENCES)
def test_a_reference_is_written_in_jax_or_numpy(assert_passes, assert_caught, reference):
    assert_passes("eager", lambda x: jnp.diff(x, prepend=0), X, reference=reference)
    assert_caught("eager", "element", lambda x: jnp.diff(x, prepend=1), X, reference=reference)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "int8", "bool", "complex64"])
def test_a_wrong_element_in_every_dtype(assert_caught, assert_passes, dtype):
    x = jnp.asarray([1, 0, 1, 1], dtype)

    def wrong(x):
        return x.at[1].set(jnp.ones((), x.dtype))

    assert_passes("eager", lambda x: x, x, reference=lambda x: x)
    assert_caught("eager", f"output ({dtype}[4]): element (1,) is", wrong, x, reference=lambda x: x)


def test_wrong_in_one_dtype_only(assert_caught, assert_passes):
    def fn(x):
        return x.at[2].add(0.25) if x.dtype == jnp.float16 else x

    assert_passes("eager", fn, X, reference=lambda x: x)
    assert_caught("eager", "(float16[5]): element (2,) is", fn, X.astype(np.float16), reference=lambda x: x)


def test_the_tolerance_is_that_of_the_dtype(assert_caught, assert_passes):
    def off(error):
        return lambda x: x * (1 + error)

    one = np.ones(3, np.float32)
    assert_passes("eager", off(1e-6), one, reference=lambda x: x)
    assert_caught("eager", "(rtol=2e-05, atol=1.91e-06)", off(1e-4), one, reference=lambda x: x)
    assert_passes("eager", off(1e-4), one, reference=lambda x: x, rtol=1e-3)
    assert_caught("eager", "element (0,)", off(1e-6), one, reference=lambda x: x, rtol=1e-8, atol=0)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_special_values(assert_caught, assert_passes, value):
    x = np.array([1, value, 2], np.float32)
    assert_passes("eager", lambda x: x, x, reference=lambda x: x)
    assert_caught("eager", "element (1,)", lambda x: jnp.where(jnp.isfinite(x), x, 0), x, reference=lambda x: x)


def test_a_wrong_output_of_several_is_named(assert_caught):
    def fn(x):
        return {"good": x, "bad": (x, 2 * x)}

    assert_caught("eager", "output['bad'][1]", fn, X, reference=lambda x: {"good": x, "bad": (x, x)})
    assert_caught("eager", "1 outputs, expected 2", lambda x: x, X, reference=lambda x: (x, x))
    assert_caught("eager", "has the shape (4,), expected (5,)", lambda x: x[1:], X, reference=lambda x: x)


def test_outputs_with_other_names(assert_caught, assert_passes):
    def both(low, high):
        return lambda x: {low: x - 1, high: x + 1}

    text = "an output is named ['a'], expected ['c']"
    assert_caught("eager", text, both("a", "b"), X, reference=both("c", "d"))
    assert_passes("eager", both("a", "b"), X, reference=both("a", "b"))

    def nested(function):
        return lambda x: (x, [function(x)])

    text = "an output is named ['a'], expected ['c']"
    assert_caught("eager", text, nested(both("a", "b")), X, reference=nested(both("c", "d")))


def test_a_kernel_that_raises(assert_caught, run_check):
    def fn(x):
        raise KeyError("unknown")

    assert_caught("eager", "raised KeyError: 'unknown'", fn, X)
    assert "Next: " not in run_check("eager", fn, X).detail


def test_a_missing_package_is_reported_as_not_tried(run_check, monkeypatch):
    monkeypatch.setitem(sys.modules, "flatbuffers", None)
    outcome = run_check("export", cumulative, X, Y)
    assert outcome.outcome == "not tried"
    assert install_command("core", "export") in outcome.detail


def test_wrong_under_jit(assert_caught, assert_passes):
    def fn(x):
        return x.at[4].add(1) if isinstance(x, jax.core.Tracer) else x

    assert_caught("jit", "element (4,)", fn, X)
    assert_passes("jit", jnp.sin, X)


def test_wrong_inside_loops(assert_caught, assert_passes):
    traces = []

    def fn(x):
        if not isinstance(x, jax.core.Tracer):
            return x
        traces.append(x)
        return x + (len(traces) > 1)  # scan, and then the branch

    assert_caught("control_flow", "inside lax.", fn, X)
    assert_passes("control_flow", jnp.sin, X)


@pytest.mark.parametrize(
    ("module", "name", "check", "text"),
    [
        (jax.lax, "scan", "control_flow", "inside lax.scan: "),
        (jax.lax, "cond", "control_flow", "inside lax.cond: "),
        (jax, "checkpoint", "control_flow", "under jax.checkpoint: "),
        (jax, "eval_shape", "jit", "by jax.eval_shape output is float32[6], expected float32[5]"),
    ],
)
def test_each_transformation_that_goes_wrong(assert_caught, assert_passes, monkeypatch, module, name, check, text):
    """A kernel cannot distinguish most of them, so here the transformations are wrong."""
    assert_passes(check, jnp.sin, X)
    right = getattr(module, name)

    def moved(results):
        if isinstance(results, tuple):  # what scan carries
            return results[0], moved(results[1])
        if isinstance(results, jax.ShapeDtypeStruct):
            return jax.ShapeDtypeStruct((results.shape[0] + 1,), results.dtype)
        return results + 1

    def wrong(*args, **options):
        if name == "checkpoint":
            return lambda *xs: moved(right(*args)(*xs))
        return moved(right(*args, **options))

    if name == "eval_shape":
        monkeypatch.setattr(module, name, wrong)
    else:
        shape = jax.ShapeDtypeStruct((5,), np.float32)
        monkeypatch.setattr(jax, "eval_shape", lambda *_: shape)  # it uses some of the others
        monkeypatch.setattr(module, name, wrong)
    assert_caught(check, text, jnp.sin, X)


def test_wrong_with_donated_inputs(assert_caught, monkeypatch):
    right = jax.jit

    def wrong(fn, **options):
        return right((lambda *xs: fn(*xs) + 1) if options.get("donate_argnums") else fn, **options)

    monkeypatch.setattr(jax, "jit", wrong)
    assert_caught("inputs_kept", "with all inputs donated: output", jnp.sin, X)


@pytest.mark.parametrize(
    ("dtype", "text"),
    [("float32", "is 3.4028"), ("bool", "is True, expected False"), ("int8", "is 127, expected -128")],
)
def test_unwritten_elements(assert_caught, assert_passes, register, dtype, text):
    def forgets_the_last(x, out):
        for i in range(x.size - 1):
            out[i] = x[i]

    def writes_all(x, out):
        for i in range(x.size):
            out[i] = x[i]

    def wrapped(kernel):
        target = register(kernel, [(dtype, 1)], [(dtype, 1)])
        return lambda x: jax.ffi.ffi_call(target, jax.ShapeDtypeStruct(x.shape, x.dtype))(x)

    x = np.ones(5, dtype)
    assert_caught("written", f"element (4,) {text}", wrapped(forgets_the_last), x)
    assert_passes("written", wrapped(writes_all), x)


@pytest.mark.parametrize(
    ("dtype", "combine", "held"),
    [
        ("int32", lambda held, x: max(held, x), "the largest value"),
        ("int32", lambda held, x: min(held, x), "the largest value"),
        ("uint8", lambda held, x: held | x, "the largest value"),
        ("int64", lambda held, x: held & x, "the largest value"),
        ("float32", lambda held, x: max(held, x), "the largest value"),
        ("float32", lambda held, x: held * 0 + x, "NaN"),
        ("bool", lambda held, x: held or x, "the largest value"),
    ],
)
def test_elements_that_are_read_before_they_are_written(assert_caught, register, enable_x64, dtype, combine, held):
    combine = numba.njit(combine)

    def kernel(x, out):
        for i in range(x.size):
            out[i] = combine(out[i], x[i])

    x = np.full(5, 15 if dtype != "bool" else False, dtype)
    with enable_x64():
        target = register(kernel, [(dtype, 1)], [(dtype, 1)])
        call = jax.ffi.ffi_call(target, jax.ShapeDtypeStruct(x.shape, x.dtype))
        assert_caught("written", f"in memory that held {held} in place of the smallest value, output", call, x)


def test_a_changed_input(assert_caught, assert_passes):
    def fn(x):
        y = x + 1
        if not isinstance(x, jax.core.Tracer):
            y.block_until_ready()
            (ctypes.c_float * 5).from_address(x.unsafe_buffer_pointer())[3] = 0.0
        return y

    assert_caught("inputs_kept", "an input was changed: input 0 (float32[5]): element (3,) is 0.0", fn, X)
    assert_caught("inputs_kept", "element (3,) is 0.0, expected -0.0", fn, np.full(5, -0.0, np.float32))
    assert_passes("inputs_kept", jnp.sin, X)


def test_wrong_on_zero_size(assert_caught, assert_passes, only):
    def fn(x):
        return jnp.sum(x) + (x.size == 0)

    assert_caught("eager", "element () is 1.0, expected 0.0", fn, X[:0], reference=np.sum)
    report = check_kernel(lambda x: jnp.sin(x), X[:0], reference=np.sin, skip=only(*(set(CHECKS) - {"export"})))
    assert [outcome.check for outcome in report.not_tried] == ["export", "shard_map", "sharding_rule"]


scratch = np.zeros(5, np.float32)


def test_not_thread_safe(assert_caught, assert_passes):
    def uses_scratch(x):
        scratch[:] = x
        time.sleep(0.0005)
        return scratch.copy()

    def wrapped(function):
        return lambda x: jax.pure_callback(function, jax.ShapeDtypeStruct((5,), np.float32), x)

    assert_caught("threads", "unlike in one thread alone: output (float32[", wrapped(uses_scratch), X)
    assert_passes("threads", wrapped(lambda x: np.asarray(x).copy()), X)


def test_a_kernel_that_is_wrong_after_many_calls(assert_caught, assert_passes, monkeypatch):
    monkeypatch.setattr("xlakernel.core.testing._calls._SHORT", 1.0)

    def kernel(last):
        calls = itertools.count()
        result = jax.ShapeDtypeStruct((), np.float32)
        return lambda x: jax.pure_callback(lambda x: np.float32(x + (next(calls) > last)), result, x)

    assert_caught("threads", "in a loop: output (float32[500]): slice ", kernel(300), np.float32(1))
    assert_passes("threads", kernel(np.inf), np.float32(1))


def test_threads_that_end_no_call(assert_caught, monkeypatch):
    monkeypatch.setattr("xlakernel.core.testing._calls._LONGEST", 0.5)
    released = threading.Event()
    busy = threading.Lock()

    def deadlocks(x):
        if not busy.acquire(blocking=False):
            released.wait()
            return x
        time.sleep(0.01)
        busy.release()
        return x

    def fn(x):
        return jax.pure_callback(lambda x: deadlocks(np.asarray(x)), jax.ShapeDtypeStruct((5,), np.float32), x)

    try:
        assert_caught("threads", "threads ended no call within 0.5 s", fn, X)
    finally:
        released.set()


def test_the_precision_of_products_is_a_setting_of_the_checks_alone(assert_passes):
    """Other threads keep theirs, such as those that check another kernel."""
    seen = {}

    def kernel(x):
        seen[threading.current_thread()] = jax.config.jax_default_matmul_precision
        with ThreadPoolExecutor(1) as another:
            seen["another"] = another.submit(lambda: jax.config.jax_default_matmul_precision).result()
        return 2 * x

    assert_passes("threads", kernel, X)
    assert seen.pop("another") is None
    assert set(seen.values()) == {"highest"}
