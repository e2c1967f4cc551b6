"""Exceptions of kernels as JAX's errors, with type, message, kernel, file and line."""

import contextlib
import gc
import inspect
import threading

import jax
import jax.numpy as jnp
import numba
import numpy as np
import pytest
from numba import objmode, prange
from numpy.testing import assert_array_equal

from xlakernel.numba import numba_kernel

# JAX raises a ValueError where the program ran in the calling thread, and its own error where it did not.
RAISED = (ValueError, jax.errors.JaxRuntimeError)
X = np.arange(4, dtype=np.float32)


def line_of(kernel, text="# here"):
    lines, first = inspect.getsourcelines(kernel.py_func)
    return first + next(i for i, line in enumerate(lines) if text in line)


def run(kernel, *inputs, call=None):
    call = call or numba_kernel(kernel, outs=lambda x: x)
    return jax.block_until_ready(call(*inputs))


def message_of(kernel, *inputs, **options):
    with pytest.raises(RAISED) as caught:
        run(kernel, *inputs, **options)
    return str(caught.value)


class CustomError(Exception):
    pass


class PickyError(Exception):
    def __init__(self, code, text):
        super().__init__(code, text)

    def __str__(self):
        return f"{self.args[0]}/{self.args[1]}"


@numba.njit
def fails(x, out):
    """Raise the exception with the number in the first element; -1: none."""
    out[:] = x
    if x[0] == 0:
        raise ValueError("a static message")
    if x[0] == 1:
        raise ValueError("dynamic", x[1], x.size)
    if x[0] == 2:
        raise RuntimeError
    if x[0] == 3:
        raise CustomError("of my own")
    if x[0] == 4:
        raise PickyError(7, "text")
    if x[0] == 5:
        raise AssertionError("not above 100")
    if x[0] == 6:
        raise OverflowError("too large")
    if x[0] == 7:
        raise KeyError("key")
    if x[0] == 8:
        raise MemoryError("enough")
    if x[0] == 9:
        raise ValueError("grün – 数")
    if x[0] == 10:
        raise NotImplementedError("later")
    if x[0] == 11:
        raise StopIteration
    if x[0] == 12:
        raise ValueError("100% {of} \\ %s\nsecond line")
    if x[0] == 13:
        raise ValueError("x" * 5000)
    if x[0] == 14:
        raise ValueError("before\0after")


run_fails = numba_kernel(fails, outs=lambda x: x)
SHOWN = {
    0: ("ValueError: a static message", "a static message"),
    1: ("ValueError: ('dynamic', 5.0, 2)", "dynamic"),
    2: ("RuntimeError (raised", "raise RuntimeError"),
    3: ("CustomError: of my own", "of my own"),
    4: ("PickyError: 7/text", "PickyError"),
    5: ("AssertionError: not above 100", "not above"),
    6: ("OverflowError: too large", "too large"),
    7: ("KeyError: 'key'", "KeyError"),
    8: ("MemoryError: enough", "enough"),
    9: ("ValueError: grün – 数", "grün"),
    10: ("NotImplementedError: later", "later"),
    11: ("StopIteration (raised", "StopIteration"),
    12: ("ValueError: 100% {of} \\ %s\nsecond line", "100%"),
    13: ("ValueError: " + "x" * 5000, "5000"),
    14: ("ValueError: before", "before"),
}


@pytest.mark.parametrize("case", SHOWN)
def test_an_exception_is_reported_with_its_place(case):
    shown, source = SHOWN[case]
    message = message_of(fails, np.array([case, 5], np.float32), call=run_fails)
    assert shown in message
    assert f"raised by kernel 'fails', {__file__}:{line_of(fails, source)} in fails" in message
    assert_array_equal(run_fails(-X - 1), -X - 1)


def test_an_assertion_in_code_without_a_file():
    """Compiled from text because pytest rewrites the assertions of test files."""
    space = {}
    exec(compile("\ndef asserts(x, out):\n    assert x[0] > 9, 'not above 9'\n", "<cell 7>", "exec"), space)  # noqa: S102
    message = message_of(numba.njit(space["asserts"]), X)
    assert "AssertionError: not above 9 (raised by kernel 'asserts', <cell 7>:3 in asserts)" in message


@numba.njit(boundscheck=True)
def out_of_bounds(x, out):
    out[0] = x[x.size]


@numba.njit
def divides(x, out):
    for i in range(x.size):
        out[i] = 6 // x[i]


@numba.njit
def missing_key(x, out):
    table = {1: 2}
    out[0] = table[x[0]]


@numba.njit
def misfit(x, out):
    out[1:] = x


