"""Functions that the kernels share: how rows are cut into parts, and the arithmetic of elements, lanes and tiles."""
