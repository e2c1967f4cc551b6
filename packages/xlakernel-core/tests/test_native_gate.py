"""The gate in front of the interpreter: calls when it is closed, and the count of calls inside."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_array_equal

from xlakernel.core.native.machine import gate

F32 = ("float32", 1)
# JAX raises a ValueError where the program ran in the calling thread, and its own error where it did not.
RAISED = (jax.errors.JaxRuntimeError, ValueError)


@pytest.fixture
def closed():
    """Close the gate as the end of the process does, and open it again."""
    gate._closed.value = 1
    yield
    gate._closed.value = 0
    assert gate._inside.value == 0


def fails_above_one(x, out):
    out[:] = x
    if x[0] > 1:
        raise ValueError("above one")


def prints(x, out):
    out[:] = x
    print("printed")


def run(target, x):
    call = jax.jit(lambda x: jax.ffi.ffi_call(target, jax.ShapeDtypeStruct(x.shape, x.dtype))(x))
    return np.asarray(call(x))


@pytest.mark.parametrize("options", [{}, {"debug": True}], ids=["plain", "debug"])
def test_an_exception_is_not_read_when_the_process_ends(register, closed, options):
    target = register(fails_above_one, [F32], [F32], **options)
    with pytest.raises(RAISED, match="the process is ending"):
        run(target, jnp.full(3, 2.0))


def test_a_kernel_that_needs_no_interpreter_continues(register, closed):
    assert_array_equal(run(register(fails_above_one, [F32], [F32]), jnp.ones(3)), 1)


def test_a_kernel_that_prints_is_not_begun(register, closed, capfd):
    with pytest.raises(RAISED, match="the process is ending"):
        run(register(prints, [F32], [F32]), jnp.ones(3))
    assert capfd.readouterr().out == ""


@pytest.mark.parametrize("kernel", [fails_above_one, prints])
@pytest.mark.parametrize("options", [{}, {"debug": True}], ids=["plain", "debug"])
def test_each_entry_has_its_exit(register, kernel, options):
    target = register(kernel, [F32], [F32], **options)
    for value in (1.0, 2.0, 1.0):
        if kernel is fails_above_one and value > 1:
            with pytest.raises(RAISED, match="above one"):
                run(target, jnp.full(3, value))
        else:
            assert_array_equal(run(target, jnp.full(3, value)), value)
    assert gate._inside.value == 0
