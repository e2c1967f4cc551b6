"""How often a kernel runs: one that has a side effect, exactly as often as the program says."""

import jax
import jax.numpy as jnp
import numba
import numpy as np
import pytest
from numba import objmode
from numpy.testing import assert_array_equal

from xlakernel.core import XLACustomKernel
from xlakernel.numba import numba_kernel

X = np.arange(5, dtype=np.float32)
SEEN = []


def note(value):
    SEEN.append(value)


@numba.njit
def observed(x, out):
    with objmode():
        note(float(x.flat[0]))
    for i in range(x.size):
        out.flat[i] = x.flat[i] + 1


def same(x):
    return x


run = numba_kernel(observed, outs=same, has_side_effect=True)
pure = numba_kernel(observed, outs=same)
operator = XLACustomKernel("test_side_effects", has_side_effect=True)
operator.def_numba_kernel(lambda outs: numba_kernel(observed, outs=outs[0], has_side_effect=True))
RUNS = {"kernel": run, "operator": lambda x: operator(x, outs=jax.ShapeDtypeStruct(x.shape, x.dtype))}
BOTH = pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)


def seen_by(program, *args):
    """Return what the kernel noted while the program ran."""
    program = jax.jit(program).lower(*args).compile()
    SEEN.clear()
    jax.block_until_ready(program(*args))
    jax.effects_barrier()
    return list(SEEN)


@BOTH
def test_a_call_whose_result_is_unused(run):
    assert seen_by(lambda x: (run(x), x)[1], X) == [0]
    assert seen_by(lambda x: (run(x), run(x), x)[2], X) == [0, 0]
    assert seen_by(lambda x: (pure(x), x)[1], X) == []


@BOTH
def test_equal_calls(run):
    assert seen_by(lambda x: run(x) + run(x), X) == [0, 0]


@BOTH
def test_a_loop(run):
    assert seen_by(lambda x: jax.lax.fori_loop(0, 4, lambda _, c: run(c), x), X) == [0, 1, 2, 3]
    assert seen_by(lambda x: jax.lax.fori_loop(0, 4, lambda _, c: (run(c), c)[1], x), X) == [0] * 4
    assert seen_by(lambda x: jax.lax.scan(lambda c, _: (c + 1, (run(c), None)[1]), x, length=3)[0], X) == [0, 1, 2]
    assert seen_by(lambda x: jax.lax.while_loop(lambda c: c[0] < 3, run, x), X) == [0, 1, 2]
    assert seen_by(lambda x: jax.lax.scan(lambda c, _: (run(c), None), x, length=0)[0], X) == []
    assert seen_by(lambda x: jax.lax.scan(lambda c, _: (run(c), None), x, length=5, unroll=2)[0], X) == [*range(5)]


@BOTH
def test_a_loop_runs_as_often_as_its_condition(run):
    """The kernel stands in the condition."""
    assert seen_by(lambda x: jax.lax.while_loop(lambda c: run(c)[0] < 4, lambda c: c + 1, x), X) == [0, 1, 2, 3]


@BOTH
def test_branches(run):
    def program(flag, x):
        return jax.lax.cond(flag, lambda x: (run(x), x)[1], lambda x: x, x)

    assert seen_by(program, True, X) == [0]
    assert seen_by(program, False, X) == []
    for i in range(3):
        assert len(seen_by(lambda i, x: jax.lax.switch(i, [same, run, lambda x: run(run(x))], x), i, X)) == i


@BOTH
def test_the_slices_of_a_batch_run_in_order(run):
    x = np.arange(6, dtype=np.float32).reshape(6, 1)
    assert seen_by(jax.vmap(run), x) == [0, 1, 2, 3, 4, 5]
    assert seen_by(lambda x: (jax.vmap(run)(x), x)[1], x) == [0, 1, 2, 3, 4, 5]
    assert seen_by(jax.vmap(jax.vmap(run)), x.reshape(2, 3, 1)) == [0, 1, 2, 3, 4, 5]
    assert seen_by(jax.vmap(run), x[:0]) == []


def test_a_batch_of_branches_runs_both():
    """JAX turns a branch on a mapped flag into a selection, which has no effects in it."""
    flags = np.array([True, False, True])
    x = np.arange(3, dtype=np.float32)[:, None]
    program = jax.vmap(lambda flag, x: jax.lax.cond(flag, pure, same, x))
    assert_array_equal(jax.jit(program)(flags, x), x + flags[:, None])


@BOTH
def test_checkpoint(run):
    """It runs once, also where its result is computed again on the way back: its input is not differentiated."""

    def loss(x):
        return (jnp.sin(run(jax.lax.stop_gradient(x)) * x)).sum()

    assert seen_by(jax.checkpoint(loss), X) == [0]
    assert seen_by(jax.grad(jax.checkpoint(loss)), X) == [0]
    kept = jax.checkpoint(loss, policy=jax.checkpoint_policies.everything_saveable)
    assert seen_by(jax.grad(kept), X) == [0]
    assert seen_by(jax.grad(loss), X) == [0]


def test_a_call_with_a_derivative_runs_once():
    derived = numba_kernel(observed, outs=same, has_side_effect=True, reference=lambda x: x + 1)
    assert seen_by(jax.value_and_grad(lambda x: derived(x).sum()), X) == [0]
    assert seen_by(jax.grad(lambda x: derived(x).sum()), X) == [0]
    assert seen_by(lambda x: jax.jvp(derived, (x,), (x,)), X) == [0]
    loop = jax.grad(lambda x: jax.lax.scan(lambda c, _: (derived(c), None), x, length=3)[0].sum())
    assert seen_by(loop, X) == [0, 1, 2]
    rows = np.arange(3, dtype=np.float32)[:, None]
    assert seen_by(jax.vmap(jax.grad(lambda x: derived(x).sum())), rows) == [0, 1, 2]


def test_without_jit_too():
    SEEN.clear()
    run(X).block_until_ready()
    with jax.disable_jit():
        run(X).block_until_ready()
        jax.lax.fori_loop(0, 2, lambda _, c: run(c), jnp.asarray(X)).block_until_ready()
    assert SEEN == [0, 0, 0, 1]


def test_kernels_beside_a_callback():
    def program(x):
        y = jax.pure_callback(lambda v: np.asarray(v) + 1, jax.ShapeDtypeStruct(x.shape, x.dtype), run(x))
        return run(y)

    SEEN.clear()
    assert_array_equal(jax.jit(program)(X), X + 3)
    jax.effects_barrier()
    assert SEEN == [0, 2]
