"""Whether index arrays describe a matrix: what kernels rely on when they read and write without looking."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Set
from typing import Any

import jax
import numpy as np

from xlakernel.core.errors import ArgumentError, InputError, StructureError


def three_arrays(who: str, arrays: Any, names: str) -> tuple[Any, Any, Any]:
    """Return the three arrays that a format is made of.

    Raises:
      InputError: if they are not three; a matrix of three rows is one array, a text of three letters is none.
    """
    try:
        if not hasattr(arrays, "shape") and not isinstance(arrays, (str, bytes, Mapping, Set)):
            first, second, third = arrays
            return first, second, third
    except (TypeError, ValueError):
        pass
    convert = "" if who == "COO" else f".to{who.lower()}()"
    raise InputError(
        f"{who}: the first argument is {_described(arrays)}; expected the tuple ({names}). Other matrices come by "
        f"{who}.from_dense, from_scipy, from_bcoo or from_bcsr, and ours by A.to{who.lower()}(); SciPy's "
        f"(data, (row, col)) is COO((data, row, col), shape=...){convert}."
    )


def _described(value: Any) -> str:
    kind = type(value).__name__
    if isinstance(value, (str, bytes)):
        return f"{reprlib.repr(value)} of type {kind}"
    if hasattr(value, "shape"):
        return f"of type {kind} and shape {value.shape}"
    return f"a {kind} of {len(value)}" if isinstance(value, (tuple, list)) else f"of type {kind}"


def should_check(who: str, check: bool | None, *arrays: Any) -> bool:
    """Whether to look at the values of *arrays*.

    Args:
      who: who asks, for the message.
      check: True: yes; False: no; None: if they are known.
      *arrays: the index arrays.

    Raises:
      ArgumentError: if they are to be checked and are traced.
    """
    if check is not None and not isinstance(check, bool):
        raise ArgumentError(f"{who}: check is {check!r}; allowed: True, False or None.")
    if check is False:
        return False
    traced = any(isinstance(array, jax.core.Tracer) for array in arrays)
    if traced and check:
        raise ArgumentError(
            f"{who}: check=True, but the indices are traced, and their values are not known yet. Make the matrix "
            "outside of jit, where it is checked, and pass it in; or trust them with check=False."
        )
    return not traced and all(getattr(array, "is_fully_addressable", True) for array in arrays)


def check_compressed_values(who: str, indices: Any, indptr: Any, extent: int, lines: tuple[str, str]) -> None:
    """Check the index arrays of a compressed matrix.

    Args:
      who: who asks, for the message.
      indices: places of the entries.
      indptr: where each line begins.
      extent: how many places there are.
      lines: what the lines are, ``"row"`` or ``"column"``, and what places are.

    Raises:
      StructureError: if an index is out of range, or *indptr* is not monotone from 0 to at most the number of entries.
    """
    line, place = lines
    indptr = _near(indptr)
    first, last = int(indptr[0]), int(indptr[-1])
    if first != 0:
        raise StructureError(f"{who}: indptr begins with {first}; the first {line} begins at 0.")
    falls = indptr[1:] < indptr[:-1]
    if falls.any():
        where = int(falls.argmax())
        raise StructureError(
            f"{who}: indptr falls from {int(indptr[where])} to {int(indptr[where + 1])} at {line} {where}; it must "
            "never fall."
        )
    if last > indices.shape[0]:
        raise StructureError(
            f"{who}: indptr ends with {last}, but there are {indices.shape[0]} indices; it must end with at most that."
        )
    # Where there are no places, padding is at 0.
    _check_range(who, "indices", _near(indices), extent, place, padding=last == extent == 0)


def check_coordinate_values(who: str, row: Any, col: Any, shape: tuple[int, int]) -> None:
    """Check the index arrays of a matrix in coordinates.

    Raises:
      StructureError: if an index is out of range, but for entries of which both are those of *shape*: padding.
    """
    row, col = _near(row), _near(col)
    _check_range(who, "row", row, shape[0], "row", padding=True)
    _check_range(who, "col", col, shape[1], "column", padding=True)
    halves = (row == shape[0]) != (col == shape[1])
    if halves.any():
        where = int(halves.argmax())
        raise StructureError(
            f"{who}: entry {where} is at ({row[where]}, {col[where]}), and the shape is {shape}; an entry is inside, "
            "or is padding, where both are out of range."
        )


def _check_range(who: str, what: str, indices: Any, extent: int, place: str, *, padding: bool = False) -> None:
    """Raise `StructureError` if one of *indices* is not below *extent*, which may stand for padding."""
    wrong = (indices < 0) | (indices >= extent + padding)
    if wrong.any():
        where = int(wrong.argmax())
        raise StructureError(
            f"{who}: {what}[{where}] is {int(indices[where])}; a matrix with {extent} {place}s has {place}s 0 to "
            f"{extent - 1}."
        )


def _near(array: Any) -> Any:
    """Return *array* where looking at it costs least: NumPy compiles nothing, but a GPU's array stays there."""
    on_host = isinstance(array, np.ndarray) or all(device.platform == "cpu" for device in array.devices())
    return np.asarray(array) if on_host else array
