"""Outputs as a dictionary, which are bound by the names of the kernel's parameters, and empty outputs."""

import collections
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numba
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from xlakernel.core import XLACustomKernel, debug_mode
from xlakernel.core.errors import AliasError, OutputSpecError, ResultError
from xlakernel.core.testing import check_kernel
from xlakernel.numba import numba_kernel

Struct = jax.ShapeDtypeStruct
X = np.array([1.0, 2.0, 9.0], np.float32)
SCALAR = Struct((), np.float32)


@numba.njit
def stats(x, weight, mean, low):
    """Names in another order than the sorted keys, and a scalar between the arrays."""
    mean[()] = weight * x.mean()
    low[()] = x.min()


def by_name(*_):
    return {"mean": SCALAR, "low": SCALAR}


class Pair(NamedTuple):
    mean: object
    low: object


EXPECTED = {"mean": 8.0, "low": 1.0}
KINDS = [
    *(dict, lambda pairs: collections.OrderedDict(pairs), lambda pairs: collections.OrderedDict(reversed(pairs))),
    lambda pairs: collections.defaultdict(None, pairs),
]


@pytest.mark.parametrize("make", KINDS, ids=["dict", "ordered", "reversed", "default"])
@pytest.mark.parametrize("as_function", [False, True])
def test_a_dictionary_is_bound_by_name(make, as_function):
    outs = make(list(by_name().items()))
    run = numba_kernel(stats, outs=(lambda x: outs) if as_function else outs)
    for call in (run, jax.jit(run, static_argnames="weight")):
        with debug_mode(call is run):
            found = call(X, weight=2.0)
        assert jax.tree.structure(found) == jax.tree.structure(outs)
        assert dict(found) == EXPECTED
    found = jax.vmap(lambda x: run(x, weight=2.0))(np.stack([X, 2 * X]))
    assert_array_equal(found["mean"], [8, 16])
    assert_array_equal(found["low"], [1, 2])


def test_tuples_and_named_tuples_have_their_own_order():
    assert numba_kernel(stats, outs=(SCALAR, SCALAR))(X, weight=2.0) == (8.0, 1.0)
    swapped = collections.namedtuple("Swapped", "low mean")(SCALAR, SCALAR)
    assert numba_kernel(stats, outs=swapped)(X, weight=2.0) == (8.0, 1.0)
    assert numba_kernel(stats, outs=Pair(SCALAR, SCALAR))(X, weight=2.0) == (8.0, 1.0)


@pytest.mark.parametrize(
    "outs",
    [
        {"mean": SCALAR, "lowest": SCALAR},
        {"mean": SCALAR, "x": SCALAR},
        {"mean": (SCALAR,), "low": SCALAR},
        ({"mean": SCALAR}, SCALAR),
        [{"mean": SCALAR, "low": SCALAR}],
        {"outs": {"mean": SCALAR, "low": SCALAR}},
        {1: SCALAR, 0: SCALAR},
        Pair({"mean": SCALAR}, SCALAR),
    ],
    ids=str,
)
@pytest.mark.parametrize("as_function", [False, True])
def test_any_other_dictionary_is_refused(outs, as_function):
    run = numba_kernel(stats, outs=(lambda x: outs) if as_function else outs)
    for call in (run, jax.jit(run, static_argnames="weight")):
        with pytest.raises(OutputSpecError, match=r"stats: outs has a dictionary with the keys .*\['mean', 'low'\]"):
            call(X, weight=2.0)


class Own(dict):
    """A dictionary whose leaves are in the order of its items."""


jax.tree_util.register_pytree_node(
    Own, lambda d: (tuple(d.values()), tuple(d)), lambda keys, values: Own(zip(keys, values, strict=True))
)


@pytest.mark.parametrize("outs", [Own(low=SCALAR, mean=SCALAR), (Own(low=SCALAR), SCALAR)], ids=["alone", "inside"])
def test_a_dictionary_of_another_class_is_refused(outs):
    with pytest.raises(OutputSpecError, match="stats: outs has a dictionary of the class Own; expected a plain dict"):
        numba_kernel(stats, outs=outs)(X, weight=2.0)
    op = XLACustomKernel("of other dictionaries", replace=True)
    op.def_jax_kernel(lambda outs: lambda x: (x.max(), x.min()))
    with pytest.raises(OutputSpecError, match="outs has a dictionary of the class Own"):
        op(X, outs=outs)


@numba.njit
def step(state, drive, total, below):
    """Updates *total* in place, with names in another order than the sorted keys."""
    for i in range(drive.size):
        total[i] = state[i] + drive[i]
        below[i] = drive[i] - 1


