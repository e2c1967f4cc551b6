"""Numba kernels for the CPU: parallel, with vector instructions for operands of several columns."""

from ._generators import active_indices as active_indices
from ._generators import compact_product as compact_product
from ._generators import delay_delivery as delay_delivery
from ._generators import dense_product as dense_product
from ._generators import descents as descents
from ._generators import diagonal as diagonal
from ._generators import entry_rows as entry_rows
from ._generators import first_of_places as first_of_places
from ._generators import gather_rows as gather_rows
from ._generators import merge_entries as merge_entries
from ._generators import merge_rows as merge_rows
from ._generators import prepared_events as prepared_events
from ._generators import procedural_product as procedural_product
from ._generators import product as product
from ._generators import product_entries as product_entries
from ._generators import product_rows as product_rows
from ._generators import product_weights as product_weights
from ._generators import reduce_rows as reduce_rows
from ._generators import sampled_product as sampled_product
from ._generators import slice_rows as slice_rows
from ._generators import trace_update as trace_update
from ._generators import transpose as transpose
from ._generators import transpose_with_data as transpose_with_data
