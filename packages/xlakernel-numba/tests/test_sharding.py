"""Calls that XLA splits over devices by a rule: right results, and no unnecessary collectives."""

import itertools
import math

import jax
import jax.numpy as jnp
import numba
import numpy as np
import pytest
from jax.sharding import NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P
from numpy.testing import assert_allclose, assert_array_equal

from xlakernel.numba import numba_kernel

pytestmark = pytest.mark.slow

Struct = jax.ShapeDtypeStruct
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(8, 12)).astype(np.float32)
V = RANDOM.normal(size=16).astype(np.float32)


@numba.njit
def multiply(x, y, out):
    for i in range(x.size):
        out.flat[i] = x.flat[i] * y.flat[i]


@numba.njit
def square(x, out):
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            out[i, j] = x[i, j] * x[i, j]


@numba.njit
def matmul(a, b, out):
    for i in range(a.shape[0]):
        for j in range(b.shape[1]):
            total = np.float32(0)
            for k in range(a.shape[1]):
                total += a[i, k] * b[k, j]
            out[i, j] = total


@numba.njit
def cumsum_rows(x, out):
    for i in range(x.shape[0]):
        total = np.float32(0)
        for j in range(x.shape[1]):
            total += x[i, j]
            out[i, j] = total


@numba.njit
def max_of_rows(x, out):
    for i in range(x.shape[0]):
        out[i] = x[i].max()


@numba.njit
def scale(x, factor, out):
    for i in range(x.size):
        out[i] = x[i] * factor[()]


@numba.njit
def marginals(x, rows, columns, doubled):
    columns[:] = 0
    for i in range(x.shape[0]):
        rows[i] = x[i].sum()
        for j in range(x.shape[1]):
            columns[j] += x[i, j]
            doubled[i, j] = 2 * x[i, j]


@numba.njit
def repeat(x, out):
    for i in range(x.size):
        out[i, :] = x[i]


@numba.njit
def own_size(x, out):
    """Writes the size of the device's part."""
    for i in range(x.size):
        out[i] = x.size


@numba.njit
def count(x, out):
    out[()] = x.size


def rows_of(a, *_):
    return Struct(a.shape[:1], a.dtype)


def same_as_first(x, *_):
    return x


run_multiply = numba_kernel(multiply, outs=same_as_first, sharding_rule="i j, i j -> i j")
run_matmul = numba_kernel(
    matmul, outs=lambda a, b: Struct((a.shape[0], b.shape[1]), a.dtype), sharding_rule="m k, k n -> m n"
)
run_cumsum = numba_kernel(cumsum_rows, outs=same_as_first, sharding_rule="i [j] -> i [j]")
run_max = numba_kernel(max_of_rows, outs=rows_of, sharding_rule="i [j] -> i")
run_scale = numba_kernel(scale, outs=same_as_first, sharding_rule="i, -> i")
run_marginals = numba_kernel(
    marginals,
    outs=lambda x: (Struct(x.shape[:1], x.dtype), Struct(x.shape[1:], x.dtype), x),
    sharding_rule="i j -> i, j, i j",
)
run_square = numba_kernel(square, outs=same_as_first, sharding_rule="i j -> i j")
run_repeat = numba_kernel(repeat, outs=lambda x: Struct((*x.shape, 4), x.dtype), sharding_rule="i -> i [k]")
run_own_size = numba_kernel(own_size, outs=same_as_first, sharding_rule="i -> i")

run_count = numba_kernel(count, outs=lambda x: Struct((), x.dtype), sharding_rule="i ->")

ONE = [P(), P("a"), P(None, "a")]
TWO = [P(*spec) for spec in itertools.product([None, "a", "b"], repeat=2) if spec[0] != spec[1] or spec[0] is None]
TWO += [P(("a", "b")), P(None, ("b", "a"))]


def sharded_like(array, mesh, *spec):
    return array.sharding.is_equivalent_to(NamedSharding(mesh, P(*spec)), array.ndim)


@pytest.mark.parametrize("spec", TWO, ids=str)
def test_an_elementwise_call_stays_where_its_arrays_are(make_mesh, put, collectives, spec):
    mesh = make_mesh(a=2, b=2)
    x, y = put(mesh, X, *spec), put(mesh, X + 1, *spec)
    out = jax.jit(run_multiply)(x, y)
    assert_array_equal(out, X * (X + 1))
    assert sharded_like(out, mesh, *spec)
    assert collectives(run_multiply, x, y) == set()


