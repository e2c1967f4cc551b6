"""Numba CUDA kernels, and launches of any CUDA library, inside JAX."""

from .__about__ import __version__ as __version__
