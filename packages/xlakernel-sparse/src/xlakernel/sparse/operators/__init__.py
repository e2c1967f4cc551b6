"""The operators: their arguments, shapes, derivatives and batching rules. Kernels are in `kernels`.

The operators take the arrays of a matrix in compressed rows (CSR). Row ``i`` has the entries ``indptr[i]`` to
``indptr[i + 1] - 1``. Entry ``k`` is in column ``indices[k]`` and has the weight ``data[k]``; if *data* has length 1,
all entries have the weight ``data[0]``. Entries from ``indptr[-1]`` on are padding: they belong to no row. Entries at
the same place (duplicates) add up.

The generators of the kernels are called with ``outs``, the structs of the results, and with the static keywords below.
They return the functions below. Products are summed in the dtype T of ``outs``: *data* has the dtype T, or half
precision if T is float32, and `Operand.kernel_input` has prepared *x*.

====================== =====================================================================================
``product``             ``operand, shape, transpose, homogeneous``: ``f(data, indices, indptr, x)``
``compact_product``     ``shape, homogeneous``: ``f(data, indices, indptr, active, count)``
``sampled_product``     ``shape, events``: ``f(indices, indptr, u, v)``
``transpose``           ``shape``: ``f(indices, indptr)``
``transpose_with_data`` ``shape``: ``f(data, indices, indptr)``
``delay_delivery``      ``operand, homogeneous``: ``f(ring, data, indices, indptr, delays, t, x)``
``trace_update``        ``layout``: ``f(data, *structure, trace, active, *limits)``, see `plasticity.update`
====================== =====================================================================================
"""
