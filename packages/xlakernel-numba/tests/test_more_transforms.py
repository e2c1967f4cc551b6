"""Kernels under further transformations of JAX: custom rules, tracing alone, unusual inputs, aliases."""

import functools

import jax
import jax.numpy as jnp
import numba
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from xlakernel.core import XLACustomKernel
from xlakernel.numba import numba_kernel

X = np.arange(5, dtype=np.float32)
Struct = jax.ShapeDtypeStruct


@numba.njit
def cube(x, out):
    for index in np.ndindex(x.shape):
        out[index] = x[index] * x[index] * x[index]


@numba.njit
def two(x, y, product, total):
    for i in range(x.size):
        product[i] = x[i] * y[i]
        total[i] = x[i] + y[i]


def same(x, *_):
    return x


def cube_vjp(primals, _, cotangent):
    return (3 * primals[0] ** 2 * cotangent,)


CUBES = {
    "reference": numba_kernel(cube, outs=same, reference=lambda x: x**3),
    "vjp": numba_kernel(cube, outs=same, vjp=cube_vjp),
    "jvp": numba_kernel(cube, outs=same, jvp=lambda primals, tangents: 3 * primals[0] ** 2 * tangents[0]),
}
run_cube = CUBES["reference"]
EACH = pytest.mark.parametrize("run", CUBES.values(), ids=CUBES)


# Saving and computing again


@EACH
@pytest.mark.parametrize(
    "policy",
    [None, "everything_saveable", "nothing_saveable", "dots_saveable", "dots_with_no_batch_dims_saveable"],
)
def test_checkpoint_policies(run, policy):
    policy = policy and getattr(jax.checkpoint_policies, policy)
    loss = jax.checkpoint(lambda x: jnp.sin(run(jnp.cos(x))).sum(), policy=policy)
    expected = jax.grad(lambda x: jnp.sin(jnp.cos(x) ** 3).sum())(X)
    for gradient in (jax.grad(loss), jax.jit(jax.grad(loss))):
        assert_allclose(gradient(X), expected, rtol=1e-5, atol=1e-6)
    assert_allclose(jax.vmap(jax.grad(loss))(np.stack([X, X + 1]))[0], expected, rtol=1e-5, atol=1e-6)
    loop = jax.grad(lambda x: jax.lax.scan(lambda c, _: (loss(c) + c * 0, None), x, length=2)[0].sum())
    assert np.isfinite(loop(X)).all()


# Custom rules around and inside


@EACH
def test_custom_vmap_around(run):
    calls = []

    @jax.custom_batching.custom_vmap
    def f(x):
        return run(x)

    @f.def_vmap
    def rule(size, batched, x):
        calls.append(size)
        return run(x.ravel()).reshape(x.shape), batched[0]

    assert_array_equal(jax.vmap(f)(np.stack([X, X + 1])), np.stack([X, X + 1]) ** 3)
    assert_array_equal(f(X), X**3)
    assert calls == [2]


def test_custom_vmap_inside_a_derivative():
    @jax.custom_batching.custom_vmap
    def reference(x):
        return x**3

    reference.def_vmap(lambda size, batched, x: (x**3, batched[0]))
    run = numba_kernel(cube, outs=same, reference=lambda x: x**3, vmap_method="sequential")
    assert_array_equal(jax.vmap(lambda x: run(x) - reference(x))(np.stack([X, X])), np.zeros((2, 5)))
    assert_allclose(jax.jvp(lambda x: run(reference(x)), (X,), (np.ones_like(X),))[1], 9 * X**8, rtol=1e-5)


@EACH
def test_custom_vjp_around(run):
    @jax.custom_vjp
    def f(x, y):
        return run(x) + y

    f.defvjp(lambda x, y: (f(x, y), x), lambda x, ct: (7 * run(x) * ct, -ct))
    gradient = jax.grad(lambda x, y: f(x, y).sum(), (0, 1))
    for derive in (gradient, jax.jit(gradient), lambda x, y: [g[0] for g in jax.vmap(gradient)(x[None], y[None])]):
        found = derive(X, X)
        assert_allclose(found[0], 7 * X**3)
        assert_array_equal(found[1], -np.ones(5))


