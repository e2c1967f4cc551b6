"""The end of a process while kernels that may need the interpreter still run or have yet to run."""

import os
import signal
import subprocess
import sys
import time

import pytest
from helper_kinds import needs_objmode_without_pickles

pytestmark = pytest.mark.process

ENVIRONMENT = {**os.environ, "JAX_PLATFORMS": "cpu"}
SCRIPT = """
import os, sys, threading, time
import jax, jax.numpy as jnp, numba
from xlakernel.core import debug_mode
from xlakernel.numba import numba_kernel

@numba.njit
def spin(steps):
    value = 0.5
    for _ in range(steps):
        value = 3.9 * value * (1 - value)  # chaotic: no compiler can shorten it
    return value

@numba.njit
def check(value):
    if value < 1e9:
        raise ValueError("too small")

@numba.njit
def raises(x, out):
    out[:] = spin(50_000_000)
    check(x[0])

@numba.njit
def prints(x, out):
    out[:] = spin(50_000_000)
    print("printed")

@numba.njit
def calls_python(x, out):
    out[:] = spin(50_000_000)
    with numba.objmode():
        print("printed", flush=True)

@numba.njit(parallel=True)
def loops(x, out):
    out[:] = spin(50_000_000)
    for i in numba.prange(x.size):
        out[i] = x[i]

@numba.njit(parallel=True)
def raises_in_a_loop(x, out):
    out[:] = spin(50_000_000)
    for i in numba.prange(x.size):
        check(x[i])

@numba.njit
def is_checked(x, out):
    out[:] = spin(50_000_000)

kernel = globals()[sys.argv[1]]
run = numba_kernel(kernel, outs=lambda x: x)

@jax.jit
def program(x, matrix):
    for _ in range(3):  # what makes XLA run the program in a thread of its own
        matrix = matrix @ matrix / 300
    return run(run(x + matrix[0, 0]))

x, matrix = jnp.arange(4.0), jnp.ones((300, 300))
with debug_mode(kernel is is_checked):
    compiled = program.lower(x, matrix).compile()
"""

KERNELS = ["raises", "prints", "calls_python", "loops", "raises_in_a_loop", "is_checked"]
ENDS = {  # how the script ends, and its exit status
    "result": ("result = compiled(x, matrix)", 0),
    "no result": ("compiled(x, matrix)", 0),
    "sys.exit": ("result = compiled(x, matrix); sys.exit(3)", 3),
    "os._exit": ("result = compiled(x, matrix); os._exit(4)", 4),
    "exception": ("result = compiled(x, matrix); raise RuntimeError('of the script')", 1),
}
DAEMON = """
def call_often():
    while True:
        compiled(x, matrix)

threading.Thread(target=call_often, daemon=True).start()
time.sleep(0.2)
"""


@pytest.fixture
def run(run_program):
    """Return a function that returns the exit status and the output of a process, with a timeout."""
    return lambda kernel, end: run_program(SCRIPT + end, kernel)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("end", ["result", "no result"])
def test_the_process_ends(run, kernel, end):
    code, expected = ENDS[end]
    done = run(kernel, code)
    assert done.returncode == expected, done.stderr
    assert "Fatal" not in done.stderr


@pytest.mark.parametrize("end", ["sys.exit", "os._exit", "exception"])
def test_the_process_ends_however_the_script_ends(run, end):
    code, expected = ENDS[end]
    done = run("raises", code)
    assert done.returncode == expected, done.stderr


@pytest.mark.parametrize("kernel", ["raises", "prints", "is_checked"])
def test_while_a_daemon_thread_goes_on_calling(run, kernel):
    """It may end by a signal: CPython up to 3.13 ends such a thread in JAX's own code, which aborts."""
    run(kernel, DAEMON)


def test_the_output_of_a_running_program_is_printed(run):
    assert run("prints", ENDS["result"][0]).stdout.split() == ["printed", "printed"]


def test_ctrl_c_while_the_process_waits_for_its_kernels():
    command = [sys.executable, "-c", SCRIPT + ENDS["result"][0] + "\nprint('over', flush=True)", "prints"]
    with subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stdout.readline() == "over\n"
        time.sleep(0.1)
        child.send_signal(signal.SIGINT)
        child.communicate(timeout=120)


def test_a_child_of_multiprocessing():
    code = (
        f"import multiprocessing, sys\nscript = {SCRIPT + ENDS['result'][0]!r}\n"
        "def child(): exec(script, globals())\n"
        "if __name__ == '__main__':\n"
        "    one = multiprocessing.get_context('fork').Process(target=child)\n"
        "    one.start(); one.join(); sys.exit(one.exitcode)\n"
    )
    command = [sys.executable, "-c", code, "raises"]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


AT_EXIT = """
import atexit
import jax, jax.numpy as jnp, numba
from xlakernel.numba import numba_kernel

@numba.njit
def prints(x, out):
    print("in the kernel")
    out[:] = x

atexit.register(lambda: print(run(jnp.ones(2)).sum()))  # before the first kernel is built
run = numba_kernel(prints, outs=lambda x: x)
run(jnp.ones(2)).block_until_ready()
"""


def test_a_callback_at_exit_may_call_kernels():
    done = subprocess.run(
        [sys.executable, "-c", AT_EXIT], env=ENVIRONMENT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout.split("\n") == ["in the kernel", "in the kernel", "2.0", ""], done.stderr


FORK = """
import atexit, os, sys, threading, time, warnings
import jax, numba, numpy as np

def end():  # runs after the gate's own callback; JAX's later ones crash in a child, with and without kernels
    os._exit(7) if os.getpid() != parent else None

parent = os.getpid()
atexit.register(end)
from xlakernel.numba import numba_kernel

inside = threading.Event()

def wait():
    inside.set()
    time.sleep(3)

@numba.njit
def waits(x, out):
    with numba.objmode():
        wait()
    out[:] = x

run = jax.jit(numba_kernel(waits, outs=lambda x: x))
x = np.ones(2, np.float32)
run.lower(x).compile()
thread = threading.Thread(target=lambda: run(x).block_until_ready())
thread.start()
assert inside.wait(100)
warnings.simplefilter("ignore")  # JAX's, of forks
child = os.fork()
if not child:
    sys.exit()
deadline = time.monotonic() + 60
while not (ended := os.waitpid(child, os.WNOHANG))[0]:
    if time.monotonic() > deadline:
        os.kill(child, 9)
    time.sleep(0.05)
assert os.waitstatus_to_exitcode(ended[1]) == 7, ended
thread.join()
"""


@needs_objmode_without_pickles
def test_a_child_that_was_forked_while_a_call_was_in_the_interpreter():
    done = subprocess.run(
        [sys.executable, "-c", FORK], env=ENVIRONMENT, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr
