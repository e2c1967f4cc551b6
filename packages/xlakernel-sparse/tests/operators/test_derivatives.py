"""Derivatives of the products, of both modes and higher order, against those of dense arrays and finite differences."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.test_util import check_grads

from xlakernel.core import use_backend
from xlakernel.sparse import (
    COO,
    CSR,
    BinaryArray,
    CompactArray,
    binary_csrmv,
    csr_sddmm,
    csr_to_csc,
    csrmv,
)
from xlakernel.sparse.operators.compact import sum_rows

FORMATS = ["csr", "csc", "coo", "prepared csc"]
KINDS = ["dense", "binary", "weighted"]
SIDES = ["left", "right"]
# Homogeneous or not, side, batch: each pair of settings once.
SETTINGS = [(False, "left", ()), (False, "right", (3,)), (True, "left", (3,)), (True, "right", ())]


def assert_close(found, expected, rtol=1e-10, atol=1e-11):
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        np.testing.assert_allclose(one, other, rtol=rtol, atol=atol)


def like(values, seed=7):
    """Return numbers of the shapes and dtypes of *values*, as tangents and cotangents."""
    rng = np.random.default_rng(seed)

    def draw(value):
        real = rng.normal(size=value.shape)
        return jnp.asarray(real + 1j * rng.normal(size=value.shape) if value.dtype.kind == "c" else real, value.dtype)

    return jax.tree.map(draw, values)


def all_products(make, name, kind, dtype="float64"):
    """Yield each product of a format with a kind of operand: (it, the dense one, its arguments)."""
    for homogeneous, side, batch in SETTINGS:
        example = make(name, dtype, homogeneous=homogeneous)
        sparse, dense = example.product(kind, side)
        yield sparse, dense, (example.matrix.data, example.operand(side, *batch, dtype=dtype))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", FORMATS)
def test_both_modes_and_second_order(make, x64, op_by_op, name, kind):
    for sparse, dense, arguments in all_products(make, name, kind):
        y, pull = jax.vjp(sparse, *arguments)
        expected, expected_pull = jax.vjp(dense, *arguments)
        assert_close(y, expected)
        assert_close(pull(like(y)), expected_pull(like(y)))
        assert_close(jax.jvp(sparse, arguments, like(arguments)), jax.jvp(dense, arguments, like(arguments)))

        def along(function, arguments=arguments):
            def loss(*arguments):
                return jnp.sin(function(*arguments)).sum()

            gradient = jax.grad(loss, argnums=(0, 1))
            forward = jax.jvp(gradient, arguments, like(arguments))[1]
            reverse = jax.vjp(gradient, *arguments)[1](like(arguments))
            return forward, reverse

        assert_close(along(sparse), along(dense))


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMATS)
def test_jacobians_and_hessians(make, x64, op_by_op, name):
    example = make(name, "float64")
    sparse, dense = example.product("dense", "left")
    arguments = example.matrix.data, example.operand("left", dtype="float64")
    for take in (jax.jacfwd, jax.jacrev):
        assert_close(take(sparse, argnums=(0, 1))(*arguments), take(dense, argnums=(0, 1))(*arguments))
    of_sines = [jax.hessian(lambda w, f=f: jnp.sin(f(w, arguments[1])).sum()) for f in (sparse, dense)]
    assert_close(*(hessian(arguments[0]) for hessian in of_sines))


@pytest.mark.parametrize("kind", ["dense", "weighted"])
@pytest.mark.parametrize("name", ["csr", "coo", "prepared csc"])
def test_finite_differences(make, x64, op_by_op, name, kind):
    example = make(name, "float64")
    sparse, _ = example.product(kind, "right")
    arguments = example.matrix.data, example.operand("right", 3, dtype="float64") + 0.01  # zeros are no corner
    check_grads(sparse, arguments, order=2, modes=("fwd", "rev"), eps=1e-4, rtol=1e-5)


@pytest.mark.parametrize("name", ["csr", "prepared csr"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_kernels_of_the_cpu(make, name, kind):
    """The default backend; all else is the same for all of them."""
    example = make(name)
    sparse, dense = example.product(kind, "right")
    arguments = example.matrix.data, example.operand("right")
    results = [
        jax.grad(lambda *arguments, f=f: jnp.sin(f(*arguments)).sum(), argnums=(0, 1))(*arguments)
        for f in (sparse, dense)
    ]
    assert_close(*results, rtol=1e-5, atol=1e-5)


def test_padding_has_no_gradient(make, op_by_op):
    """Even where its column holds infinity."""
    for name in FORMATS:
        example = make(name)
        sparse, _ = example.product("dense", "left")
        x = example.operand("left").at[0].set(jnp.inf)
        gradient = jax.grad(lambda w, f=sparse, x=x: f(w, x).sum())(example.matrix.data)
        assert gradient[10:].tolist() == [0, 0], name


# JAX 0.7 casts the dense product's gradients itself, and NumPy warns of it.
old_jax_casts = pytest.mark.filterwarnings("ignore:Casting complex values to real discards the imaginary part")


@old_jax_casts
def test_complex_is_as_for_dense_arrays(make, x64, op_by_op):
    """Without conjugation, and real operands get real gradients."""
    for name, kind in itertools.product(FORMATS, ["dense", "weighted"]):
        example = make(name, "complex128")
        sparse, dense = example.product(kind, "left")
        for dtype in ("float64", "complex128"):
            arguments = (
                example.matrix.data * (1 + 2j),
                example.operand("left", dtype=dtype) * (1j if dtype == "complex128" else 1),
            )
            y, pull = jax.vjp(sparse, *arguments)
            assert_close(pull(like(y)), jax.vjp(dense, *arguments)[1](like(y)))
            assert_close(jax.jvp(sparse, arguments, like(arguments)), jax.jvp(dense, arguments, like(arguments)))


@old_jax_casts
@pytest.mark.parametrize("name", FORMATS)
def test_complex_weights_and_real_events(make, x64, op_by_op, name):
    example = make(name, "complex128")
    sparse, dense = example.product("binary", "right")
    arguments = example.matrix.data * (1 + 2j), example.operand("right", dtype="float64")
    y, pull = jax.vjp(sparse, *arguments)
    assert_close(pull(like(y)), jax.vjp(dense, *arguments)[1](like(y)))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", FORMATS)
def test_half_precision_is_summed_in_single(make, op_by_op, name, dtype):
    example = make(name, dtype)
    sparse, dense = example.product("dense", "left")
    arguments = example.matrix.data, example.operand("left", 3, dtype=dtype)
    y, pull = jax.vjp(sparse, *arguments)
    single = [x.astype("float32") for x in arguments]
    expected, expected_pull = jax.vjp(dense, *single)
    cotangent = like(y)
    found = pull(cotangent)
    assert [x.dtype for x in (y, *found)] == [jnp.dtype(dtype)] * 3
    exact = expected_pull(cotangent.astype("float32"))
    eps = float(jnp.finfo(dtype).eps)
    for one, other in zip((y, *found), (expected, *exact), strict=True):
        # One rounding at the end, and those of the products of half-precision numbers that are stored.
        np.testing.assert_allclose(one.astype("float32"), other, rtol=eps, atol=eps)


def test_mixed_precision_gives_each_its_own_dtype(make, op_by_op):
    for name in FORMATS:
        example = make(name, "bfloat16")
        sparse, _ = example.product("dense", "left")
        gradient = jax.grad(lambda w, x, f=sparse: f(w, x).sum(), argnums=(0, 1))
        of_weights, of_operand = gradient(example.matrix.data, example.operand("left"))
        assert (of_weights.dtype, of_operand.dtype) == (jnp.bfloat16, jnp.float32)


def test_integers_have_no_derivative(make, op_by_op):
    for name, side in itertools.product(FORMATS, SIDES):
        example = make(name)
        counts = example.matrix.with_data(jnp.arange(12))
        x = example.operand(side)

        def multiply(x, matrix=counts, side=side):
            return matrix @ x if side == "left" else x @ matrix

        y, tangent = jax.jvp(lambda x, f=multiply: f(BinaryArray(x)), (x,), (x,))
        assert y.dtype == jnp.int32 and tangent.dtype == jax.dtypes.float0
        assert jax.grad(lambda x, f=multiply: f(BinaryArray(x)).astype(float).sum())(x).tolist() == [0] * x.size
        # Integers times real numbers do.
        expected = (jnp.ones(5 if x.size == 7 else 7), example.dense(jnp.arange(12.0)))
        expected = expected[0] @ expected[1] if side == "left" else expected[1] @ expected[0]
        assert_close(jax.grad(lambda x, f=multiply: f(x).sum())(x), expected, rtol=1e-6)


def test_events_without_a_gradient(make, op_by_op):
    """bool and integers have the tangent type float0."""
    example = make("csr")
    for dtype in (bool, jnp.int32):
        events = example.operand("left").astype(dtype)
        y, pull = jax.vjp(lambda x: example.matrix @ BinaryArray(x), events)
        (cotangent,) = pull(y)
        assert cotangent.dtype == jax.dtypes.float0 and cotangent.shape == events.shape


# The other operators.


def test_sampled_products(csr, x64, op_by_op, to_dense):
    rng = np.random.default_rng(0)
    for inner in ((), (3,)):
        u, v = jnp.asarray(rng.normal(size=(5, *inner))), jnp.asarray(rng.normal(size=(*inner, 7)))
        arguments = {"indices": csr["indices"], "indptr": csr["indptr"], "shape": csr["shape"]}
        sparse = lambda u, v, a=arguments: csr_sddmm(**a, u=u, v=v)  # noqa: E731

        def dense(u, v):
            product = jnp.outer(u, v) if u.ndim == 1 else u @ v
            return jax.linear_transpose(to_dense, jnp.zeros(12))(product)[0]

        y, pull = jax.vjp(sparse, u, v)
        assert_close(y, dense(u, v))
        assert_close(pull(like(y)), jax.vjp(dense, u, v)[1](like(y)))
        assert_close(jax.jvp(sparse, (u, v), like((u, v))), jax.jvp(dense, (u, v), like((u, v))))
    check_grads(sparse, (u, v), order=2, modes=("fwd", "rev"), eps=1e-4, rtol=1e-5)


def test_a_sampled_product_of_one_array_with_itself(csr, op_by_op):
    """Both factors move together."""
    square = {**csr, "shape": (5, 5), "indices": csr["indices"] % 5}
    u = jnp.arange(5.0)
    found = jax.grad(lambda u: csr_sddmm(**square, u=u, v=u).sum())(u)
    rows, columns = np.repeat(np.arange(5), np.diff(csr["indptr"])), np.asarray(square["indices"])[:10]
    expected = np.zeros(5)
    np.add.at(expected, rows, np.arange(5.0)[columns])
    np.add.at(expected, columns, np.arange(5.0)[rows])
    np.testing.assert_allclose(found, expected)


@pytest.mark.parametrize("homogeneous", [False, True])
def test_sums_of_active_rows(csr, to_dense, make_weights, x64, op_by_op, homogeneous):
    w = make_weights(dtype="float64", homogeneous=homogeneous)
    active, count = (
        jnp.array([4, 0, 4, 99, -1], jnp.int32),
        jnp.int32(3),
    )  # a row twice
    sparse = lambda w: sum_rows(w, **csr, active=active, count=count)  # noqa: E731
    dense = lambda w: to_dense(w)[4] * 2 + to_dense(w)[0]  # noqa: E731
    y, pull = jax.vjp(sparse, w)
    assert_close(pull(like(y)), jax.vjp(dense, w)[1](like(y)))
    assert_close(jax.jvp(sparse, (w,), (like(w),)), jax.jvp(dense, (w,), (like(w),)))
    loss = lambda f: lambda w: jnp.sin(f(w)).sum()  # noqa: E731
    assert_close(jax.hessian(loss(sparse))(w), jax.hessian(loss(dense))(w))


def test_compact_events(make, op_by_op):
    for name, side in (("csr", "right"), ("csr", "left"), ("prepared csc", "left"), ("coo", "left")):
        example = make(name)
        x = example.operand(side)

        def loss(w, events, example=example, side=side):
            A = example.matrix.with_data(w)
            return jnp.sin(A @ events if side == "left" else events @ A).sum()

        found = jax.grad(loss)(example.matrix.data, CompactArray(x))
        assert_close(found, jax.grad(loss)(example.matrix.data, BinaryArray(x)), rtol=1e-5, atol=1e-6)


def test_conversion(csr, x64, op_by_op):
    w = jnp.arange(1.0, 13.0)
    convert = lambda w: csr_to_csc(w, **csr)[0]  # noqa: E731
    order = [1, 8, 4, 9, 6, 0, 2, 5, 3, 7]
    y, tangent = jax.jvp(convert, (w,), (w * 2,))
    assert y.tolist() == [*(i + 1 for i in order), 0, 0] and tangent.tolist() == (y * 2).tolist()
    (cotangent,) = jax.vjp(convert, w)[1](jnp.arange(100.0, 112.0))
    expected = np.zeros(12)
    expected[order] = np.arange(100, 110)
    assert cotangent.tolist() == expected.tolist()
    jax.hessian(lambda w: (convert(w) ** 2).sum())(w)


@pytest.mark.parametrize("way", ["tocsc", "tocoo", "T"])
def test_derivatives_pass_through_conversions(make, op_by_op, way):
    example = make("csr")
    x = example.operand("right")

    def convert(w):
        A = example.matrix.with_data(w)
        return A.T @ x if way == "T" else x @ getattr(A, way)()

    found = jax.grad(lambda w: jnp.sin(convert(w)).sum())(example.matrix.data)
    expected = jax.grad(lambda w: jnp.sin(x @ example.dense(w)).sum())(example.matrix.data)
    assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_linear_transpose(csr, to_dense, make_weights, op_by_op):
    """By hand, in the weights and in the operand; events are transposed as if they were dense."""
    w, y = make_weights(), jnp.arange(5.0)
    for product in (csrmv, binary_csrmv):
        (found,) = jax.linear_transpose(
            lambda x, p=product: p(w, csr["indices"], csr["indptr"], x, shape=(5, 7)), y[:1].repeat(7)
        )(y)
        assert_close(found, y @ to_dense(w), rtol=1e-5)
    x = jnp.arange(7.0)
    (found,) = jax.linear_transpose(lambda w: csrmv(w, csr["indices"], csr["indptr"], x, shape=(5, 7)), w)(y)
    assert_close(found, jax.vjp(lambda w: to_dense(w) @ x, w)[1](y)[0], rtol=1e-5)


# Corners.


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), pytest.param((0, 0), marks=pytest.mark.slow)])
def test_without_rows_or_columns(op_by_op, shape):
    """All that is stored is padding."""
    rows, columns = shape
    compressed = CSR((jnp.ones(2), jnp.zeros(2, int), jnp.zeros(rows + 1, int)), shape=shape, check=False)
    for A in (
        compressed,
        compressed.prepare(),
        COO((jnp.ones(2), jnp.full(2, rows), jnp.full(2, columns)), shape=shape),
    ):
        for x, multiply in (
            (jnp.ones(columns), lambda A, x: A @ x),
            (jnp.ones(rows), lambda A, x: x @ A),
            (jnp.ones((2, rows)), lambda A, x: x @ A),
            (jnp.ones((columns, 2)), lambda A, x: A @ BinaryArray(x)),
        ):
            y, pull = jax.vjp(lambda w, x, A=A, f=multiply: f(A.with_data(w), x), A.data, x)
            assert not y.any()
            of_weights, of_operand = pull(jnp.ones_like(y))
            assert of_weights.tolist() == [0, 0] and not of_operand.any() and of_operand.shape == x.shape


def test_one_entry_is_one_weight_either_way(op_by_op):
    """A length of 1 means equal weights, and one entry; both have one derivative."""
    for indptr, expected in (([0, 0, 1], 6.0), ([0, 0, 0], 0.0)):
        A = CSR((jnp.array([2.0]), jnp.array([1]), jnp.array(indptr)), shape=(2, 2))
        for matrix in (A, A.prepare(), A.tocsc(), A.tocoo()):
            for x in (jnp.array([5.0, 6.0]), BinaryArray(jnp.array([5.0, 6.0]))):
                found = jax.grad(lambda w, M=matrix, x=x: (M.with_data(w) @ x).sum())(A.data)
                assert found.tolist() == [expected if isinstance(x, jax.Array) else min(expected, 1.0)]


def test_weak_types_are_weak(make, op_by_op):
    """Python's numbers take the precision of what they meet, and derivatives that of what they belong to."""
    for name in FORMATS:
        example = make(name, "bfloat16")
        x = jnp.full(example.matrix.shape[1], 2.0)
        sparse, _ = example.product("dense", "left")
        y, pull = jax.vjp(sparse, example.matrix.data, x)
        assert y.dtype == jnp.result_type(example.matrix.data, x)
        of_weights, of_operand = pull(jnp.ones_like(y))
        assert (of_weights.dtype, of_operand.dtype) == (jnp.bfloat16, x.dtype)


