"""Products with vectors in NVIDIA Warp, for GPUs and for the CPU."""

from .products import product as product
from .products import sampled_product as sampled_product
