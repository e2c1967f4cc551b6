"""A handler called with batches: one call runs the kernel on every slice, and slices share inputs with extent 1."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_array_equal

F32 = ("float32", 1)
# JAX raises a ValueError where the program ran in the calling thread, and its own error where it did not.
RAISED = (jax.errors.JaxRuntimeError, ValueError)


def call(target, outs, *ins, **attributes):
    """Call a registered target with buffers; *outs* is a shape, or structs."""
    if isinstance(outs, tuple) and all(isinstance(extent, int) for extent in outs):
        outs = jax.ShapeDtypeStruct(outs, jnp.float32)
    return jax.jit(lambda *xs: jax.ffi.ffi_call(target, outs, has_side_effect=True)(*xs, **attributes))(*ins)


def cumsum(x, out):
    """The elements of a slice depend on each other, so that mixed-up slices are detected."""
    total = 0.0
    for i in range(x.size):
        total += x[i]
        out[i] = total


def outer(x, y, out):
    for i in range(x.size):
        for j in range(y.size):
            out[i, j] = x[i] * y[j]


@pytest.fixture(scope="module")
def cumsum_target(register):
    return register(cumsum, [F32], [F32])


@pytest.fixture(scope="module")
def outer_target(register):
    return register(outer, [F32, F32], [("float32", 2)])


X = np.arange(12, dtype=np.float32).reshape(2, 2, 3)


@pytest.mark.parametrize("batch", [(), (2,), (2, 2)])
def test_each_slice_of_a_batch_is_a_call(cumsum_target, batch):
    x = X[(0,) * (2 - len(batch))]
    assert_array_equal(call(cumsum_target, x.shape, x), np.cumsum(x, -1))


@pytest.mark.parametrize(
    ("left", "right"),
    [
        *[((4,), (1,)), ((1,), (4,)), ((1,), (1,))],
        *[((4, 3), (1, 1)), ((4, 1), (1, 3)), ((1, 3), (4, 1)), ((4, 3), (4, 1)), ((4, 3), (1, 3))],
        *[((2, 1, 3), (1, 4, 1)), ((1, 4, 1), (2, 4, 3))],
    ],
    ids=str,
)
def test_an_extent_of_1_is_shared_by_all_slices(outer_target, left, right):
    rng = np.random.default_rng(0)
    x, y = (rng.integers(1, 9, (*batch, n)).astype(np.float32) for batch, n in ((left, 2), (right, 5)))
    expected = x[..., :, None] * y[..., None, :]
    assert_array_equal(call(outer_target, expected.shape, x, y), expected)


@pytest.mark.parametrize("batch", [(0,), (0, 3), (3, 0)])
def test_a_batch_of_zero_runs_nothing(outer_target, batch):
    ones = (1,) * len(batch)
    assert call(outer_target, (*batch, 2, 2), jnp.ones((*batch, 2)), jnp.ones((*ones, 2))).shape == (*batch, 2, 2)


def raises(x, out):
    raise ValueError("ran")


def test_a_kernel_that_raises_is_not_run_by_a_batch_of_zero(register):
    target = register(raises, [F32], [F32])
    assert call(target, (0, 3), jnp.ones((0, 3))).shape == (0, 3)
    with pytest.raises(RAISED, match="ran"):
        call(target, (1, 3), jnp.ones((1, 3)))


@pytest.mark.parametrize("shape", [(0,), (2, 0), (0, 0)])
def test_slices_without_elements(cumsum_target, shape):
    assert call(cumsum_target, shape, jnp.ones(shape)).shape == shape


def test_an_output_of_size_zero_beside_an_input_with_elements(outer_target):
    assert call(outer_target, (3, 2, 0), jnp.ones((3, 2)), jnp.ones((1, 0))).shape == (3, 2, 0)


@pytest.mark.parametrize(
    ("left", "right", "out"), [((3,), (2,), (3,)), ((2,), (2,), (3,)), ((2, 3), (2, 1), (2, 4)), ((2,), (1,), (1,))]
)
def test_buffers_that_disagree_on_the_batch_are_refused(outer_target, left, right, out):
    """Otherwise slices outside of a buffer would be accessed; only inputs may be shared by all slices."""
    with pytest.raises(RAISED, match=r"INVALID_ARGUMENT.*xlakernel: outer: .*batch"):
        call(outer_target, (*out, 2, 2), jnp.ones((*left, 2)), jnp.ones((*right, 2)))
