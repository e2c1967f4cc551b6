"""Numba CUDA kernels, and launches of any CUDA library, inside JAX."""

from .__about__ import __version__ as __version__
from ._callable import cuda_callable as cuda_callable
from ._callable import numba_cuda_callable as numba_cuda_callable
from ._functions.buffer import DeviceBuffer as DeviceBuffer
from ._functions.buffer import StreamHandle as StreamHandle
from ._kernel import numba_cuda_kernel as numba_cuda_kernel

__all__ = [
    "DeviceBuffer",
    "StreamHandle",
    "__version__",
    "cuda_callable",
    "numba_cuda_callable",
    "numba_cuda_kernel",
]
