"""Sparse matrices, event arrays and the operators between them, for JAX."""

from . import _serialization  # noqa: F401  # registers the formats for exported programs
from .__about__ import __version__ as __version__
from .events.arrays import BinaryArray as BinaryArray
from .events.arrays import EventArray as EventArray
from .events.arrays import WeightedArray as WeightedArray
from .events.bit_packed import BitPackedArray as BitPackedArray
from .events.compact import CompactArray as CompactArray
from .formats.assembly import block_array as block_array
from .formats.assembly import block_diag as block_diag
from .formats.assembly import diags_array as diags_array
from .formats.assembly import eye_array as eye_array
from .formats.assembly import hstack as hstack
from .formats.assembly import kron as kron
from .formats.assembly import load_npz as load_npz
from .formats.assembly import save_npz as save_npz
from .formats.assembly import tril as tril
from .formats.assembly import triu as triu
from .formats.assembly import vstack as vstack
from .formats.fixed import FixedNumPerPost as FixedNumPerPost
from .formats.fixed import FixedNumPerPre as FixedNumPerPre
from .formats.matrices import COO as COO
from .formats.matrices import CSC as CSC
from .formats.matrices import CSR as CSR
from .formats.matrices import SparseMatrix as SparseMatrix
from .formats.procedural import ProceduralMatrix as ProceduralMatrix
from .formats.sharded import ShardedMatrix as ShardedMatrix
from .operators import derivatives as _derivatives  # noqa: F401  # defines the operators' rules
from .operators.conversion import csr_to_csc as csr_to_csc
from .operators.conversion import csr_transpose as csr_transpose
from .operators.csr import binary_csrmm as binary_csrmm
from .operators.csr import binary_csrmv as binary_csrmv
from .operators.csr import csrmm as csrmm
from .operators.csr import csrmv as csrmv
from .operators.csr import weighted_csrmm as weighted_csrmm
from .operators.csr import weighted_csrmv as weighted_csrmv
from .operators.delays import csr_delay_deliver as csr_delay_deliver
from .operators.lines import csr_slice_rows as csr_slice_rows
from .operators.plasticity.compressed import update_csc_on_binary_post as update_csc_on_binary_post
from .operators.plasticity.compressed import update_csc_on_binary_pre as update_csc_on_binary_pre
from .operators.plasticity.compressed import update_csr_on_binary_post as update_csr_on_binary_post
from .operators.plasticity.compressed import update_csr_on_binary_pre as update_csr_on_binary_pre
from .operators.plasticity.dense import update_dense_on_binary_post as update_dense_on_binary_post
from .operators.plasticity.dense import update_dense_on_binary_pre as update_dense_on_binary_pre
from .operators.plasticity.rules import csr_apply_on_post as csr_apply_on_post
from .operators.plasticity.rules import csr_apply_on_pre as csr_apply_on_pre
from .operators.products.dense import binary_densemm as binary_densemm
from .operators.products.dense import binary_densemv as binary_densemv
from .operators.sampled import csr_sddmm as csr_sddmm

__all__ = [
    "COO",
    "CSC",
    "CSR",
    "BinaryArray",
    "BitPackedArray",
    "CompactArray",
    "EventArray",
    "FixedNumPerPost",
    "FixedNumPerPre",
    "ProceduralMatrix",
    "ShardedMatrix",
    "SparseMatrix",
    "WeightedArray",
    "__version__",
    "binary_csrmm",
    "binary_csrmv",
    "binary_densemm",
    "binary_densemv",
    "block_array",
    "block_diag",
    "csr_apply_on_post",
    "csr_apply_on_pre",
    "csr_delay_deliver",
    "csr_sddmm",
    "csr_slice_rows",
    "csr_to_csc",
    "csr_transpose",
    "csrmm",
    "csrmv",
    "diags_array",
    "eye_array",
    "hstack",
    "kron",
    "load_npz",
    "save_npz",
    "tril",
    "triu",
    "update_csc_on_binary_post",
    "update_csc_on_binary_pre",
    "update_csr_on_binary_post",
    "update_csr_on_binary_pre",
    "update_dense_on_binary_post",
    "update_dense_on_binary_pre",
    "vstack",
    "weighted_csrmm",
    "weighted_csrmv",
]
