"""The conformance of Numba kernels."""

import numba
import numpy as np
import pytest

from xlakernel.core.testing.conformance import KernelConformance
from xlakernel.numba import numba_kernel


@numba.njit
def elementwise(x, out):
    for index in np.ndindex(x.shape):
        out[index] = x[index] * x[index] + x[index]


@numba.njit
def coupled(x, out):
    total = x.dtype.type(0)
    for i in range(x.size):
        total += x[i]
        out[i] = total


@numba.njit
def reduction(x, out):
    for i in range(x.shape[0]):
        out[i] = 0
        for j in range(x.shape[1]):
            out[i] += x[i, j]


@numba.njit
def total(x, out):
    out[()] = 0
    for i in range(x.size):
        out[()] += x[i]


@numba.njit
def matrix_product(a, b, out):
    for i in range(a.shape[0]):
        for j in range(b.shape[1]):
            out[i, j] = 0
            for k in range(a.shape[1]):
                out[i, j] += a[i, k] * b[k, j]


@numba.njit
def outer_product(x, y, out):
    for i in range(x.shape[0]):
        for j in range(y.shape[0]):
            for k in range(y.shape[1]):
                out[i, j, k] = x[i] * y[j, k]


@numba.njit
def several_outputs(x, double, positive, total):
    total[()] = 0
    for i in range(x.size):
        double[i] = 2 * x[i]
        positive[i] = x[i] > 0
        total[()] += x[i]


@numba.njit
def no_inputs(out):
    for i in range(out.size):
        out[i] = i


@numba.njit
def scalars(a, x, b, out):
    for i in range(x.size):
        out[i] = a[()] * x[i] + b[()]


@numba.njit
def static_scalar(x, y, out, alpha):
    for i in range(x.size):
        out[i] = alpha * x[i] + y[i]


@numba.njit
def in_place(acc, x, out):
    for i in range(x.size):
        out[i] += x[i]


@numba.njit
def gather(x, index, out):
    for i in range(index.size):
        out[i] = x[index[i]]


@numba.njit
def raises(x, out):
    for i in range(x.size):
        if x[i] < 0:
            raise ValueError("negative input")
        out[i] = x[i]


@pytest.mark.slow
class TestNumba(KernelConformance):
    backend = "numba"
    platform = "cpu"

    def build(self, case, outs, **options):
        kernel = globals().get(case.name)
        return kernel and numba_kernel(kernel, outs, **options)
