"""Signals while a kernel compiles or is read from disk."""

import ctypes
import functools
import itertools
import os
import signal
import subprocess
import sys
import threading

import jax
import jax.numpy as jnp
import numba
import pytest
from numba.extending import overload

from xlakernel.core.native.copies import functions as own_copies
from xlakernel.numba import numba_kernel

# Numba's contexts read each registry of declarations by a generator, which ends for good if a handler raises inside.
PROGRAM = """
import os, signal, sys, traceback
import jax.numpy as jnp, numba
from numba.core import utils

stream_list, callers = utils.stream_list, [sys.argv[1]]

def stream_with_a_signal(registered):
    for new in stream_list(registered):
        if callers and callers[0] in {frame.f_code.co_name for frame, _ in traceback.walk_stack(None)}:
            callers.clear()
            os.kill(os.getpid(), number)
        yield new

utils.stream_list = stream_with_a_signal
from xlakernel.numba import numba_kernel

@numba.njit
def kernel(x, out):
    for i in range(x.size):
        out[i] = x[i] + 1

call = numba_kernel(kernel, outs=lambda x: x)

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


class TimeLimit(Exception):
    pass


@pytest.fixture
def time_limit():
    """Return a function that sends SIGALRM, whose handler raises `TimeLimit`."""

    def limit(number, frame):
        raise TimeLimit

    before = signal.signal(signal.SIGALRM, limit)
    yield functools.partial(os.kill, os.getpid(), signal.SIGALRM)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.process
@pytest.mark.parametrize("name", ["SIGINT", "SIGALRM"])
@pytest.mark.parametrize("caller", ["examine", "compile_extra"])
def test_a_kernel_compiles_after_one_was_interrupted(caller, name):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, caller, name], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["interrupted", "[2.0, 2.0]"]


def raise_from_another_thread():
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(threading.get_ident()), ctypes.py_object(TimeLimit))
    sum(1 for _ in range(1000))


@pytest.mark.parametrize("origin", ["signal", "thread"])
def test_the_exception_of_a_time_limit_is_no_error_of_the_kernel(time_limit, origin):
    limits = iter([time_limit if origin == "signal" else raise_from_another_thread])  # an overload gets copies of lists

    def plus_one(x):
        """Python code of this function's declaration runs in Numba's compiler."""

    @overload(plus_one)
    def implement(x):
        for limit in limits:
            limit()
        return lambda x: x + 1

    @numba.njit
    def kernel(x, out):
        out[0] = plus_one(x[0])

    run = numba_kernel(kernel, outs=lambda x: x)
    with pytest.raises(TimeLimit):
        run(jnp.ones(1))
    assert run(jnp.ones(1)) == 2


def test_a_time_limit_while_the_reason_of_an_error_is_found(time_limit):
    """Numba compiles a kernel that fails a second time, with writable inputs."""

    def array(x):
        """Return *x*."""

    @overload(array)
    def implement(x):
        if x.mutable:
            time_limit()
        return lambda x: x

    @numba.njit
    def kernel(x, out):
        array(x)[0] = 1

    with pytest.raises(TimeLimit):
        numba_kernel(kernel, outs=lambda x: x)(jnp.ones(1))


CONSTANT = 0.0


def add(v): ...


@overload(add)
def define_add(v):
    return lambda v: v + CONSTANT


@numba.njit
def apply(f, v):
    return f(v)


@numba.njit
def adding(x, out):
    out[0] = apply(add, x[0])


@pytest.mark.parametrize("step", [0, 1], ids=["entry", "exit"])
def test_a_signal_at_the_limits_of_a_compilation(time_limit, monkeypatch, step):
    """Code for functions as arguments, which is dropped after a compilation, is dropped nonetheless."""

    def set_all(*args, before=own_copies._set_all):
        before(*args)
        if next(steps) == step:
            time_limit()

    def run():
        return float(numba_kernel(adding, outs=lambda x: x)(jnp.zeros(1))[0])

    steps = itertools.count()
    monkeypatch.setattr(own_copies, "_set_all", set_all)
    with pytest.raises(TimeLimit):
        run()
    for value in (10.0 * step + 1, 10.0 * step + 2):  # no value twice: the code of each kernel is kept
        monkeypatch.setitem(globals(), "CONSTANT", value)
        assert run() == value


# A signal comes when Numba has compiled the helper and not yet its loop.
UFUNC = """
import signal, sys
import jax.numpy as jnp
from numba.np.ufunc import ufuncbuilder
from xlakernel.numba import numba_kernel
import helpers

