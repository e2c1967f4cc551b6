"""The kernels that are measured under transformations: in a module, so that other processes can import them."""

from __future__ import annotations

import math

import numba


@numba.njit
def add_kernel(x, y, out):
    for i in range(out.size):
        out[i] = x[i] + y[i]


@numba.njit
def exp_kernel(x, out):
    for i in range(out.size):
        out[i] = math.exp(x[i])


@numba.njit
def decay_kernel(x, out):
    total = 0.0
    for i in range(x.size):
        total = 0.9 * total + x[i]
        out[i] = total * total


@numba.njit
def decay_vjp_kernel(x, cotangent, of_x):
    total = 0.0
    for i in range(x.size):
        total = 0.9 * total + x[i]
        of_x[i] = 2.0 * total * cotangent[i]
    carried = 0.0
    for i in range(x.size - 1, -1, -1):
        carried = 0.9 * carried + of_x[i]
        of_x[i] = carried


@numba.njit
def fragile_kernel(x, out):
    for i in range(x.size):
        if x[i] < 0:
            raise ValueError("negative", x[i])
        out[i] = x[i]
