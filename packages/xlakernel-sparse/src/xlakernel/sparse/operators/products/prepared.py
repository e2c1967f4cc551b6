"""Products of a matrix in compressed rows that has a mirror: the same entries in the order of the columns.

A product with events reads the rows or columns of the active events; a dense product reads those of the result. In one
of the two orders they are contiguous. This order is passed to the kernel of the product without a mirror.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

from xlakernel.core import XLACustomKernel
from xlakernel.core.backend import PLATFORMS

from ..entries import in_order
from ..operand import BINARY, DENSE, WEIGHTED, Operand
from .blocks import block_count
from .compressed import PRODUCTS, ProductPair


class PreparedProduct(ProductPair):
    """The products of a matrix with a mirror and one kind of operand.

    The inputs are ``data, indices, indptr``; ``indices, indptr`` of each additional order of the entries; unless all
    weights are equal, ``data`` of each additional order, or its permutation of the entries if the static keyword
    *permuted* is true; and ``x``. The additional orders are the mirror and, if the matrix has column blocks, the blocks
    of the matrix and the blocks of the mirror.
    """

    def _operator(self, suffix: str) -> XLACustomKernel:
        plain = PRODUCTS[self.operand].of_rank(1 if suffix == "mv" else 2)
        op = XLACustomKernel(f"prepared_{plain.name}", f"`{plain.name}` of a matrix with a mirror.")
        for platform in PLATFORMS:
            for backend in plain.available_backends(platform):
                generator = plain.entry(platform, backend).kernel_generator
                kernel = _choosing(generator, self.operand, backend == "numba_cuda" and suffix == "mv")
                if backend == "numba" and suffix == "mv" and self.operand is not DENSE:
                    kernel = _events_on_the_cpu(self.operand)
                op.def_kernel(backend, platform, kernel)
        op.def_default_of(plain)
        op.def_tags("sparse", "csr", "prepared", self.operand.name)
        return op


def _choosing(
    plain: Callable[..., Callable[..., Any]], operand: Operand, has_blocks: bool
) -> Callable[..., Callable[..., Any]]:
    """Return a generator of kernels that pass one order to a kernel of the generator *plain*, or of `_of_blocks`."""
    scatter = operand is not DENSE
    has_blocks &= not scatter

    def generator(
        outs: Any, *, shape: tuple[int, int], transpose: bool, homogeneous: bool, permuted: bool = False
    ) -> Callable[..., Any]:
        mirrored = int(transpose != scatter)
        shape = shape[::-1] if mirrored else shape

        def run(data: Any, indices: Any, indptr: Any, *others: Any) -> Any:
            *arrays, x = others
            structures, copies = _orders(indices, indptr, arrays)
            chosen = mirrored
            kernel = None
            if has_blocks and len(structures) > 2:
                chosen += 2
                kernel = _of_blocks(outs, structures[chosen][1], shape=shape, homogeneous=homogeneous)
            if kernel is None:
                chosen = mirrored
                kernel = plain(outs, shape=shape, transpose=scatter, homogeneous=homogeneous)
            weights = data
            if chosen and not homogeneous:
                weights = in_order(data, copies[chosen - 1]) if permuted else copies[chosen - 1]
            return kernel(weights, *structures[chosen], x)

        return run

    return generator


def _events_on_the_cpu(operand: Operand) -> Callable[..., Callable[..., Any]]:
    """Return a generator of Numba kernels for events, which choose an order by the number of active events."""

    def generator(
        outs: Any, *, shape: tuple[int, int], transpose: bool, homogeneous: bool, permuted: bool = False
    ) -> Callable[..., Any]:
        kernels = importlib.import_module("xlakernel.sparse.kernels.numba")
        multiply = kernels.prepared_events(outs, operand=operand.name, homogeneous=homogeneous)

        def run(data: Any, indices: Any, indptr: Any, *others: Any) -> Any:
            *arrays, x = others
            structures, copies = _orders(indices, indptr, arrays)
            mirror = data if homogeneous else copies[0]
            if transpose:  # scatter the rows of the matrix, or gather the columns, which are the rows of the mirror
                weights, all_data = (data, None), None if permuted else mirror
            else:
                weights, all_data = (data, mirror) if permuted else (mirror, None), data
            scattered, gathered = structures[:2] if transpose else structures[1::-1]
            return multiply(*weights, *scattered, all_data, *gathered, operand.kernel_input(x, outs[0].dtype))

        return run

    return generator


def _orders(indices: Any, indptr: Any, arrays: Sequence[Any]) -> tuple[list[tuple[Any, Any]], Sequence[Any]]:
    """Return the index arrays of all orders, and the weights, or permutations, of the additional ones."""
    orders = 3 if len(arrays) > 3 else 1
    additional = zip(arrays[: 2 * orders : 2], arrays[1 : 2 * orders : 2], strict=True)
    return [(indices, indptr), *additional], arrays[2 * orders :]


def _of_blocks(outs: Any, indptr: Any, *, shape: tuple[int, int], **keywords: Any) -> Callable[..., Any] | None:
    """Return the kernel for column blocks; None if the blocks exceed the shared memory of this GPU."""
    kernels = importlib.import_module("xlakernel.sparse.kernels.cuda")
    rows, columns = shape
    blocks = (indptr.shape[0] - 1) // max(rows, 1)
    if blocks < block_count(columns, outs[0].dtype, kernels.shared_bytes()):
        return None
    kernel: Callable[..., Any] = kernels.blocked_product(outs, shape=shape, **keywords)
    return kernel


PREPARED_PRODUCTS = {operand: PreparedProduct(operand) for operand in (DENSE, BINARY, WEIGHTED)}
