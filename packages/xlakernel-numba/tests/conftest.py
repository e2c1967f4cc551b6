"""Kernels and settings that several test files share."""

import json
import os
import re
import select
import signal
import subprocess
import sys
import threading
from pathlib import Path

import jax
import numba
import numpy as np
import pytest
from hypothesis import settings
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from xlakernel.numba import numba_kernel

sys.path.insert(0, str(Path(__file__).parent))  # `helper_kinds` can be imported by the tests

# Several devices without several machines. It must be said before JAX starts.
if jax.config.jax_num_cpu_devices != 4:
    jax.config.update("jax_num_cpu_devices", 4)

settings.register_profile("xlakernel", deadline=None, database=None, max_examples=15)
settings.load_profile("xlakernel")


@numba.njit
def square_plus(x, out):
    """Works for every rank, including 0."""
    for index in np.ndindex(x.shape):
        out[index] = x[index] * x[index] + x[index]


@numba.njit
def cumsum(x, out):
    """Each element depends on all before it, so that mixed-up slices are detected."""
    total = x.dtype.type(0)
    for i in range(x.size):
        total += x[i]
        out[i] = total


@numba.njit
def axpy(x, y, out, alpha):
    for i in range(out.size):
        out[i] = alpha * x[i] + y[i]


@numba.njit
def add_into(acc, x, out):
    """For an alias of acc and out: reads the present content of the output."""
    for i in range(out.size):
        out[i] += x[i]


def same_as_first(x, *_):
    return x


@pytest.fixture(scope="session")
def enable_x64():
    """Return the context manager that enables 64-bit types, which JAX 0.8 renamed."""
    if hasattr(jax, "enable_x64"):
        return lambda: jax.enable_x64(True)
    return jax.experimental.enable_x64


@pytest.fixture
def x64(enable_x64):
    with enable_x64():
        yield


@pytest.fixture(scope="session")
def run_square_plus():
    return numba_kernel(square_plus, outs=same_as_first)


@pytest.fixture(scope="session")
def run_cumsum():
    return numba_kernel(cumsum, outs=same_as_first)


@pytest.fixture(scope="session")
def run_axpy():
    return numba_kernel(axpy, outs=same_as_first)


@pytest.fixture(scope="session")
def run_add_into():
    return numba_kernel(add_into, outs=same_as_first, input_output_aliases={0: 0})


@pytest.fixture(scope="session")
def make_cumsum():
    """Return a function that wraps the cumulative sum with other options."""
    return lambda **options: numba_kernel(cumsum, **{"outs": same_as_first, **options})


@pytest.fixture(scope="session")
def make_add_into():
    """Return a function that wraps the in-place addition with other options."""
    return lambda **options: numba_kernel(
        add_into, **{"outs": same_as_first, "input_output_aliases": {0: 0}, **options}
    )


# Several devices


@pytest.fixture(scope="session")
def make_mesh():
    """Return a function that makes a mesh of CPU devices: ``make_mesh(a=2, b=2)``, ``kind=`` its axes' type."""

    def make(kind="Auto", **axes):
        devices = jax.devices("cpu")[: np.prod(list(axes.values()))]
        types = (getattr(AxisType, kind),) * len(axes)
        return jax.make_mesh(tuple(axes.values()), tuple(axes), types, devices=devices)

    return make


@pytest.fixture(scope="session")
def put():
    """Return a function that spreads an array over a mesh: ``put(mesh, x, "a", None)``."""
    return lambda mesh, x, *spec: jax.device_put(x, NamedSharding(mesh, PartitionSpec(*spec)))


@pytest.fixture(scope="session")
def collectives():
    """Return a function that lists the collectives in a program, those between devices, without their counts."""
    kinds = "all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter|collective-broadcast"

    def find(program, *args):
        text = jax.jit(program).lower(*args).compile().as_text()
        return set(re.findall(rf" ({kinds})(?:-start)?\(", text))

    return find


def run_in_threads(count, work):
    """Run ``work(number)`` in *count* threads at once; raise an exception of any of them."""
    failures, barrier = [], threading.Barrier(count)

    def guarded(number):
        try:
            barrier.wait(timeout=60)
            work(number)
        except BaseException as error:  # noqa: BLE001 - raised again below
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    assert not any(thread.is_alive() for thread in threads)
    if failures:
        raise failures[0]


@pytest.fixture
def in_threads():
    return run_in_threads


# Programs in processes of their own


@pytest.fixture(scope="session")
def fork_server():
    """The server of `run_program`; it is started by the first test of a run that needs it."""
    command = [sys.executable, str(Path(__file__).with_name("fork_server.py"))]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        yield server
        server.stdin.close()


@pytest.fixture
def run_program(fork_server, tmp_path_factory):
    """Return a function that runs a program in a new process, without the second that the imports take.

    It is like `subprocess.run`: *environment* is added to this process's, *strict* makes errors of warnings, and a
    process that does not end in time is an error.
    """

    def run(program, *arguments, environment=None, folder=".", strict=False, timeout=120):
        output = [tmp_path_factory.mktemp("output") / name for name in ("stdout", "stderr")]
        for path in output:
            path.touch()
        request = {
            "program": program,
            "arguments": arguments,
            "environment": {**os.environ, "JAX_PLATFORMS": "cpu", **(environment or {})},
            "folder": str(folder),
            "output": [str(path) for path in output],
            "strict": strict,
        }
        fork_server.stdin.write(json.dumps(request) + "\n")
        fork_server.stdin.flush()
        child = int(fork_server.stdout.readline())
        if not select.select([fork_server.stdout], [], [], timeout)[0]:
            os.kill(child, signal.SIGKILL)
            fork_server.stdout.readline()
            raise subprocess.TimeoutExpired(program, timeout, *(path.read_text() for path in output))
        status = int(fork_server.stdout.readline())
        return subprocess.CompletedProcess(program, status, *(path.read_text() for path in output))

    return run
