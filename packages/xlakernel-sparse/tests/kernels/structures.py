"""Sparse structures for tests of kernels, and the expected sums, computed by NumPy."""

from __future__ import annotations

import dataclasses

import ml_dtypes
import numpy as np

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


@dataclasses.dataclass
class Structure:
    """A compressed structure with slots behind its entries that belong to no row."""

    indptr: np.ndarray
    indices: np.ndarray
    shape: tuple[int, int]

    @property
    def entries(self):
        return int(self.indptr[-1])

    @property
    def rows(self):
        """The row of each entry."""
        return np.repeat(np.arange(self.shape[0]), np.diff(self.indptr.astype(np.int64)))

    @property
    def columns(self):
        return self.indices[: self.entries]


def draw(seed, shape, per_row=3.0, *, padding=0, heavy=False, index=np.int32, pointer=np.int32):
    """Return a structure with unsorted columns and duplicates; *heavy*: with row lengths by a power law."""
    rng = np.random.default_rng(seed)
    rows, columns = shape
    lengths = rng.poisson(per_row, rows) * (columns > 0)
    if heavy and rows:
        share = rng.permutation(1 / np.arange(1, rows + 1))
        lengths = (share / share.sum() * per_row * rows).astype(int) * (columns > 0)
    indptr = np.concatenate([[0], np.cumsum(lengths)]).astype(pointer)
    # Indices in the padding are valid, but no entries.
    indices = np.concatenate([rng.integers(0, max(columns, 1), indptr[-1]), np.zeros(padding, int)]).astype(index)
    return Structure(indptr, indices, shape)


def wide(dtype):
    """Return the dtype to compute the expected values in; integers wrap around as in the kernels."""
    dtype = np.dtype(dtype)
    if dtype == BFLOAT16 or dtype.kind == "f":
        return np.dtype(np.float64)
    return np.dtype(np.complex128) if dtype.kind == "c" else dtype


def numbers(rng, shape, dtype):
    """Return random numbers of *dtype*, of either sign where it has some; none is 0."""
    dtype = np.dtype(dtype)
    if dtype.kind in "biu":
        return rng.integers(1, 100, shape).astype(dtype)
    real = rng.uniform(0.5, 2, shape) * rng.choice([-1, 1], shape)
    return (real + 1j * rng.uniform(-1, 1, shape) if dtype.kind == "c" else real).astype(dtype)


def equal_weight(rng, dtype):
    """Return one weight, of few bits: rounding errors of the sums of many equal terms would all have one sign."""
    dtype = np.dtype(dtype)
    if dtype.kind in "biu":
        return numbers(rng, 1, dtype)
    return (np.round(4 * numbers(rng, 1, wide(dtype))) / 4).astype(dtype)


def operand_of(rng, operand, size, columns, dtype, rate=0.3):
    """Return an operand with *size* rows, a vector if *columns* is None, of which *rate* is active."""
    shape = (size,) if columns is None else (size, columns)
    active = rng.random(shape) < rate
    if operand == "binary":
        return active
    values = numbers(rng, shape, dtype)
    return values * active if operand == "weighted" else values


def wide_of(values, dtype):
    """Return the dtype in which expected values are computed: floats in double precision, integers in their own."""
    kind = np.dtype(dtype).kind
    return np.dtype(dtype) if kind in "iu" else np.dtype(np.complex128 if kind == "c" else np.float64)


def sum_entries(target, source, weights, x, size, operand):
    """Return the sums ``y[target] += weights * x[source]``, and those of the magnitudes, as the measure of errors."""
    kind = wide(weights.dtype if operand == "binary" else np.result_type(wide(weights.dtype), wide(x.dtype)))
    taken = x[source]
    values = taken.astype(kind)
    weights = weights.astype(kind).reshape(-1, *[1] * (x.ndim - 1))
    with np.errstate(all="ignore"):
        terms = weights * values
    if operand != "dense":
        terms = np.where(taken != 0, terms, kind.type(0))
    y, magnitude = np.zeros((size, *x.shape[1:]), kind), np.zeros((size, *x.shape[1:]))
    with np.errstate(all="ignore"):
        np.add.at(y, target, terms)
        np.add.at(magnitude, target, abs(terms.astype(np.complex128)))
    return y, magnitude


def assert_sums(found, expected, magnitude, entries):
    """Compare up to the rounding of as many terms."""
    found = np.asarray(found)
    assert found.shape == expected.shape
    if found.dtype.kind in "iu":
        np.testing.assert_array_equal(found, expected.astype(found.dtype))
        return
    finite = np.isfinite(expected)
    kind = np.complex128 if found.dtype.kind == "c" else np.float64
    np.testing.assert_array_equal(np.isfinite(found), finite)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))
    if found.dtype.kind == "f":
        np.testing.assert_array_equal(found[~finite], expected[~finite])
    error = abs(found[finite].astype(kind) - expected[finite])
    allowed = np.finfo(found.dtype).eps * (8 + min(entries, 64)) * magnitude[finite]
    assert (error <= allowed).all(), f"error {error.max()}, allowed {allowed[error.argmax()]}"
