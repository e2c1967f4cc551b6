"""Operators that are split over devices, with plain JAX kernels."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from numpy.testing import assert_allclose

from xlakernel.core import XLACustomKernel, use_backend
from xlakernel.core.errors import ShardingRuleError

Struct = jax.ShapeDtypeStruct
A = np.random.default_rng(0).normal(size=(8, 12)).astype(np.float32)
B = np.random.default_rng(1).normal(size=(12, 4)).astype(np.float32)
COLLECTIVE = re.compile(r" (all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter)(?:-start)?\(")


def mesh_of(kind=AxisType.Auto):
    return jax.make_mesh((2, 2), ("a", "b"), (kind,) * 2, devices=jax.devices("cpu")[:4])


def put(mesh, x, *spec):
    return jax.device_put(x, NamedSharding(mesh, P(*spec)))


@pytest.fixture
def parts():
    """The results' shapes that the kernel of `product` was generated for, in order."""
    return []


@pytest.fixture
def product(new_operator, parts):
    op = new_operator()

    def generate(outs):
        parts.append(outs[0].shape)
        return jnp.matmul

    op.def_jax_kernel(generate)
    op.def_reference(jnp.matmul)
    op.def_sharding_rule("m k, k n -> m n")
    return lambda a, b: op(a, b, outs=Struct((a.shape[0], b.shape[1]), a.dtype))


