"""Arguments and results of declared derivatives: dtypes, shapes, several results, static scalars, aliases."""

import collections

import jax
import jax.numpy as jnp
import numba
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from xlakernel.numba import numba_kernel

pytestmark = pytest.mark.slow

X = np.array([0.5, -1.5, 2.0])


def first(x, *_):
    return x


@numba.njit
def cube(x, out):
    for index in np.ndindex(x.shape):
        out[index] = x[index] * x[index] * x[index]


def cube_reference(x):
    return x * x * x


CUBE = {
    "reference": {"reference": cube_reference},
    "jvp": {"jvp": lambda primals, tangents: 3 * primals[0] ** 2 * tangents[0]},
    "jvp and vjp": {
        "jvp": lambda primals, tangents: 3 * primals[0] ** 2 * tangents[0],
        "vjp": lambda primals, out, out_bar: (3 * primals[0] ** 2 * out_bar,),
    },
    "vjp": {"vjp": lambda primals, out, out_bar: 3 * primals[0] ** 2 * out_bar},  # of one input no tuple is needed
}
run_cube = {way: numba_kernel(cube, outs=first, **declared) for way, declared in CUBE.items()}
EACH_WAY = pytest.mark.parametrize("way", CUBE)


@EACH_WAY
@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16, jnp.float32, jnp.float64], ids=lambda d: d.__name__)
@pytest.mark.parametrize("shape", [(), (3,), (0,), (2, 0), (1, 2, 2)], ids=str)
def test_real_dtypes_and_shapes(way, dtype, shape, x64):
    x = jnp.asarray(np.random.default_rng(0).integers(-4, 5, shape) / 2, dtype)
    found = jax.jit(jax.grad(lambda x: run_cube[way](x).sum()))(x)
    assert (found.shape, found.dtype) == (x.shape, dtype)
    assert_array_equal(found, 3 * x**2)  # small halves: exact in every dtype
    if way != "vjp":
        tangent = jax.jvp(run_cube[way], (x,), (jnp.ones_like(x),))[1]
        assert tangent.dtype == dtype
        assert_array_equal(tangent, 3 * x**2)


@EACH_WAY
@pytest.mark.parametrize("dtype", [np.complex64, np.complex128], ids=lambda d: d.__name__)
def test_complex_numbers(way, dtype, x64):
    x = (X + 1j * X[::-1]).astype(dtype)
    found = jax.grad(lambda x: run_cube[way](x).sum(), holomorphic=True)(x)
    assert found.dtype == dtype
    assert_allclose(found, 3 * x**2, rtol=1e-5)

    def loss(f):
        return jax.grad(lambda x: jnp.abs(f(x)).sum())

    assert_allclose(loss(run_cube[way])(x), loss(cube_reference)(x), rtol=1e-5)


@numba.njit
def modulus(z, out):
    for i in range(z.size):
        out[i] = z[i].real ** 2 + z[i].imag ** 2


def test_a_real_result_of_complex_numbers(x64):
    run = numba_kernel(
        modulus,
        outs=lambda z: jax.ShapeDtypeStruct(z.shape, np.float64),
        vjp=lambda primals, out, out_bar: 2 * primals[0].conj() * out_bar,
        reference=lambda z: (z * z.conj()).real,
    )
    z = X + 1j
    assert_allclose(jax.grad(lambda z: run(z).sum())(z), 2 * z.conj())
    assert_allclose(jax.jvp(run, (z,), (1j * z,))[1], 0 * X, atol=1e-12)


# Several results, integers among them.


@numba.njit
def describe(x, weight, largest, where, total):
    best = 0
    s = 0.0
    for i in range(x.size):
        if x[i] > x[best]:
            best = i
        s += weight[i] * x[i]
    largest[()], where[()], total[()] = x[best], best, s


def describe_outs(x, weight):
    scalar = jax.ShapeDtypeStruct((), x.dtype)
    return scalar, jax.ShapeDtypeStruct((), np.int32), scalar


def describe_jvp(primals, tangents):
    (x, weight), (x_dot, weight_dot) = primals, tangents
    return x_dot[x.argmax()], None, weight_dot @ x + weight @ x_dot


def describe_vjp(primals, results, cotangents):
    (x, weight), (_, where, _) = primals, results
    largest_bar, where_bar, total_bar = cotangents
    assert where_bar is None
    return (weight * total_bar).at[where].add(largest_bar), x * total_bar


def describe_reference(x, weight):
    return x.max(), x.argmax().astype(np.int32), weight @ x


DESCRIBE = {
    "reference": {"reference": describe_reference},
    "jvp": {"jvp": describe_jvp},
    "vjp": {"vjp": describe_vjp},
    "jvp and vjp": {"jvp": describe_jvp, "vjp": describe_vjp},
    "all": {"jvp": describe_jvp, "vjp": describe_vjp, "reference": describe_reference},
}
WEIGHT = np.array([1.0, 2.0, 4.0])
LOSSES = {
    "the first result": lambda f: lambda x, w: f(x, w)[0],
    "the last result": lambda f: lambda x, w: f(x, w)[2],
    "both": lambda f: lambda x, w: f(x, w)[0] * f(x, w)[2],
    "through the integer": lambda f: lambda x, w: x[f(x, w)[1]] * w.sum(),
    "through none": lambda f: lambda x, w: f(x, w)[1] * x.sum(),
}