@pytest.mark.parametrize(
    ("kernel", "bad", "good", "shown"),
    [
        (out_of_bounds, None, None, "IndexError: index is out of bounds"),
        (divides, [1, 0], [1, 2], "ZeroDivisionError: "),
        (missing_key, [3], [1], "KeyError"),
        (misfit, [1, 2], [], "ValueError: cannot assign slice"),
    ],
)
def test_exceptions_of_the_language_name_the_kernel_and_its_file(kernel, bad, good, shown):
    """Numba records no line for these, or one of its own code; the message must name the kernel's file."""
    message = message_of(kernel, X if bad is None else np.array(bad))
    assert shown in message
    assert f"raised by kernel '{kernel.__name__}'" in message
    if good:
        run(kernel, np.array(good))
    assert __file__ in message


@numba.njit
def innermost(value):
    if value > 2:
        raise CustomError("deep down", value)  # here
    return value


@numba.njit
def middle(value):
    return innermost(value) + 1


@numba.njit
def calls_helpers(x, out):
    for i in range(x.size):
        out[i] = middle(x[i])


def test_the_place_is_the_helpers_that_raised():
    message = message_of(calls_helpers, X)
    assert "CustomError: ('deep down', 3.0)" in message
    assert f"raised by kernel 'calls_helpers', {__file__}:{line_of(innermost)} in innermost" in message
    assert_array_equal(run(calls_helpers, X[:3]), X[:3] + 1)


def complain():
    raise CustomError("from Python")


@numba.njit
def in_python(x, out):
    out[:] = x
    with objmode():
        complain()


def test_exceptions_in_the_interpreter():
    for _ in range(3):
        message = message_of(in_python, X)
        assert "CustomError: from Python" in message
        assert "kernel 'in_python'" in message
    assert jnp.ones(2).sum() == 2


@numba.njit
def κέρνελ(x, out):
    raise ValueError(x[0])


def test_a_kernel_with_a_name_in_greek():
    assert "raised by kernel 'κέρνελ'" in message_of(κέρνελ, X)


def test_inside_transformations():
    good, bad = jnp.full((3, 2), -1.0), jnp.full((3, 2), -1.0).at[1, 0].set(3)
    programs = [
        jax.vmap(run_fails),
        jax.jit(jax.vmap(run_fails)),
        jax.vmap(numba_kernel(fails, outs=lambda x: x, vmap_method="sequential")),
        jax.jit(lambda x: jax.lax.fori_loop(0, 3, lambda i, c: c.at[i].set(run_fails(x[i])), jnp.zeros_like(x))),
        lambda x: jax.lax.scan(lambda c, row: (c, run_fails(row)), None, x)[1],
        lambda x: jax.lax.cond(x[1, 0] > 0, lambda x: jax.vmap(run_fails)(x), lambda x: x, x),
    ]
    for program in programs:
        for _ in range(2):
            assert f"CustomError: of my own (raised by kernel 'fails', {__file__}" in message_of(
                fails, bad, call=program
            )
            assert_array_equal(program(good), good)


def test_from_four_threads():
    wrong = []

    def work(case):
        for i in range(25):
            try:
                jax.block_until_ready(run_fails(np.array([case if i % 2 else -1, 5], np.float32)))
                raised = ""
            except RAISED as error:
                raised = str(error)
            if (SHOWN[case][0] in raised) is not bool(i % 2):
                wrong.append((case, i, raised))

    threads = [threading.Thread(target=work, args=(case,)) for case in (1, 3, 7, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_hundreds_of_failures_leak_nothing():
    bad = jnp.array([3.0, 5.0])

    def fail(times):
        for _ in range(times):
            message_of(fails, bad, call=run_fails)
        gc.collect()
        return len(gc.get_objects())

    fail(20)
    before = fail(1)
    assert fail(300) - before < 150


@numba.njit(parallel=True)
def fails_in_parallel(x, out):
    for i in prange(x.size):
        out[i] = innermost(x[i])


def test_in_a_parallel_loop():
    assert_array_equal(run(fails_in_parallel, X[:3]), X[:3])
    message = message_of(fails_in_parallel, X)
    assert "CustomError: ('deep down', 3.0)" in message
    assert "kernel 'fails_in_parallel'" in message


def test_a_parallel_loop_that_fails_leaves_no_error_behind():
    with contextlib.suppress(*RAISED):
        run(fails_in_parallel, X)
    assert_array_equal(run(fails_in_parallel, X[:3]), X[:3])
    assert "CustomError: of my own" in message_of(fails, jnp.array([3.0, 5.0]), call=run_fails)
    assert [int(n) for n in "123"] == [1, 2, 3]
