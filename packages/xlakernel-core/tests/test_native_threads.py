"""Handlers of kernels without arrays, and handlers that are called at the same time."""

import contextlib
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numba import objmode
from numpy.testing import assert_array_equal

from xlakernel.core.backend.native import new_lock

F32 = ("float32", 1)
# JAX raises a ValueError where the program ran in the calling thread, and its own error where it did not.
RAISED = (jax.errors.JaxRuntimeError, ValueError)

RUNNING = []
MOST = []


def call(target, outs, *ins):
    return jax.jit(lambda *xs: jax.ffi.ffi_call(target, outs, has_side_effect=True)(*xs))(*ins)


def observe():
    """Wait for a while, and record the number of concurrent calls."""
    RUNNING.append(None)
    MOST.append(len(RUNNING))
    time.sleep(0.02)
    RUNNING.pop()


def observed(x, out):
    with objmode():
        observe()
    for i in range(x.size):
        out[i] = 2 * x[i]


def no_buffers():
    with objmode():
        observe()


def only_a_scalar(limit):
    if limit > 3:
        raise ValueError("above the limit")


def test_a_kernel_without_buffers_runs_once(register):
    MOST.clear()
    assert call(register(no_buffers), []) == []
    jax.effects_barrier()
    assert MOST == [1]


def test_a_kernel_with_scalars_and_no_arrays(register):
    target = register(only_a_scalar, scalars={"limit": "int32"})
    assert call(target, [], np.int32(3)) == []
    with pytest.raises(RAISED, match="above the limit"):
        jax.block_until_ready(call(target, [], np.int32(4)))


def overlap(*targets):
    """Call the targets from a thread each, and return how many calls were running at most."""
    programs = [jax.jit(jax.ffi.ffi_call(target, jax.ShapeDtypeStruct((3,), jnp.float32))) for target in targets]
    for program in programs:
        program(jnp.ones(3)).block_until_ready()
    MOST.clear()
    together = threading.Barrier(len(programs))

    def run(i):
        together.wait(10)
        return [np.asarray(programs[i](jnp.full(3, i + j, jnp.float32))) for j in range(4)]

    with ThreadPoolExecutor(len(programs)) as pool:
        results = list(pool.map(run, range(len(programs))))
    assert_array_equal(results, [[[2 * (i + j)] * 3 for j in range(4)] for i in range(len(programs))])
    assert len(MOST) == 4 * len(programs)
    return max(MOST)


def test_calls_run_at_the_same_time(register):
    assert overlap(*[register(observed, [F32], [F32])] * 4) > 1


def test_calls_with_one_lock_run_one_at_a_time(register):
    assert overlap(*[register(observed, [F32], [F32], lock=new_lock())] * 4) == 1


def test_kernels_with_one_lock_run_one_at_a_time(register):
    lock = new_lock()
    assert overlap(*(register(observed, [F32], [F32], lock=lock) for _ in range(3))) == 1


def test_kernels_with_different_locks_run_at_the_same_time(register):
    assert overlap(*(register(observed, [F32], [F32], lock=new_lock()) for _ in range(3))) > 1


def test_the_lock_is_released_by_a_call_that_fails(register):
    target = register(only_a_scalar, scalars={"limit": "int32"}, lock=new_lock())
    for limit in (4, 4, 3):
        with pytest.raises(RAISED, match="above the limit") if limit > 3 else contextlib.nullcontext():
            jax.block_until_ready(call(target, [], np.int32(limit)))
