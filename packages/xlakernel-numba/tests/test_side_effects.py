"""The number of runs of a kernel, which for a side effect equals the number of calls in the program."""

import jax
import jax.numpy as jnp
import numba
import numpy as np
import pytest
from numba import objmode
from numpy.testing import assert_array_equal

from xlakernel.core import XLACustomKernel, deserialize, export
from xlakernel.core.errors import DifferentiationError, GeneratorError, SideEffectError
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
    """Return the records of the kernel during the run of a program."""
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
    """The kernel is called in the condition."""
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


FLAGS = np.array([True, False, True, False])
COUNTS = np.array([1, 0, 3, 0])
SLICES = np.arange(4, dtype=np.float32)[:, None]
linear = numba_kernel(observed, outs=same, has_side_effect=True, transpose={0: lambda inputs, ct: ct})
derived = numba_kernel(observed, outs=same, has_side_effect=True, reference=lambda x: x + 1)
REFUSED = {
    "cond": lambda run: lambda flag, count, x: jax.lax.cond(flag, run, same, x),
    "the other branch": lambda run: lambda flag, count, x: jax.lax.cond(flag, same, run, x),
    "switch": lambda run: lambda flag, count, x: jax.lax.switch(count, [same, same, same, run], x),
    "unused": lambda run: lambda flag, count, x: jax.lax.cond(flag, lambda x: (run(x), x)[1], same, x),
    "jit": lambda run: jax.jit(lambda flag, count, x: jax.lax.cond(flag, jax.jit(run), same, x)),
    "operands that are not mapped": lambda run: lambda flag, count, x: jax.lax.cond(flag, run, same, jnp.ones(1)),
    "a loop in a branch": lambda run: (
        lambda flag, count, x: jax.lax.cond(flag, lambda x: jax.lax.fori_loop(0, 2, lambda _, x: run(x), x), same, x)
    ),
    "a batch in a branch": lambda run: (
        lambda flag, count, x: jax.lax.cond(flag, lambda x: jax.vmap(run)(x[None])[0], same, x)
    ),
    "a branch in a loop": lambda run: (
        lambda flag, count, x: jax.lax.fori_loop(0, 2, lambda i, x: jax.lax.cond(x[0] > i, run, same, x), x)
    ),
    "fori_loop": lambda run: lambda flag, count, x: jax.lax.fori_loop(0, count, lambda _, x: run(x), x),
    "while_loop": lambda run: lambda flag, count, x: jax.lax.while_loop(lambda x: x[0] < 3, run, x),
    "the condition": lambda run: lambda flag, count, x: jax.lax.while_loop(lambda x: run(x)[0] < 3, lambda x: x + 1, x),
    "a condition that becomes mapped": lambda run: (
        lambda flag, count, x: jax.lax.while_loop(
            lambda c: c[0] < 3, lambda c: (c[1], c[1] + 1, run(c[2])), (0.0, x[0], jnp.ones(1))
        )
    ),
    "checkpoint": lambda run: jax.checkpoint(lambda flag, count, x: jax.lax.cond(flag, run, same, x)),
}


@pytest.mark.parametrize("program", REFUSED.values(), ids=REFUSED)
@pytest.mark.parametrize("run", [*RUNS.values(), linear, derived], ids=[*RUNS, "linear", "derived"])
def test_a_batch_of_branches_is_refused(program, run):
    """JAX would run the kernel for every slice, and select the results of those that took the branch."""
    mapped = jax.vmap(program(run))
    with pytest.raises(SideEffectError, match=r"(cond|while_loop).* Map with jax\.lax\.map"):
        seen_by(mapped, FLAGS, COUNTS, SLICES)
    nested = jax.vmap(jax.vmap(program(run), (None, None, 0)))
    with pytest.raises(SideEffectError):
        jax.eval_shape(nested, FLAGS, COUNTS, np.stack([SLICES] * 4))


@BOTH
def test_each_slice_takes_its_branch_in_a_loop_over_slices(run):
    """This is the advice in the message."""

    def program(flags, x):
        return jax.lax.map(lambda both: jax.lax.cond(both[0], run, same, both[1]), (flags, x))

    assert seen_by(program, FLAGS, SLICES) == [0, 2]


@BOTH
def test_a_batch_takes_one_branch_together(run):
    """The flag, or the condition, is the same for all slices."""

    def branch(flag, x):
        return jax.lax.cond(flag, run, same, x)

    for flag, seen in ((True, [0, 1, 2, 3]), (False, [])):
        assert seen_by(jax.vmap(branch, (None, 0)), flag, SLICES) == seen
    loop = jax.vmap(lambda x: jax.lax.fori_loop(0, 2, lambda _, x: run(x), x))
    assert seen_by(loop, SLICES) == [0, 1, 2, 3, 1, 2, 3, 4]
    loop = jax.vmap(lambda n, x: jax.lax.fori_loop(0, n, lambda _, x: run(x), x), (None, 0))
    assert seen_by(loop, 2, SLICES) == [0, 1, 2, 3, 1, 2, 3, 4]
    nested = jax.vmap(jax.vmap(branch, (None, 0)), (None, 0))
    assert seen_by(nested, True, SLICES.reshape(2, 2, 1)) == [0, 1, 2, 3]
    scanned = jax.vmap(lambda x: jax.lax.scan(lambda x, flag: (branch(flag, x), None), x, FLAGS)[0])
    assert seen_by(scanned, SLICES[:2]) == [0, 1, 1, 2]
    platform = jax.vmap(lambda x: jax.lax.platform_dependent(x, cpu=run, default=same))
    assert seen_by(platform, SLICES) == [0, 1, 2, 3]


