"""Conformance of Numba CUDA kernels; without a GPU, they are compiled."""

import itertools
import re
from typing import ClassVar

import jax
import numpy as np
import pytest
from numba import cuda, float64

from xlakernel.core.testing.conformance import CASES, KernelConformance
from xlakernel.cuda import numba_cuda_kernel
from xlakernel.cuda._kernels.arrays import array_type


@cuda.jit
def elementwise(x, out):
    i = cuda.grid(1)
    if x.ndim == 0:
        if i == 0:
            out[()] = x[()] * x[()] + x[()]
    elif i < x.size:
        if x.ndim == 1:
            out[i] = x[i] * x[i] + x[i]
        elif x.ndim == 2:
            j, k = i // x.shape[1], i % x.shape[1]
            out[j, k] = x[j, k] * x[j, k] + x[j, k]
        else:
            j, k, m = i // (x.shape[1] * x.shape[2]), i // x.shape[2] % x.shape[1], i % x.shape[2]
            out[j, k, m] = x[j, k, m] * x[j, k, m] + x[j, k, m]


@cuda.jit
def coupled(x, out):
    if cuda.grid(1) == 0:
        for i in range(x.size):
            out[i] = x[i]
            if i > 0:
                out[i] += out[i - 1]


@cuda.jit
def reduction(x, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = 0
        for j in range(x.shape[1]):
            out[i] += x[i, j]


@cuda.jit
def total(x, out):
    if cuda.grid(1) == 0:
        out[()] = 0
        for i in range(x.size):
            out[()] += x[i]


@cuda.jit
def matrix_product(a, b, out):
    i, j = cuda.grid(2)
    if i < out.shape[0] and j < out.shape[1]:
        out[i, j] = 0
        for k in range(a.shape[1]):
            out[i, j] += a[i, k] * b[k, j]


@cuda.jit
def outer_product(x, y, out):
    i, j, k = cuda.grid(3)
    if i < out.shape[0] and j < out.shape[1] and k < out.shape[2]:
        out[i, j, k] = x[i] * y[j, k]


@cuda.jit
def several_outputs(x, double, positive, total):
    if cuda.grid(1) == 0:
        total[()] = 0
        for i in range(x.size):
            double[i] = 2 * x[i]
            positive[i] = x[i] > 0
            total[()] += x[i]


@cuda.jit
def no_inputs(out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = i


@cuda.jit
def scalars(a, x, b, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = a[()] * x[i] + b[()]


@cuda.jit
def static_scalar(x, y, out, alpha):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = alpha * x[i] + y[i]


@cuda.jit
def in_place(acc, x, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] += x[i]


@cuda.jit
def gather(x, index, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = x[index[i]]


#: The threads of each: one for each element of an output, or a single one where elements depend on each other.
LAUNCH_DIMS = {
    "elementwise": lambda x: x.size,
    "coupled": 1,
    "reduction": lambda x: x.shape[0],
    "total": 1,
    "matrix_product": lambda a, b: (a.shape[0], b.shape[1]),
    "outer_product": lambda x, y: (*x.shape, *y.shape),
    "several_outputs": 1,
    "no_inputs": 6,
    "scalars": lambda a, x, b: x.size,
    "static_scalar": lambda x, y: x.size,
    "in_place": lambda acc, x: x.size,
    "gather": lambda x, index: index.size,
}


@pytest.mark.gpu
@pytest.mark.slow
class TestNumbaCuda(KernelConformance):
    backend = "numba_cuda"
    platform = "cuda"
    unsupported: ClassVar = {"raises": "CUDA kernels report exceptions in debug mode only, after they are done"}

    def build(self, case, outs, **options):
        kernel = globals().get(case.name)
        return kernel and numba_cuda_kernel(kernel, outs, launch_dims=LAUNCH_DIMS[case.name], **options)


def signatures(case):
    """Return the types that a kernel's parameters have for the case's inputs, each tuple of them once."""
    found = {}
    for dtype, shapes in itertools.product(case.dtypes, case.shapes):
        inputs = case.draw(0, dtype, shapes)
        outs = jax.tree.leaves(case.outs(*inputs))
        buffers = [
            array_type(np.dtype(s.dtype).name, len(s.shape), case.name, readonly=i < len(inputs))
            for i, s in enumerate([*inputs, *outs])
        ]
        found[*buffers, *(float64 for _ in case.static)] = None
    return list(found)


@pytest.mark.parametrize("name", LAUNCH_DIMS)
def test_kernels_compile_to_ptx_with_the_types_that_arrays_have(name):
    for number, types in enumerate(signatures(CASES[name])):
        # The oldest generation of GPUs for every signature; a newer one changes the target and not the types.
        for major, minor in [(7, 5), (9, 0)] if number == 0 else [(7, 5)]:
            ptx, _ = cuda.compile(
                globals()[name].py_func, types, device=False, abi="numba", cc=(major, minor), output="ptx"
            )
            assert re.search(r"\.visible \.entry \S*" + name, ptx), ptx
            assert f".target sm_{major}{minor}" in ptx
