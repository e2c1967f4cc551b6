"""The Numba CUDA kernel for NVIDIA GPUs, and its launch."""

from .launch import run as run