def test_each_device_is_given_its_part(make_mesh, put):
    mesh = make_mesh(a=4)
    assert_array_equal(jax.jit(run_own_size)(put(mesh, V, "a")), [4] * 16)
    assert_array_equal(jax.jit(run_own_size)(put(mesh, V)), [16] * 16)
    assert_array_equal(run_own_size(put(mesh, V, "a")), [4] * 16)
    assert_array_equal(run_own_size(put(make_mesh(a=2), V, "a")), [8] * 16)
    assert_array_equal(run_own_size(jnp.asarray(V)), [16] * 16)


def test_operands_with_other_shardings_are_resharded(make_mesh, put):
    mesh = make_mesh(a=2, b=2)
    for first, second in itertools.product(TWO, repeat=2):
        assert_array_equal(jax.jit(run_multiply)(put(mesh, X, *first), put(mesh, X + 1, *second)), X * (X + 1))


# The matrix product

A, B = X, RANDOM.normal(size=(12, 8)).astype(np.float32)


@pytest.mark.parametrize(
    ("left", "right", "result", "expected"),
    [
        (("a",), (), ("a",), set()),
        ((), (None, "a"), (None, "a"), set()),
        (("a",), (None, "b"), ("a", "b"), set()),
        ((("a", "b"),), (), (("a", "b"),), set()),
        ((None, "a"), ("a",), (), {"all-reduce"}),
        ((None, ("a", "b")), (("a", "b"),), (), {"all-reduce"}),
        (("a", "b"), ("b",), ("a",), {"all-reduce"}),
        ((None, "b"), ("b", "a"), (None, "a"), {"all-reduce"}),
    ],
)
def test_a_product_uses_an_all_reduce_for_contracted_factors(
    make_mesh, put, collectives, left, right, result, expected
):
    mesh = make_mesh(a=2, b=2)
    a, b = put(mesh, A, *left), put(mesh, B, *right)
    out = jax.jit(run_matmul)(a, b)
    assert_allclose(out, A @ B, rtol=1e-5, atol=1e-5)
    assert sharded_like(out, mesh, *result)
    assert collectives(run_matmul, a, b) == expected


@pytest.mark.parametrize("left", TWO, ids=str)
def test_a_product_is_right_however_its_factors_are_placed(make_mesh, put, left):
    mesh = make_mesh(a=2, b=2)
    a = put(mesh, A, *left)
    program = jax.jit(run_matmul)
    for right in TWO:
        assert_allclose(program(a, put(mesh, B, *right)), A @ B, rtol=1e-5, atol=1e-5, err_msg=str(right))


@pytest.mark.parametrize("left", ONE, ids=str)
@pytest.mark.parametrize("right", ONE, ids=str)
@pytest.mark.parametrize("result", ONE, ids=str)
def test_a_product_has_the_requested_sharding(make_mesh, put, left, right, result):
    mesh = make_mesh(a=4)
    sharding = NamedSharding(mesh, result)
    out = jax.jit(run_matmul, out_shardings=sharding)(put(mesh, A, *left), put(mesh, B, *right))
    assert_allclose(out, A @ B, rtol=1e-5, atol=1e-5)
    assert out.sharding.is_equivalent_to(sharding, 2)


# Factors that are kept whole, and factors that only some arrays have


@pytest.mark.parametrize("spec", TWO, ids=str)
def test_a_bracketed_factor_is_gathered(make_mesh, put, spec):
    x = put(make_mesh(a=2, b=2), X, *spec)
    assert_allclose(jax.jit(run_cumsum)(x), np.cumsum(X, axis=1), rtol=1e-5, atol=1e-5)
    assert_array_equal(jax.jit(run_max)(x), X.max(axis=1))


def test_the_other_factors_of_such_a_call_stay_split(make_mesh, put, collectives):
    mesh = make_mesh(a=2, b=2)
    for spec in (("a",), (("a", "b"),)):
        x = put(mesh, X, *spec)
        assert sharded_like(jax.jit(run_cumsum)(x), mesh, *spec)
        assert sharded_like(jax.jit(run_max)(x), mesh, *spec)
        assert collectives(run_cumsum, x) == collectives(run_max, x) == set()
    x = put(mesh, X, "a", "b")
    assert sharded_like(jax.jit(run_max)(x), mesh, "a")
    assert collectives(run_max, x) == {"all-gather"}


def test_a_scalar_is_the_same_on_each_device(make_mesh, put, collectives):
    mesh = make_mesh(a=4)
    x, factor = put(mesh, V, "a"), np.float32(3)
    out = jax.jit(run_scale)(x, factor)
    assert_array_equal(out, 3 * V)
    assert sharded_like(out, mesh, "a")
    assert collectives(run_scale, x, factor) == set()


