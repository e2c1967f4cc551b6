"""Numba CUDA kernels for NVIDIA GPUs."""

from .build import sort as sort
from .launch import run as run
