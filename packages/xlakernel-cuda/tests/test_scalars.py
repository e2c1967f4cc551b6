"""Scalars of CUDA kernels, which a generated entry loads and passes by value."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numba import cuda
from numba.cuda import dispatcher, types
from numpy.testing import assert_allclose, assert_array_equal

from xlakernel.core import debug_mode
from xlakernel.core.errors import CompileError, DifferentiationError, StaticArgumentError
from xlakernel.cuda import numba_cuda_kernel
from xlakernel.cuda._kernels import recipe
from xlakernel.cuda._kernels.arrays import array_type
from xlakernel.cuda._kernels.errors import compile_error

X = np.arange(4, dtype=np.float32)
Struct = jax.ShapeDtypeStruct
IN, OUT = (array_type("float32", 1, "x", readonly=readonly) for readonly in (True, False))


@cuda.jit(device=True)
def scaled(alpha, x):
    return alpha * x


@cuda.jit
def axpy(alpha, x, y, out):
    i = cuda.grid(1)
    if i < out.size:
        alpha = alpha + 0  # a parameter is a variable of the kernel's
        out[i] = scaled(alpha, x[i]) + y[i]


# Without a GPU: the entry is compiled to PTX


@pytest.fixture
def compile_entry(monkeypatch):
    """Return a function that compiles the entry of a kernel for a device that is not here, and returns its PTX."""

    class Device:
        compute_capability = (9, 0)

    monkeypatch.setattr(dispatcher, "get_current_device", Device)

    def compile_(kernel, loads, signature, **options):
        own = recipe.copy_dispatcher(kernel, recipe.COMPILER.examine(kernel), loads=loads, **options)
        assert own.py_func.__name__ == kernel.py_func.__name__
        with recipe.COMPILER.lock:
            return cuda.compile(own.py_func, signature, device=False, abi="numba", output="ptx", cc=(9, 0))[0]

    return compile_


@pytest.mark.parametrize(("dtype", "bits"), [("float64", 64), ("float32", 32), ("int64", 64), ("uint8", 8)])
def test_the_entry_loads_the_scalar_and_has_the_kernel_inside(compile_entry, dtype, bits):
    scalar = array_type(dtype, 0, "alpha", readonly=True)
    ptx = compile_entry(axpy, {"alpha": "()"}, (scalar, IN, IN, OUT))
    assert len(re.findall(r"ld\.global(?:\.nc)?\.[busf]32", ptx)) == 2 + (bits == 32)  # x and y
    assert re.search(rf"ld\.global(?:\.nc)?\.[busf]{bits}", ptx)
    assert not re.search(r"\bcall\b|\.func\b", ptx)


def test_the_entry_loads_the_scalar_of_a_slice(compile_entry):
    scalar = array_type("float64", 1, "alpha", readonly=True)
    rows = (array_type("float32", 2, "x", readonly=readonly) for readonly in (True, True, False))

    @cuda.jit
    def row_kernel(alpha, x, y, out):
        out[cuda.blockIdx.y, 0] = alpha * x[cuda.blockIdx.y, 0] + y[cuda.blockIdx.y, 0]

    ptx = compile_entry(row_kernel, {"alpha": "cuda.blockIdx.y"}, (scalar, *rows))
    assert "ld.global.f64" in ptx and "%ctaid.y" in ptx


def test_the_entry_of_debug_mode_compiles(compile_entry):
    scalar = array_type("float64", 0, "alpha", readonly=True)
    assert ".entry" in compile_entry(axpy, {"alpha": "()"}, (scalar, IN, IN, OUT), checked=True)


def test_a_kernel_with_a_scalar_that_does_not_compile_is_shown_as_the_user_wrote_it(compile_entry):
    @cuda.jit
    def adds_text(x, out, alpha):
        out[0] = alpha + "text"

    scalar = array_type("float64", 0, "alpha", readonly=True)
    with pytest.raises(Exception, match="text") as raised:  # of a class of Numba's
        compile_entry(adds_text, {"alpha": "()"}, (IN, OUT, scalar))
    error = compile_error("adds_text", adds_text.py_func, (IN, OUT, types.float64), raised.value)
    assert isinstance(error, CompileError) and "alpha: float64" in str(error)


def test_the_dimensions_of_a_launch_may_name_a_scalar(launchable_of):
    run = numba_cuda_kernel(axpy, lambda x, y: x, launch_dims=lambda x, y, *, alpha: 32 * alpha, threads_per_block=32)
    inputs = Struct((4,), np.float32)
    traced = jax.make_jaxpr(functools.partial(run, alpha=3))(inputs, inputs)
    (call,) = _calls(traced)
    assert call.kernel.form.geometry([inputs, inputs]).grid == (3, 1, 1)
    with pytest.raises(StaticArgumentError, match=r"'alpha' is traced.*has a parameter of this name"):
        jax.eval_shape(lambda alpha: run(X, X, alpha=alpha), 3)
    assert jax.eval_shape(functools.partial(run, alpha=jnp.int32(3)), X, X).shape == (4,)


def _calls(jaxpr):
    """Return the native calls in a program and in the programs inside it."""
    for equation in jaxpr.eqns:
        if "call" in equation.params and hasattr(equation.params["call"], "kernel"):
            yield equation.params["call"]
        for inner in jax.tree.leaves(equation.params, is_leaf=lambda x: hasattr(x, "eqns")):
            if hasattr(inner, "eqns"):
                yield from _calls(inner)


# On a GPU


run = numba_cuda_kernel(axpy, lambda x, y: x, launch_dims=lambda x, y: x.size)
KINDS = [2, 2.5, True, np.float32(2), np.uint8(200), np.int16(-3), np.float16(2), jnp.float32(2), jnp.int32(2)]


@pytest.mark.gpu
@pytest.mark.parametrize("value", KINDS, ids=repr)
def test_numbers_arrays_and_traced_values(value):
    known = functools.partial(run, alpha=value)
    for call in (known, functools.partial(jax.jit(run), alpha=value), jax.jit(known)):
        assert_array_equal(call(X, X), np.float32(value) * X + X)


@pytest.mark.gpu
@pytest.mark.parametrize("value", [-0.0, float("nan"), 5e-324, 2**63 - 1, -(2**63), 2**64 - 1, 1e308], ids=repr)
def test_extreme_values_arrive_bit_for_bit(value, enable_x64):
    @cuda.jit
    def bits(value, out):
        out[0] = value

    dtype = np.asarray(value).dtype
    with enable_x64():
        found = numba_cuda_kernel(bits, Struct((1,), dtype), launch_dims=1)(value=value)
        assert np.asarray(found).tobytes() == np.asarray(value).tobytes()


@pytest.mark.gpu
def test_a_new_value_compiles_and_records_nothing(monkeypatch):
    from xlakernel.core.gpu import target

    run(X, X, alpha=0.5)
    monkeypatch.setattr(target, "record", None)
    for value in np.linspace(-1, 1, 500):
        assert_allclose(run(X, X, alpha=float(value)), value * X + X, rtol=1e-6)


@pytest.mark.gpu
@pytest.mark.parametrize("axis", [None, "y"])
@pytest.mark.parametrize("method", ["native", "broadcast_all", "sequential"])
def test_each_slice_of_a_batch_has_a_scalar_of_its_own(axis, method):
    @cuda.jit
    def rows(alpha, x, y, out):
        i, slice_ = cuda.grid(1), cuda.blockIdx.y
        if i < out.shape[1]:
            out[slice_, i] = alpha * x[slice_, i] + y[slice_, i]

    options = {"launch_dims": lambda x, y: x.size, "batch_axis": axis, "vmap_method": method}
    batched = numba_cuda_kernel(rows if axis else axpy, lambda x, y: x, **options)
    values, batch = jnp.arange(3.0), jnp.stack([X, 2 * X, 3 * X])
    expected = values[:, None] * batch + X
    assert_array_equal(jax.vmap(lambda x, a: batched(x, X, alpha=a))(batch, values), expected)
    assert_array_equal(jax.vmap(lambda a: batched(X, X, alpha=a))(values), values[:, None] * X + X)
    assert_array_equal(jax.vmap(lambda x: batched(x, X, alpha=2.5))(batch), 2.5 * batch + X)
    assert_array_equal(jax.jit(jax.vmap(lambda x, a: batched(x, X, alpha=a)))(batch, values), expected)


@pytest.mark.gpu
def test_a_scalar_is_carried_by_a_loop_on_the_device():
    def step(carry, _):
        factor, x = carry
        return (factor + 1, run(x, x, alpha=factor)), None

    (factor, x), _ = jax.jit(lambda factor: jax.lax.scan(step, (factor, X), length=3))(1.0)
    assert factor == 4
    assert_array_equal(x, 2 * 3 * 4 * X)


@pytest.mark.gpu
def test_derivatives_in_a_scalar():
    smooth = numba_cuda_kernel(
        axpy, lambda x, y: x, launch_dims=lambda x, y: x.size, reference=lambda x, y, alpha: alpha * x + y
    )
    assert jax.grad(lambda a: smooth(X, X, alpha=a).sum())(2.0) == X.sum()
    with pytest.raises(DifferentiationError):
        jax.grad(lambda a: run(X, X, alpha=a).sum())(2.0)


@pytest.mark.gpu
def test_scalars_in_debug_mode():
    with debug_mode():
        assert_array_equal(run(X, X, alpha=2.0), 3 * X)


@pytest.mark.gpu
def test_a_cooperative_kernel_with_a_scalar():
    @cuda.jit
    def twice(x, out, alpha):
        i = cuda.grid(1)
        if i < out.size:
            out[i] = alpha * x[i]
        cuda.cg.this_grid().sync()
        if i < out.size:
            out[i] += out[out.size - 1 - i] * 0 + alpha

    launched = numba_cuda_kernel(twice, lambda x: x, launch_dims=lambda x: x.size)
    assert_array_equal(launched(X, alpha=2.0), 2 * X + 2)


@pytest.mark.gpu
def test_dynamic_shared_memory_above_48_kib_with_a_scalar():
    @cuda.jit
    def through_shared(x, out, alpha):
        shared = cuda.shared.array(0, np.float32)
        i = cuda.threadIdx.x
        shared[i] = alpha * x[i]
        cuda.syncthreads()
        out[i] = shared[cuda.blockDim.x - 1 - i]

    launched = numba_cuda_kernel(through_shared, lambda x: x, grid=1, block=lambda x: x.size, shared_mem=64 * 1024)
    assert_array_equal(launched(X, alpha=2.0), 2 * X[::-1])


@pytest.mark.gpu
def test_an_error_in_a_kernel_with_a_scalar_is_the_kernels():
    @cuda.jit
    def raises(x, out, alpha):
        if alpha > 1:
            raise ValueError("above one")
        out[0] = alpha

    launched = numba_cuda_kernel(raises, lambda x: x, launch_dims=1)
    with debug_mode(), pytest.raises(Exception, match="above one"):  # JAX's, of several classes
        jax.block_until_ready(launched(X[:1], alpha=2.0))
