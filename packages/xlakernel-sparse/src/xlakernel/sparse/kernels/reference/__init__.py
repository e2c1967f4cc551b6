"""The operators in plain JAX, for every platform: the oracle for the kernels of other backends."""

from .conversion import transpose as transpose
from .conversion import transpose_with_data as transpose_with_data
from .products import compact_product as compact_product
from .products import product as product
from .products import sampled_product as sampled_product