@pytest.mark.parametrize("way", DESCRIBE)
@pytest.mark.parametrize("loss", LOSSES)
def test_mixed_results(way, loss, x64):
    run, loss = numba_kernel(describe, outs=describe_outs, **DESCRIBE[way]), LOSSES[loss]
    for wrap in (lambda f: f, lambda f: lambda x, w: jax.vmap(f, (0, None))(jnp.stack([x, -x]), w).sum()):
        found, expected = (jax.grad(wrap(loss(f)), (0, 1))(X, WEIGHT) for f in (run, describe_reference))
        jax.tree.map(assert_allclose, found, expected)


@pytest.mark.parametrize("way", [way for way in DESCRIBE if way != "vjp"])
def test_an_integer_result_has_a_tangent_without_a_value(way, x64):
    run = numba_kernel(describe, outs=describe_outs, **DESCRIBE[way])
    results, tangents = jax.jvp(run, (X, WEIGHT), (X, WEIGHT))
    assert_allclose(results, (2.0, 2, X @ WEIGHT))
    assert tangents[1].dtype == jax.dtypes.float0
    assert_allclose(tangents[::2], (2.0, 2 * X @ WEIGHT))


@numba.njit
def count(x, out):
    for i in range(x.size):
        out[i] = np.int32(x[i] > 0)


@pytest.mark.parametrize(
    "declared",
    [
        {"reference": lambda x: (x > 0).astype(np.int32)},
        {"jvp": lambda primals, tangents: None},
        {"vjp": lambda primals, out, out_bar: (None,)},
    ],
    ids=lambda declared: next(iter(declared)),
)
def test_nothing_but_integer_results(declared):
    run = numba_kernel(count, outs=lambda x: jax.ShapeDtypeStruct(x.shape, np.int32), **declared)
    x = X.copy()  # JAX 0.12 may remember for an array itself that it was one of 64 bits under `enable_x64`
    assert_array_equal(jax.grad(lambda x: (run(x) * x).sum())(x), X > 0)


Pair = collections.namedtuple("Pair", "down up")


@numba.njit
def both_ways(x, up, down):
    """Dictionaries are bound by these names, which JAX sorts differently."""
    for i in range(x.size):
        up[i], down[i] = x[i] * x[i], -5 * x[i]


TREES = {
    "dict": lambda up, down: {"up": up, "down": down},
    "tuple": lambda up, down: (up, down),
    "list": lambda up, down: [up, down],
    "named tuple": lambda up, down: Pair(up, down),
    "nested": lambda up, down: [(up,), [down]],
}


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("given", ["reference", "jvp", "vjp and reference"])
def test_results_in_a_pytree(tree, given, x64):
    tree = TREES[tree]

    def vjp(primals, results, cotangents):
        assert jax.tree.structure(results) == jax.tree.structure(cotangents) == jax.tree.structure(tree(0, 0))
        pair = (cotangents["up"], cotangents["down"]) if isinstance(cotangents, dict) else jax.tree.leaves(cotangents)
        up_bar, down_bar = pair
        return 2 * primals[0] * up_bar - 5 * down_bar

    declared = {
        "reference": lambda x: tree(x * x, -5 * x),
        "jvp": lambda primals, tangents: tree(2 * primals[0] * tangents[0], -5 * tangents[0]),
        "vjp": vjp,
    }
    run = numba_kernel(both_ways, outs=lambda x: tree(x, x), **{key: declared[key] for key in given.split(" and ")})
    found = jax.jacrev(run)(X)
    assert jax.tree.structure(found) == jax.tree.structure(tree(0, 0))
    jax.tree.map(assert_allclose, found, tree(np.diag(2 * X), -5 * np.eye(3)))


def test_a_tuple_may_stand_for_a_list(x64):
    run = numba_kernel(both_ways, outs=lambda x: (x, x), reference=lambda x: [x * x, -5 * x])
    assert_allclose(jax.jacfwd(run)(X)[1], -5 * np.eye(3))


# Static scalars.


@numba.njit
def shifted_power(x, out, n, shift=0.5, negate=False):
    for i in range(x.size):
        out[i] = (x[i] + shift) ** n * (-1 if negate else 1)


def power_reference(x, *, n, shift, negate):
    return (x + shift) ** n * (-1 if negate else 1)


def power_slope(x, n, shift, negate):
    assert (type(n), type(shift), type(negate)) == (int, float, bool)
    return n * (x + shift) ** (n - 1) * (-1 if negate else 1)


