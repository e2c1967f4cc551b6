"""Calls that are split by a rule, under JAX's transformations, and by the types of arrays on explicit meshes."""

import functools

import jax
import jax.numpy as jnp
import numba
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from numpy.testing import assert_allclose, assert_array_equal

from xlakernel.core import XLACustomKernel
from xlakernel.numba import numba_kernel

pytestmark = pytest.mark.slow

Struct = jax.ShapeDtypeStruct
RANDOM = np.random.default_rng(0)
A = RANDOM.normal(size=(8, 12)).astype(np.float32)
B = RANDOM.normal(size=(12, 4)).astype(np.float32)
V = RANDOM.normal(size=16).astype(np.float32)
close = functools.partial(assert_allclose, rtol=1e-4, atol=1e-4)


@numba.njit
def matmul(a, b, out):
    for i in range(a.shape[0]):
        for j in range(b.shape[1]):
            total = np.float32(0)
            for k in range(a.shape[1]):
                total += a[i, k] * b[k, j]
            out[i, j] = total


@numba.njit
def cube(x, out):
    for i in range(x.size):
        out[i] = x[i] * x[i] * x[i]


@numba.njit
def cumsum(x, out):
    total = x.dtype.type(0)
    for i in range(x.size):
        total += x[i]
        out[i] = total


@numba.njit
def scale(x, factor, out):
    for i in range(x.size):
        out[i] = x[i] * factor[()]


def same_as_first(x, *_):
    return x


def product(a, b):
    return Struct((a.shape[0], b.shape[1]), a.dtype)


def matmul_vjp(primals, _, cotangent):
    a, b = primals
    return run_matmul(cotangent, b.T), run_matmul(a.T, cotangent)


MATMUL = {"outs": product, "sharding_rule": "m k, k n -> m n"}
run_matmul = numba_kernel(matmul, **MATMUL)
# The same product, with its derivatives declared in each of the ways.
DERIVED = {
    "reference": numba_kernel(matmul, **MATMUL, reference=jnp.matmul),
    "vjp": numba_kernel(matmul, **MATMUL, vjp=matmul_vjp),
    "vjp and reference": numba_kernel(matmul, **MATMUL, vjp=matmul_vjp, reference=jnp.matmul),
    "transpose": numba_kernel(
        matmul,
        **MATMUL,
        transpose={0: lambda ins, ct: run_matmul(ct, ins[1].T), 1: lambda ins, ct: run_matmul(ins[0].T, ct)},
    ),
}
run_cumsum = numba_kernel(cumsum, outs=same_as_first, sharding_rule="[i] -> [i]")
run_scale = numba_kernel(scale, outs=same_as_first, sharding_rule="i, -> i", reference=jnp.multiply)
run_cube = numba_kernel(cube, outs=same_as_first, sharding_rule="i -> i", reference=lambda x: x**3)

PLACES = [
    (("a",), ()),
    ((), (None, "a")),
    ((None, "a"), ("a",)),
    (("a", "b"), ("b",)),
    (("a", "b"), ("b", "a")),
    ((("a", "b"),), ()),
]


def sharded_like(array, mesh, *spec):
    return array.sharding.is_equivalent_to(NamedSharding(mesh, P(*spec)), array.ndim)


# vmap


@pytest.mark.parametrize("left", [(), ("a",), (None, "a"), (None, None, "a"), ("a", "b"), (None, "a", "b")], ids=str)
@pytest.mark.parametrize("right", [(), ("b",), (None, "a"), (None, "b", "a")], ids=str)
def test_a_batch_of_products(make_mesh, put, left, right):
    mesh = make_mesh(a=2, b=2)
    a, b = np.stack([A * i for i in range(4)]), np.stack([B + i for i in range(4)])
    close(jax.jit(jax.vmap(run_matmul))(put(mesh, a, *left), put(mesh, b, *right)), a @ b)


def test_a_batch_stays_split_without_collectives(make_mesh, put, collectives):
    mesh = make_mesh(a=2, b=2)
    a, b = put(mesh, np.stack([A] * 4), "a", "b"), put(mesh, B)
    run = jax.vmap(run_matmul, (0, None))
    out = jax.jit(run)(a, b)
    close(out, np.stack([A @ B] * 4))
    assert sharded_like(out, mesh, "a", "b")
    assert collectives(run, a, b) == set()
    rows = put(mesh, A, "a")
    assert collectives(jax.vmap(run_cumsum), rows) == set()
    close(jax.vmap(run_cumsum)(rows), np.cumsum(A, axis=1))
    assert sharded_like(jax.vmap(run_cumsum)(rows), mesh, "a")


