"""The XLA errors of kernels that raise."""

import ctypes
import re
import signal
import sys
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numba import objmode
from numpy.testing import assert_array_equal

from xlakernel.core.ffi.abi import ERROR_CODES
from xlakernel.core.gpu.python_call import _compile_entry
from xlakernel.core.native.debugging.call_frame import api_of
from xlakernel.core.native.machine.frame import new_error
from xlakernel.core.native.machine.machine_code import NAME
from xlakernel.core.native.machine.status import describe

F32 = ("float32", 1)
# JAX raises a ValueError where the program ran in the calling thread, and its own error where it did not.
RAISED = (jax.errors.JaxRuntimeError, ValueError)


def run(target, x):
    return np.asarray(jax.jit(jax.ffi.ffi_call(target, jax.ShapeDtypeStruct(x.shape, x.dtype)))(x))


def error_of(target, x):
    with pytest.raises(RAISED) as caught:
        run(target, x)
    return str(caught.value)


def raising(kind, *arguments):
    """Return a kernel that raises from its fourth line if an element is negative."""
    if arguments:

        def kernel(x, out):
            for i in range(x.size):
                if x[i] < 0:
                    raise kind("wrong value", 7)
                out[i] = x[i]
    else:

        def kernel(x, out):
            for i in range(x.size):
                if x[i] < 0:
                    raise kind
                out[i] = x[i]

    return kernel


CODES = {
    ValueError: "INVALID_ARGUMENT",
    TypeError: "INVALID_ARGUMENT",
    ArithmeticError: "INVALID_ARGUMENT",
    ZeroDivisionError: "INVALID_ARGUMENT",
    FloatingPointError: "INVALID_ARGUMENT",
    OverflowError: "OUT_OF_RANGE",
    IndexError: "OUT_OF_RANGE",
    KeyError: "NOT_FOUND",
    AssertionError: "FAILED_PRECONDITION",
    NotImplementedError: "UNIMPLEMENTED",
    MemoryError: "RESOURCE_EXHAUSTED",
    RuntimeError: "INTERNAL",
    Exception: "INTERNAL",
}


@pytest.mark.parametrize(("kind", "code"), CODES.items(), ids=lambda x: getattr(x, "__name__", ""))
def test_each_kind_of_exception_has_its_code(kind, code):
    text = f"{kind.__name__}: {kind('text')} (raised by kernel 'k' of file.py:1)"
    assert describe(kind("text"), "k", "file.py:1", None) == (text, ERROR_CODES[code])


def test_every_code_is_used():
    ending = {ERROR_CODES["CANCELLED"]}  # of the process, which no exception says (`native.gate`)
    assert {describe(kind(), "k", "file.py:1", None)[1] for kind in CODES} == set(ERROR_CODES.values()) - ending


def test_an_exception_from_another_file_names_the_place_of_the_kernel():
    message, _ = describe(ValueError("text"), "k", "file.py:1", ("helper", "other.py", 7))
    assert message == "ValueError: text (raised by kernel 'k' of file.py:1, other.py:7 in helper)"
    message, _ = describe(ValueError("text"), "k", "file.py:1", ("k", "file.py", 7))
    assert message == "ValueError: text (raised by kernel 'k', file.py:7 in k)"


def test_a_message_is_not_cut_at_a_null_character():
    assert describe(ValueError("a\0b"), "k", "file.py:1", None)[0].startswith("ValueError: a\\0b (")


@pytest.mark.parametrize("kind", [ValueError, KeyError, IndexError, AssertionError, NotImplementedError, RuntimeError])
def test_type_message_file_and_line_are_reported(register, kind):
    kernel = raising(kind, "with arguments")
    target = register(kernel, [F32], [F32])
    text = error_of(target, jnp.array([1.0, -1.0]))
    assert text.startswith(CODES[kind])
    line = kernel.__code__.co_firstlineno + 3
    assert f"{kind.__name__}: {kind('wrong value', 7)} (raised by kernel 'kernel'" in text
    assert re.search(rf"{re.escape(__file__)}:{line} in \S*kernel\)", text)


def test_an_exception_without_arguments_is_its_type(register):
    assert "INVALID_ARGUMENT: ValueError (raised by" in error_of(
        register(raising(ValueError), [F32], [F32]), -jnp.ones(2)
    )


def test_a_users_exception_class_is_reported(register):
    class SpikeError(LookupError):
        pass

    text = error_of(register(raising(SpikeError, "…"), [F32], [F32]), -jnp.ones(2))
    assert text.startswith("INTERNAL")
    assert "SpikeError: ('wrong value', 7)" in text


def test_an_exception_class_that_cannot_be_instantiated_is_an_error(register):
    class PickyError(Exception):
        def __init__(self, *, keyword):
            super().__init__(keyword)

    assert "PickyError" in error_of(register(raising(PickyError), [F32], [F32]), -jnp.ones(2))


def test_the_next_call_works(register):
    target = register(raising(ValueError), [F32], [F32])
    for _ in range(3):
        error_of(target, -jnp.ones(2))
        assert_array_equal(run(target, jnp.ones(2)), [1, 1])


