"""Numba kernels on the CPU, called by JAX as machine code."""

from .__about__ import __version__ as __version__
from ._kernel import numba_kernel as numba_kernel

__all__ = ["__version__", "numba_kernel"]
