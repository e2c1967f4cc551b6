"""The calls that `XLACustomKernel.benchmark` times: products of random matrices of several sizes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from xlakernel.core import BenchmarkCase

from .operand import DENSE, Operand

#: (number of rows and of columns, number of entries in a row)
SIZES = ((1_000, 50), (10_000, 100), (40_000, 200))
#: Columns of the dense factor in products of two matrices.
COLUMNS = 16
#: The fraction of events that are active.
RATE = 0.01


def product_cases(operand: Operand, columns: tuple[int, ...], *, platform: str) -> Iterator[BenchmarkCase]:
    """Yield products with an operand of the kind *operand*; the operand is a vector if *columns* is empty."""
    for n, entries in SIZES:
        rng = np.random.default_rng(0)
        indices = np.sort(rng.integers(0, n, (n, entries), np.int32), axis=1).ravel()
        indptr = np.arange(n + 1, dtype=np.int32) * np.int32(entries)
        data = rng.random(indices.size, np.float32)
        x = rng.random((n, *columns), np.float32)
        if operand is not DENSE:
            x *= rng.random(x.shape) < RATE
        for transpose in (False, True):
            name = f"n={n}, {entries} in a row" + (", transposed" if transpose else "")
            yield BenchmarkCase(name, (data, indices, indptr, x), {"shape": (n, n), "transpose": transpose})
