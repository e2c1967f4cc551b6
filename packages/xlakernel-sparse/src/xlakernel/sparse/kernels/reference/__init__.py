"""The operators in plain JAX, for every platform: the oracle for the kernels of other backends."""

from .conversion import transpose as transpose
from .conversion import transpose_with_data as transpose_with_data
from .delays import delay_delivery as delay_delivery
from .dense import dense_product as dense_product
from .lines import diagonal as diagonal
from .lines import gather_rows as gather_rows
from .lines import slice_rows as slice_rows
from .merging import merge_entries as merge_entries
from .merging import merge_rows as merge_rows
from .multiplication import product_entries as product_entries
from .multiplication import product_rows as product_rows
from .multiplication import product_weights as product_weights
from .places import descents as descents
from .places import entry_rows as entry_rows
from .places import first_of_places as first_of_places
from .plasticity import trace_update as trace_update
from .procedural import procedural_product as procedural_product
from .products import active_indices as active_indices
from .products import compact_product as compact_product
from .products import product as product
from .products import sampled_product as sampled_product
from .reductions import reduce_rows as reduce_rows
