"""The operators: their arguments, shapes, derivatives and batching rules. Kernels are in `kernels`.

The operators take the arrays of a matrix in compressed rows (CSR). Row ``i`` has the entries ``indptr[i]`` to
``indptr[i + 1] - 1``; entry ``k`` is ``data[k]`` in column ``indices[k]``, or ``data[0]`` where *data* has length 1:
all entries are then equal. Entries from ``indptr[-1]`` on are padding and belong to no row. Duplicates add up.

A generator is called with ``outs``, whose dtype T is that of the sums, and with static keywords. It returns a function,
which takes *data* of the dtype T, or in half precision where T is float32, and an operand prepared by `operand`:

====================== =====================================================================================
``product``             ``operand, shape, transpose, homogeneous``: ``f(data, indices, indptr, x)``
``compact_product``     ``shape, homogeneous``: ``f(data, indices, indptr, active, count)``
``sampled_product``     ``shape, events``: ``f(indices, indptr, u, v)``
``transpose``           ``shape``: ``f(indices, indptr)``
``transpose_with_data`` ``shape``: ``f(data, indices, indptr)``
====================== =====================================================================================
"""
