"""Code of brainevent's Warp tutorial, and the cells of our own; on the CPU and on a GPU."""

import importlib.util
from pathlib import Path

import jax
import jax.numpy as jnp
import numba
import numpy as np
import pytest
import warp as wp

from xlakernel.core import XLACustomKernel
from xlakernel.core.errors import BackendNotFoundError
from xlakernel.numba import numba_kernel
from xlakernel.warp import jax_kernel, jaxinfo_to_warpinfo, jaxtype_to_warptype

DOCS = Path(__file__).parents[3] / "docs"
PAGE = DOCS / "tutorials" / "warp.md"
needs_docs = pytest.mark.skipif(not PAGE.exists(), reason="docs/ is in the repository, not in a source archive")


@wp.kernel
def clip_below(x: wp.array(dtype=wp.float32, ndim=1), out: wp.array(dtype=wp.float32, ndim=1)):
    i = wp.tid()
    out[i] = wp.max(x[i], wp.float32(0.0))


@wp.kernel
def add_scaled(
    values: wp.array(dtype=wp.float32, ndim=1),
    targets: wp.array(dtype=wp.int32, ndim=1),
    scale: wp.array(dtype=wp.float32, ndim=1),
    total: wp.array(dtype=wp.float32, ndim=1),
):
    i = wp.tid()
    wp.atomic_add(total, targets[i], values[i] * scale[0])


@numba.njit(parallel=True)
def multiply_add_in_numba(a, b, c, out):
    for i in numba.prange(out.size):
        out[i] = a[i] * b[i] + c[i]


@pytest.fixture(params=["cpu", pytest.param("gpu", marks=pytest.mark.gpu)])
def platform(request):
    """Each platform in turn, as the one that JAX computes on."""
    with jax.default_device(jax.devices(request.param)[0]):
        yield request.param


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture
def make_operator(request):
    """Return a function that makes an operator with a name of its own."""
    return lambda name="operator": XLACustomKernel(f"{request.node.name}.{name}")


def multiply_add(**kwargs):
    """A generator that finds what it needs to know in ``outs``."""
    like = kwargs["outs"][0]
    array = jaxinfo_to_warpinfo(like)

    @wp.kernel
    def kernel(a: array, b: array, c: array, out: array):
        i = wp.tid()
        out[i] = a[i] * b[i] + c[i]

    def run(a, b, c):
        size = like.shape[0]
        return jax_kernel(kernel, launch_dims=[size], num_outputs=1, output_dims={"out": (size,)})(a, b, c)

    return run


def multiply_add_on_the_cpu(**kwargs):
    like = kwargs["outs"][0]
    return lambda a, b, c: numba_kernel(multiply_add_in_numba, outs=like)(a, b, c)


def deliver_spikes(**kwargs):
    """A generator with the structs of all its arrays, and the size of its result, as arguments."""
    structs = [kwargs[f"{name}_info"] for name in ("weight", "indices", "indptr", "spikes")]
    weight, indices, indptr, spike = map(jaxinfo_to_warpinfo, structs)
    dtype, neurons = kwargs["outs"][0].dtype, kwargs["neurons"]
    sum_ = wp.array(dtype=jaxtype_to_warptype(dtype), ndim=1)

    @wp.kernel
    def kernel(weights: weight, indices: indices, indptr: indptr, spikes: spike, current: sum_):
        i = wp.tid()
        if spikes[i]:
            w = weights[0]
            for k in range(indptr[i], indptr[i + 1]):
                wp.atomic_add(current, indices[k], w)

    def run(weights, indices, indptr, spikes):
        launch_dims = [structs[2].shape[0] - 1]
        deliver = jax_kernel(kernel, launch_dims=launch_dims, num_outputs=1, in_out_argnames=["current"])
        return deliver(weights, indices, indptr, spikes, jnp.zeros(neurons, dtype))

    return run


def struct_of(x):
    return jax.ShapeDtypeStruct(x.shape, x.dtype)


def compressed_rows(dense):
    """Return the columns of a matrix's non-zeros, and where each row's begin."""
    rows, columns = np.nonzero(dense)
    indptr = np.searchsorted(rows, np.arange(len(dense) + 1))
    return jnp.asarray(columns, jnp.int32), jnp.asarray(indptr, jnp.int32)


def test_a_kernel_with_the_extents_of_its_launch_and_its_output(platform):
    clip = jax_kernel(clip_below, launch_dims=[1024], num_outputs=1, output_dims={"out": (1024,)})
    x = jnp.linspace(-2.0, 2.0, 1024, dtype=jnp.float32)
    (found,) = clip(x)
    assert next(iter(found.devices())).platform == platform
    np.testing.assert_array_equal(found, jnp.maximum(x, 0))