@settings(max_examples=25)
@given(
    counts=st.lists(st.integers(0, 3), min_size=3, max_size=3),
    indices=st.lists(st.integers(0, 3), min_size=9, max_size=9),
    way=st.sampled_from(["csr", "prepared", "csc", "coo"]),
)
def test_any_structure(counts, indices, way):
    """Of one size, with as much padding as is left, which compiles once."""
    indptr = jnp.asarray([0, *np.cumsum(counts)], jnp.int32)
    rng = np.random.default_rng(0)
    w, x = jnp.asarray(rng.normal(size=9), "float32"), jnp.asarray(rng.normal(size=(2, 3)), "float32")
    with use_backend("jax"), jax.disable_jit():
        A = CSR((w, jnp.asarray(indices, jnp.int32), indptr), shape=(3, 4))
        A = {"csr": lambda: A, "prepared": A.prepare, "csc": A.tocsc, "coo": A.tocoo}[way]()
        y, pull = jax.vjp(lambda w, x: x @ A.with_data(w), A.data, x)
        cotangent = like(y)
        of_weights, of_operand = pull(cotangent)
    row, column = (np.asarray(index)[:9] for index in A.coordinates())
    is_entry = row < 3
    dense = np.zeros((3, 4))
    np.add.at(dense, (row[is_entry], column[is_entry]), np.asarray(A.data)[is_entry])
    by_place = np.pad(np.asarray(x).T @ np.asarray(cotangent), ((0, 1), (0, 1)))
    assert is_entry.sum() == sum(counts)
    np.testing.assert_allclose(y, x @ dense, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(of_operand, cotangent @ dense.T, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(of_weights, by_place[row, column], rtol=1e-4, atol=1e-5)


# Networks.


@jax.custom_jvp
def spike(v):
    return (v > 0).astype(v.dtype)


@spike.defjvp
def _surrogate(primals, tangents):
    (v,), (t,) = primals, tangents
    return spike(v), t / (1 + 10 * jnp.abs(v)) ** 2


@pytest.mark.parametrize("name", ["csr", "prepared csc"])
def test_surrogate_gradients_through_time(make, x64, plain_jax, name):
    """Backpropagation through a recurrent network of spikes, and its forward derivative, equal those of a dense one."""
    forward, recurrent = make(name, "float64"), make("csr", "float64")
    square = recurrent.matrix @ recurrent.dense(recurrent.matrix.data).T  # (5, 5)
    inputs = jnp.abs(forward.operand("right", 6, dtype="float64")) * 3

    def run(product):
        def loss(w, x):
            def step(v, x):
                s = spike(v - 0.5)
                v = 0.9 * v * (1 - s) + product(w, spike(x - 0.5)) + jnp.tanh(square.sum()) * s
                return v, s

            v, s = jax.lax.scan(step, jnp.zeros(forward.matrix.shape[1]), x)
            return (s * jnp.arange(6)[:, None]).sum() + (v**2).sum()

        return loss

    sparse, dense = forward.product("binary", "right")
    w = forward.matrix.data
    found, expected = (jax.value_and_grad(run(f), argnums=(0, 1))(w, inputs) for f in (sparse, dense))
    assert_close(found, expected)
    assert np.abs(expected[1][1]).max() > 0  # it reaches the inputs, through the spikes
    tangents = like((w, inputs))
    assert_close(*(jax.jvp(run(f), (w, inputs), tangents) for f in (sparse, dense)))


@pytest.mark.parametrize("name", ["csr", "prepared csc"])
def test_checkpoint_and_linearize(make, plain_jax, name):
    example = make(name)
    sparse, dense = example.product("dense", "left")
    w, x = example.matrix.data, example.operand("left")
    loss = lambda f: lambda w, x: jnp.sin(f(w, x)).sum()  # noqa: E731
    remembered = jax.grad(jax.checkpoint(loss(sparse)), argnums=(0, 1))(w, x)
    assert_close(remembered, jax.grad(loss(dense), argnums=(0, 1))(w, x), rtol=1e-5, atol=1e-5)
    y, push = jax.linearize(sparse, w, x)
    assert_close((y, push(w, 2 * x)), jax.jvp(dense, (w, x), (w, 2 * x)), rtol=1e-5, atol=1e-5)
