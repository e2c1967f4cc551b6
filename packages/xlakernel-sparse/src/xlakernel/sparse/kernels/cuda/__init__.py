"""Numba CUDA kernels for NVIDIA GPUs; structures are transposed by XLA's own sort."""

from ..reference import transpose as transpose
from ..reference import transpose_with_data as transpose_with_data
from .blocked import blocked_product as blocked_product
from .launches import shared_bytes as shared_bytes
from .product import compact_product as compact_product
from .product import product as product
from .sampled import sampled_product as sampled_product
