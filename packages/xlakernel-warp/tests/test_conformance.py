"""Conformance of Warp kernels, on the CPU and on GPUs."""

import functools
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import warp as wp

from xlakernel.core.errors import KernelCheckError
from xlakernel.core.testing import check_kernel
from xlakernel.core.testing.conformance import CASES, KernelConformance
from xlakernel.warp import jaxtype_to_warptype, warp_kernel

wp.set_module_options({"enable_backward": False})  # which nothing here needs: it compiles in half the time


# Each of these makes the kernel for arrays of one dtype. All are made when this file is imported, and compiled as one.


def elementwise(dtype, ndim):
    if dtype is wp.bool:

        @wp.func
        def value(x: dtype):
            return x

    else:

        @wp.func
        def value(x: dtype):
            return x * x + x

    @wp.kernel
    def elementwise_1d(x: wp.array(dtype=dtype), out: wp.array(dtype=dtype)):
        i = wp.tid()
        out[i] = value(x[i])

    @wp.kernel
    def elementwise_2d(x: wp.array2d(dtype=dtype), out: wp.array2d(dtype=dtype)):
        i, j = wp.tid()
        out[i, j] = value(x[i, j])

    @wp.kernel
    def elementwise_3d(x: wp.array3d(dtype=dtype), out: wp.array3d(dtype=dtype)):
        i, j, k = wp.tid()
        out[i, j, k] = value(x[i, j, k])

    return (elementwise_1d, elementwise_1d, elementwise_2d, elementwise_3d)[ndim]


def coupled(dtype, ndim):
    @wp.kernel
    def coupled(x: wp.array(dtype=dtype), out: wp.array(dtype=dtype)):
        total = dtype(0)
        for i in range(x.shape[0]):
            total += x[i]
            out[i] = total

    return coupled


def reduction(dtype, ndim):
    @wp.kernel
    def reduction(x: wp.array2d(dtype=dtype), out: wp.array(dtype=dtype)):
        i = wp.tid()
        total = dtype(0)
        for j in range(x.shape[1]):
            total += x[i, j]
        out[i] = total

    return reduction


def total(dtype, ndim):
    @wp.kernel
    def total(x: wp.array(dtype=dtype), out: wp.array(dtype=dtype)):
        total = dtype(0)
        for i in range(x.shape[0]):
            total += x[i]
        out[0] = total

    return total


def matrix_product(dtype, ndim):
    @wp.kernel
    def matrix_product(a: wp.array2d(dtype=dtype), b: wp.array2d(dtype=dtype), out: wp.array2d(dtype=dtype)):
        i, j = wp.tid()
        total = dtype(0)
        for k in range(a.shape[1]):
            total += a[i, k] * b[k, j]
        out[i, j] = total

    return matrix_product


def outer_product(dtype, ndim):
    @wp.kernel
    def outer_product(x: wp.array(dtype=dtype), y: wp.array2d(dtype=dtype), out: wp.array3d(dtype=dtype)):
        i, j, k = wp.tid()
        out[i, j, k] = x[i] * y[j, k]

    return outer_product


def several_outputs(dtype, ndim):
    @wp.kernel
    def several_outputs(
        x: wp.array(dtype=dtype),
        doubled: wp.array(dtype=dtype),
        positive: wp.array(dtype=wp.bool),
        total: wp.array(dtype=dtype),
    ):
        sum = dtype(0)
        for i in range(x.shape[0]):
            doubled[i] = x[i] + x[i]
            positive[i] = x[i] > dtype(0)
            sum += x[i]
        total[0] = sum

    return several_outputs


def no_inputs(dtype, ndim):
    @wp.kernel
    def no_inputs(out: wp.array(dtype=wp.float32)):
        i = wp.tid()
        out[i] = float(i)

    return no_inputs


def scalars(dtype, ndim):
    @wp.kernel
    def scalars(
        a: wp.array(dtype=dtype), x: wp.array(dtype=dtype), b: wp.array(dtype=dtype), out: wp.array(dtype=dtype)
    ):
        i = wp.tid()
        out[i] = a[0] * x[i] + b[0]

    return scalars


def static_scalar(dtype, ndim):
    @wp.kernel
    def static_scalar(x: wp.array(dtype=dtype), y: wp.array(dtype=dtype), out: wp.array(dtype=dtype), alpha: dtype):
        i = wp.tid()
        out[i] = alpha * x[i] + y[i]

    return static_scalar


def in_place(dtype, ndim):
    @wp.kernel
    def in_place(acc: wp.array(dtype=dtype), x: wp.array(dtype=dtype), out: wp.array(dtype=dtype)):
        i = wp.tid()
        out[i] += x[i]

    return in_place


