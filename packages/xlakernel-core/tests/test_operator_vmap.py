"""An operator under jax.vmap, alone and with derivatives: every slice is as if it had been called by itself."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.interpreters import ad
from numpy.testing import assert_allclose, assert_array_equal

Struct = jax.ShapeDtypeStruct
pytestmark = pytest.mark.usefixtures("x64")


def random(*shape):
    return np.random.default_rng(sum(shape)).uniform(0.5, 2.0, shape)


def coupled(a, x):
    """Everything in the results depends on everything in the inputs, so a mixed-up slice shows."""
    return jnp.tanh(a @ x / x.sum()), jnp.cumsum(x)[::-1] * a.max()


@pytest.fixture
def mix(new_operator):
    """`coupled` as an operator, with a kernel for the shapes of one slice; differentiable once."""
    op = new_operator()

    def generator(outs):
        def kernel(a, x):
            assert (a.shape, x.shape) == ((*outs[0].shape, *outs[1].shape), outs[1].shape)
            return coupled(a, x)

        return kernel

    def rule(primals, tangents, **params):
        tangents = tuple(map(ad.instantiate_zeros, tangents))
        return op.primitive.bind(*primals, **params), jax.jvp(coupled, tuple(primals), tangents)[1]

    op.def_jax_kernel(generator)
    op.def_jvp_rule(rule)
    return lambda a, x: op(a, x, outs=(Struct(a.shape[:1], a.dtype), Struct(x.shape, x.dtype)))


@pytest.fixture
def product(new_operator):
    """Matrix times vector, differentiable in both ways and any number of times."""
    op = new_operator(jnp.dot)

    def transpose(cotangents, a, x, **params):
        if ad.is_undefined_primal(x):
            return None, a.T @ cotangents[0]
        return jnp.outer(cotangents[0], x), None

    op.def_jvp_rule2(
        lambda tangent, a, x, **params: op.primitive.bind(tangent, x, **params),
        lambda tangent, a, x, **params: op.primitive.bind(a, tangent, **params),
    )
    op.def_transpose_rule(transpose)
    return lambda a, x: op(a, x, outs=Struct(a.shape[:1], a.dtype))


def same(transform, f, reference, *ins):
    """Check that *transform* makes the same of both, and return it; one program for the two is one compilation."""
    found, expected = jax.jit(lambda *ins: (transform(f)(*ins), transform(reference)(*ins)))(*ins)
    jax.tree.map(functools.partial(assert_allclose, rtol=1e-10), found, expected)
    return found


def with_batch(shape, axis, size):
    """Return an array with a batch of *size* at *axis* of the whole; None: without."""
    return random(*shape) if axis is None else random(*np.insert(shape, axis % (len(shape) + 1), size))


AXES = [(0, 0), (1, 0), (2, 1), (-2, -1), (-3, 1), (0, None), (None, 0), (None, -1), (1, None)]


@pytest.mark.parametrize("axes", AXES, ids=str)
def test_each_slice_by_itself(mix, axes):
    a, x = with_batch((2, 3), axes[0], 4), with_batch((3,), axes[1], 4)
    found = same(lambda f: jax.vmap(f, axes), mix, coupled, a, x)
    one = mix(*(value if axis is None else np.take(value, 2, axis) for value, axis in zip((a, x), axes, strict=True)))
    jax.tree.map(assert_allclose, [leaf[2] for leaf in found], list(one))


def test_without_jit(mix):
    a, x = random(4, 2, 3), random(3)
    found = jax.vmap(mix, (0, None))(a, x)
    assert_allclose(found[0], np.tanh(a @ x / x.sum()))
    assert_allclose(found[1], np.cumsum(x)[::-1] * a.max((1, 2))[:, None])


@pytest.mark.parametrize("size", [0, 1])
@pytest.mark.parametrize("axes", [(0, 0), (None, 0), (-1, None)], ids=str)
def test_a_batch_of_0_or_1(mix, axes, size):
    found = same(
        lambda f: jax.vmap(f, axes), mix, coupled, with_batch((2, 3), axes[0], size), with_batch((3,), axes[1], size)
    )
    assert [leaf.shape for leaf in found] == [(size, 2), (size, 3)]


@pytest.mark.parametrize(
    ("outer", "inner"),
    [((0, None), (0, 0)), ((None, 0), (-1, None)), ((-1, -1), (None, 1)), ((1, 0), (0, 1)), ((None, 0), (None, 0))],
    ids=str,
)
def test_nested(mix, outer, inner):
    ins = [
        with_batch(with_batch(shape, own, 4).shape, above, 5)
        for shape, own, above in zip(((2, 3), (3,)), inner, outer, strict=True)
    ]
    same(lambda f: jax.vmap(jax.vmap(f, inner), outer), mix, coupled, *ins)


def test_three_levels(mix):
    def transform(f):
        return jax.vmap(jax.vmap(jax.vmap(f, (None, -1)), (None, 0)), (0, None))

    found = same(transform, mix, coupled, random(4, 2, 3), random(5, 3, 6))
    assert found[0].shape == (4, 5, 6, 2)


def test_out_axes(mix):
    same(lambda f: jax.vmap(f, (None, 0), (1, -1)), mix, coupled, random(2, 3), random(4, 3))


def test_beside_a_call_without_inputs(new_operator):
    op = new_operator(lambda: jnp.arange(3.0))
    found = jax.vmap(lambda y: op(outs=Struct((3,), jnp.float64)) + y)(jnp.arange(2.0))
    assert_array_equal(found, [[0, 1, 2], [1, 2, 3]])


def test_in_scan(mix):
    def transform(f):
        return jax.vmap(lambda a, x: jax.lax.scan(lambda c, _: f(a, c)[::-1], x, length=3), (None, 0))

    same(transform, mix, coupled, random(2, 3), random(4, 3))


# With derivatives.


def total(f):
    return lambda *ins: sum(jnp.sum(jnp.sin(leaf)) for leaf in jax.tree.leaves(f(*ins)))


DERIVATIVES = {
    "grad": lambda f: jax.grad(total(f), (0, 1)),
    "jacfwd": lambda f: jax.jacfwd(f, (0, 1)),
    "jvp": lambda f: lambda a, x: jax.jvp(f, (a, x), (jnp.cos(a), jnp.cos(x))),
    "jvp of one input": lambda f: lambda a, x: jax.jvp(lambda x: f(a, x), (x,), (jnp.cos(x),)),
}
REVERSE = {
    "grad": lambda f: jax.grad(total(f), (0, 1)),
    "jacrev": lambda f: jax.jacrev(f, (0, 1)),
    "hessian": lambda f: jax.hessian(total(f), (0, 1)),
}
every_way = pytest.mark.parametrize("axes", [(0, 0), (-1, None), (None, 1)], ids=str)


def inputs(axes):
    return with_batch((2, 3), axes[0], 4), with_batch((3,), axes[1], 4)


@every_way
@pytest.mark.parametrize("derive", DERIVATIVES.values(), ids=DERIVATIVES)
def test_vmap_of_derivatives(mix, derive, axes):
    same(lambda f: jax.vmap(derive(f), axes), mix, coupled, *inputs(axes))


@every_way
@pytest.mark.parametrize("derive", REVERSE.values(), ids=REVERSE)
def test_vmap_of_derivatives_of_a_linear_operator(product, derive, axes):
    same(lambda f: jax.vmap(derive(f), axes), product, jnp.dot, *inputs(axes))


@every_way
@pytest.mark.parametrize("derive", DERIVATIVES.values(), ids=DERIVATIVES)
def test_derivatives_of_vmap(mix, derive, axes):
    same(lambda f: derive(jax.vmap(f, axes)), mix, coupled, *inputs(axes))


@every_way
@pytest.mark.parametrize("derive", REVERSE.values(), ids=REVERSE)
def test_derivatives_of_vmap_of_a_linear_operator(product, derive, axes):
    same(lambda f: derive(jax.vmap(f, axes)), product, jnp.dot, *inputs(axes))


def test_derivatives_of_nested_vmaps(product):
    def transform(f):
        return jax.grad(total(jax.vmap(jax.vmap(f, (None, 1)), (0, None))), (0, 1))

    same(transform, product, jnp.dot, random(4, 2, 3), random(3, 5))


@pytest.mark.parametrize("axes", [(0, 0), (None, 0), (0, None)], ids=str)
def test_linear_transpose_of_vmap(product, axes):
    a, x = inputs(axes)
    y = random(4, 2)
    same(lambda f: jax.linear_transpose(lambda x: jax.vmap(f, axes)(a, x), x), product, jnp.dot, y)
    same(lambda f: jax.linear_transpose(lambda a: jax.vmap(f, axes)(a, x), a), product, jnp.dot, y)


def test_vmap_of_a_gradient_beside_an_integer_result(new_operator):
    op = new_operator(lambda x: (x * x, x.argmax().astype(jnp.int32)))

    def rule(primals, tangents, **params):
        index = ad.Zero(jax.core.ShapedArray((), jax.dtypes.float0))
        return op.primitive.bind(*primals, **params), [2 * primals[0] * tangents[0], index]

    op.def_jvp_rule(rule)

    def f(x):
        square, index = op(x, outs=(Struct((3,), jnp.float64), Struct((), jnp.int32)))
        return (square * (1 + index)).sum()

    x = random(4, 3)
    expected = 2 * x * (1 + x.argmax(1)[:, None])
    assert_allclose(jax.jit(jax.vmap(jax.grad(f)))(x), expected)
    assert_allclose(jax.jit(jax.grad(lambda x: jax.vmap(f)(x).sum()))(x), expected)
