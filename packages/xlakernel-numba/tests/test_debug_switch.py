"""Debug mode: the programs that it applies to, and no effect on others."""

import json
import os
import sys
import threading

import jax
import jax.numpy as jnp
import numba
import numpy as np
import pytest

from xlakernel.core import XLACustomKernel, debug_mode, errors
from xlakernel.core.ffi.registry import registered_targets
from xlakernel.numba import numba_kernel

# JAX raises a ValueError where the program ran in the calling thread, and its own error where it did not.
RAISED = (jax.errors.JaxRuntimeError, ValueError)
X = jnp.arange(1.0, 4.0)


@numba.njit
def leaves_one(x, out):
    """Harmless without checks, because it stays within its arrays."""
    for i in range(x.size - 1):
        out[i] = x[i]


def leaving_one():
    """A new kernel for each test."""
    return numba_kernel(numba.njit(leaves_one.py_func), outs=lambda x: x)


def is_checked(program, *inputs):
    """Return True if *program*, which runs `leaves_one`, reports an error."""
    try:
        jax.block_until_ready(program(*inputs))
    except RAISED as error:
        assert "did not write element (2,) of output 0 (" in str(error)  # noqa: PT017
        return True
    return False


def scan(run):
    return lambda x: jax.lax.scan(lambda carry, _: (carry, run(carry)), x, None, length=2)[1]


OPERATOR = XLACustomKernel("debug_switch_leaves_one")
OPERATOR.def_kernel("numba", "cpu", lambda outs: numba_kernel(leaves_one, outs=outs))


def operate(x):
    return OPERATOR(x, outs=[jax.ShapeDtypeStruct(x.shape, x.dtype)])


RUN = numba_kernel(leaves_one, outs=lambda x: x)
PROGRAMS = {
    "eager": (RUN, X),
    "jit": (jax.jit(RUN), X),
    "jit in jit": (jax.jit(lambda x: jax.jit(RUN)(x) + 1), X),
    "vmap": (jax.vmap(RUN), X[None]),
    "jit of vmap": (jax.jit(jax.vmap(RUN)), X[None]),
    "scan": (scan(RUN), X),
    "jit of scan": (jax.jit(scan(RUN)), X),
    "checkpoint": (jax.jit(jax.checkpoint(RUN)), X),
    "operator": (operate, X),
    "jit of operator": (jax.jit(operate), X),
    "vmap of operator": (jax.vmap(operate), X[None]),
    "jit of vmap of operator": (jax.jit(jax.vmap(operate)), X[None]),
    "jit of scan of operator": (jax.jit(scan(lambda x: operate(x)[0])), X),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_debug_mode_applies_to_every_program_and_ends(name):
    program, x = PROGRAMS[name]
    for _ in range(2):
        assert not is_checked(program, x)
        with debug_mode():
            assert is_checked(program, x)
            with debug_mode(False):
                assert not is_checked(program, x)
                with debug_mode(True):
                    assert is_checked(program, x)
            assert is_checked(program, x)
        assert not is_checked(program, x)


def test_each_way_is_traced_and_compiled_once():
    traced = []
    run = leaving_one()

    @jax.jit
    def program(x):
        traced.append(None)
        return run(x)

    before = len(registered_targets())
    for _ in range(3):
        assert not is_checked(program, X)
        with debug_mode(False):
            assert not is_checked(program, X)
        with debug_mode():
            assert is_checked(program, X)
    assert len(traced) == 2
    assert len(registered_targets()) == before + 2


@pytest.mark.parametrize("call", [RUN, operate], ids=["kernel", "operator"])
def test_a_program_is_checked_as_when_it_was_traced(call):
    def program(x):  # new, so that nothing of it is remembered
        return call(x)

    with debug_mode():
        traced = jax.jit(program).trace(X)
    compiled = traced.lower().compile()
    assert is_checked(compiled, X)
    traced = jax.jit(lambda x: call(x)).trace(X)
    with debug_mode():
        compiled = traced.lower().compile()
        assert not is_checked(compiled, X)


def test_the_setting_applies_to_one_thread():
    found = []
    run = leaving_one()
    with debug_mode():
        thread = threading.Thread(target=lambda: found.append(is_checked(run, X)))
        thread.start()
        thread.join()
        assert is_checked(run, X)
    assert found == [False]


@pytest.mark.parametrize("value", [1, 0, None, "on", np.True_])
def test_a_value_that_is_not_a_bool_is_refused(value):
    with pytest.raises(errors.KernelTypeError, match=r"debug_mode: expected True or False; got .*debug_mode\(\):`"):  # noqa: SIM117
        with debug_mode(value):
            pytest.fail("entered")


def test_an_exception_ends_debug_mode():
    with pytest.raises(KeyError), debug_mode():
        raise KeyError
    assert not is_checked(RUN, X)


CHILD = """
import json, sys
import jax, jax.numpy as jnp, numba
from xlakernel.core import debug_mode
from xlakernel.numba import numba_kernel

space = {}
exec(sys.argv[1], space)
run = numba_kernel(numba.njit(space["leaves_one"]), outs=lambda x: x)

def attempt():
    try:
        jax.block_until_ready(run(jnp.arange(1.0, 4.0)))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "no error"

found = [attempt()]
try:
    for enabled in (True, False):
        with debug_mode(enabled):
            found.append(attempt())
except ValueError as error:
    found.append(f"{type(error).__name__}: {error}")
print(json.dumps(found))
"""

KERNEL = "def leaves_one(x, out):\n    for i in range(x.size - 1):\n        out[i] = x[i]\n"


# Every value of the variable is tested in the tests of core.
@pytest.mark.parametrize(("value", "checked"), [("1", True), ("", False)])
def test_the_environment_decides_outside_of_debug_mode(run_program, value, checked):
    done = run_program(CHILD, KERNEL, environment={"XLAKERNEL_DEBUG": value})
    assert done.returncode == 0, done.stderr
    assert ["did not write" in text for text in json.loads(done.stdout)] == [checked, True, False]


def test_an_invalid_environment_variable_is_refused_when_it_is_used(run_program):
    done = run_program(CHILD, KERNEL, environment={"XLAKERNEL_DEBUG": "maybe"})
    assert done.returncode == 0, done.stderr
    for text in json.loads(done.stdout):
        assert text.startswith("SettingError: the environment variable XLAKERNEL_DEBUG is 'maybe'; allowed: 1, true, ")


MODULE = """
import numba

@numba.njit(cache=True)
def cached(x, out):
    for i in range(x.size - 1):
        out[i] = x[i]
"""


def test_nothing_is_stored_on_disk(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("XLAKERNEL_CACHE_DIR", str(tmp_path))
    name = f"debug_switch_{os.getpid()}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    kernel = __import__(name).cached

    def files():
        return {path.name: path.read_bytes() for path in tmp_path.rglob("*.code")}

    run, other = numba_kernel(kernel, outs=lambda x: x), jnp.arange(3)
    with debug_mode():
        assert is_checked(run, X)
    assert files() == {}
    assert not is_checked(run, X)
    assert not is_checked(run, other)
    kept = files()
    assert kept
    with debug_mode():
        assert is_checked(run, other)  # and nothing is taken from there
    assert files() == kept
    sys.modules.pop(name)
