"""Numba kernels for the CPU."""

from .build import sort as sort
from .run import run as run
