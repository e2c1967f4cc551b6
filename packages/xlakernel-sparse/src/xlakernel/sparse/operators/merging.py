"""Structures of sums and elementwise products of two matrices in compressed rows."""

from __future__ import annotations

import jax

from xlakernel.core import XLACustomKernel

from .arguments import check_entries
from .backends import register

_Struct = jax.ShapeDtypeStruct

#: Inputs ``indices, indptr`` of a matrix, and those of another of the same shape; the indices of each row ascend, and
#: there is no padding. Static keyword ``common``: True for the places in both matrices, False for those in either.
#: Result: the first of these places of each row, ``(rows + 1,)``.
merged_rows = XLACustomKernel("csr_merged_rows", "The first entry of each row of a merged structure.")
#: The same inputs, and the result of `merged_rows`. Results: the column of each place, and its entry in each of the
#: matrices, or the number of their entries where a matrix lacks the place.
merged_entries = XLACustomKernel("csr_merged_entries", "The columns of a merged structure, and the entries merged.")
for _op, _generator in ((merged_rows, "merge_rows"), (merged_entries, "merge_entries")):
    register(_op, _generator, plain=("warp",))
    _op.def_tags("sparse", "csr", "structure")


def merge(
    a: tuple[jax.Array, jax.Array], b: tuple[jax.Array, jax.Array], *, common: bool
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Merge two known structures, ``(indices, indptr)``, of ascending indices without padding.

    Raises:
      DtypeError: if there are more entries than *indptr* can number.

    Returns:
      ``indices`` and ``indptr`` of the places in both, if *common*, or in either; and the results of `merged_entries`.
    """
    indptr: jax.Array
    (indptr,) = merged_rows(*a, *b, outs=[_Struct(a[1].shape, a[1].dtype)], common=common)
    size = (check_entries("A + B", indptr),)
    outs = [_Struct(size, a[0].dtype), _Struct(size, a[1].dtype), _Struct(size, b[1].dtype)]
    indices, first, second = merged_entries(*a, *b, indptr, outs=outs, common=common)
    return indices, indptr, first, second