class TimeLimit(Exception): pass

def limit(number, frame):
    raise TimeLimit

build = ufuncbuilder._build_element_wise_ufunc_wrapper

def build_after_a_signal(*args):
    ufuncbuilder._build_element_wise_ufunc_wrapper = build
    signal.raise_signal(signal.SIGALRM)

signal.signal(signal.SIGALRM, limit)
if sys.argv[1] == "signal":
    ufuncbuilder._build_element_wise_ufunc_wrapper = build_after_a_signal
else:  # a helper of the same name and another value
    helpers.C = 99.0
    assert numba_kernel(helpers.other, outs=lambda x: x)(jnp.ones(1)) == 99
    helpers.C = 1.0
try:
    numba_kernel(helpers.kernel, outs=lambda x: x)(jnp.ones(1))
except TimeLimit:
    print("interrupted")
print(numba_kernel(helpers.kernel, outs=lambda x: x)(jnp.ones(1)).tolist())
"""

HELPERS = """
import numba
C = 1.0

@numba.vectorize
def times(x):
    return x * C

@numba.njit(cache=True)
def kernel(x, out):
    for i in range(x.size):
        out[i] = times(x[i])

@numba.njit
def other(x, out):
    for i in range(x.size):
        out[i] = times(x[i])
"""


def run_in(folder, program, *arguments):
    """Run *program* in a folder that has its cache, and return the lines it prints."""
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        cwd=folder,
        env={**os.environ, "XLAKERNEL_CACHE_DIR": str(folder / "cache")},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.process
def test_a_helper_that_was_interrupted_is_compiled_again(tmp_path):
    (tmp_path / "helpers.py").write_text(HELPERS)
    printed = [run_in(tmp_path, UFUNC, argument) for argument in ("signal", "later")]
    assert printed == [["interrupted", "[1.0]"], ["[1.0]"]]


# A signal comes while LLVM reads a kernel from disk.
READ = """
import signal, sys
import jax.numpy as jnp
from llvmlite.binding.executionengine import ExecutionEngine
from xlakernel.numba import _cache, numba_kernel
import helpers

class TimeLimit(Exception): pass

def limit(number, frame):
    raise TimeLimit

find, load, inside = ExecutionEngine._find_module_ptr, _cache.load_object_code, []

def load_marked(*args):
    inside.append(1)
    return load(*args)

def find_after_a_signal(engine, module):
    if inside:
        inside.clear()
        signal.raise_signal(signal.SIGALRM)
    return find(engine, module)

signal.signal(signal.SIGALRM, limit)
_cache.load_object_code, ExecutionEngine._find_module_ptr = load_marked, find_after_a_signal
for _ in range(2):
    try:
        print(numba_kernel(helpers.kernel, outs=lambda x: x)(jnp.ones(1)).tolist())
    except TimeLimit:
        print("interrupted")
"""


@pytest.mark.process
def test_a_kernel_is_read_from_disk_after_an_interrupt(tmp_path):
    (tmp_path / "helpers.py").write_text(HELPERS)
    printed = [run_in(tmp_path, READ) for _ in range(2)]
    assert printed == [["[1.0]", "[1.0]"], ["interrupted", "[1.0]"]]


def test_a_handler_is_registered_once_despite_an_interrupt(time_limit, monkeypatch):
    register = jax.ffi.register_ffi_target

    def register_and_interrupt(*args, **options):
        monkeypatch.setattr(jax.ffi, "register_ffi_target", register)
        register(*args, **options)
        time_limit()

    @numba.njit
    def kernel(x, out):
        out[0] = x[0] + 2

    monkeypatch.setattr(jax.ffi, "register_ffi_target", register_and_interrupt)
    run = numba_kernel(kernel, outs=lambda x: x)
    with pytest.raises(TimeLimit):
        run(jnp.ones(1))
    assert run(jnp.ones(1)) == 3