def test_closures_that_are_converted():
    y = jnp.asarray(X)
    converted, consts = jax.closure_convert(lambda x: run_cube(x) * y, jnp.asarray(X))
    assert_array_equal(converted(X, *consts), X**4)
    assert_allclose(jax.grad(lambda x: converted(x, *consts).sum())(X), 3 * X**3)


# Tracing


def test_shapes_and_tracing_without_running():
    struct = jax.eval_shape(jax.vmap(jax.grad(lambda x: run_cube(x).sum())), Struct((3, 5), jnp.float32))
    assert (struct.shape, struct.dtype) == ((3, 5), jnp.float32)
    traced = jax.jit(run_cube).trace(Struct((5,), jnp.float32))
    assert traced.out_info.shape == (5,)
    lowered = traced.lower()
    assert "cube" in lowered.as_text()
    compiled = lowered.compile()
    assert_array_equal(compiled(X), X**3)
    assert_array_equal(compiled(X + 1), (X + 1) ** 3)
    with pytest.raises(TypeError):
        compiled(X[:3])


def test_static_and_donated_arguments():
    @functools.partial(jax.jit, static_argnums=1, donate_argnums=0)
    def power(x, times):
        for _ in range(times):
            x = run_cube(x)
        return x

    for times in range(3):
        x = jnp.asarray(X) + 0
        assert_allclose(power(x, times), X ** (3**times), rtol=1e-6)
        assert times == 0 or x.is_deleted()


@EACH
def test_map_and_scans(run):
    x = np.stack([X, X + 1, X + 2, X + 3])
    assert_array_equal(jax.lax.map(run, x), x**3)
    assert_array_equal(jax.lax.map(run, x, batch_size=3), x**3)  # a rest of another size
    assert_allclose(jax.lax.associative_scan(lambda a, b: run(a) * 0 + a + b, x), np.cumsum(x, 0))
    assert_allclose(jax.grad(lambda x: jax.lax.map(CUBES["vjp"], x).sum())(x), 3 * x**2)


@EACH
def test_derivatives_through_switch_and_cond(run):
    def f(i, x):
        return jax.lax.switch(i, [run, lambda x: run(run(x)), jnp.sin], x).sum()

    for i, expected in enumerate([3 * X**2, 9 * X**8, np.cos(X)]):
        assert_allclose(jax.jit(jax.grad(f, 1))(i, X), expected, rtol=1e-5)
    expected = np.stack([3 * X**2, 9 * X**8, np.cos(X)])
    assert_allclose(jax.vmap(jax.grad(f, 1))(jnp.arange(3), np.stack([X] * 3)), expected, rtol=1e-5)


@EACH
def test_without_jit(run):
    with jax.disable_jit():
        assert_array_equal(run(X), X**3)
        assert_allclose(jax.grad(lambda x: run(x).sum())(X), 3 * X**2)
        assert_allclose(jax.vmap(jax.grad(lambda x: run(x).sum()))(np.stack([X, X])), [3 * X**2] * 2)
        assert_array_equal(jax.lax.scan(lambda c, x: (run(c), x), X, X[:1])[0], X**3)


@numba.njit
def zero(x, out):
    for i in range(x.size):
        out[i] = x[i] - x[i]  # NaN for what is infinite


ZERO = XLACustomKernel("zero", replace=True)
ZERO.def_numba_kernel(lambda outs: numba_kernel(zero, outs=outs[0]))


def zero_operator(x):
    return ZERO(x, outs=Struct(x.shape, x.dtype))


@pytest.mark.parametrize("jit", [lambda f: f, jax.jit], ids=["eager", "jit"])
@pytest.mark.parametrize(
    "run",
    [
        numba_kernel(zero, outs=same),
        numba_kernel(zero, outs=same, reference=lambda x: x - x),
        numba_kernel(zero, outs=same, transpose={0: lambda ins, ct: ct}),
        zero_operator,
    ],
    ids=["plain", "reference", "transpose", "operator"],
)
def test_nans_are_found_and_attributed_to_the_kernel(run, jit):
    with jax.debug_nans(True):
        assert_array_equal(jit(run)(X), 0 * X)
        with pytest.raises(FloatingPointError, match=r"nan.* encountered in zero"):
            jit(run)(np.full(3, np.inf, np.float32))


# Odd inputs


