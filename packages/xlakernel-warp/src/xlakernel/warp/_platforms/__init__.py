"""The CPU and GPUs, for kernels and for functions that launch them."""
