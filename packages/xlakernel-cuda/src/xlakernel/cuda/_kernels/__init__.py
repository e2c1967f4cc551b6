"""Numba CUDA kernels: their geometry, compilation and launch."""
