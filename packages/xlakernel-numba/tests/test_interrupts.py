"""Ctrl-C while a kernel compiles, and names that no compiler takes."""

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
import _thread, signal, sys, threading
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
        _thread.interrupt_main()
    return install(self, registry)

BaseContext.install_registry = install_and_interrupt
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have it ignored in the background
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


@pytest.mark.parametrize("number", [1, 2, 5])
def test_a_kernel_compiles_after_one_was_interrupted(number):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(number)], capture_output=True, text=True, check=False, timeout=300
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
