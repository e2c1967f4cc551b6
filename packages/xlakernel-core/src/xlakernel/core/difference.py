"""Whether the results of one backend are those of another."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np


class Difference(Exception):
    """Results are not those of another backend."""


def compare(results: Any, reference: str, expected: Any, rtol: float | None, advice: str = "") -> None:
    """Raise `Difference` if *results* are not those *expected*, which the backend *reference* returned.

    *advice* is for a difference that may be one of rounding.
    """
    tree, expected_tree = (str(jax.tree.structure(value)) for value in (results, expected))
    if tree != expected_tree:
        raise Difference(f"it returns {tree}, and {reference!r} {expected_tree}")
    leaves = jax.tree.leaves(results)
    for i, (ours, theirs) in enumerate(zip(leaves, jax.tree.leaves(expected), strict=True)):
        where = f"result {i}" if len(leaves) > 1 else "the result"
        if (ours.shape, ours.dtype) != (theirs.shape, theirs.dtype):
            raise Difference(
                f"{where} is {ours.dtype}{list(ours.shape)}, and with {reference!r} {theirs.dtype}{list(theirs.shape)}"
            )
        if jax.dtypes.issubdtype(ours.dtype, np.inexact):
            _compare_inexact(ours, theirs, f"{where} differs from that with {reference!r}", rtol, advice)
        elif wrong := np.sum(np.asarray(ours) != np.asarray(theirs)):
            raise Difference(f"{where} differs from that with {reference!r} in {wrong} elements")


def _compare_inexact(ours: jax.Array, theirs: jax.Array, what: str, rtol: float | None, advice: str) -> None:
    is_complex = jax.dtypes.issubdtype(ours.dtype, np.complexfloating)
    a, b = (np.asarray(array).astype(np.complex128 if is_complex else np.float64) for array in (ours, theirs))
    finite = np.isfinite(a) & np.isfinite(b)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True):
        raise Difference(f"{what} in which elements are not finite")
    error, size = np.max(np.abs(a[finite] - b[finite]), initial=0.0), np.max(np.abs(b[finite]), initial=0.0)
    eps = jax.numpy.finfo(ours.dtype).eps  # type: ignore[no-untyped-call]  # JAX has no types there
    limit = float(eps) ** 0.5 if rtol is None else rtol
    if error > limit * size:
        raise Difference(
            f"{what} by up to {error:.3g}, where its largest value is {size:.3g}; allowed is {limit:.2g} times that"
            f"{advice}"
        )