@pytest.mark.parametrize("value", [2, 2.0, np.float32(2), np.int8(2), True, 2j, np.array(2), jnp.float16(2)])
def test_scalars_of_all_kinds(value):
    expected = jnp.asarray(value)
    seen = []

    def outs(x):
        seen.append(x.dtype)
        return x

    run = numba_kernel(cube, outs=outs)
    if expected.dtype == jnp.bool_ or expected.dtype == jnp.float16:
        expected, value = expected.astype(jnp.float32), jnp.asarray(value).astype(jnp.float32)
    for call in (run, jax.jit(run), lambda x: jax.vmap(run)(jnp.stack([jnp.asarray(x)] * 2))[1]):
        out = call(value)
        assert out == expected**3
        assert out.dtype == expected.dtype
        assert not out.weak_type
    assert set(seen) == {expected.dtype}


def test_weak_types_do_not_spread():
    weak = jnp.asarray(2.0)
    assert weak.weak_type or jnp.ones(()).dtype == weak.dtype
    assert (run_cube(2.0) + jnp.float16(1)).dtype == jnp.float32
    assert jax.grad(run_cube)(2.0) == 12
    carry = jax.lax.fori_loop(0, 2, lambda _, c: run_cube(c), jnp.float32(1.5))
    assert_allclose(carry, 1.5**9, rtol=1e-6)


def test_symbolic_zeros():
    """Unused results have cotangents of zero, and constant inputs have tangents of zero."""
    seen = []

    def vjp(primals, results, cotangents):
        seen.append([type(ct).__name__ for ct in cotangents])
        x, y = primals
        return cotangents[0] * y + cotangents[1], cotangents[0] * x + cotangents[1]

    run = numba_kernel(two, outs=lambda x, y: (x, y), vjp=vjp)
    for used, expected in ((0, (X + 1, X)), (1, (np.ones(5), np.ones(5)))):
        found = jax.grad(lambda x, y, used=used: run(x, y)[used].sum(), (0, 1))(X, X + 1)
        for one, other in zip(found, expected, strict=True):
            assert_array_equal(one, other)
    assert_array_equal(jax.grad(lambda x: run(x, X)[0].sum())(X), X)
    assert_array_equal(jax.grad(lambda x: run(X, X)[0].sum() + x.sum())(X), np.ones(5))
    assert seen

    def jvp(primals, tangents):
        x, y = primals
        return x * tangents[1] + y * tangents[0], tangents[0] + tangents[1]

    forward = numba_kernel(two, outs=lambda x, y: (x, y), jvp=jvp)
    assert_array_equal(jax.jvp(lambda x: forward(x, X + 1), (X,), (np.ones_like(X),))[1], [X + 1, np.ones(5)])
    assert_array_equal(jax.grad(lambda x: forward(x, X + 1)[1].sum())(X), np.ones(5))


@jax.custom_vjp
def spike(x):
    return (x > 0).astype(x.dtype)


def spike_forward(x):
    return spike(x), x


def spike_backward(x, cotangent):
    return (cotangent / (1 + x * x),)


spike.defvjp(spike_forward, spike_backward)


@numba.njit
def spike_natively(x, out):
    for i in range(x.size):
        out[i] = 1.0 if x[i] > 0 else 0.0


@pytest.mark.parametrize("levels", [1, 2])
def test_a_batched_gradient_of_a_reference_with_a_rule_of_its_own(levels):
    """A surrogate gradient: JAX leaves the tangents of a `jax.custom_vjp` open in reverse mode."""
    run = numba_kernel(spike_natively, outs=lambda x: x, reference=spike)
    x = jnp.asarray(np.random.default_rng(0).normal(size=(4, 3, 5)[-1 - levels :]), "float32")

    def loss(f):
        for _ in range(levels):
            f = jax.vmap(f)
        return lambda x: (f(x) * x).sum()

    for found, expected in (
        (jax.grad(loss(run))(x), jax.grad(loss(spike))(x)),
        (jax.jit(jax.grad(loss(run)))(x), jax.grad(loss(spike))(x)),
        (jax.grad(lambda x: jax.grad(loss(run))(x).sum())(x), jax.grad(lambda x: jax.grad(loss(spike))(x).sum())(x)),
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-6)
