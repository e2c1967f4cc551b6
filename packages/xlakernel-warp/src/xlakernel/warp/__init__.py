"""NVIDIA Warp kernels, on CPU and GPU, inside JAX."""

from .__about__ import __version__ as __version__
