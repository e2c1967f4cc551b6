"""Random dtypes, shapes and orders of transformations, against a loop in NumPy.

``nox -s fuzz`` runs this for minutes; it sets XLAKERNEL_FUZZ to ``long``.
"""

import os

import jax
import jax.numpy as jnp
import numba
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from xlakernel.numba import numba_kernel

# How many examples each test gets; compiling takes most of the time.
PROFILES = {
    "ci": settings(max_examples=20, deadline=None, database=None, derandomize=True),
    "long": settings(max_examples=1500, deadline=None, print_blob=True),
}
profile = settings(
    PROFILES[os.environ.get("XLAKERNEL_FUZZ", "ci")],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)

DTYPES = ["float32", "int32", "int8", "uint16", "bool", "complex64", "float64", "int64"]
WIDE = ["float64", "int64"]


@numba.njit
def weighted(x, y, out):
    """Depends on every previous element, to detect mixed-up slices and strides; any rank of x, and a scalar y."""
    total = x.dtype.type(0)
    for index in np.ndindex(x.shape):
        total += x[index] * y[()]
        out[index] = total


@numba.njit
def product(a, b, out, last):
    """Two ranks and two outputs of other shapes."""
    last[()] = 0
    for i in range(a.shape[0]):
        for j in range(b.shape[1]):
            out[i, j] = 0
            for k in range(a.shape[1]):
                out[i, j] += a[i, k] * b[k, j]
            last[()] = out[i, j]


def weighted_in_numpy(x, y):
    return np.cumsum((x * y).reshape(-1), dtype=x.dtype).reshape(x.shape)


def product_in_numpy(a, b):
    out = np.matmul(a, b)
    return out, (out.reshape(-1)[-1] if out.size else np.zeros((), a.dtype))


run_weighted = numba_kernel(weighted, outs=lambda x, y: x)
run_product = numba_kernel(
    product,
    outs=lambda a, b: (
        jax.ShapeDtypeStruct((a.shape[0], b.shape[1]), a.dtype),
        jax.ShapeDtypeStruct((), a.dtype),
    ),
)

extents = st.integers(0, 4)
dtypes = st.sampled_from(DTYPES)


def draw_array(seed, dtype, shape):
    """Small integers, which every dtype represents exactly, including their sums."""
    rng = np.random.default_rng(seed)
    low = 0 if dtype in ("bool", "uint16") else -2
    values = rng.integers(low, 3, shape)
    return np.asarray(values + 1j * rng.integers(-2, 3, shape) if dtype == "complex64" else values).astype(dtype)


def mapped_in_numpy(function, axes, size):
    """Return the results of `jax.vmap` by a loop; the shapes for an empty batch come from a slice of zeros."""

    def mapped(*xs):
        def taken(k):
            return [x if a is None else np.take(x, k, a) for x, a in zip(xs, axes, strict=True)]

        if size:
            results = [function(*taken(k)) for k in range(size)]
            return jax.tree.map(lambda *ys: np.stack(ys), *results)
        zeros = [
            x if a is None else np.zeros([n for i, n in enumerate(x.shape) if i != a % x.ndim], x.dtype)
            for x, a in zip(xs, axes, strict=True)
        ]
        return jax.tree.map(lambda y: np.zeros((0, *np.shape(y)), np.asarray(y).dtype), function(*zeros))

    return mapped


def scanned(function, axes):
    """Return a scan over the mapped inputs: one more way to the same results."""

    def scan(*xs):
        moved = [jnp.moveaxis(x, a, 0) for x, a in zip(xs, axes, strict=True) if a is not None]

        def step(carry, slices):
            rest = iter(slices)
            return carry, function(*(x if a is None else next(rest) for x, a in zip(xs, axes, strict=True)))

        return jax.lax.scan(step, 0, moved)[1]

    return scan


def apply_levels(data, run, reference, shapes):
    """Wrap both functions in up to three levels of transformations, and add the batch axes to the inputs' shapes."""
    for _ in range(data.draw(st.integers(0, 3), label="levels")):
        how = data.draw(st.sampled_from(["vmap", "vmap", "scan", "jit", "checkpoint"]), label="transformation")
        if how in ("jit", "checkpoint"):
            run = getattr(jax, how)(run)
            continue
        size = data.draw(st.integers(0, 3), label="size")
        axes = [
            data.draw(st.one_of(st.none(), st.integers(-len(shape) - 1, len(shape))), label="axis") for shape in shapes
        ]
        if all(axis is None for axis in axes):
            axes[0] = 0
        shapes = [
            shape if a is None else (*shape[: a % (len(shape) + 1)], size, *shape[a % (len(shape) + 1) :])
            for shape, a in zip(shapes, axes, strict=True)
        ]
        reference = mapped_in_numpy(reference, axes, size)
        run = jax.vmap(run, tuple(axes)) if how == "vmap" else scanned(run, axes)
    return run, reference, shapes


def check(data, run, reference, shapes, dtype, enable_x64):
    run, reference, shapes = apply_levels(data, run, reference, shapes)
    seed = data.draw(st.integers(0, 2**16), label="seed")
    inputs = [draw_array(seed + i, dtype, shape) for i, shape in enumerate(shapes)]
    expected = reference(*inputs)
    with enable_x64() if dtype in WIDE else jax.default_device(jax.devices("cpu")[0]):
        got = run(*map(jnp.asarray, inputs))
        for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
            assert (one.shape, one.dtype) == (np.shape(other), np.dtype(dtype))
            np.testing.assert_array_equal(one, other)


@profile
@given(dtype=dtypes, shape=st.lists(extents, max_size=3).map(tuple), data=st.data())
def test_coupled_elements_of_any_rank(enable_x64, dtype, shape, data):
    check(data, run_weighted, weighted_in_numpy, [shape, ()], dtype, enable_x64)


@profile
@given(dtype=dtypes, m=extents, k=extents, n=extents, data=st.data())
def test_products_of_any_size(enable_x64, dtype, m, k, n, data):
    check(data, run_product, product_in_numpy, [(m, k), (k, n)], dtype, enable_x64)


@pytest.mark.parametrize("axes", [(0, None), (-1, 0)])
def test_the_reference_loop_equals_vmap(axes):
    """Compared with JAX's own functions, to distinguish errors of the reference from those of kernels."""
    x, y = draw_array(0, "int32", (3, 3)), draw_array(1, "int32", (3,))

    def in_jax(x, y):
        return jnp.cumsum(x * y).reshape(x.shape)

    y = y[0] if axes[1] is None else y
    for run in (jax.vmap(in_jax, axes), scanned(in_jax, axes)):
        np.testing.assert_array_equal(run(x, y), mapped_in_numpy(weighted_in_numpy, axes, 3)(x, y))


def test_a_broken_kernel_is_found(enable_x64):
    """The properties fail for a kernel whose batches are mixed up."""

    @jax.custom_batching.custom_vmap
    def broken(x, y):
        return run_weighted(x, y)

    @broken.def_vmap
    def rule(size, batched, x, y):
        right = jax.vmap(run_weighted, [0 if own else None for own in batched], axis_size=size)(x, y)
        return jnp.flip(right, 0), True

    @settings(profile, max_examples=100, phases=[Phase.generate])  # nothing is to be made small
    @given(shape=st.lists(extents, max_size=3).map(tuple), data=st.data())
    def search(shape, data):
        check(data, broken, weighted_in_numpy, [shape, ()], "int32", enable_x64)

    with pytest.raises(AssertionError):
        search()