@pytest.mark.parametrize(
    ("axes", "shapes"),
    [((0, None), (4, 0)), ((None, 0), (0, 4)), ((1, None), (4, 0)), ((2, 1), (4, 4)), ((-1, 0), (4, 4))],
)
@pytest.mark.parametrize("spec", [(), ("a",), (None, "a"), ("b", "a")], ids=str)
def test_axes_of_a_batch(make_mesh, put, axes, shapes, spec):
    mesh = make_mesh(a=2, b=2)
    ins = [
        x if axis is None else np.stack([x * (i + 1) for i in range(size)], axis)
        for x, axis, size in zip((A, B), axes, shapes, strict=True)
    ]
    expected = jax.vmap(jnp.matmul, axes)(*ins)
    close(jax.jit(jax.vmap(run_matmul, axes))(*(put(mesh, x, *spec) for x in ins)), expected)


@pytest.mark.parametrize("spec", [(), ("a",), (None, "a"), ("b", "a"), (None, None, "a"), (("a", "b"),)], ids=str)
def test_nested_batches(make_mesh, put, spec):
    mesh = make_mesh(a=2, b=2)
    x, factors = RANDOM.normal(size=(4, 4, 8)).astype(np.float32), np.arange(4, dtype=np.float32)
    nested = jax.vmap(jax.vmap(run_scale, (0, None)), (0, 0))
    close(jax.jit(nested)(put(mesh, x, *spec), factors), x * factors[:, None, None])
    crossed = jax.vmap(jax.vmap(run_scale, (None, 0)), (0, None))  # a batch that each input lacks
    close(jax.jit(crossed)(put(mesh, x[0], *spec[:2]), put(mesh, factors, "b")), x[0][:, None] * factors[:, None])


@pytest.mark.parametrize("size", [0, 1, 3])
def test_batches_not_divisible_by_the_mesh(make_mesh, put, size):
    mesh = make_mesh(a=2, b=2)
    split = NamedSharding(mesh, P("a", None, "b"))
    a = RANDOM.normal(size=(size, 8, 12)).astype(np.float32)
    run = jax.jit(lambda a, b: jax.vmap(run_matmul, (0, None))(jax.lax.with_sharding_constraint(a, split), b))
    close(run(put(mesh, a), put(mesh, B, "b")), a @ B)


@pytest.mark.parametrize("method", ["sequential", "sequential_unrolled", "broadcast_all", "expand_dims"])
def test_each_way_to_map(make_mesh, put, method):
    mesh = make_mesh(a=2, b=2)
    run = numba_kernel(matmul, **MATMUL, vmap_method=method)
    a = np.stack([A * i for i in range(4)])
    for spec in (("a",), (None, "a"), (None, None, "a"), ("a", None, "b")):
        close(jax.jit(jax.vmap(run, (0, None)))(put(mesh, a, *spec), put(mesh, B, "b")), a @ B)


# Derivatives


