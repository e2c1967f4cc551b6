"""What kernels of another module refer to."""

import warp as wp

SCALE = wp.constant(wp.float64(10.0))


@wp.func
def helper(value: float):
    return value * 3.0
