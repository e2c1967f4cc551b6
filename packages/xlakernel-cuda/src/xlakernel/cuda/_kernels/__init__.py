"""Geometry, compilation and launch of Numba CUDA kernels."""