def test_a_batch_of_branches_runs_both():
    """JAX turns a branch on a mapped flag into a selection, which has no effects in it."""
    flags = np.array([True, False, True])
    x = np.arange(3, dtype=np.float32)[:, None]
    program = jax.vmap(lambda flag, x: jax.lax.cond(flag, pure, same, x))
    assert_array_equal(jax.jit(program)(flags, x), x + flags[:, None])


@BOTH
def test_checkpoint(run):
    """It runs once, although its result is recomputed in the backward pass, because its input is constant."""

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
    branch = jax.grad(lambda x, flag: jax.lax.cond(flag, derived, same, x).sum())
    assert [seen_by(branch, X, flag) for flag in (True, False)] == [[0], []]
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


def test_a_program_with_side_effects_is_exported():
    """JAX serializes only effects that equal a new one of their class."""

    @numba.njit
    def plus_one(x, out):
        for i in range(x.size):
            out[i] = x[i] + 1

    noted = numba_kernel(plus_one, outs=same, has_side_effect=True)
    program = deserialize(export(jax.jit(noted))(X).serialize())
    assert_array_equal(program.call(X), X + 1)


def test_an_operator_without_the_effect_of_its_kernel_is_refused():
    unsuitable = XLACustomKernel("test_side_effects_unsuitable")
    unsuitable.def_numba_kernel(lambda outs: numba_kernel(observed, outs=outs[0], has_side_effect=True))
    outs = jax.ShapeDtypeStruct(X.shape, X.dtype)
    for call in (unsuitable, jax.jit(lambda x, **static: unsuitable(x, **static), static_argnames="outs")):
        with pytest.raises(GeneratorError, match=r"unsuitable: .*XLACustomKernel\(.*, has_side_effect=True\)"):
            call(X, outs=outs)


def test_an_operator_is_refused_also_where_its_kernel_was_traced_before():
    traced = jax.jit(run)
    traced(X)
    unsuitable = XLACustomKernel("test_side_effects_traced_before")
    unsuitable.def_numba_kernel(lambda outs: traced)
    with pytest.raises(GeneratorError, match=r"traced_before: its kernel .*observed"):
        unsuitable(X, outs=jax.ShapeDtypeStruct(X.shape, X.dtype))


@pytest.mark.parametrize("method", ["sequential", "sequential_unrolled", "native"])
def test_slices_run_in_order(method):
    in_order = numba_kernel(observed, outs=same, has_side_effect=True, vmap_method=method)
    assert seen_by(jax.vmap(in_order), np.arange(6, dtype=np.float32)) == [0, 1, 2, 3, 4, 5]


@BOTH
def test_a_program_for_several_devices_is_refused(run):
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]), "a")
    spread = jax.device_put(np.zeros(4, np.float32), jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("a")))
    with pytest.raises(SideEffectError, match=r"observed: .*several devices.*jax\.shard_map"):
        jax.jit(run)(spread)


@numba.njit
def observed_double(x, out):
    with objmode():
        note(float(x.flat[0]))
    for i in range(x.size):
        out.flat[i] = 2 * x.flat[i]


FORWARD = {
    "jvp": lambda f: jax.jvp(f, (X + 5,), (X,))[1],
    "linearize": lambda f: jax.linearize(f, X + 5)[1](X),
    "hessian": lambda f: jax.hessian(lambda x: (f(x) ** 2).sum())(X + 5),
}
DECLARED = {
    "reference": {"reference": lambda x: 2 * x},
    "jvp": {"jvp": lambda primals, tangents: 2 * tangents[0], "vjp": lambda primals, results, out_bar: 2 * out_bar},
}


@pytest.mark.parametrize("mode", FORWARD)
@pytest.mark.parametrize("declared", DECLARED)
def test_forward_mode_runs_the_kernel_once(mode, declared):
    run = numba_kernel(observed_double, outs=same, has_side_effect=True, **DECLARED[declared])
    SEEN.clear()
    jax.block_until_ready(FORWARD[mode](run))
    jax.effects_barrier()
    assert SEEN == [5]


@pytest.mark.parametrize("mode", FORWARD)
@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit, lambda f: lambda x: jax.vmap(f)(x[None])[0]])
def test_forward_mode_of_a_linear_kernel_is_refused(mode, wrap):
    run = numba_kernel(
        observed_double, outs=same, has_side_effect=True, transpose={0: lambda inputs, out_bar: 2 * out_bar}
    )
    with pytest.raises(DifferentiationError, match="would repeat the side effect"):
        jax.block_until_ready(FORWARD[mode](wrap(run)))
    assert seen_by(jax.grad(lambda x: wrap(run)(x).sum()), X + 5) == [5]


def test_forward_mode_of_a_linear_operator_is_refused():
    linear = XLACustomKernel("test_linear_side_effect", has_side_effect=True)
    linear.def_numba_kernel(lambda outs: numba_kernel(observed_double, outs=outs[0], has_side_effect=True))
    linear.def_transpose(0, lambda inputs, out_bar: 2 * out_bar)

    def call(x):
        return linear(x, outs=jax.ShapeDtypeStruct(x.shape, x.dtype))

    with pytest.raises(DifferentiationError, match="def_transpose, for its tangents"):
        jax.jvp(call, (X,), (X,))
    assert seen_by(jax.grad(lambda x: call(x).sum()), X + 5) == [5]
