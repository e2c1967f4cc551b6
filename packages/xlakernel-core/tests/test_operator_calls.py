"""Calls of operators: trees of outputs, static keywords, arguments of generators and kernels, transformations."""

import collections
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas
from numpy.testing import assert_array_equal

from xlakernel.core import XLACustomKernel

Struct = jax.ShapeDtypeStruct
X = jnp.arange(3.0)
Pair = collections.namedtuple("Pair", "a b")

TREES = {
    "struct": Struct((3,), jnp.float32),
    "tuple of one": (Struct((3,), jnp.float32),),
    "list": [Struct((3,), jnp.float32), Struct((2,), jnp.int32)],
    "namedtuple": Pair(Struct((), jnp.int32), Struct((0, 2), jnp.float32)),
    "nested": ([Struct((1,), jnp.int8), (Struct((2,), jnp.bfloat16),)], Pair(Struct((), jnp.uint32), ())),
    "arrays": [np.zeros((2, 2), np.float32), jnp.zeros(3, jnp.int32)],
    "scalars of NumPy": (np.float32(1), np.int32(2)),
}


def describe(tree):
    return jax.tree.map(lambda leaf: (leaf.shape, jnp.dtype(leaf.dtype)), tree)


def numbered(outs, **static):
    """Return a kernel that fills result *i* with *i*."""
    return lambda *ins: [jnp.full(out.shape, i).astype(out.dtype) for i, out in enumerate(outs)]


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_results_come_in_the_tree_of_outs(op, tree, wrap):
    op.def_jax_kernel(numbered)
    outs = TREES[tree]
    found = wrap(lambda x: op(x, outs=outs))(X)
    assert jax.tree.structure(found) == jax.tree.structure(outs)
    assert describe(found) == describe(outs)
    for i, leaf in enumerate(jax.tree.leaves(found)):
        assert_array_equal(leaf, jnp.full(leaf.shape, i).astype(leaf.dtype))


def test_no_inputs(op):
    op.def_jax_kernel(lambda outs: lambda: jnp.ones(3))
    assert op(outs=Struct((3,), jnp.float32)).tolist() == [1, 1, 1]
    assert jax.jit(lambda: op(outs=Struct((3,), jnp.float32)))().tolist() == [1, 1, 1]


@pytest.mark.parametrize("x", [3, 3.5, True, 2 - 1j, np.float32(2), np.arange(3), np.zeros((0, 2), "f4")], ids=repr)
def test_inputs_may_be_any_array_like(op, x):
    op.def_jax_kernel(lambda outs: lambda x: x)
    found = op(x, outs=jax.eval_shape(jnp.asarray, x))
    assert isinstance(found, jax.Array)
    assert_array_equal(found, jnp.asarray(x))


def test_a_generator_gets_a_flat_list_of_structs_and_the_static_keywords(op):
    seen = []

    def generator(outs, **static):
        seen.append((outs, static))
        return numbered(outs)

    op.def_jax_kernel(generator)
    op(X, outs=([X, np.int8(1)], jnp.zeros(2)), n=2, mode="fast", shape=(3, (4,)), f=jnp.sin, none=None)
    ((outs, static),) = seen
    assert type(outs) is list
    assert outs == [Struct((3,), jnp.float32), Struct((), jnp.int8), Struct((2,), jnp.float32)]
    assert all(type(out) is Struct for out in outs)
    assert static == {"n": 2, "mode": "fast", "shape": (3, (4,)), "f": jnp.sin, "none": None}


@pytest.mark.parametrize("wrap", [list, tuple, lambda results: results[0]], ids=["list", "tuple", "array"])
def test_a_kernel_returns_an_array_or_a_sequence(op, wrap):
    op.def_jax_kernel(lambda outs: lambda x: wrap([x + 1]))
    assert op(X, outs=X).tolist() == [1, 2, 3]
    assert op(X, outs=[X])[0].tolist() == [1, 2, 3]


def test_a_kernel_may_return_numpy(op):
    op.def_jax_kernel(lambda outs: lambda x: (x, np.arange(2, dtype=np.int32)))
    assert [leaf.tolist() for leaf in op(X, outs=[X, Struct((2,), jnp.int32)])] == [[0, 1, 2], [0, 1]]


def test_a_program_is_traced_and_lowered_once(op):
    made, ran = [], []

    def generator(outs, **static):
        made.append(static)

        def kernel(x):
            ran.append(x.shape)
            return x

        return kernel

    op.def_jax_kernel(generator)
    for _ in range(3):
        op(X, outs=X, n=1)
    assert (len(made), len(ran)) == (1, 1)
    op(X, outs=X, n=2)
    op(X, outs=X, n=1)
    assert made == [{"n": 1}, {"n": 2}]


def test_one_operator_inside_another(new_operator):
    inner = new_operator(jnp.sin)
    outer = new_operator(lambda x: inner(x, outs=x) + 1)
    assert_array_equal(jax.jit(lambda x: outer(x, outs=x))(X), jnp.sin(X) + 1)


