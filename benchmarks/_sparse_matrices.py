"""The matrices and operands that sparse products are measured on."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from xlakernel.sparse import CSR, ProceduralMatrix


@dataclasses.dataclass(frozen=True)
class Size:
    """What is multiplied: square matrices with *n* rows of *degree* entries on average."""

    n: int
    degree: int

    @property
    def nnz(self) -> int:
        """How many entries there are."""
        return self.n * self.degree


#: By JAX's platform.
SIZES = {"cpu": Size(20_000, 200), "cuda": Size(100_000, 1000)}
RATES = (0.001, 0.01, 0.1)  #: fractions of the neurons that spike in a step
OPERANDS = 8  #: a loop goes through as many, so that none of them stays where it is quickest
COLUMNS = 32

#: Rows, columns and probability of a matrix with 24 * 10^9 entries, more than a GPU could store.
HUGE = (2_400_000, 1_000_000, 0.01)


def uniform(size: Size) -> CSR:
    """Return a matrix whose rows have the same number of entries, in different columns."""
    return CSR.random(jax.random.key(0), (size.n, size.n), per_row=size.degree)


def heavy_tailed(size: Size) -> CSR:
    """Return a matrix whose rows have numbers of entries as Zipf's law says, with as many in all.

    The k-th fullest row has a number proportional to 1/k, at most half of the columns; rows are in random order, and
    columns are drawn with replacement.
    """
    degrees = np.random.default_rng(0).permutation(_zipf_degrees(size))
    row = jnp.repeat(jnp.arange(size.n, dtype=jnp.int32), degrees, total_repeat_length=size.nnz)
    of_columns, of_weights = jax.random.split(jax.random.key(1))
    col = jax.random.randint(of_columns, (size.nnz,), 0, size.n, jnp.int32)
    _, indices = jax.lax.sort((row, col), num_keys=2)
    indptr = np.concatenate([[0], np.cumsum(degrees)]).astype(np.int32)
    return CSR((jax.random.uniform(of_weights, (size.nnz,)), indices, indptr), shape=(size.n, size.n))


def _zipf_degrees(size: Size) -> np.ndarray:
    rank = np.arange(1, size.n + 1)
    low, high = 1.0, float(size.nnz)
    for _ in range(100):  # halve the range of the constant until the sum fits
        middle = (low * high) ** 0.5
        low, high = (middle, high) if np.minimum(middle / rank, size.n / 2).sum() < size.nnz else (low, middle)
    degrees = np.minimum(high / rank, size.n / 2).astype(np.int64)
    missing = size.nnz - degrees.sum()  # what rounding down took away
    degrees[:missing] += 1
    return degrees


def with_equal_weights(matrix: CSR) -> CSR:
    """Return the matrix with one weight for all entries."""
    return matrix.with_data(jnp.full(1, 0.5, matrix.dtype))


def vectors(size: Size) -> jax.Array:
    """Return dense vectors, ``(OPERANDS, n)``."""
    return jax.random.uniform(jax.random.key(2), (OPERANDS, size.n))


def matrices(size: Size) -> jax.Array:
    """Return dense matrices, ``(2, n, COLUMNS)``."""
    return jax.random.uniform(jax.random.key(3), (2, size.n, COLUMNS))


def spikes(size: Size, rate: float) -> jax.Array:
    """Return bool vectors of which the fraction *rate* is active, ``(OPERANDS, n)``."""
    return jax.random.bernoulli(jax.random.key(4), rate, (OPERANDS, size.n))


def drawn_matrices(rows: int, columns: int, probability: float) -> dict[str, ProceduralMatrix]:
    """Return matrices that are not stored, by the distribution of their weights."""
    given: dict[str, Any] = {"seed": 1, "probability": probability, "shape": (rows, columns)}
    return {
        "equal weights": ProceduralMatrix.homogeneous(0.5, **given),
        "uniform": ProceduralMatrix.uniform(0.0, 1.0, **given),
        "normal": ProceduralMatrix.normal(0.5, 0.1, **given),
    }