def test_aliases_count_the_outputs_as_the_kernel_does():
    run = numba_kernel(step, outs=lambda s, d: {"total": s, "below": d}, input_output_aliases={0: 0})
    found = run(X, X + 1)
    assert_array_equal(found["total"], 2 * X + 1)
    assert_array_equal(found["below"], X)
    long = Struct((4,), np.float32)
    wrong = numba_kernel(step, outs=lambda s, d: {"total": long, "below": d}, input_output_aliases={0: 0})
    with pytest.raises(AliasError, match=r"output 0 is float32\[4\]"):
        wrong(X, X)


def test_a_sharding_rule_has_the_outputs_as_the_kernel_does():
    @numba.njit
    def rows(a, sums, copy):
        for i in range(a.shape[0]):
            sums[i] = a[i].sum()
            copy[i] = a[i]

    def outs(a):
        return {"sums": Struct(a.shape[:1], a.dtype), "copy": a}

    split = jax.sharding.NamedSharding(jax.sharding.Mesh(jax.devices()[:2], "d"), jax.sharding.PartitionSpec("d"))
    a = jax.device_put(np.arange(8, dtype="f4").reshape(4, 2), split)
    found = jax.jit(numba_kernel(rows, outs=outs, sharding_rule="i j -> i, i j"))(a)
    assert found["sums"].sharding == split
    assert_array_equal(found["sums"], np.asarray(a).sum(1))
    assert_array_equal(found["copy"], a)


WAYS = {
    "reference": {"reference": lambda x, *, weight: {"low": x.min(), "mean": weight * x.mean()}},
    "jvp": {
        "jvp": lambda primals, tangents, *, weight: {
            "low": tangents[0][jnp.argmin(primals[0])],
            "mean": weight * tangents[0].mean(),
        }
    },
    "vjp": {
        "vjp": lambda primals, results, cotangents, *, weight: (
            jnp.zeros(3, np.float32).at[jnp.argmin(primals[0])].set(cotangents["low"])
            + weight * cotangents["mean"] / 3
            + 0 * (results["mean"] - weight * primals[0].mean())
        )
    },
}


@pytest.mark.parametrize("way", WAYS)
def test_derivatives_have_the_same_dictionary(way):
    run = numba_kernel(stats, outs=by_name, **WAYS[way])
    derive = jax.jacfwd if way == "jvp" else jax.jacrev
    found = derive(lambda x: run(x, weight=2.0))(X)
    assert_allclose(found["mean"], np.full(3, 2 / 3), rtol=1e-6)
    assert_array_equal(found["low"], [1, 0, 0])
    if way != "vjp":
        wrong = numba_kernel(stats, outs=by_name, **{way: lambda *_, weight: (np.float32(0), np.float32(0))})
        with pytest.raises(ResultError, match=f"{way} returned .* as .*; return them as {{'low': 'float32.*'mean'"):
            derive(lambda x: wrong(x, weight=2.0))(X)


@numba.njit
def spread(x, top, bottom):
    top[()] = x.max()
    bottom[()] = x.min()


def test_check_kernel_sees_outputs_that_are_swapped():
    skip = {"grad": "no derivative", "export": "takes a process", "sharding": "nothing to split", "threads": "slow"}
    run = numba_kernel(spread, outs=lambda x: {"top": SCALAR, "bottom": SCALAR})
    check_kernel(run, X, reference=lambda x: {"bottom": x.min(), "top": x.max()}, skip=skip)
    with pytest.raises(AssertionError, match=r"single call|bottom|top"):
        check_kernel(run, X, reference=lambda x: {"bottom": x.max(), "top": x.min()}, skip=skip)


def test_a_kernel_of_an_operator_returns_no_dictionary():
    """Its results have an order and no names, so that all its backends agree."""
    op = XLACustomKernel("of dictionaries", replace=True)
    op.def_numba_kernel(lambda outs: numba_kernel(spread, outs={"top": outs[0], "bottom": outs[1]}))
    op.def_jax_kernel(lambda outs: lambda x: (x.max(), x.min()))
    with pytest.raises(OutputSpecError, match=r"outs has a dictionary with the keys .*a named tuple"):
        op(X, outs={"top": SCALAR, "bottom": SCALAR})
    with pytest.raises(ResultError, match="A dictionary has no order"):
        op(X, outs=(SCALAR, SCALAR))
    assert op(X, outs=(SCALAR, SCALAR), backend="jax") == (9.0, 1.0)


@numba.njit
def nothing(x):
    pass


@pytest.mark.parametrize("outs", [(), [], {}, ((), [])], ids=str)
def test_no_outputs_without_a_side_effect_are_refused(outs):
    with pytest.raises(OutputSpecError, match=r"nothing: outs describes no output.*has_side_effect=True"):
        numba_kernel(nothing, outs=outs)
    run = numba_kernel(nothing, outs=lambda x: outs)
    with pytest.raises(OutputSpecError, match="nothing: outs describes no output"):
        jax.eval_shape(run, X)
    assert numba_kernel(nothing, outs=outs, has_side_effect=True)(X) == outs
