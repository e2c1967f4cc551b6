"""Calls inside jax.shard_map: one for each device, with the varying axes in the types of results."""

import functools

import jax
import jax.numpy as jnp
import numba
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P
from numpy.testing import assert_allclose

from xlakernel.core import XLACustomKernel
from xlakernel.numba import numba_kernel

pytestmark = pytest.mark.slow

Struct = jax.ShapeDtypeStruct
V = np.random.default_rng(0).normal(size=16).astype(np.float32)
W = np.random.default_rng(1).normal(size=(8, 4)).astype(np.float32)
close = functools.partial(assert_allclose, rtol=1e-4, atol=1e-4)
KINDS = pytest.mark.parametrize("kind", ["Auto", "Explicit"])
JIT = pytest.mark.parametrize("jit", [lambda f: f, jax.jit], ids=["eager", "jit"])


@numba.njit
def weigh(x, w, out):
    """Computes out[i] = x[i] * w[i] for equal sizes, and repeats w otherwise."""
    for i in range(x.size):
        out[i] = x[i] * w[i % w.size]


@numba.njit
def own_size(x, out):
    for i in range(x.size):
        out[i] = x.size


@numba.njit
def matvec(a, x, out):
    for i in range(a.shape[0]):
        total = np.float32(0)
        for j in range(a.shape[1]):
            total += a[i, j] * x[j]
        out[i] = total


def same(x, *_):
    return x


