"""Functions that the kernels share: parts of rows for threads, and arithmetic of elements, lanes and tiles."""
