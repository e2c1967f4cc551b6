"""`jax.vmap` over kernels: one call that loops, or one call after the other."""

import jax
import jax.numpy as jnp
import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import export as jax_export
from numpy.testing import assert_allclose, assert_array_equal

from xlakernel.core import deserialize, export
from xlakernel.core.call import VMAP_METHODS
from xlakernel.core.errors import VmapMethodError
from xlakernel.numba import numba_kernel

METHODS = pytest.mark.parametrize("method", VMAP_METHODS)


def normal(*shape):
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


@numba.njit
def weighted_rows(matrix, weights, out):
    """Ranks 2, 1 → 1, and asymmetric in all three."""
    for i in range(matrix.shape[0]):
        out[i] = 0
        for j in range(matrix.shape[1]):
            out[i] += matrix[i, j] * weights[j] * (j + 1)


def rows_out(matrix, weights):
    return jax.ShapeDtypeStruct(matrix.shape[:1], matrix.dtype)


run_rows = {method: numba_kernel(weighted_rows, outs=rows_out, vmap_method=method) for method in VMAP_METHODS}


def rows(matrix, weights):
    return (matrix * weights[..., None, :] * np.arange(1, matrix.shape[-1] + 1)).sum(-1)


@METHODS
@pytest.mark.parametrize("size", [0, 1, 3])
def test_a_batch_of_any_size(make_cumsum, method, size):
    run, x = make_cumsum(vmap_method=method), normal(size, 4)
    expected = np.cumsum(x, axis=1)
    for mapped in (jax.vmap(run), jax.jit(jax.vmap(run)), jax.vmap(jax.jit(run))):
        assert_allclose(mapped(x), expected, rtol=1e-6)


@METHODS
@given(data=st.data())
@settings(max_examples=5)
def test_in_axes_anywhere(method, data):
    """Up to three levels, innermost first, each with its own batch axis, or none, for each input."""
    mapped, reference = run_rows[method], rows
    matrix, weights = normal(2, 3), normal(3)
    for depth in range(data.draw(st.integers(1, 3))):
        size = data.draw(st.integers(1, 3))
        axes = [data.draw(st.none() | st.integers(0, array.ndim)) for array in (matrix, weights)]
        if axes == [None, None]:
            axes[0] = 0
        matrix, weights = (
            array if axis is None else np.stack([array * (1 + n) for n in range(size)], axis)
            for array, axis in zip((matrix, weights), axes, strict=True)
        )
        out_axis = data.draw(st.integers(0, depth + 1))
        mapped, reference = jax.vmap(mapped, axes, out_axis), jax.vmap(reference, axes, out_axis)
    assert_allclose(mapped(matrix, weights), reference(matrix, weights), rtol=1e-4, atol=1e-5)