@pytest.mark.parametrize("spec", TWO, ids=str)
def test_each_result_is_summed_over_its_missing_factors(make_mesh, put, spec):
    mesh = make_mesh(a=2, b=2)
    rows, columns, doubled = jax.jit(run_marginals)(put(mesh, X, *spec))
    assert_allclose(rows, X.sum(axis=1), rtol=1e-5, atol=1e-5)
    assert_allclose(columns, X.sum(axis=0), rtol=1e-5, atol=1e-5)
    assert_array_equal(doubled, 2 * X)
    assert sharded_like(doubled, mesh, *spec)
    padded = (*spec, None, None)
    assert sharded_like(rows, mesh, padded[0])
    assert sharded_like(columns, mesh, padded[1])


def test_a_factor_of_a_result_alone_is_not_split(make_mesh, put):
    mesh = make_mesh(a=4)
    expected = np.repeat(V[:, None], 4, axis=1)
    out = jax.jit(run_repeat)(put(mesh, V, "a"))
    assert_array_equal(out, expected)
    assert sharded_like(out, mesh, "a")
    asked = NamedSharding(mesh, P(None, "a"))
    assert_array_equal(jax.jit(run_repeat, out_shardings=asked)(put(mesh, V, "a")), expected)


# Sizes


@pytest.mark.parametrize("size", [0, 1, 2, 3, 5, 7, 8])
def test_sizes_not_divisible_by_the_mesh(make_mesh, put, size):
    mesh = make_mesh(a=4)
    constrained = NamedSharding(mesh, P("a"))
    x = np.arange(size, dtype=np.float32)

    @jax.jit
    def program(x):
        return run_scale(jax.lax.with_sharding_constraint(x * 2, constrained), jnp.float32(3))

    assert_array_equal(program(put(mesh, x)), 6 * x)
    a, b = RANDOM.normal(size=(size, 4)), RANDOM.normal(size=(4, size))

    @jax.jit
    def products(a, b):
        split = [
            jax.lax.with_sharding_constraint(v, NamedSharding(mesh, s)) for v, s in ((a, P("a")), (b, P(None, "a")))
        ]
        inner = [
            jax.lax.with_sharding_constraint(v, NamedSharding(mesh, s)) for v, s in ((b, P(None, "a")), (a, P("a")))
        ]
        return run_matmul(*split), run_matmul(*inner)

    a, b = a.astype(np.float32), b.astype(np.float32)
    outer, inner = products(put(mesh, a), put(mesh, b))
    assert_allclose(outer, a @ b, rtol=1e-5, atol=1e-5)
    assert_allclose(inner, b @ a, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("size", [1, 3, 5, 6, 8])
def test_no_device_computes_with_padding(make_mesh, put, size):
    """XLA pads arrays that a mesh does not divide; a kernel would compute with the padding."""
    mesh = make_mesh(a=4)
    split = NamedSharding(mesh, P("a"))
    program = jax.jit(lambda x: run_count(jax.lax.with_sharding_constraint(x * 2, split)))
    assert program(put(mesh, np.ones(size, np.float32))) == size


def test_a_factor_that_one_axis_divides_and_another_does_not(make_mesh, put):
    mesh = make_mesh(a=2, b=2)
    x = RANDOM.normal(size=(6, 6)).astype(np.float32)
    spec = NamedSharding(mesh, P(("a", "b"), None))
    program = jax.jit(lambda x: run_matmul(jax.lax.with_sharding_constraint(x, spec), x))
    assert_allclose(program(put(mesh, x)), x @ x, rtol=1e-5, atol=1e-5)


def test_a_mesh_of_one_device_and_of_some(make_mesh, put):
    for count in (1, 2, 3):
        x = RANDOM.normal(size=(6, 6)).astype(np.float32)
        mesh = make_mesh(a=count)
        assert_allclose(jax.jit(run_matmul)(put(mesh, x, None, "a"), put(mesh, x, "a")), x @ x, rtol=1e-5, atol=1e-5)


# Without a rule, and without a mesh


# With no rule they are gathered, which is what the test is about.
@pytest.mark.filterwarnings("ignore::xlakernel.core.errors.GatheredOperandsWarning")
@pytest.mark.parametrize("spec", TWO, ids=str)
def test_a_call_without_a_rule_gathers_its_inputs(make_mesh, put, spec):
    mesh = make_mesh(a=2, b=2)
    plain = numba_kernel(cumsum_rows, outs=same_as_first)
    x = put(mesh, X, *spec)
    assert_allclose(jax.jit(plain)(x), np.cumsum(X, axis=1), rtol=1e-5, atol=1e-5)
    assert_allclose(plain(x), np.cumsum(X, axis=1), rtol=1e-5, atol=1e-5)
    assert_allclose(jax.jit(jax.vmap(plain))(put(mesh, np.stack([X] * 4), *spec))[3], np.cumsum(X, 1), rtol=1e-5)


@pytest.mark.parametrize("axes", [{"a": 4}, {"a": 2, "b": 2}])
@pytest.mark.parametrize("shape", [(2, 8), (8, 2), (4, 4)])
def test_an_axis_of_the_mesh_that_a_reshape_splits(make_mesh, put, axes, shape):
    mesh = make_mesh(**axes)
    x, table = put(mesh, V, tuple(axes)), V.reshape(shape)
    for kernel, expected in ((run_cumsum, np.cumsum(table, axis=1)), (run_square, table * table)):
        assert_allclose(jax.jit(lambda x, run=kernel: run(x.reshape(shape)))(x), expected, rtol=1e-4, atol=1e-5)
        turned = jax.jit(lambda x, run=kernel: run(x.reshape(shape[::-1]).T))
        expected = kernel(jnp.asarray(V.reshape(shape[::-1]).T))
        assert_allclose(turned(x), expected, rtol=1e-5, atol=1e-5)
    product = jax.jit(lambda x: run_matmul(x.reshape(shape).T, x.reshape(shape)))
    assert_allclose(product(x), table.T @ table, rtol=1e-4, atol=1e-4)


def test_arrays_that_belong_to_no_mesh(make_mesh, put):
    """Before jax 0.8 such a reshape returns an array with a sharding without mesh."""
    table = V.reshape(2, 8)
    x = jax.jit(lambda x: x.reshape(2, 8))(put(make_mesh(a=4), V, "a"))
    assert_allclose(jax.jit(run_cumsum)(x), np.cumsum(table, axis=1), rtol=1e-5, atol=1e-5)
    assert_allclose(run_matmul(x, x.T), table @ table.T, rtol=1e-5, atol=1e-5)
    assert_array_equal(jax.vmap(run_scale, (0, None))(x, jnp.float32(3)), 3 * table)
    for found, expected in zip(run_marginals(x), (table.sum(1), table.sum(0), 2 * table), strict=True):
        assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("devices", [(4, 1), (1, 4), (2, 2), (2, 1)])
def test_devices_in_another_order(put, devices):
    order = np.array(jax.devices("cpu"))[[2, 0, 3, 1]][: math.prod(devices)].reshape(devices)
    mesh = jax.sharding.Mesh(order, ("a", "b"))
    x, y = put(mesh, X, "a", "b"), put(mesh, X.T.copy(), "a", "b")
    assert_allclose(jax.jit(run_matmul)(x, y), X @ X.T, rtol=1e-5, atol=1e-5)
    assert_allclose(jax.jit(run_cumsum)(x), np.cumsum(X, axis=1), rtol=1e-5, atol=1e-5)
    assert_array_equal(jax.jit(run_multiply)(x, x), X * X)


def test_a_device_other_than_the_first():
    device = jax.devices("cpu")[3]
    out = jax.jit(run_cumsum)(jax.device_put(X, device))
    assert_allclose(out, np.cumsum(X, axis=1), rtol=1e-5, atol=1e-5)
    assert out.sharding == SingleDeviceSharding(device)


# Inside a program


def test_calls_in_a_row_stay_split(make_mesh, put, collectives):
    mesh = make_mesh(a=4)

    def program(x):
        return jnp.tanh(run_cumsum(run_multiply(x + 1, x)))

    x = put(mesh, X, "a")
    assert_allclose(jax.jit(program)(x), np.tanh(np.cumsum((X + 1) * X, axis=1)), rtol=1e-5, atol=1e-5)
    assert collectives(program, x) == set()


@pytest.mark.parametrize("spec", ONE, ids=str)
def test_a_loop_that_carries_a_split_array(make_mesh, put, spec):
    x = put(make_mesh(a=4), X, *spec)
    last, every = jax.jit(lambda x: jax.lax.scan(lambda c, _: (run_cumsum(c) / 12, run_max(c)), x, length=3))(x)
    carry = X
    for i in range(3):
        assert_allclose(every[i], carry.max(axis=1), rtol=1e-4, atol=1e-5)
        carry = np.cumsum(carry, axis=1) / 12
    assert_allclose(last, carry, rtol=1e-4, atol=1e-5)