def in_jax(x, w):
    return x * jnp.tile(w, x.size // w.size)


def transposed(ins, cotangent):
    _, w = ins
    return run_plain(cotangent, w)


run_plain = numba_kernel(weigh, outs=same)
operator = XLACustomKernel("test_shard_map_weigh")
operator.def_numba_kernel(lambda outs: numba_kernel(weigh, outs=outs[0]))
operator.def_reference(in_jax)
split_operator = XLACustomKernel("test_shard_map_weigh_split")
split_operator.def_numba_kernel(lambda outs: numba_kernel(weigh, outs=outs[0]))
split_operator.def_reference(in_jax)
split_operator.def_sharding_rule("i, i -> i")
RUNS = {
    "plain": numba_kernel(weigh, outs=same, reference=in_jax),
    "rule": numba_kernel(weigh, outs=same, reference=in_jax, sharding_rule="i, i -> i"),
    "vjp": numba_kernel(
        weigh,
        outs=same,
        vjp=lambda ins, _, ct: (run_plain(ct, ins[1]), run_plain(ct, ins[0]).reshape(-1, ins[1].size).sum(0)),
    ),
    "transpose": numba_kernel(weigh, outs=same, transpose={0: transposed}, reference=in_jax),
    "operator": lambda x, w: operator(x, w, outs=Struct(x.shape, x.dtype)),
    "operator with a rule": lambda x, w: split_operator(x, w, outs=Struct(x.shape, x.dtype)),
}
WAYS = pytest.mark.parametrize("way", RUNS)
run_matvec = numba_kernel(
    matvec, outs=lambda a, x: Struct(a.shape[:1], a.dtype), reference=jnp.matmul, sharding_rule="m k, k -> m"
)


def over(mesh, f, ins, out, **options):
    return jax.shard_map(f, mesh=mesh, in_specs=ins, out_specs=out, check_vma=True, **options)


def in_mesh(mesh, kind):
    """Return the context for arrays on a mesh with explicit axes."""
    return jax.set_mesh(mesh) if kind == "Explicit" else jax.sharding.set_mesh(mesh)


def varying(x):
    aval = jax.typeof(x)
    return set(aval.manual_axis_type.varying if hasattr(aval, "manual_axis_type") else aval.vma)


@KINDS
@JIT
@WAYS
def test_each_device_makes_its_own_call(make_mesh, put, kind, jit, way):
    mesh, run = make_mesh(kind, a=4), RUNS[way]
    with in_mesh(mesh, kind):
        x, w = put(mesh, V, "a"), put(mesh, V + 1, "a")
        close(jit(over(mesh, run, (P("a"), P("a")), P("a")))(x, w), V * (V + 1))
        size = jit(over(mesh, numba_kernel(own_size, outs=same, sharding_rule="i -> i"), P("a"), P("a")))(x)
        close(size, [4] * 16)


@pytest.mark.parametrize("way", ["plain", "rule", "vjp", "transpose"])
def test_a_program_may_have_two_meshes(make_mesh, way):
    run, one, two = RUNS[way], make_mesh("Auto", a=4), make_mesh("Auto", b=2, c=2)

    def program(x, w):
        y = over(one, run, (P("a"), P("a")), P("a"))(x, w)
        return over(two, run, (P(("b", "c")), P(("b", "c"))), P(("b", "c")))(y, w)

    close(jax.jit(program)(V, V + 1), V * (V + 1) ** 2)


@KINDS
@JIT
@WAYS
@pytest.mark.parametrize("replicated", [0, 1])
def test_a_result_varies_as_any_operand_does(make_mesh, put, kind, jit, way, replicated):
    mesh, run, seen = make_mesh(kind, a=2, b=2), RUNS[way], []
    specs = [P(("a", "b")), P(("a", "b"))]
    specs[replicated] = P()

    def program(x, w):
        out = run(x, w)
        seen.append(varying(out))
        return out

    with in_mesh(mesh, kind):
        ins = [V if i != replicated else V[:4] for i in range(2)]
        found = jit(over(mesh, program, tuple(specs), P(("a", "b"))))(
            *(put(mesh, v, *s) for v, s in zip(ins, specs, strict=True))
        )
        close(found, V * np.tile(V[:4], 4))
        assert seen[0] == {"a", "b"}
        jit(over(mesh, program, (P("a"), P("b")), P(("a", "b"))))(put(mesh, V, "a"), put(mesh, V, "b"))
        assert seen[-1] == {"a", "b"}
        same = jit(over(mesh, program, (P(), P()), P()))(
            put(mesh, V), put(mesh, V)
        )  # out_specs demand it: no variation
        close(same, V * V)
        assert seen[-1] == set()


@KINDS
@JIT
@WAYS
def test_gradients_inside_and_outside(make_mesh, put, kind, jit, way):
    mesh, run = make_mesh(kind, a=4), RUNS[way]

    def loss(x, w):
        return jax.lax.psum((run(x, w) ** 2).sum(), "a")

    def inside(x, w):
        return jax.grad(loss, (0, 1))(x, w)

    def reference(x, w):
        return ((x * jnp.tile(w, 4)) ** 2).sum()

    expected = jax.grad(reference, (0, 1))(V, V[:4])
    with in_mesh(mesh, kind):
        x, w = put(mesh, V, "a"), put(mesh, V[:4])
        for found in (
            jit(jax.grad(over(mesh, loss, (P("a"), P()), P()), (0, 1)))(x, w),
            jit(over(mesh, inside, (P("a"), P()), (P("a"), P())))(x, w),
        ):
            for one, other in zip(found, expected, strict=True):
                close(one, other)


@KINDS
@JIT
@WAYS
def test_vmap_inside_and_outside(make_mesh, put, kind, jit, way):
    mesh, run = make_mesh(kind, a=2, b=2), RUNS[way]
    expected = W * W[:1]
    with in_mesh(mesh, kind):
        inside = over(mesh, jax.vmap(run, (0, None)), (P("a", None), P()), P("a", None))
        close(jit(inside)(put(mesh, W, "a"), put(mesh, W[0])), expected)
        nested = over(mesh, jax.vmap(jax.vmap(run, (0, None)), (0, 0)), (P("a"), P()), P("a"))
        close(
            jit(nested)(put(mesh, np.stack([W] * 4), "a"), put(mesh, W[:2])),
            np.stack([W] * 4) * np.tile(W[:2], (2, 1))[:, None],
        )
        outside = jax.vmap(over(mesh, run, (P("a"), P()), P("a")), (0, None))
        close(jit(outside)(put(mesh, W, None, "a"), put(mesh, W[0, :2])), W * np.tile(W[0, :2], 2))
        each = jax.vmap(jax.grad(lambda x, w: (run(x, w) ** 2).sum()), (0, None))
        close(jit(over(mesh, each, (P("a"), P()), P("a")))(put(mesh, W, "a"), put(mesh, W[0])), 2 * W * W[0] ** 2)


@WAYS
def test_control_flow_inside(make_mesh, put, way):
    mesh, run = make_mesh(a=4), RUNS[way]

    def loop(x, w):
        return jax.lax.fori_loop(0, 3, lambda _, c: run(c, w), x)

    def chosen(x, w):
        return jax.lax.cond(jax.lax.axis_index("a") == 1, run, lambda x, w: x + 0 * run(x, w), x, w)

    x, w = put(mesh, V, "a"), put(mesh, V[:4])
    close(jax.jit(over(mesh, loop, (P("a"), P()), P("a")))(x, w), V * np.tile(V[:4], 4) ** 3)
    expected = V.copy()
    expected[4:8] *= V[:4]
    close(jax.jit(over(mesh, chosen, (P("a"), P("a")), P("a")))(x, put(mesh, np.tile(V[:4], 4), "a")), expected)


@KINDS
@JIT
def test_a_product_summed_by_hand(make_mesh, put, kind, jit):
    mesh = make_mesh(kind, a=2, b=2)

    def program(a, x):
        return jax.lax.psum(run_matvec(a, x), "b")

    with in_mesh(mesh, kind):
        a, x = put(mesh, W, "a", "b"), put(mesh, V[:4], "b")
        f = over(mesh, program, (P("a", "b"), P("b")), P("a"))
        close(jit(f)(a, x), W @ V[:4])
        gradient = jit(jax.grad(lambda a, x: (f(a, x) ** 2).sum(), (0, 1)))(a, x)
        expected = jax.grad(lambda a, x: ((a @ x) ** 2).sum(), (0, 1))(W, V[:4])
        for one, other in zip(gradient, expected, strict=True):
            close(one, other)


@KINDS
@WAYS
def test_axes_that_stay_automatic(make_mesh, put, kind, way):
    """Manual over one axis of the mesh, and split by XLA over the other."""
    mesh, run = make_mesh(kind, a=2, b=2), RUNS[way]
    with in_mesh(mesh, kind):
        f = over(mesh, run, (P("a"), P("a")), P("a"), axis_names={"a"})
        x, w = put(mesh, V, "a"), put(mesh, V + 1, "a")
        close(jax.jit(f)(x, w), V * (V + 1))
        rows = over(mesh, jax.vmap(run), (P("a"), P("a")), P("a"), axis_names={"a"})
        close(jax.jit(rows)(put(mesh, W, "a", "b"), put(mesh, W + 1, "a", "b")), W * (W + 1))
        if kind == "Auto":
            close(jax.jit(jax.grad(lambda x, w: f(x, w).sum()))(x, w), V + 1)


@WAYS
def test_shard_map_inside_of_shard_map(make_mesh, put, way):
    mesh, run = make_mesh(a=2, b=2), RUNS[way]

    def outer(x, w):
        return jax.shard_map(run, in_specs=(P("b"), P("b")), out_specs=P("b"), axis_names={"b"})(x, w)

    with jax.set_mesh(mesh):
        f = jax.jit(over(mesh, outer, (P("a"), P("a")), P("a"), axis_names={"a"}))
        close(f(put(mesh, V, "a"), put(mesh, V + 1, "a")), V * (V + 1))


def test_an_alias_and_a_side_effect_inside(make_mesh, put):
    @numba.njit
    def add(acc, x, out):
        for i in range(out.size):
            out[i] += x[i]

    mesh = make_mesh(a=4)
    run = numba_kernel(add, outs=same, input_output_aliases={0: 0}, has_side_effect=True)
    f = jax.jit(over(mesh, run, (P("a"), P("a")), P("a")))
    x = put(mesh, V, "a")
    close(f(x, x), 2 * V)
    close(x, V)
    unused = jax.jit(over(mesh, lambda x, w: (run(x, w), x)[1], (P("a"), P("a")), P("a")))
    close(unused(x, x), V)


@numba.njit
def twice(x, y, out):
    """Jointly linear in x and y, although independent of y."""
    for i in range(x.size):
        out[i] = 2 * x[i]


def two(x):
    return jnp.full(x.shape, 2, x.dtype)


CONSTANTS = {
    "vjp that returns None": {"vjp": lambda ins, _, ct: (2 * ct, None)},
    "vjp that returns a constant": {"vjp": lambda ins, _, ct: (two(ct), jnp.zeros(ins[1].shape))},
    "jvp that returns a constant": {"jvp": lambda ins, ts: two(ts[0]), "vjp": lambda ins, _, ct: (2 * ct, None)},
    "transpose that returns a constant": {"transpose": {(0, 1): lambda ins, ct: (two(ct), None)}},
    "reference that is constant in y": {"reference": lambda x, y: 2 * x},
}


@KINDS
@pytest.mark.parametrize("declared", CONSTANTS.values(), ids=CONSTANTS)
def test_constants_in_a_rule_vary_as_the_values_they_replace(make_mesh, put, kind, declared):
    """A constant made on one device has a type that varies over the devices."""
    run = numba_kernel(twice, outs=same, **declared)
    mesh = make_mesh(kind=kind, a=4)
    x, y = put(mesh, V, "a"), put(mesh, np.ones(4, np.float32))

    def loss(x, y):
        return run(x, y).sum()

    inside = jax.shard_map(jax.grad(loss, argnums=(0, 1)), mesh=mesh, in_specs=(P("a"), P()), out_specs=(P("a"), P()))
    for found, expected in zip(jax.jit(inside)(x, y), (2 * np.ones(16), np.zeros(4)), strict=True):
        close(found, expected)
    if "vjp" not in declared or "jvp" in declared:
        tangent = jax.shard_map(
            lambda x, y: jax.jvp(run, (x, y), (jnp.ones_like(x), jnp.zeros_like(y)))[1],
            mesh=mesh,
            in_specs=(P("a"), P()),
            out_specs=P("a"),
        )
        close(jax.jit(tangent)(x, y), 2 * np.ones(16))
