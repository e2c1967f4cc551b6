"""Comparison of the results of two backends."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np


class Difference(Exception):
    """The results of two backends differ."""


def compare(results: Any, reference: str, expected: Any, rtol: float | None) -> None:
    """Raise `Difference` if *results* are not those *expected*, of the backend *reference*.

    Integers must be equal. Floating-point numbers may differ by *rtol* times the largest one expected; None stands for
    the square root of the dtype's precision.
    """
    tree, expected_tree = (str(jax.tree.structure(value)) for value in (results, expected))
    if tree != expected_tree:
        raise Difference(f"it returns {tree}, and {reference!r} {expected_tree}")
    leaves = jax.tree.leaves(results)
    for i, (ours, theirs) in enumerate(zip(leaves, jax.tree.leaves(expected), strict=True)):
        if (problem := _compare(ours, theirs, rtol)) is not None:
            where = f"result {i}" if len(leaves) > 1 else "the result"
            raise Difference(f"{where} differs from that with {reference!r} {problem}")


def _compare(ours: jax.Array, theirs: jax.Array, rtol: float | None) -> str | None:
    """Return how two arrays differ; None if they are equal, up to the tolerance."""
    if (ours.shape, ours.dtype) != (theirs.shape, theirs.dtype):
        return f"in its type: {ours.dtype}{list(ours.shape)}, not {theirs.dtype}{list(theirs.shape)}"
    if not jax.dtypes.issubdtype(ours.dtype, np.inexact):
        wrong = int(np.sum(np.asarray(ours) != np.asarray(theirs)))
        return f"in {wrong} elements" if wrong else None
    wide = np.complex128 if jax.dtypes.issubdtype(ours.dtype, np.complexfloating) else np.float64
    a, b = (np.asarray(array).astype(wide) for array in (ours, theirs))
    finite = np.isfinite(a) & np.isfinite(b)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True):
        return "in which elements are not finite"
    error, size = np.max(np.abs(a[finite] - b[finite]), initial=0.0), np.max(np.abs(b[finite]), initial=0.0)
    eps = jax.numpy.finfo(ours.dtype).eps  # type: ignore[no-untyped-call]  # JAX has no types there
    limit = float(eps) ** 0.5 if rtol is None else rtol
    if error <= limit * size:
        return None
    return f"by up to {error:.3g}, where its largest value is {size:.3g}; allowed is {limit:.2g} times that (rtol)"
