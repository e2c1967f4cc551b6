"""Numba kernels for the CPU: parallel, with vector instructions for operands of several columns."""

from ._generators import compact_product as compact_product
from ._generators import product as product
from ._generators import sampled_product as sampled_product
from ._generators import transpose as transpose
from ._generators import transpose_with_data as transpose_with_data
