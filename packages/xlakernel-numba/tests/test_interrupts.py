"""Signals while a kernel compiles or runs, and names that no compiler accepts."""

import os
import signal
import subprocess
import sys
import threading

import jax.numpy as jnp
import numba
import pytest

from xlakernel.core.errors import KernelTypeError
from xlakernel.core.native.interrupts import uninterrupted
from xlakernel.numba import numba_kernel

# Numba takes over its own declarations when the first kernel compiles.
PROGRAM = """
import os, signal, sys
import jax.numpy as jnp, numba
from numba.core.typing.context import BaseContext
from xlakernel.numba import numba_kernel

@numba.njit
def kernel(x, out):
    for i in range(x.size):
        out[i] = x[i] + 1

call = numba_kernel(kernel, outs=lambda x: x)
installed = 0
install = BaseContext.install_registry

def install_and_interrupt(self, registry):
    global installed
    installed += 1
    if installed == int(sys.argv[1]):
        os.kill(os.getpid(), number)
    return install(self, registry)

BaseContext.install_registry = install_and_interrupt
def interrupt(number, frame):
    raise KeyboardInterrupt

number = getattr(signal, sys.argv[2])
signal.signal(number, interrupt)
try:
    call(jnp.ones(2))
    print("finished")
except KeyboardInterrupt:
    print("interrupted")
print(call(jnp.ones(2)).tolist())
"""


@pytest.fixture
def interrupts():
    """Let Ctrl-C raise KeyboardInterrupt, which a shell may have ignored in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.process
@pytest.mark.parametrize(("number", "name"), [(1, "SIGINT"), (2, "SIGALRM"), (5, "SIGINT")])
def test_a_kernel_compiles_after_one_was_interrupted(number, name):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(number), name], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["interrupted", "[2.0, 2.0]"]


def test_an_interrupt_waits_for_the_end(interrupts):
    steps = []

    def step():
        with uninterrupted():
            os.kill(os.getpid(), signal.SIGINT)
            steps.append("after")
        steps.append("never")

    with pytest.raises(KeyboardInterrupt):
        step()
    assert steps == ["after"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_each_signal_reaches_its_handler_after_an_exception_of_another(interrupts):
    def handle(number, frame):
        seen.append(number)
        raise TimeoutError

    def step():
        with uninterrupted():
            os.kill(os.getpid(), signal.SIGALRM)
            os.kill(os.getpid(), signal.SIGINT)
            assert seen == []

    seen: list[int] = []
    before = signal.signal(signal.SIGALRM, handle)
    try:
        with pytest.raises(KeyboardInterrupt):
            step()
        assert seen == [signal.SIGALRM]
        assert signal.getsignal(signal.SIGALRM) is handle
    finally:
        signal.signal(signal.SIGALRM, before)


def test_other_threads_leave_the_signal_alone():
    found = []

    def run():
        with uninterrupted():
            found.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert found == [signal.getsignal(signal.SIGINT)]


@pytest.mark.parametrize("name", ["a\0b", "a\nb", "a\ud800b", "\x1b[31m"])
def test_a_name_that_cannot_be_printed_is_refused(name):
    def kernel(x, out):
        out[0] = x[0]

    kernel.__qualname__ = name
    with pytest.raises(KernelTypeError, match=r"characters that cannot be printed\. Give its function another"):
        numba_kernel(numba.njit(kernel), outs=lambda x: x)(jnp.ones(1))


# Ctrl-C comes when the first kernel ends, and takes effect in the Python of the second one, or later.
KERNELS = """
import ctypes, signal
import jax, jax.numpy as jnp, numba
from xlakernel.core import debug_mode
from xlakernel.numba import numba_kernel

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
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

    try:
        run(jnp.zeros(1)).block_until_ready()  # signal 0 does nothing
        run(jnp.full(1, float(signal.SIGINT))).block_until_ready()
        for _ in range(1000): pass
    except KeyboardInterrupt:
        seen.append(kernel)
    else:
        print("lost:", kernel)
assert len(seen) == 5
"""


@pytest.mark.process
def test_ctrl_c_reaches_the_program_from_kernels_that_run_python():
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
        for number, text in ((signal.SIGINT, ""), (signal.SIGALRM, "TimeoutError: time limit (raised by kernel")):
            try:
                call(jnp.full(1, float(number))).block_until_ready()
            except (KeyboardInterrupt, jax.errors.JaxRuntimeError) as error:
                assert isinstance(error, KeyboardInterrupt) == (number == signal.SIGINT) and text in str(error), error
            else:
                print("lost:", kernel, number)
"""


@pytest.mark.process
def test_signals_during_a_kernel_with_objmode_are_not_lost():
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", BLOCKS], capture_output=True, text=True, timeout=300, check=False
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr
