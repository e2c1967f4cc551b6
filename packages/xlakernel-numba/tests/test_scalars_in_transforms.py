"""Scalars with derivatives, over devices, in exported programs, and in functions for outs."""

import functools

import jax
import jax.numpy as jnp
import numba
import numpy as np
import pytest
from jax.sharding import PartitionSpec
from numpy.testing import assert_array_equal

from xlakernel.core import deserialize, export
from xlakernel.core.errors import ArityError, DifferentiationError, StaticArgumentError
from xlakernel.numba import numba_kernel

Struct = jax.ShapeDtypeStruct
X = np.arange(3, dtype=np.float32)


@numba.njit
def axpy_kernel(alpha, x, y, out):
    for i in range(out.size):
        out[i] = alpha * x[i] + y[i]


def reference(x, y, alpha):
    return alpha * x + y


def jvp(primals, tangents, alpha):
    return alpha * tangents[0] + tangents[1]


def vjp(primals, results, cotangents, alpha):
    return alpha * cotangents, cotangents


BY_TRANSPOSE = {"transpose": {(0, 1): lambda inputs, cotangents, alpha: (alpha * cotangents, cotangents)}}
DECLARED = [{"jvp": jvp}, {"vjp": vjp}, {"jvp": jvp, "vjp": vjp}, BY_TRANSPOSE]


def differentiable(**declared):
    return numba_kernel(axpy_kernel, outs=lambda x, y: x, **declared)


@pytest.mark.parametrize("besides", [{}, *DECLARED], ids=list)
def test_a_reference_has_the_derivative_in_a_scalar(besides):
    run = differentiable(reference=reference, **besides)
    for wrap in (lambda f: f, jax.jit):
        assert wrap(jax.grad(lambda a: run(X, X, alpha=a).sum()))(2.0) == X.sum()
        of_both = wrap(jax.grad(lambda x, a: run(x, X, alpha=a).sum(), (0, 1)))(X, 2.0)
        assert_array_equal(of_both[0], [2, 2, 2])
        assert of_both[1] == X.sum()
        tangent = wrap(lambda a: jax.jvp(lambda a: run(X, X, alpha=a), (a,), (jnp.float32(1),))[1])(2.0)
        assert_array_equal(tangent, X)
        mixed = wrap(jax.grad(lambda a: jax.grad(lambda x: run(x, X, alpha=a).sum())(X).sum()))(2.0)
        assert mixed == 3
    slices = jax.vmap(jax.grad(lambda a, x: run(x, x, alpha=a).sum()), (0, None))(X, X)
    assert_array_equal(slices, [3, 3, 3])


@pytest.mark.parametrize("declared", [{}, *DECLARED], ids=list)
def test_without_a_reference_there_is_no_derivative_in_a_scalar(declared):
    run = differentiable(**declared)
    for wrap in (lambda f: f, jax.jit):
        with pytest.raises(DifferentiationError, match=r"(?s)axpy_kernel: .*(scalar.*alpha|no derivative of its own)"):
            wrap(jax.grad(lambda a: run(X, X, alpha=a).sum()))(2.0)
        with pytest.raises(DifferentiationError):
            wrap(jax.grad(lambda x, a: run(x, X, alpha=a).sum(), (0, 1)))(X, 2.0)
        kept = wrap(lambda a: run(X, X, alpha=jax.lax.stop_gradient(a)))(2.0)
        assert_array_equal(kept, 3 * X)


@pytest.mark.parametrize("declared", DECLARED[1:], ids=list)
def test_rules_receive_known_numbers_as_numbers_and_traced_ones_as_tracers(declared):
    seen = []

    def noting(function):
        def noted(*args, alpha):
            seen.append(alpha)
            return function(*args, alpha=alpha)

        return noted

    noted = {way: {key: noting(f) for key, f in rule.items()} if way == "transpose" else noting(rule)
             for way, rule in declared.items()}  # fmt: skip
    run = differentiable(**noted)
    assert_array_equal(jax.grad(lambda x: run(x, X, alpha=3).sum())(X), [3, 3, 3])
    assert seen and all(type(alpha) is int and alpha == 3 for alpha in seen)
    seen.clear()
    assert_array_equal(jax.jit(jax.grad(lambda x, a: run(x, X, alpha=a).sum()))(X, 3), [3, 3, 3])
    assert seen and all(isinstance(alpha, jax.core.Tracer) for alpha in seen)


def test_integers_and_flags_have_no_derivative_and_need_none():
    run = differentiable(jvp=jvp, vjp=vjp)
    assert_array_equal(jax.grad(lambda x: jax.jit(lambda n: run(x, X, alpha=n))(2).sum())(X), [2, 2, 2])


def test_a_rule_splits_a_call_with_scalars_over_devices(make_mesh, put):
    mesh = make_mesh(a=4)
    run = numba_kernel(axpy_kernel, outs=lambda x, y: x, sharding_rule="i, i -> i")
    x = put(mesh, np.arange(8, dtype=np.float32), "a")
    split = jax.jit(run)
    for alpha in (2.0, np.float32(2), jnp.float32(2)):
        found = split(x, x, alpha=alpha)
        assert_array_equal(found, 3 * np.arange(8))
        assert found.sharding.is_equivalent_to(x.sharding, 1)
        assert_array_equal(jax.jit(lambda x, alpha=alpha: run(x, x, alpha=alpha))(x), 3 * np.arange(8))
    factors = jnp.arange(2.0)
    mapped = jax.jit(jax.vmap(lambda x, a: run(x, x, alpha=a), (None, 0)))(x, factors)
    assert_array_equal(mapped, [np.arange(8), 2 * np.arange(8)])
    inside = jax.shard_map(
        lambda x, a: run(x, x, alpha=a) + run(x, x, alpha=1.5),
        mesh=mesh,
        in_specs=(PartitionSpec("a"), PartitionSpec()),
        out_specs=PartitionSpec("a"),
    )
    assert_array_equal(jax.jit(inside)(x, jnp.float32(2)), 5.5 * np.arange(8))


def test_an_exported_program_takes_scalars(run_axpy):
    def program(x, alpha):
        return run_axpy(x, x, alpha=alpha) + run_axpy(x, x, alpha=1.5)

    blob = export(jax.jit(program))(X, np.float32(0)).serialize()
    assert_array_equal(deserialize(blob).call(X, np.float32(2)), 5.5 * X)


def test_outs_may_name_a_scalar_that_is_known():
    @numba.njit
    def first(x, k, out):
        for i in range(k):
            out[i] = x[i]

    for outs in (lambda x, k: Struct((k,), x.dtype), lambda x, *, k: Struct((k,), x.dtype)):
        run = numba_kernel(first, outs=outs)
        for k in (1, np.int32(2), jnp.int32(3)):
            assert_array_equal(run(X, k=k), X[: int(k)])
        assert_array_equal(jax.jit(run, static_argnames="k")(X, k=2), X[:2])
        assert_array_equal(jax.vmap(functools.partial(run, k=2))(X[None]), X[None, :2])
        with pytest.raises(StaticArgumentError, match=r"'k' is traced.*outs, or .* of this name.*static_argnames='k'"):
            jax.jit(run)(X, k=2)
        with pytest.raises(ArityError, match=r"first: outs is a function.*missing a required .*'k'"):
            run(X)


def test_outs_may_name_a_scalar_with_a_default():
    def padded(x, out, k=2):
        for i in range(out.size):
            out[i] = x[i] if i < x.size else k

    run = numba_kernel(numba.njit(padded), outs=lambda x, k: Struct((x.size + k,), x.dtype))
    assert_array_equal(run(X), [0, 1, 2, 2, 2])
    assert_array_equal(run(X, k=1), [0, 1, 2, 1])


def test_outs_that_name_an_input_like_a_scalar_leave_it_an_operand():
    run = numba_kernel(axpy_kernel, outs=lambda alpha, y: alpha)
    assert_array_equal(jax.jit(run)(X, X, alpha=2.0), 3 * X)