def test_in_scan_while_and_cond(new_operator):
    op = new_operator(lambda x: x + 1)
    add = functools.partial(op, outs=X)
    assert jax.lax.scan(lambda x, _: (add(x), x[0]), X, length=5)[1].tolist() == [0, 1, 2, 3, 4]
    assert jax.lax.fori_loop(0, 5, lambda _, x: add(x), X).tolist() == [5, 6, 7]
    assert jax.lax.cond(X[0] > 0, add, lambda x: x, X).tolist() == X.tolist()
    assert jax.lax.cond(X[1] > 0, add, lambda x: x, X).tolist() == [1, 2, 3]


def test_eval_shape_make_jaxpr_and_lower(new_operator):
    op = new_operator(lambda x: (x + 1, x.astype(jnp.int32)))
    outs = Pair(Struct((3,), jnp.float32), Struct((3,), jnp.int32))

    def f(x):
        return op(x, outs=outs)

    assert jax.eval_shape(f, X) == outs
    assert op.name in str(jax.make_jaxpr(f)(X))
    compiled = jax.jit(f).lower(X).compile()
    assert compiled(X).a.tolist() == [1, 2, 3]


def test_eval_shape_makes_no_kernel(op):
    op.def_jax_kernel(lambda outs: pytest.fail("made"))
    assert jax.eval_shape(lambda x: op(x, outs=X), X).shape == (3,)


def test_jit_with_a_static_argument(op):
    op.def_jax_kernel(lambda outs, *, n: lambda x: x * n)
    f = jax.jit(lambda x, n: op(x, outs=X, n=n), static_argnames="n")
    assert [f(X, n=n).tolist() for n in (2, 3, 2)] == [[0, 2, 4], [0, 3, 6], [0, 2, 4]]


def test_without_jit(new_operator):
    op = new_operator(lambda x: x + 1)
    op.def_jvp_rule2(lambda tangent, x, **params: 3 * tangent)

    def f(x):
        return op(x, outs=Struct((), x.dtype))

    with jax.disable_jit():
        assert op(X, outs=X).tolist() == [1, 2, 3]
        assert jax.jit(jax.vmap(f))(X).tolist() == [1, 2, 3]
        assert jax.vmap(jax.grad(f))(X).tolist() == [3, 3, 3]


def test_binding_the_primitive_by_hand(new_operator):
    op = new_operator(lambda x: x + 1)
    bind = functools.partial(op.primitive.bind, outs=(Struct((3,), jnp.float32),))
    assert bind(X)[0].tolist() == jax.jit(bind)(X)[0].tolist() == [1, 2, 3]


def test_static_values_that_are_equal_are_not_confused_by_hand(op):
    op.def_jax_kernel(lambda outs, *, value: lambda x: jnp.full_like(x, isinstance(value, bool) + 2 * (value == 0)))
    for value, expected in ((1, 0), (True, 1), (1.0, 0), (0, 2), (False, 3)):
        (found,) = op.primitive.bind(X, outs=(Struct((3,), jnp.float32),), value=value)
        assert found.tolist() == [expected] * 3


def test_a_pallas_kernel(op):
    def add(x_ref, y_ref, out_ref):
        out_ref[...] = x_ref[...] + y_ref[...]

    op.def_pallas_kernel("cpu", lambda outs: pallas.pallas_call(add, out_shape=outs[0], interpret=True))
    f = jax.jit(lambda x, y: op(x, y, outs=x))
    assert f(X, X + 1).tolist() == [1, 3, 5]
    assert jax.vmap(f)(jnp.stack([X, X + 1]), jnp.stack([X, X])).tolist() == [[0, 2, 4], [1, 3, 5]]


def test_random_keys_go_through_a_plain_jax_kernel(op):
    op.def_jax_kernel(lambda outs: lambda key: jax.random.normal(key, outs[0].shape))
    key = jax.random.key(0)
    assert_array_equal(op(key, outs=X), jax.random.normal(key, (3,)))


def test_outs_in_64_bits(op, x64):
    op.def_jax_kernel(lambda outs: lambda x: x / 3)
    x = jnp.arange(3.0)
    assert op(x, outs=x).dtype == jnp.float64
    assert_array_equal(op(x, outs=x), np.arange(3.0) / 3)


@pytest.mark.parametrize("has_side_effect", [False, True])
def test_an_operator_with_a_side_effect_is_lowered_though_nobody_looks(new_name, has_side_effect):
    generated = []
    op = XLACustomKernel(new_name(), has_side_effect=has_side_effect)
    op.def_jax_kernel(lambda outs: generated.append(outs) or (lambda x: x))

    @jax.jit
    def unused(x):
        op(x, outs=x)
        return jax.lax.fori_loop(0, 3, lambda i, v: (op(v, outs=v), v + 1)[1], x)

    assert_array_equal(unused(jnp.ones(2)), [4, 4])
    assert bool(generated) == has_side_effect
