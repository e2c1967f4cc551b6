"""Warp kernels that are measured: in a module without deferred annotations, since Warp reads them as types."""

import warp as wp

wp.config.log_level = wp.LOG_WARNING
wp.set_module_options({"enable_backward": False})  # adjoints are not measured, and take longer to compile than the rest

Floats = wp.array(dtype=wp.float32)


@wp.kernel
def add_kernel(x: Floats, y: Floats, out: Floats):
    i = wp.tid()
    out[i] = x[i] + y[i]


@wp.kernel
def add_into_kernel(x: Floats, y: Floats):
    i = wp.tid()
    x[i] = x[i] + y[i]


@wp.kernel
def decrement_kernel(x: Floats, out: Floats):
    i = wp.tid()
    out[i] = x[i] - 1.0


def both_kernels(x: Floats, y: Floats, out: Floats):
    """Launch one after the other; the second works in the memory of the first's result."""
    wp.launch(add_kernel, dim=out.shape, inputs=[x, y], outputs=[out])
    wp.launch(decrement_kernel, dim=out.shape, inputs=[out], outputs=[out])
