"""Registration on the CPU and on GPUs, for kernels and for functions that launch them."""