@pytest.mark.parametrize(
    ("left", "right", "part", "expected"),
    [
        ((), (), (8, 4), set()),
        (("a",), (), (4, 4), set()),
        (("a",), (None, "b"), (4, 2), set()),
        ((("a", "b"),), (), (2, 4), set()),
        ((None, "a"), ("a",), (8, 4), {"all-reduce"}),
        (("a", "b"), ("b",), (4, 4), {"all-reduce"}),
        ((None, ("a", "b")), (("a", "b"),), (8, 4), {"all-reduce"}),
    ],
)
def test_the_generator_is_given_the_part_of_a_device(product, parts, left, right, part, expected):
    mesh = mesh_of()
    a, b = put(mesh, A, *left), put(mesh, B, *right)
    compiled = jax.jit(product).lower(a, b).compile()
    assert parts[-1] == part
    assert set(COLLECTIVE.findall(compiled.as_text())) == expected
    assert_allclose(compiled(a, b), A @ B, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("left", [(), ("a",), (None, "a"), (None, None, "b"), ("b", "a"), (("a", "b"),)], ids=str)
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_batches(product, left, axis):
    mesh = mesh_of()
    a = np.stack([A * i for i in range(4)], axis)
    mapped = jax.vmap(product, (axis, None))
    assert_allclose(jax.jit(mapped)(put(mesh, a, *left), put(mesh, B, "a")), np.moveaxis(a, axis, 0) @ B, rtol=1e-4)
    twice = jax.vmap(jax.vmap(product, (None, 0)), (axis, None))
    b = np.stack([B, 2 * B])
    expected = np.moveaxis(a, axis, 0)[:, None] @ b
    assert_allclose(jax.jit(twice)(put(mesh, a, *left), put(mesh, b, "b")), expected, rtol=1e-4)


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=str)
@pytest.mark.parametrize("jit", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_gradients(product, kind, jit):
    mesh = mesh_of(kind)
    expected = jax.grad(lambda a, b: ((a @ b) ** 2).sum(), (0, 1))(A, B)
    with jax.set_mesh(mesh):
        for left, right in ((("a",), ()), (("a",), (None, "b")), ((), (None, "a"))):
            a, b = put(mesh, A, *left), put(mesh, B, *right)
            found = jit(jax.grad(lambda a, b: (product(a, b) ** 2).sum(), (0, 1)))(a, b)
            for one, other in zip(found, expected, strict=True):
                assert_allclose(one, other, rtol=1e-3, atol=1e-3)


def test_types_on_an_explicit_mesh(product):
    mesh = mesh_of(AxisType.Explicit)
    with jax.set_mesh(mesh):
        a, b = put(mesh, A, "a"), put(mesh, B, None, "b")
        for run in (product, jax.jit(product)):
            out = run(a, b)
            assert jax.typeof(out).sharding.spec == P("a", "b")
            assert_allclose(out, A @ B, rtol=1e-4, atol=1e-5)


def test_a_reference_that_is_sharded_unlike_the_operator(new_operator):
    """The operator needs its input whole, and the results of plain JAX stay split."""
    op = new_operator(lambda x: jnp.sin(x))
    op.def_reference(jnp.sin)
    op.def_sharding_rule("[i] -> [i]")
    mesh, x = mesh_of(AxisType.Explicit), np.arange(8, dtype=np.float32)
    with jax.set_mesh(mesh):
        split = put(mesh, x, "a")
        for jit in (lambda f: f, jax.jit):
            value, tangent = jit(lambda x: jax.jvp(lambda x: op(x, outs=Struct((8,), x.dtype)), (x,), (x,)))(split)
            assert jax.typeof(value).sharding == jax.typeof(tangent).sharding
            assert_allclose(tangent, np.cos(x) * x, rtol=1e-5, atol=1e-5)
            gradient = jit(jax.grad(lambda x: op(x, outs=Struct((8,), x.dtype)).sum()))(split)
            assert jax.typeof(gradient).sharding.spec == P("a")
            assert_allclose(gradient, np.cos(x), rtol=1e-5, atol=1e-5)


def test_a_rule_of_the_kernel_in_an_operator_without_one(new_operator, product):
    """The kernel is known to JAX only when the operator is lowered."""
    op = new_operator()
    op.def_jax_kernel(lambda outs: product)
    mesh = mesh_of()
    for jit in (lambda f: f, jax.jit):
        run = jit(lambda a, b: op(a, b, outs=Struct((8, 4), jnp.float32)))
        assert_allclose(run(put(mesh, A, "a"), put(mesh, B, None, "b")), A @ B, rtol=1e-4, atol=1e-5)


def test_a_rule_excludes_side_effects(new_name):
    op = XLACustomKernel(new_name(), has_side_effect=True)
    with pytest.raises(ShardingRuleError, match=f"{op.name}: .*has_side_effect=True exclude.*shard_map"):
        op.def_sharding_rule("i -> i")


@pytest.mark.versions
def test_settings_reach_the_operators_that_a_split_kernel_calls(new_operator):
    inner, middle, outer = (new_operator() for _ in range(3))
    for name, factor in (("a", 2), ("b", 3)):
        inner.def_kernel(name, "cpu", lambda outs, factor=factor: lambda x: factor * x)
        middle.def_kernel(name, "cpu", lambda outs: lambda x: inner(x, outs=x))
        outer.def_kernel(name, "cpu", lambda outs: lambda x: middle(x, outs=x))
    outer.def_sharding_rule("i -> i")
    x = put(mesh_of(), np.ones(8, np.float32), ("a", "b"))
    f = jax.jit(lambda x: outer(x, outs=x))
    for name, expected in (("b", 3), ("a", 2)):
        with use_backend(name):
            assert_allclose(f(x), np.full(8, expected))


def test_a_kept_program_has_its_sharding_rule(new_operator):
    op, parts = new_operator(), []

    def generator(outs):
        parts.append(outs[0].shape)
        return lambda x: 2 * x

    op.def_jax_kernel(generator)
    op.def_sharding_rule("i -> i")
    x = put(mesh_of(), np.ones(8, np.float32), ("a", "b"))
    kept = jax.jit(lambda x: op(x, outs=x)).trace(x)
    op.def_sharding_rule("[i] -> [i]")
    for program, part in ((lambda x: kept.lower().compile()(x), (2,)), (jax.jit(lambda x: op(x, outs=x)), (8,))):
        parts.clear()
        assert_allclose(program(x), np.full(8, 2.0))
        assert parts[-1] == part