def gather(dtype, ndim):
    @wp.kernel
    def gather(x: wp.array(dtype=dtype), index: wp.array(dtype=wp.int32), out: wp.array(dtype=dtype)):
        i = wp.tid()
        out[i] = x[index[i]]

    return gather


MAKERS = (elementwise, coupled, reduction, total, matrix_product, outer_product, several_outputs, no_inputs, scalars)
MAKERS += (static_scalar, in_place, gather)
#: Threads where they are not those of the first input: one where elements depend on each other.
LAUNCH_DIMS = {
    "coupled": 1,
    "reduction": lambda x: x.shape[0],
    "total": 1,
    "matrix_product": lambda a, b: (a.shape[0], b.shape[1]),
    "outer_product": lambda x, y: (*x.shape, *y.shape),
    "several_outputs": 1,
    "no_inputs": 6,
    "scalars": lambda a, x, b: x.shape,
    "gather": lambda x, index: index.shape,
}


def kernels_of(case, make):
    """Yield the kernels of a case by (case, dtype, rank of the first input)."""
    for dtype in case.dtypes:
        if not dtype.startswith("complex"):
            for ndim in {len(shapes[0]) if shapes else 0 for shapes in case.shapes}:
                yield (case.name, dtype, ndim), make(jaxtype_to_warptype(dtype), ndim)


KERNELS = dict(pair for make in MAKERS for pair in kernels_of(CASES[make.__name__], make))

NO_COMPLEX = "Warp has no complex numbers"
NOT_EXPORTED = "another process finds a kernel by its name, and these are made inside of functions"


class Kernels(KernelConformance):
    """A kernel of Warp's is one for arrays of one rank."""

    __test__ = False

    backend = "warp"
    unsupported: ClassVar = {
        "complex64": NO_COMPLEX,
        "complex128": NO_COMPLEX,
        "raises": "Warp's kernels have no exceptions",
        "export": NOT_EXPORTED,
    }

    def build(self, case, outs, **options):
        if case.name not in {make.__name__ for make in MAKERS}:
            return None

        @functools.cache
        def wrapped(dtype, ndim):
            kernel = KERNELS[case.name, dtype, ndim]
            return warp_kernel(kernel, outs, launch_dims=LAUNCH_DIMS.get(case.name), **options)

        def run(*inputs, **static):
            inputs = [jnp.asarray(x) for x in inputs]
            like = (inputs[0].dtype.name, inputs[0].ndim) if inputs else (case.dtypes[0], 0)
            return wrapped(*like)(*inputs, **static)

        return run


@pytest.mark.slow
class TestWarpOnTheCpu(Kernels):
    __test__ = True
    platform = "cpu"


@pytest.mark.gpu
@pytest.mark.slow
class TestWarpOnAGpu(Kernels):
    __test__ = True
    platform = "cuda"


# As a user would check a kernel of their own


def test_check_kernel_finds_nothing_wrong_with_a_kernel_that_is_right(platform):
    run = warp_kernel(
        KERNELS["matrix_product", "float32", 2],
        lambda a, b: jnp.zeros((a.shape[0], b.shape[1])),
        launch_dims=LAUNCH_DIMS["matrix_product"],
        reference=lambda a, b: a @ b,
        sharding_rule="m k, k n -> m n",
    )
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-8, 8, shape).astype(np.float32) for shape in ((4, 6), (6, 8)))
    report = check_kernel(run, a, b, reference=lambda a, b: a @ b, skip={"export": NOT_EXPORTED})
    several = platform == "cpu" or jax.device_count(platform) > 1
    for check in ("eager", "jit", "written", "vmap_nested", "grad_reverse", "threads"):
        assert report[check].outcome == "passed", report
    assert report["sharding_rule"].outcome == ("passed" if several else "not tried"), report


@pytest.mark.usefixtures("platform")
def test_check_kernel_finds_what_is_wrong():
    run = warp_kernel(KERNELS["coupled", "float32", 1], lambda x: x, launch_dims=1)
    with pytest.raises(KernelCheckError) as caught:
        check_kernel(run, np.arange(4, dtype=np.float32), reference=lambda x: x + 1, skip={"export": NOT_EXPORTED})
    assert "eager" in str(caught.value)


def test_check_kernel_names_the_input_that_is_changed(platform):
    @wp.kernel
    def square(x: wp.array(dtype=float), out: wp.array(dtype=float)):
        i = wp.tid()
        out[i] = x[i] * x[i]
        x[i] = 0.0

    run = warp_kernel(square, lambda x: x)
    with pytest.raises(KernelCheckError) as caught:
        check_kernel(run, np.arange(1, 5, dtype=np.float32), reference=lambda x: x * x)
    assert caught.value.report["written"].outcome == "passed"
    assert caught.value.report["inputs_kept"].outcome == "failed"
    assert "an input was changed: input 0" in str(caught.value)