@METHODS
def test_out_axes(method):
    matrix, weights = normal(2, 4, 3), normal(3)
    out = jax.vmap(run_rows[method], (1, None), 1)(np.moveaxis(matrix, 0, 1), weights)
    assert_allclose(out, rows(matrix, weights).T, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("sizes", [(0, 3), (3, 0), (1, 3), (3, 1), (1, 1)])
def test_nested_batches_with_empty_or_single_levels(run_cumsum, sizes):
    x = normal(*sizes, 4)
    assert_allclose(jax.vmap(jax.vmap(run_cumsum))(x), np.cumsum(x, -1), rtol=1e-6)
    assert_allclose(jax.vmap(jax.vmap(run_cumsum, 1), 1)(x.transpose(2, 1, 0)), np.cumsum(x, -1).swapaxes(0, 1), 1e-6)


def test_levels_that_map_different_inputs():
    """The batch's first axis belongs to one input, its second to the other."""
    for method, run in run_rows.items():
        matrix, weights = normal(4, 2, 3), normal(5, 3)
        both = jax.vmap(jax.vmap(run, (None, 0)), (0, None))
        found = both(matrix, weights)
        assert_allclose(found, rows(matrix[:, None], weights[None]), rtol=1e-4, atol=1e-5, err_msg=method)


@METHODS
def test_zero_size_slices(make_cumsum, method):
    assert jax.vmap(make_cumsum(vmap_method=method))(np.zeros((3, 0), np.float32)).shape == (3, 0)


def test_an_input_of_rank_0_in_a_batch(run_square_plus):
    x = normal(6)
    assert_allclose(jax.vmap(run_square_plus)(x), x * x + x, rtol=1e-6)
    assert_allclose(jax.vmap(jax.vmap(run_square_plus))(x.reshape(2, 3)), (x * x + x).reshape(2, 3), rtol=1e-6)


@numba.njit
def mean_and_counts(x, mean, counts):
    mean[()] = x.sum() / x.size
    for i in range(counts.size):
        counts[i] = x.size + i


def test_outputs_of_different_rank_and_dtype_in_a_batch(x64):
    outs = (jax.ShapeDtypeStruct((), jnp.float64), jax.ShapeDtypeStruct((2,), jnp.int8))
    x = normal(3, 4).astype(np.float64)
    mean, counts = jax.vmap(numba_kernel(mean_and_counts, outs=outs))(x)
    assert_allclose(mean, x.mean(1))
    assert_array_equal(counts, [[4, 5]] * 3)


@METHODS
@pytest.mark.parametrize("in_axes", [(0, 0), (0, None), (None, 0)], ids=["both", "aliased", "other"])
def test_an_aliased_input_in_a_batch(make_add_into, method, in_axes):
    run = make_add_into(vmap_method=method)
    acc, x = (normal(4) if axis is None else normal(3, 4) for axis in in_axes)
    before = acc.copy()
    acc_array = jnp.asarray(acc)
    found = jax.vmap(run, in_axes)(acc_array, x)
    assert_allclose(found, np.broadcast_to(acc + x, (3, 4)), rtol=1e-6)
    assert_array_equal(acc_array, before)
    nested = jax.vmap(jax.vmap(run, in_axes), (None, None), axis_size=2)(acc_array, x)
    assert_allclose(nested, np.broadcast_to(acc + x, (2, 3, 4)), rtol=1e-6)


def test_a_donated_batch_keeps_its_memory(run_add_into):
    acc = jnp.zeros((100, 10))
    pointer = acc.unsafe_buffer_pointer()
    out = jax.jit(jax.vmap(run_add_into), donate_argnums=0)(acc, jnp.ones((100, 10)))
    assert out.unsafe_buffer_pointer() == pointer


@METHODS
def test_inside_loops(make_cumsum, method):
    run = make_cumsum(vmap_method=method)
    x = normal(3, 4)
    out = jax.vmap(lambda x: jax.lax.fori_loop(0, 2, lambda _, x: run(x), x))(x)
    assert_allclose(out, np.cumsum(np.cumsum(x, 1), 1), rtol=1e-5)
    out = jax.lax.scan(lambda c, x: (c, jax.vmap(run)(x)), None, np.stack([x, 2 * x]))[1]
    assert_allclose(out, np.cumsum(np.stack([x, 2 * x]), -1), rtol=1e-5)


def test_only_the_sequential_methods_call_once_for_each_slice():
    jaxprs = {m: str(jax.make_jaxpr(jax.vmap(run))(normal(4, 2, 3), normal(4, 3))) for m, run in run_rows.items()}
    assert [m for m, jaxpr in jaxprs.items() if "scan" in jaxpr] == ["sequential", "sequential_unrolled"]


def test_none_forbids_vmap(make_cumsum):
    run = make_cumsum(vmap_method=None)
    for attempt in (jax.vmap(run), jax.jit(jax.vmap(run)), jax.vmap(jax.vmap(run))):
        with pytest.raises(VmapMethodError, match=r"cumsum: .*vmap_method=None; give one of .*'native'"):
            attempt(normal(2, 3, 4))
    assert_array_equal(run(jnp.ones(3)), [1, 2, 3])
    unmapped = jax.vmap(lambda i: run(jnp.ones(3)) * i)(jnp.arange(2))  # nothing of the kernel's is mapped
    assert_array_equal(unmapped, [[0, 0, 0], [1, 2, 3]])


def test_unrolled_calls_need_the_size_of_the_batch(make_cumsum):
    (n,) = jax_export.symbolic_shape("n")
    batch = jax.ShapeDtypeStruct((n, 3), jnp.float32)
    program = jax.jit(jax.vmap(make_cumsum(vmap_method="sequential_unrolled")))
    with pytest.raises(VmapMethodError, match=r"cumsum: .* symbolic size n, .* Use vmap_method='sequential'"):
        export(program)(batch)
    program = deserialize(export(jax.jit(jax.vmap(make_cumsum(vmap_method="sequential"))))(batch).serialize())
    x = normal(4, 3)
    assert_allclose(program.call(x), np.cumsum(x, 1), rtol=1e-5)


@pytest.mark.parametrize("method", ["Native", "loop", "", 0, True, "legacy_vectorized"])
def test_unknown_methods(make_cumsum, method):
    with pytest.raises(VmapMethodError, match=r"cumsum: unknown vmap_method .*; allowed: .*'broadcast_all'.* or None"):
        make_cumsum(vmap_method=method)
