"""Networks whose compiled code is stored on disk, because their functions are declared with ``cache=True``."""

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.process

FUNCTIONS = """
from typing import Any, NamedTuple
import numba
import numpy as np

DRIVE = np.float32({drive})

class State(NamedTuple):
    v: Any

@numba.njit(cache={cached})
def integrate(state, arrived, p, rng):
    v = state.v + DRIVE + arrived.synapses
    return State(v % np.float32(1)), v >= np.float32(1)

@numba.njit(cache=True)
def on_pre(weight, pre, post, p):
    return weight - DRIVE * post.trace

@numba.njit(cache=True)
def on_post(weight, pre, post, p):
    return weight + DRIVE * pre.trace
"""

PROGRAM = """
import sys
import jax
import jax.numpy as jnp
import numpy as np
from functions import State, integrate, on_post, on_pre
from xlakernel.sparse import CSR
from xlakernel.sparse.networks import Network, Population, Projection, Record, Rule

compiled = set()

def note(owner, method, name_of):
    original = getattr(owner, method)

    def noted(self, *arguments, **options):
        compiled.add(name_of(self, *arguments))
        return original(self, *arguments, **options)

    setattr(owner, method, noted)

if jax.default_backend() == "gpu":
    from numba.cuda.dispatcher import _Kernel

    note(_Kernel, "__init__", lambda kernel, function, *_: function.__name__)
else:
    from xlakernel.numba._compile import NumbaKernel

    note(NumbaKernel, "_compile", lambda kernel, *_: kernel.name)

matrix = CSR.from_dense(jnp.full((8, 8), 0.01))
rule = Rule(on_pre, on_post, tau_pre=5, tau_post=5, minimum=0, maximum=1) if sys.argv[1] == "plastic" else None
network = Network(Population(integrate, 8), [Projection(matrix, 2, "synapses", plasticity=rule)])
state, recording = network.run(network.initial(State(jnp.arange(8) / 8)), steps=20, record=Record(counts=True))
print("simulate" in compiled, recording.counts.sum(), state.neurons)
"""


@pytest.fixture
def run(tmp_path):
    """Return a function that runs the program in a process, with a drive, and returns what it printed."""

    def in_process(kind, drive, cached=True):
        (tmp_path / "functions.py").write_text(FUNCTIONS.format(drive=drive, cached=cached), "utf-8")
        folders = {name: str(tmp_path / name) for name in ("XLAKERNEL_CACHE_DIR", "NUMBA_CACHE_DIR")}
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, kind],
            env={**os.environ, **folders, "PYTHONDONTWRITEBYTECODE": "1"},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
        compiled, rest = done.stdout.split(" ", 1)
        return compiled == "True", rest

    return in_process


def test_a_network_is_compiled_once(run):
    compiled, first = run("plastic", 0.25)
    assert compiled
    assert run("plastic", 0.25) == (False, first)
    compiled, other = run("plastic", 0.5)  # an edited constant
    assert compiled and other != first
    assert run("plastic", 0.25) == (False, first)


def test_a_network_with_a_function_that_is_not_cached_is_not_stored(run):
    found = run("static", 0.25, cached=False)
    assert found[0] and run("static", 0.25, cached=False) == found
