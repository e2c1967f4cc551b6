"""The calls that `XLACustomKernel.benchmark` times: products of random matrices of several sizes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import jax
import numpy as np

from xlakernel.core import BenchmarkCase

from .operand import DENSE, Operand
from .products.pair import ProductPair

#: Rows and columns, and entries in a row.
SIZES = ((1_000, 50), (10_000, 100), (40_000, 200))
#: Columns of a matrix that is multiplied by.
COLUMNS = 16
#: The fraction of events that are active.
RATE = 0.01

#: ``structure_of(indices)``: the index arrays of a format, from the columns of each row, ``(rows, entries)``.
Structure = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]


def def_cases(pair: ProductPair, multiply: Callable[..., jax.Array], structure_of: Structure) -> None:
    """Give both operators of *pair* a function that users could call, ``multiply(name, …)``, and calls to time."""
    for op, columns in ((pair.vector, ()), (pair.columns, (COLUMNS,))):
        op.def_call(functools.partial(multiply, op.name, backend=None))
        op.def_benchmark_data(functools.partial(_cases, pair.operand, structure_of, columns))


def compressed(indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return ``indices, indptr``."""
    rows, entries = indices.shape
    return indices.ravel(), np.arange(rows + 1, dtype=np.int32) * np.int32(entries)


def coordinates(indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return ``row, col``."""
    rows, entries = indices.shape
    return np.repeat(np.arange(rows, dtype=np.int32), entries), indices.ravel()


def _cases(
    operand: Operand, structure_of: Structure, columns: tuple[int, ...], *, platform: str
) -> Iterator[BenchmarkCase]:
    for n, entries in SIZES:
        rng = np.random.default_rng(0)
        indices = np.sort(rng.integers(0, n, (n, entries), np.int32), axis=1)
        data = rng.random(indices.size, np.float32)
        x = rng.random((n, *columns), np.float32)
        if operand is not DENSE:
            x *= rng.random(x.shape) < RATE
        for transpose in (False, True):
            name = f"n={n}, {entries} in a row" + (", transposed" if transpose else "")
            arrays = (data, *structure_of(indices), x)
            yield BenchmarkCase(name, arrays, {"shape": (n, n), "transpose": transpose})
