"""Isolation of inactive events: products and their derivatives in the weights against sums of active terms alone.

A weight, tangent or cotangent that is infinite or not a number reaches nothing through an event that is inactive, nor
through a row without entries.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from xlakernel.core import use_backend
from xlakernel.sparse import CSR, BinaryArray, BitPackedArray, CompactArray, WeightedArray
from xlakernel.sparse.operators.compact import sum_rows

KINDS = {"binary": BinaryArray, "weighted": WeightedArray, "packed": BitPackedArray, "compact": CompactArray}
# Of a dense array each element counts.
OPERANDS = {**KINDS, "dense": jnp.asarray}
FORMATS = ["csr", "csc", "coo", "prepared csr", "prepared csc"]

anything = st.sampled_from([0.0, 1.0, -2.0, 3.0, np.nan, np.inf, -np.inf])
events = st.sampled_from([0.0, 0.0, 0.0, -0.0, 1.0, -1.0, 2.0, np.nan])


def arrays(data, elements, *shape):
    drawn = data.draw(st.lists(elements, min_size=int(np.prod(shape)), max_size=int(np.prod(shape))))
    return np.array(drawn, np.float32).reshape(shape)


class Oracle:
    """Sums of the active terms of ``A @ x`` or ``x @ A``, in NumPy; *x* has the contracted axis first."""

    def __init__(self, matrix, kind, x, side):
        row, col = (np.asarray(index) for index in matrix.coordinates())
        self.is_entry = row < matrix.shape[0]
        self.into, self.of = (row, col) if side == "left" else (col, row)
        self.size = matrix.shape[0 if side == "left" else 1]
        self.x = x.reshape(len(x), -1)
        self.active = (self.x != 0) | (kind == "dense")
        self.value = self.x if kind in ("weighted", "dense") else self.active.astype(np.float32)
        self.shape = (self.size, *x.shape[1:])

    def entries(self):
        for k in np.flatnonzero(self.is_entry):
            for c in range(self.x.shape[1]):
                if self.active[self.of[k], c]:
                    yield k, self.into[k], c, self.value[self.of[k], c]

    def forward(self, weights):
        """Return the product, linear in *weights*."""
        y = np.zeros((self.size, self.x.shape[1]), np.float32)
        for k, i, c, value in self.entries():
            y[i, c] += weights[k if weights.size > 1 else 0] * value
        return y.reshape(self.shape)

    def backward(self, cotangent, equal):
        """Return the cotangent of the weights, linear in that of the product."""
        cotangent = cotangent.reshape(self.size, -1)
        if equal:
            ones = self.forward(np.ones(1, np.float32)).reshape(cotangent.shape)
            reached = np.zeros(cotangent.shape, bool)
            for _, i, c, _ in self.entries():
                reached[i, c] = True
            return np.sum(cotangent * ones, where=reached).reshape(1)
        found = np.zeros(self.is_entry.shape, np.float32)
        for k, i, c, value in self.entries():
            found[k] += cotangent[i, c] * value
        return found


# NumPy's, in the sums that are expected.
may_be_nan = pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")


def check_derivatives(matrix, kind, side, columns, data):
    """Compare the derivatives in the weights, of both modes and second order, and mapped."""
    equal = matrix.homogeneous
    x = arrays(data, events, matrix.shape[1 if side == "left" else 0], *columns)
    oracle = Oracle(matrix, kind, x, side)
    w, dw = (arrays(data, anything, matrix.data.size) for _ in range(2))
    cotangent = arrays(data, anything, *oracle.shape)

    def product(w, x=x):
        if side == "left":
            return matrix.with_data(w) @ OPERANDS[kind](x)
        return (OPERANDS[kind](x.T) @ matrix.with_data(w)).T

    y, tangent = jax.jvp(product, (w,), (dw,))
    assert_array_equal(y, oracle.forward(w))
    assert_array_equal(tangent, oracle.forward(dw))
    pull = jax.vjp(product, w)[1]
    expected = oracle.backward(cotangent, equal)
    assert_array_equal(pull(cotangent)[0], expected)
    moved = arrays(data, anything, *oracle.shape)
    of_pull = jax.jvp(lambda ct: pull(ct)[0], (cotangent,), (moved,))
    assert_array_equal(of_pull, [expected, oracle.backward(moved, equal)])
    if not equal:  # the gradient is linear in the cotangent, and its transpose is the product again
        (of_gradient,) = jax.vjp(lambda ct: pull(ct)[0], cotangent)[1](dw)
        assert_array_equal(of_gradient, oracle.forward(dw))
    mapped = jax.vmap(lambda ct: pull(ct)[0])(np.stack([cotangent, cotangent]))
    assert_array_equal(mapped, [expected] * 2)
    if kind != "compact":
        pairs = np.stack([x, np.zeros_like(x)])
        of_events = jax.vmap(lambda x: jax.vjp(lambda w: product(w, x), w)[1](cotangent)[0])(pairs)
        assert_array_equal(of_events, [expected, Oracle(matrix, kind, pairs[1], side).backward(cotangent, equal)])


@may_be_nan
@pytest.mark.parametrize("kind", OPERANDS)
@settings(max_examples=5)
@given(data=st.data())
def test_derivatives_in_the_weights(make, kind, data):
    name, side = data.draw(st.sampled_from(FORMATS)), data.draw(st.sampled_from(["left", "right"]))
    columns = () if kind == "compact" else data.draw(st.sampled_from([(), (3,)]))
    matrix = make(name, homogeneous=data.draw(st.booleans())).matrix
    with use_backend("jax"), jax.disable_jit():  # single operations are compiled once for all
        check_derivatives(matrix, kind, side, columns, data)


@may_be_nan
@pytest.mark.parametrize("columns", [(), (3,)], ids=["vector", "matrix"])
@pytest.mark.parametrize(
    ("name", "side"), [("csr", "left"), ("csr", "right"), pytest.param("coo", "left", marks=pytest.mark.slow)]
)
@settings(max_examples=3)
@given(data=st.data())
def test_the_kernels_of_the_cpu(make, name, side, columns, data):
    for kind in ("binary", "weighted", "dense"):
        check_derivatives(make(name).matrix, kind, side, columns, data)


@pytest.mark.parametrize("name", FORMATS)
def test_cotangents_that_are_nan(make, op_by_op, name):
    """The weights of inactive events have the gradient 0, those of active ones NaN."""
    matrix = make(name).matrix
    x = np.zeros(matrix.shape[1], np.float32)
    x[3] = 1
    column = np.asarray(matrix.coordinates()[1])
    for kind in KINDS.values():
        pull = jax.vjp(lambda w, kind=kind: matrix.with_data(w) @ kind(x), matrix.data)[1]
        (found,) = pull(np.full(matrix.shape[0], np.nan, np.float32))
        assert_array_equal(found, np.where(column == 3, np.nan, 0))


@pytest.mark.parametrize("equal", [False, True])
def test_active_events_that_add_up_to_zero_are_active(make, op_by_op, equal):
    matrix = make("csr", homogeneous=equal).matrix
    x = np.array([1, 0, 0, -0.5, 0, 0, 0], np.float32)  # row 0 has column 3 twice, and column 0
    pull = jax.vjp(lambda w: matrix.with_data(w) @ WeightedArray(x), matrix.data)[1]
    (found,) = pull(np.array([np.nan, 0, 0, 0, 0], np.float32))
    assert_array_equal(found, [np.nan] if equal else [np.nan] * 3 + [0] * 9)


@pytest.mark.parametrize("equal", [False, True])
def test_rows_that_are_not_listed(csr, op_by_op, equal):
    """A row may be listed twice."""
    w = np.full(1 if equal else 12, np.nan, np.float32)
    active, count = jnp.array([2, 2, 0], jnp.int32), jnp.int32(2)
    y, pull = jax.vjp(lambda w: sum_rows(w, **csr, active=active, count=count), w)
    assert_array_equal(y, [0, np.nan, 0, 0, 0, 0, np.nan])
    (found,) = pull(np.array([np.nan, 1, np.inf, np.nan, -np.inf, np.nan, 3], np.float32))
    assert_array_equal(found, [8] if equal else [0, 0, 0, 6, 2, *[0] * 7])


@pytest.mark.parametrize("equal", [False, True])
@pytest.mark.parametrize("kind", ["binary", "weighted"])
def test_derivatives_in_the_events_are_those_of_dense_arrays(make, x64, op_by_op, kind, equal):
    """With a value for inactive events too, also where the gradient in the weights is differentiated by them."""
    for name, side in (("csr", "left"), ("csc", "left"), ("coo", "right"), ("prepared csr", "right")):
        example = make(name, "float64", homogeneous=equal)
        x = example.operand(side, dtype="float64")

        def mixed(product, w=example.matrix.data, x=x):
            by_events = jax.jvp(lambda x: jax.grad(lambda w: jnp.sin(product(w, x)).sum())(w), (x,), (x + 1,))[1]
            by_weights = jax.jvp(lambda w: jax.grad(lambda x: jnp.sin(product(w, x)).sum())(x), (w,), (w + 1,))[1]
            return by_events, by_weights

        for found, expected in zip(*map(mixed, example.product(kind, side)), strict=True):
            assert_allclose(found, expected, rtol=1e-9, atol=1e-9)


def test_a_row_without_entries_has_no_second_derivative(op_by_op):
    """Its logarithm has an infinite one, which is no part of the one weight's."""
    A = CSR((jnp.ones(1), jnp.array([0, 1]), jnp.array([0, 1, 1, 2])), shape=(3, 2))

    def gradient(x):
        return jax.grad(lambda w: jnp.log(A.with_data(w) @ x).sum())(jnp.ones(1))

    found, tangent = jax.jvp(gradient, (jnp.array([2.0, 3.0]),), (jnp.ones(2),))
    assert_allclose(found, [2.0])
    assert_allclose(tangent, [0.0])


def test_zeros_in_a_tangent_of_events_count():
    """A zero of the events themselves is left out of the gradient in the weights."""
    A = CSR((jnp.ones(2), jnp.array([0, 1]), jnp.array([0, 2])), shape=(1, 2))

    def gradient(values):
        return jax.vjp(lambda w: A.with_data(w) @ WeightedArray(values), A.data)[1](jnp.array([np.inf]))[0]

    found, tangent = jax.jvp(gradient, (jnp.array([0.0, 1.0]),), (jnp.array([0.0, 1.0]),))
    assert_array_equal(found, [0, np.inf])
    assert_array_equal(tangent, [np.nan, np.inf])