@pytest.mark.parametrize("way", DERIVED)
@pytest.mark.parametrize(("left", "right"), PLACES)
def test_gradients(make_mesh, put, way, left, right):
    mesh, run = make_mesh(a=2, b=2), DERIVED[way]

    def loss(multiply, a, b):
        return (multiply(a, b) ** 2).sum()

    expected = jax.grad(functools.partial(loss, jnp.matmul), (0, 1))(A, B)
    found = jax.jit(jax.grad(functools.partial(loss, run), (0, 1)))(put(mesh, A, *left), put(mesh, B, *right))
    for one, other in zip(found, expected, strict=True):
        close(one, other, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("way", ["reference", "vjp and reference", "transpose"])
@pytest.mark.parametrize(("left", "right"), PLACES)
def test_forward_mode_and_linear_parts(make_mesh, put, way, left, right):
    mesh, run = make_mesh(a=2, b=2), DERIVED[way]
    a, b = put(mesh, A, *left), put(mesh, B, *right)
    found = jax.jit(lambda a, b: jax.jvp(run, (a, b), (2 * a, 3 * b)))(a, b)
    close(found[0], A @ B)
    close(found[1], 5 * (A @ B))
    value, pushforward = jax.linearize(run, a, b)
    close(value, A @ B)
    close(pushforward(2 * a, 3 * b), 5 * (A @ B))


@pytest.mark.parametrize("way", DERIVED)
@pytest.mark.parametrize("jit", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_a_call_that_has_a_derivative_and_needs_none(make_mesh, put, way, jit):
    mesh = make_mesh(a=2, b=2)
    a, b = put(mesh, A, "a"), put(mesh, B, None, "b")
    for run in (DERIVED[way], jax.vmap(DERIVED[way], (0, None))):
        rows = a if run is DERIVED[way] else jnp.stack([a] * 4)
        close(jit(run)(rows, b), np.asarray(rows) @ B)
    assert sharded_like(jit(DERIVED[way])(a, b), mesh, "a", "b")


def test_gradients_stay_split_without_collectives(make_mesh, put, collectives):
    mesh = make_mesh(a=4)
    x = put(mesh, V, "a")
    gradient = jax.grad(lambda x: run_cube(x).sum())
    out = jax.jit(gradient)(x)
    close(out, 3 * V**2)
    assert sharded_like(out, mesh, "a")
    assert collectives(gradient, x) == set()
    per_row = jax.vmap(jax.grad(lambda a: run_cube(a).sum()))
    rows = put(mesh, A, "a")
    close(jax.jit(per_row)(rows), 3 * A**2)
    assert collectives(per_row, rows) == set()


def test_second_derivatives(make_mesh, put):
    x = put(make_mesh(a=4), V, "a")
    close(jax.jit(jax.grad(lambda x: jax.grad(lambda x: run_cube(x).sum())(x).sum()))(x), 6 * V)
    close(jax.jit(jax.hessian(lambda x: run_cube(x).sum()))(x), np.diag(6 * V))


def test_the_gradient_of_a_loop(make_mesh, put):
    x = put(make_mesh(a=4), V / 2, "a")

    def loss(run, x):
        return jax.lax.scan(lambda c, _: (run(c) + x, None), x, length=3)[0].sum()

    expected = jax.grad(functools.partial(loss, lambda c: c**3))(V / 2)
    for wrap in (lambda f: f, jax.checkpoint):
        close(jax.jit(jax.grad(wrap(functools.partial(loss, run_cube))))(x), expected, rtol=1e-3)


# Explicit meshes: the types of arrays say how they are split.


def spec_of(x):
    spec = tuple(jax.typeof(x).sharding.spec)
    return spec[: max((i + 1 for i, entry in enumerate(spec) if entry is not None), default=0)]


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize(
    ("left", "right", "result"),
    [
        ((), (), ()),
        (("a",), (), ("a",)),
        ((), (None, "a"), (None, "a")),
        (("a",), (None, "b"), ("a", "b")),
        ((None, "a"), ("a",), ()),
        (("a", "b"), ("b",), ("a",)),
        ((("a", "b"),), (), (("a", "b"),)),
    ],
)
def test_types_of_products(make_mesh, put, jit, left, right, result):
    mesh = make_mesh("Explicit", a=2, b=2)
    types = []

    def program(a, b):
        out = run_matmul(a, b)
        types.append(spec_of(out))
        return out

    with jax.set_mesh(mesh):
        out = (jax.jit(program) if jit else program)(put(mesh, A, *left), put(mesh, B, *right))
        assert types == [result]
        close(out, A @ B)
        assert sharded_like(out, mesh, *result)


@pytest.mark.parametrize("jit", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_explicit_types_under_vmap(make_mesh, put, jit):
    mesh = make_mesh("Explicit", a=2, b=2)
    a = np.stack([A * i for i in range(4)])
    with jax.set_mesh(mesh):
        for spec in (("a",), ("a", "b"), (None, "a"), (None, None, "a"), ()):
            out = jit(jax.vmap(run_matmul, (0, None)))(put(mesh, a, *spec), put(mesh, B))
            close(out, a @ B)
            assert spec_of(out) == spec[:2] if len(spec) < 3 else spec_of(out) == ()
        out = jit(jax.vmap(run_matmul, (0, 0)))(put(mesh, a, "a"), put(mesh, np.stack([B] * 4), "a"))
        close(out, a @ B)
        assert spec_of(out) == ("a",)


@pytest.mark.parametrize("jit", [lambda f: f, jax.jit], ids=["eager", "jit"])
@pytest.mark.parametrize("way", DERIVED)
@pytest.mark.parametrize(("left", "right"), PLACES)
def test_explicit_types_of_gradients(make_mesh, put, jit, way, left, right):
    if way == "reference" and right[:1] not in [(), (None,)]:
        pytest.skip("JAX's own matmul asks for an out_sharding there")
    mesh, run = make_mesh("Explicit", a=2, b=2), DERIVED[way]
    expected = jax.grad(lambda a, b: ((a @ b) ** 2).sum(), (0, 1))(A, B)
    with jax.set_mesh(mesh):
        a, b = put(mesh, A, *left), put(mesh, B, *right)
        found = jit(jax.grad(lambda a, b: (run(a, b) ** 2).sum(), (0, 1)))(a, b)
        for one, other, spec in zip(found, expected, (left, right), strict=True):
            close(one, other, rtol=1e-3, atol=1e-3)
            assert spec_of(one) == spec


def test_a_size_not_divisible_by_an_explicit_mesh(make_mesh, put):
    mesh = make_mesh("Explicit", a=4)
    with jax.set_mesh(mesh):
        x = put(mesh, np.arange(6, dtype=np.float32))
        assert_array_equal(jax.jit(run_cube)(x), np.arange(6) ** 3)


def test_a_bracketed_factor_that_is_split_explicitly(make_mesh, put):
    mesh = make_mesh("Explicit", a=4)
    with jax.set_mesh(mesh):
        for run in (run_cumsum, jax.jit(run_cumsum)):
            out = run(put(mesh, V, "a"))
            close(out, np.cumsum(V))
            assert spec_of(out) == ()


@numba.njit
def weigh(x, y, out):
    for i in range(x.size):
        out[i] = x[i] * y[i] * y[i]


@pytest.mark.parametrize("jit", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_derivatives_that_are_sharded_unlike_the_kernel(make_mesh, put, jit):
    """The kernel needs its complete inputs, and the results of plain JAX stay split."""
    ways = (
        {"reference": lambda x, y: x * y * y},
        {"reference": lambda x, y: x * y * y, "transpose": {0: lambda ins, ct: ct * ins[1] ** 2}},
        {"vjp": lambda ins, _, ct: (ct * ins[1] ** 2, 2 * ct * ins[0] * ins[1])},
    )
    mesh = make_mesh("Explicit", a=4)
    with jax.set_mesh(mesh):
        x, y = put(mesh, V, "a"), put(mesh, V + 1, "a")
        for way in ways:
            run = numba_kernel(weigh, outs=same_as_first, sharding_rule="[i], [i] -> [i]", **way)
            if "reference" in way:
                value, tangent = jit(lambda x, y, run=run: jax.jvp(run, (x, y), (x, y)))(x, y)
                close(tangent, 3 * V * (V + 1) ** 2)
                assert spec_of(value) == spec_of(tangent) == ()
            found = jit(jax.grad(lambda x, y, run=run: (2 * run(x, y)).sum(), (0, 1)))(x, y)
            close(found[0], 2 * (V + 1) ** 2)
            close(found[1], 4 * V * (V + 1))
            assert [spec_of(g) for g in found] == [("a",), ("a",)]


def weigh_in_jax(x, y):
    return x * y * y


def weigh_jvp(primals, tangents):
    (x, y), (x_dot, y_dot) = primals, tangents
    return x_dot * y**2 + 2 * x * y * y_dot


def weigh_vjp(primals, _, cotangent):
    x, y = primals
    return cotangent * y**2, 2 * cotangent * x * y


WEIGH = {
    "vjp": {"vjp": weigh_vjp},
    "jvp and vjp": {"jvp": weigh_jvp, "vjp": weigh_vjp},
    "vjp and reference": {"vjp": weigh_vjp, "reference": weigh_in_jax},
    "transpose": {"transpose": {0: lambda ins, ct: ct * ins[1] ** 2}, "reference": weigh_in_jax},
}


def weigh_as(kind, way):
    """Return the product without a sharding rule, as a kernel or as an operator."""
    if kind == "kernel":
        return numba_kernel(weigh, outs=same_as_first, **WEIGH[way])
    op = XLACustomKernel("test_sharding_transforms_weigh", replace=True)
    op.def_numba_kernel(lambda outs: numba_kernel(weigh, outs=outs[0]))
    for name, rule in WEIGH[way].items():
        for arguments in rule.items() if name == "transpose" else [(rule,)]:
            getattr(op, f"def_{name}")(*arguments)
    return lambda x, y: op(x, y, outs=[jax.ShapeDtypeStruct(x.shape, x.dtype)])[0]


# With no rule they are gathered, which is what the test is about.
@pytest.mark.filterwarnings("ignore::xlakernel.core.errors.GatheredOperandsWarning")
@pytest.mark.parametrize("jit", [lambda f: f, jax.jit], ids=["eager", "jit"])
@pytest.mark.parametrize("way", WEIGH)
@pytest.mark.parametrize("kind", ["kernel", "operator"])
def test_derivatives_of_a_batch_without_a_rule_on_an_explicit_mesh(make_mesh, put, kind, way, jit):
    """The batch of the result is not split, unlike that of the inputs."""
    mesh, run = make_mesh("Explicit", a=2, b=2), weigh_as(kind, way)
    x = np.stack([V * i for i in range(1, 5)])
    with jax.set_mesh(mesh):
        for axes, spec, y, other in (((0, None), ("a",), V, ()), ((0, 0), ("a", "b"), x + 1, ("a",))):
            for inside in (lambda f: f, jax.checkpoint):
                mapped = jax.vmap(inside(run), axes)
                placed = put(mesh, x, *spec), put(mesh, y, *other)
                found = jit(jax.grad(lambda x, y, mapped=mapped: (2 * mapped(x, y)).sum(), (0, 1)))(*placed)
                expected = jax.grad(lambda x, y: (2 * weigh_in_jax(x, y)).sum(), (0, 1))(x, y)
                for one, known, place in zip(found, expected, (spec, other), strict=True):
                    close(one, known, rtol=1e-4)
                    assert spec_of(one) == place
                if way != "vjp":
                    tangent = jit(lambda *xs, mapped=mapped: jax.jvp(mapped, xs, xs)[1])(*placed)
                    close(tangent, 3 * weigh_in_jax(x, y), rtol=1e-4)


# With no rule they are gathered, which is what the test is about.
@pytest.mark.filterwarnings("ignore::xlakernel.core.errors.GatheredOperandsWarning")
def test_a_batch_of_calls_in_a_row_without_a_rule_on_an_explicit_mesh(make_mesh, put):
    """The second call has one operand with a split batch, and one without."""
    mesh = make_mesh("Explicit", a=4)
    x = np.stack([V * i for i in range(1, 5)])
    for kind in ("kernel", "operator"):
        run = weigh_as(kind, "vjp")
        with jax.set_mesh(mesh):
            found = jax.jit(jax.vmap(lambda x, run=run: run(x, run(x, x))))(put(mesh, x, "a"))
        close(found, x**7, rtol=1e-4)


def test_a_loop_over_explicit_types(make_mesh, put):
    mesh = make_mesh("Explicit", a=4)
    with jax.set_mesh(mesh):
        out = jax.jit(lambda x: jax.lax.fori_loop(0, 2, lambda _, c: run_cube(c), x))(put(mesh, V / 2, "a"))
        close(out, (V / 2) ** 9)
        assert spec_of(out) == ("a",)


# With no rule they are gathered, which is what the test is about.
@pytest.mark.filterwarnings("ignore::xlakernel.core.errors.GatheredOperandsWarning")
def test_a_call_without_a_rule_on_an_explicit_mesh(make_mesh, put):
    mesh = make_mesh("Explicit", a=4)
    plain = numba_kernel(cumsum, outs=same_as_first)
    with jax.set_mesh(mesh):
        for run in (plain, jax.jit(plain)):
            out = run(put(mesh, V, "a"))
            close(out, np.cumsum(V))
            assert spec_of(out) == ()