def test_a_later_slice_of_a_batch_may_raise(register):
    x = jnp.ones((3, 2)).at[2, 1].set(-1)
    assert "ValueError" in error_of(register(raising(ValueError), [F32], [F32]), x)


def division(x, out):
    out[0] = 1 // (x.size - 2)


def test_a_statement_may_raise_by_itself(register):
    assert "INVALID_ARGUMENT: ZeroDivisionError" in error_of(register(division, [F32], [F32]), jnp.ones(2))


def out_of_bounds(x, out):
    out[0] = x[x.size]


def test_bounds_are_checked_when_asked_for(register):
    text = error_of(register(out_of_bounds, [F32], [F32], boundscheck=True), jnp.ones(2))
    assert text.startswith("OUT_OF_RANGE: IndexError: index is out of bounds")


MESSAGE = "é 100 % {} \n" * 1000


def raise_in_python():
    raise KeyError(MESSAGE)


def through_python(x, out):
    with objmode():
        raise_in_python()
    out[:] = x


def test_an_exception_of_an_objmode_block_is_reported_in_full(register):
    text = error_of(register(through_python, [F32], [F32]), jnp.ones(2))
    assert text.startswith("NOT_FOUND: KeyError: ")
    assert repr(MESSAGE) in text
    assert "kernel 'through_python'" in text


def raise_own_system_error():
    raise SystemError("of a user") from ValueError("its cause")


def through_python_again(x, out):
    with objmode():
        raise_own_system_error()
    out[:] = x


def test_a_system_error_of_a_user_is_reported_as_itself(register):
    text = error_of(register(through_python_again, [F32], [F32]), jnp.ones(2))
    assert text.startswith("INTERNAL: SystemError: of a user (raised by ")


def test_many_threads_may_fail_at_once(register):
    target = register(raising(ValueError, "…"), [F32], [F32])
    program = jax.jit(jax.ffi.ffi_call(target, jax.ShapeDtypeStruct((2,), jnp.float32)))

    def attempt(i):
        try:
            return np.asarray(program(jnp.full(2, i % 2 - 1.0)))[0]
        except RAISED as error:
            return str(error)[:28]

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(attempt, range(200)))
    assert results == ["INVALID_ARGUMENT: ValueError", 0.0] * 100


def test_an_exception_whose_text_cannot_be_read_has_its_type():
    class Refused(Exception):
        def __str__(self):
            return self.kode

    text, _ = describe(Refused(), "kernel", "file.py:1", None)
    assert text.startswith(
        "Refused: its text cannot be read, because str() raises AttributeError (raised by kernel 'kernel'"
    )


KEPT = []  # machine code, which JAX may call until the process ends


def call_python(function):
    """Run a program that calls *function* with the address of the call frame, and a second address, 0."""
    code = _compile_entry(function, has_stream=False)
    name = f"xlakernel_test_{id(code)}"
    jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(ctypes.c_void_p(code.address_of(NAME))), platform="cpu")
    call = jax.ffi.ffi_call(name, jax.ShapeDtypeStruct((2,), jnp.float32), has_side_effect=True)
    try:
        jax.jit(call)().block_until_ready()
        for _ in range(1000):  # Python runs signal handlers between statements
            pass
    finally:
        KEPT.append(code)


@pytest.fixture
def ctrl_c():
    """Let Ctrl-C raise KeyboardInterrupt, which a shell may have ignored in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("raised", [None, KeyboardInterrupt, SystemExit, TimeoutError])
def test_exceptions_of_python_that_machine_code_calls(monkeypatch, ctrl_c, raised):
    def function(frame, other):
        assert frame
        assert other == 0
        if raised is not None:
            raise raised("late")

    ignored = []
    monkeypatch.setattr(sys, "unraisablehook", lambda found: ignored.append(found.exc_type))
    if raised is None:
        call_python(function)
    elif not issubclass(raised, Exception):
        with pytest.raises(raised):
            call_python(function)
    else:
        with pytest.raises(RAISED, match=r"TimeoutError: late \(raised by a signal handler, or by a call of Python\)"):
            call_python(function)
    assert ignored == []


def test_an_exit_in_another_thread_is_an_error():
    def function(frame, other):
        raise SystemExit(3)

    with ThreadPoolExecutor(1) as pool, pytest.raises(RAISED, match="CANCELLED: SystemExit: 3"):
        pool.submit(call_python, function).result()


@pytest.mark.parametrize("again", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_while_an_exception_is_named(again):
    class Text(Exception):
        def __str__(self):
            raise again

    def function(frame, other):
        raise Text

    with pytest.raises(again):
        call_python(function)


def test_an_exception_without_a_text_is_written_to_stderr(monkeypatch):
    class Untold(Exception):
        def __str__(self):
            raise LookupError

    def function(frame, other):
        raise Untold

    ignored = []
    monkeypatch.setattr(sys, "unraisablehook", lambda found: ignored.append(found.exc_type))
    with pytest.raises(RAISED, match="raised an exception; Python wrote the exception to stderr"):
        call_python(function)
    assert ignored == [LookupError]


def test_an_error_that_python_returns_to_machine_code():
    with pytest.raises(RAISED, match="the text"):
        call_python(lambda frame, _: new_error(api_of(frame), "the text", ERROR_CODES["INVALID_ARGUMENT"]))