@pytest.mark.parametrize(
    ("dtype", "scalar"),
    [(jnp.float32, wp.float32), (jnp.float64, wp.float64), (jnp.int32, wp.int32), (jnp.bool_, wp.bool)],
)
def test_annotations_of_structs(dtype, scalar):
    assert jaxtype_to_warptype(dtype) is scalar
    annotation = jaxinfo_to_warpinfo(jax.ShapeDtypeStruct((8, 4), dtype))
    assert annotation.dtype is scalar
    assert annotation.ndim == 2


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float16, jnp.int32])
def test_a_generator_that_makes_the_constant_of_the_dtype(platform, make_operator, dtype):
    def generate(**kwargs):
        like = kwargs["outs"][0]
        array = jaxinfo_to_warpinfo(like)

        @wp.kernel
        def kernel(x: array, out: array):
            i = wp.tid()
            out[i] = wp.max(x[i], array.dtype(0.0))

        return lambda x: jax_kernel(kernel, launch_dims=[like.shape[0]], output_dims={"out": like.shape})(x)

    clip = make_operator()
    clip.def_warp_kernel(generate, platform=platform)
    x = jnp.arange(-8, 8).astype(dtype)
    (found,) = clip(x, outs=[struct_of(x)])
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, jnp.maximum(x, 0))


def test_a_sum_that_begins_with_what_the_caller_gives(platform, rng):
    values = jnp.asarray(rng.random(512), jnp.float32)
    targets = jnp.asarray(rng.integers(0, 128, 512), jnp.int32)
    add = jax_kernel(add_scaled, launch_dims=[512], num_outputs=1, in_out_argnames=["total"])
    before = jnp.ones(128, jnp.float32)
    (found,) = add(values, targets, jnp.array([2.0], jnp.float32), before)
    expected = 1 + np.bincount(targets, weights=2.0 * np.asarray(values), minlength=128)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    np.testing.assert_array_equal(before, 1)  # the caller's array is as it was


def test_an_operator_outside_of_jit_and_inside(platform, make_operator):
    operator = make_operator()
    operator.def_warp_kernel(multiply_add, platform=platform)
    assert operator.defaults == {platform: "warp"}
    a, b, c = jnp.arange(256, dtype=jnp.float32), jnp.full(256, 2.0), jnp.ones(256)
    results = operator(a, b, c, outs=[struct_of(a)])
    np.testing.assert_array_equal(results[0], 2 * a + 1)
    jitted = jax.jit(lambda a, b, c: operator(a, b, c, outs=[struct_of(a)])[0])
    np.testing.assert_array_equal(jitted(a, b, c), 2 * a + 1)


def test_spikes_of_a_sparse_network(platform, make_operator, rng):
    dense = (rng.random((300, 200)) < 0.05).astype(np.float32) * np.float32(0.1)
    indices, indptr = compressed_rows(dense)
    weight, spikes = jnp.array([0.1], jnp.float32), jnp.asarray(rng.random(300) < 0.1)
    arrays = {"weight": weight, "indices": indices, "indptr": indptr, "spikes": spikes}
    operator = make_operator()
    operator.def_warp_kernel(deliver_spikes, platform=platform)

    def deliver(weight, indices, indptr, spikes):
        outs = [jax.ShapeDtypeStruct((200,), jnp.float32)]
        infos = {f"{name}_info": struct_of(x) for name, x in arrays.items()}
        return operator(weight, indices, indptr, spikes, outs=outs, neurons=200, **infos)[0]

    expected = np.asarray(spikes, np.float32) @ dense
    jitted = jax.jit(deliver)
    for run in (deliver, jitted, jitted):
        np.testing.assert_allclose(run(*arrays.values()), expected, rtol=1e-5, atol=1e-6)


def test_warp_on_the_gpu_and_numba_on_the_cpu(platform, make_operator):
    operator = make_operator()
    operator.def_warp_kernel(multiply_add)
    operator.def_numba_kernel(multiply_add_on_the_cpu)
    assert operator.defaults == {"gpu": "warp", "cpu": "numba"}
    a = jnp.arange(128, dtype=jnp.float32)
    run = jax.jit(lambda a: operator(a, a, a, outs=[struct_of(a)])[0])
    np.testing.assert_array_equal(run(a), a * a + a)
    custom_calls = [line for line in run.lower(a).as_text().splitlines() if "custom_call" in line]
    assert any(f"xlakernel.{'warp' if platform == 'gpu' else 'numba'}" in line for line in custom_calls)


def test_a_kernel_for_the_gpu_says_so_on_the_cpu(make_operator):
    operator = make_operator()
    operator.def_warp_kernel(multiply_add)
    a = jnp.ones(4)
    with jax.default_device(jax.devices("cpu")[0]), pytest.raises(BackendNotFoundError, match=r"'cpu'.*\['gpu'\]"):
        operator(a, a, a, outs=[struct_of(a)])


@pytest.fixture(scope="module")
def outputs():
    """Return the module of docs/ that finds a page's cells and runs them."""
    spec = importlib.util.spec_from_file_location("record_outputs", DOCS / "record_outputs.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@needs_docs
@pytest.mark.gpu  # on the CPU they run when the documentation is built
def test_every_cell_of_the_page_runs_on_a_gpu(outputs, monkeypatch):
    pyplot = pytest.importorskip("matplotlib.pyplot", reason="the page plots")
    monkeypatch.setattr(pyplot, "show", lambda: None)
    sources = outputs.scripted(PAGE.read_text("utf-8"))
    assert "one launch" in "".join(outputs.run(sources, PAGE.name))
