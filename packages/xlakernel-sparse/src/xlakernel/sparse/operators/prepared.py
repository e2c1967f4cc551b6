"""Products of a matrix in compressed rows that has a mirror, the same entries in the order of the columns.

A product with events walks the lines that are active, a dense one the lines of the result: one of the two orders has
these lines, and the kernel of the products without a mirror is given that one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from xlakernel.core import XLACustomKernel
from xlakernel.core.config import PLATFORMS

from .operand import BINARY, DENSE, WEIGHTED, Operand
from .product import PRODUCTS, CompressedProduct


class PreparedProduct(CompressedProduct):
    """The products with one kind of operand, of a matrix with a mirror.

    Their inputs are ``data, indices, indptr``, those of the mirror, and ``x``. The mirror's are ``indices, indptr``
    and, where not all weights are equal, ``data``.
    """

    def _operator(self, suffix: str) -> XLACustomKernel:
        plain = PRODUCTS[self.operand].of_rank(1 if suffix == "mv" else 2)
        op = XLACustomKernel(f"prepared_{plain.name}", f"`{plain.name}` of a matrix with a mirror.")
        for platform in PLATFORMS:
            for backend in plain.available_backends(platform):
                generator = plain.entry(platform, backend).kernel_generator
                op.def_kernel(backend, platform, _choosing(generator, self.operand))
        op.def_tags("sparse", "csr", "prepared", self.operand.name)
        return op


def _choosing(plain: Callable[..., Callable[..., Any]], operand: Operand) -> Callable[..., Callable[..., Any]]:
    """Return a generator of kernels that give one of the two orders to a kernel of *plain*."""
    scatter = operand is not DENSE

    def generator(outs: Any, *, shape: tuple[int, int], transpose: bool, homogeneous: bool) -> Callable[..., Any]:
        mirrored = transpose != scatter
        shape = shape[::-1] if mirrored else shape
        kernel = plain(outs, shape=shape, transpose=scatter, homogeneous=homogeneous)

        def run(data: Any, indices: Any, indptr: Any, *mirror_and_x: Any) -> Any:
            *mirror, x = mirror_and_x
            if not mirrored:
                return kernel(data, indices, indptr, x)
            mirrored_indices, mirrored_indptr, *weights = mirror
            return kernel(weights[0] if weights else data, mirrored_indices, mirrored_indptr, x)

        return run

    return generator


PREPARED_PRODUCTS = {operand: PreparedProduct(operand) for operand in (DENSE, BINARY, WEIGHTED)}
