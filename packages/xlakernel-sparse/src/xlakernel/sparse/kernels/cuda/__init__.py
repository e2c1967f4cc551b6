"""Numba CUDA kernels for NVIDIA GPUs; structures, lines and lists of events are those of XLA."""

from ..reference import active_indices as active_indices
from ..reference import descents as descents
from ..reference import diagonal as diagonal
from ..reference import entry_rows as entry_rows
from ..reference import first_of_places as first_of_places
from ..reference import gather_rows as gather_rows
from ..reference import merge_entries as merge_entries
from ..reference import merge_rows as merge_rows
from ..reference import product_entries as product_entries
from ..reference import product_rows as product_rows
from ..reference import product_weights as product_weights
from ..reference import reduce_rows as reduce_rows
from ..reference import slice_rows as slice_rows
from ..reference import transpose as transpose
from ..reference import transpose_with_data as transpose_with_data
from .blocked import blocked_product as blocked_product
from .delays import delay_delivery as delay_delivery
from .dense import dense_product as dense_product
from .launches import shared_bytes as shared_bytes
from .plasticity import trace_update as trace_update
from .procedural import procedural_product as procedural_product
from .product import compact_product as compact_product
from .product import product as product
from .sampled import sampled_product as sampled_product
