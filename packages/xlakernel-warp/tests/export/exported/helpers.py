"""A function and a constant for kernels of another module."""

import warp as wp

SCALE = wp.constant(wp.float64(10.0))


@wp.func
def helper(value: float):
    return value * 3.0
