"""Kernels for NVIDIA GPUs, in Numba CUDA."""

from .blocked import blocked_product as blocked_product
from .launches import shared_bytes as shared_bytes
from .product import compact_product as compact_product
from .product import product as product
from .sampled import sampled_product as sampled_product
from .transpose import transpose as transpose
from .transpose import transpose_with_data as transpose_with_data