POWER = {
    "reference": {"reference": power_reference},
    "jvp": {"jvp": lambda primals, tangents, **static: power_slope(*primals, **static) * tangents[0]},
    "vjp": {"vjp": lambda primals, out, out_bar, **static: (power_slope(*primals, **static) * out_bar,)},
}


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64], ids=lambda d: d.__name__)
@pytest.mark.parametrize("way", POWER)
@pytest.mark.parametrize("static", [{"n": 3}, {"n": 2, "shift": 0.25}, {"n": 2, "negate": True}], ids=str)
def test_static_scalars_reach_the_rules_and_widen_nothing(way, dtype, static, x64):
    run = numba_kernel(shifted_power, outs=first, **POWER[way])
    x = X.astype(dtype)
    found = jax.grad(lambda x: run(x, **static).sum())(x)
    assert found.dtype == dtype
    assert_allclose(found, power_slope(x, **{"shift": 0.5, "negate": False, **static}), rtol=1e-3)


@numba.njit
def times(x, out, factor):
    for i in range(x.size):
        out[i] = factor * x[i]


@pytest.mark.parametrize("factor", [3, 2.5, True, np.float32(1.5), np.int8(-2)], ids=repr)
def test_static_scalars_of_a_linear_kernel(factor, x64):
    seen = []

    def transpose(inputs, out_bar, *, factor):
        seen.append(factor)
        return factor * out_bar

    run = numba_kernel(times, outs=first, transpose={0: transpose})
    found = jax.grad(lambda x: run(x, factor=factor).sum())(X.astype(np.float32))
    assert found.dtype == np.float32
    assert_array_equal(found, np.full(3, factor))
    assert [(type(value), value) for value in set(seen)] == [(type(factor), factor)]


def test_each_value_of_a_static_scalar_has_its_own_derivative(x64):
    run = numba_kernel(times, outs=first, reference=lambda x, *, factor: factor * x)
    for factor in (1, 1.0, -0.0, 0.0, 2):
        found = jax.grad(lambda x, factor=factor: run(x, factor=factor).sum())(X)
        assert_array_equal(found, np.full(3, factor))
        assert_array_equal(np.signbit(found), np.signbit(np.full(3, factor, float)))


# Python numbers, None, aliases, side effects.


@EACH_WAY
def test_weak_inputs(way):
    assert_allclose(jax.grad(run_cube[way])(2.0), 12)
    assert jax.grad(run_cube[way])(2.0).dtype == np.float32


@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=lambda d: d.__name__)
@pytest.mark.parametrize(
    "declared",
    [
        {"reference": lambda x: 7.0},
        {"jvp": lambda primals, tangents: 0},
        {"vjp": lambda primals, out, out_bar: 0.0},
        {"vjp": lambda primals, out, out_bar: (None,)},
        {"transpose": {0: lambda inputs, out_bar: 0.0}},
        {"transpose": {0: lambda inputs, out_bar: (None,)}},
    ],
    ids=lambda declared: next(iter(declared)),
)
def test_numbers_and_none_stand_for_arrays(declared, dtype, x64):
    found = jax.grad(numba_kernel(cube, outs=first, **declared))(dtype(2))
    assert (found, found.dtype) == (0, dtype)


@numba.njit
def square_in_place(x, out):
    for i in range(out.size):
        out[i] = out[i] * out[i]


@pytest.mark.parametrize("way", ["reference", "jvp", "vjp"])
def test_a_rule_sees_the_input_that_an_alias_overwrites(way, x64):
    declared = {
        "reference": lambda x: x * x,
        "jvp": lambda primals, tangents: 2 * primals[0] * tangents[0],
        "vjp": lambda primals, out, out_bar: 2 * primals[0] * out_bar,
    }
    run = numba_kernel(square_in_place, outs=first, input_output_aliases={0: 0}, **{way: declared[way]})
    value, found = jax.jit(jax.value_and_grad(lambda x: run(x).sum()))(X)
    assert_allclose(value, (X**2).sum())
    assert_allclose(found, 2 * X)
    every = jax.jit(jax.vmap(jax.grad(lambda x: run(run(x)).sum())))(np.stack([X, -X]))
    assert_allclose(every, 4 * np.stack([X, -X]) ** 3)


@pytest.mark.parametrize(
    "declared",
    [
        {"reference": cube_reference},
        {"jvp": CUBE["jvp"]["jvp"]},
        {"vjp": CUBE["vjp"]["vjp"]},
        {"transpose": {0: lambda inputs, out_bar: out_bar}},
    ],
    ids=lambda declared: next(iter(declared)),
)
@pytest.mark.parametrize("wrap", [lambda f: f, lambda f: jax.vmap(f)], ids=["alone", "vmap"])
def test_a_side_effect_is_kept_once(declared, wrap, x64):
    run = numba_kernel(cube, outs=first, has_side_effect=True, **declared)
    x = np.stack([X, X])

    def calls(f):
        return jax.jit(f).lower(x).compile().as_text().count("custom-call(")

    assert calls(lambda x: (wrap(run)(x), x)[1]) == 1
    assert calls(jax.value_and_grad(lambda x: wrap(run)(x).sum())) == 1
    assert calls(jax.grad(lambda x: wrap(run)(x).sum())) == 1
