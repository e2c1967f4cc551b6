"""Signals while kernels run that raise, print or enter Python."""

import subprocess
import sys

import pytest
from helper_kinds import needs_objmode_without_pickles

# A signal comes when the first kernel ends, and its handler runs in the Python of the second one, or later.
KERNELS = """
import ctypes, signal
import jax, jax.numpy as jnp, numba
from xlakernel.core import debug_mode
from xlakernel.numba import numba_kernel

def limit(number, frame):
    raise TimeoutError("time limit")

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
signal.signal(signal.SIGALRM, limit)
send = getattr(ctypes.CDLL(None), "raise")
send.argtypes, send.restype = [ctypes.c_int], ctypes.c_int

@numba.njit
def interrupt(x, out):
    out[0] = x[0] + send(int(x[0]))

@numba.njit
def double(x, out):
    out[0] = 2 * x[0]

@numba.njit
def fail(x, out):
    out[0] = 1
    if x[0] > 0:
        raise ValueError("after Ctrl-C")

@numba.njit
def check(value):
    if value > 0:
        raise ValueError("after Ctrl-C")

@numba.njit(parallel=True)
def fail_in_a_loop(x, out):
    for i in numba.prange(1):
        out[i] = 1
        check(x[i])

@numba.njit
def print_it(x, out):
    print("printed", x[0])
    out[0] = 1

def python():
    return 1.0

@numba.njit
def ask(x, out):
    with numba.objmode(found="float64"):
        found = python()
    out[0] = found

first, seen = numba_kernel(interrupt, outs=lambda x: x), []
for kernel in (double, fail, fail_in_a_loop, print_it, ask):
    second = numba_kernel(kernel, outs=lambda x: x)

    @jax.jit
    def run(x):
        before = first(x)
        with debug_mode(kernel is double):
            return second(before)

    run(jnp.zeros(1)).block_until_ready()  # signal 0 does nothing
    for number, expected in ((signal.SIGINT, KeyboardInterrupt), (signal.SIGALRM, jax.errors.JaxRuntimeError)):
        try:
            run(jnp.full(1, float(number))).block_until_ready()
            for _ in range(1000): pass
        except expected:
            seen.append((kernel, number))
        else:
            print("lost:", kernel, number)
assert len(seen) == 10
"""


@pytest.mark.process
def test_signals_reach_the_program_from_kernels_that_run_python():
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", KERNELS], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


# The signal comes in the kernel, and its handler runs at the next block.
BLOCKS = """
import ctypes, signal
import jax, jax.numpy as jnp, numba
from xlakernel.numba import numba_kernel

send = getattr(ctypes.CDLL(None), "raise")
send.argtypes, send.restype = [ctypes.c_int], ctypes.c_int

def limit(number, frame):
    raise TimeoutError("time limit")

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
signal.signal(signal.SIGALRM, limit)

@numba.njit
def without_arrays(x, out):
    sent = send(int(x[0]))
    with numba.objmode(found="float64"):
        found = 1.0
    out[0] = found + sent

@numba.njit
def with_an_array(x, out):
    with numba.objmode(first="float64"):
        first = float(x[0])
    sent = send(int(x[0]))
    with numba.objmode(found="float64"):
        found = float(x[0])
    out[0] = found + first + sent

for kernel in (without_arrays, with_an_array):
    f = numba_kernel(kernel, outs=lambda x: x)
    for call in (f, jax.jit(f)):
        call(jnp.zeros(1)).block_until_ready()  # signal 0 does nothing
        for number, text in ((signal.SIGINT, ""), (signal.SIGALRM, "TimeoutError: time limit (raised by a signal")):
            try:
                call(jnp.full(1, float(number))).block_until_ready()
            except (KeyboardInterrupt, jax.errors.JaxRuntimeError) as error:
                assert isinstance(error, KeyboardInterrupt) == (number == signal.SIGINT) and text in str(error), error
            else:
                print("lost:", kernel, number)
"""


@needs_objmode_without_pickles
@pytest.mark.process
def test_signals_during_a_kernel_with_objmode_are_not_lost():
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", BLOCKS], capture_output=True, text=True, timeout=300, check=False
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr


# The signal comes in the kernel, before a ``print`` of values whose conversion runs Python.
PRINTS = (
    BLOCKS[: BLOCKS.index("@numba.njit\ndef without_arrays")]
    + """
@numba.njit
def say(x, sent):
    print("text", x, 1.5 + sent)

@numba.njit
def with_constants(x, out):
    sent = send(int(x[0]))
    print(True, 1, None, (1, 2.0), 1j, "text")
    out[0] = sent

@numba.njit
def with_an_array(x, out):
    sent = send(int(x[0]))
    say(x, sent)
    out[0] = sent
"""
    + BLOCKS[BLOCKS.index("\nfor kernel in") :].replace(
        "(without_arrays, with_an_array)", "(with_constants, with_an_array)"
    )
)


@pytest.mark.process
def test_signals_before_a_kernel_prints_are_not_lost():
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PRINTS], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert set(done.stdout.splitlines()) == {"True 1 None (1, 2.0) 1j text", "text [0.] 1.5"}


# Plain Numba gives `PySys_FormatStdout` the null pointer of the string that cannot be encoded.
SURROGATE = """
import jax, jax.numpy as jnp, numba
from xlakernel.numba import numba_kernel

@numba.njit
def print_half_a_character(x, out):
    out[0] = x[0]
    print("text", chr(0xD800 + int(x[0])))

try:
    numba_kernel(print_half_a_character, outs=lambda x: x)(jnp.zeros(1)).block_until_ready()
except jax.errors.JaxRuntimeError as error:
    assert "surrogates not allowed" in str(error), error
else:
    print("no error")
"""


@pytest.mark.process
def test_a_string_that_cannot_be_encoded_is_an_error():
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", SURROGATE], capture_output=True, text=True, timeout=300, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (0, "text"), done.stdout + done.stderr
