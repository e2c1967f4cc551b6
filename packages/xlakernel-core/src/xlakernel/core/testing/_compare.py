"""Whether results are what was expected, and where they are not."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np

from ._report import CheckFailure

#: Relative tolerance by dtype: some roundings of the dtype, for kernels that sum. Integers and booleans are exact.
RTOL = {
    "float16": 4e-3,
    "bfloat16": 3e-2,
    "float32": 2e-5,
    "float64": 1e-11,
    "complex64": 2e-5,
    "complex128": 1e-11,
}


def is_inexact(dtype: Any) -> bool:
    """Whether *dtype* rounds; ``ml_dtypes`` are of kind V to NumPy."""
    return bool(jax.numpy.issubdtype(dtype, np.inexact))


def epsilon(dtype: Any) -> float:
    """Return the distance from 1 to the next number of an inexact dtype."""
    return float(jax.numpy.finfo(dtype).eps)  # type: ignore[no-untyped-call]


@dataclasses.dataclass(frozen=True)
class Tolerance:
    """How far a result may be off; None: what its dtype allows."""

    rtol: float | None = None
    atol: float | None = None

    def allowed(self, expected: np.ndarray[Any, Any], dtype: Any) -> np.ndarray[Any, Any]:
        """Return the error that each element may have: relative to itself, and to the largest, for what cancels."""
        size = np.where(np.isfinite(expected), np.abs(expected), 0.0)
        rtol = RTOL.get(np.dtype(dtype).name, 4 * epsilon(dtype)) if self.rtol is None else self.rtol
        atol = 16 * epsilon(dtype) * float(size.max(initial=0.0)) if self.atol is None else self.atol
        return np.asarray(rtol * size + atol)


def compare(got: Any, expected: Any, tolerance: Tolerance, *, batch: int = 0, what: str = "") -> None:
    """Raise `CheckFailure` unless *got* has the values of *expected*.

    Args:
      got: pytree of arrays.
      expected: pytree with as many leaves; its dtypes may be wider.
      tolerance: how close.
      batch: how many leading dimensions are a batch's, for the message.
      what: begins the message.

    Raises:
      CheckFailure: naming the output, its worst element, and how many are wrong.
    """
    found, wanted = named_leaves(got), named_leaves(expected)
    if len(found) != len(wanted):
        raise CheckFailure(f"{what}{len(found)} outputs, expected {len(wanted)}.")
    problems = [
        _difference(name, np.asarray(one), np.asarray(other), tolerance, batch)
        for (name, one), (_, other) in zip(found, wanted, strict=True)
    ]
    if problems := [problem for problem in problems if problem]:
        raise CheckFailure(what + " ".join(problems))


def compare_bits(got: Any, expected: Any, *, what: str = "", why: str = "") -> None:
    """Raise `CheckFailure` unless both pytrees hold the same bits."""
    for (name, one), (_, other) in zip(named_leaves(got), named_leaves(expected), strict=True):
        a, b = np.ascontiguousarray(one), np.ascontiguousarray(other)
        differ = _bytes_of(a) != _bytes_of(b)
        if differ.any():
            index = _index(np.flatnonzero(differ.any(axis=-1))[0], np.shape(one))
            raise CheckFailure(
                f"{what}{name}: element {index} is {np.asarray(one)[index]} and then {np.asarray(other)[index]}; "
                f"{int(differ.any(axis=-1).sum())} of {a.size} differ. {why}"
            )


def named_leaves(tree: Any) -> list[tuple[str, Any]]:
    """Return the leaves with names for messages: ``output``, ``output[0]``, ``output['y']``."""
    return [
        (f"output{jax.tree_util.keystr(path)}", leaf) for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]
    ]


def _bytes_of(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return array.reshape(-1, 1).view(np.uint8).reshape(array.size, array.dtype.itemsize)


def _index(flat: Any, shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(int(i) for i in np.unravel_index(int(flat), shape))


def _difference(
    name: str, got: np.ndarray[Any, Any], expected: np.ndarray[Any, Any], tolerance: Tolerance, batch: int
) -> str | None:
    if got.shape != expected.shape:
        return f"{name} has the shape {got.shape}, expected {expected.shape}."
    with np.errstate(all="ignore"):
        rounded = expected.astype(got.dtype)  # what is beyond the dtype's range is infinite, or wraps
        if not is_inexact(got.dtype):
            wrong = got != rounded
            error = np.abs(got.astype(object) - rounded.astype(object)) if wrong.any() else np.zeros(got.shape)
            allowed = np.zeros(got.shape)
        else:
            wide = np.complex128 if np.iscomplexobj(got) else np.float64
            one, other = got.astype(wide), rounded.astype(wide)
            allowed = tolerance.allowed(other, got.dtype)
            error = np.where(one == other, 0.0, np.abs(one - other))
            error = np.where(np.isnan(one) & np.isnan(other), 0.0, error)
            error = np.where(np.isnan(error), np.inf, error)  # one of the two is NaN
            wrong = error > allowed
    if not wrong.any():
        return None
    excess = np.where(wrong, error - allowed, -1)
    index = _index(np.argmax(excess.astype(float)), got.shape)
    place = f"element {index}"
    if batch:
        place = f"slice {index[0] if batch == 1 else index[:batch]} of the batch, element {index[batch:]}"
    return (
        f"{name} ({np.dtype(got.dtype).name}{list(got.shape)}): {place} is {got[index]}, expected {rounded[index]}; "
        f"{int(wrong.sum())} of {got.size} are wrong, the largest error is {float(error[index]):.3g} "
        f"(allowed {float(allowed[index]):.3g})."
    )
