"""Checks of index arrays. The kernels rely on these checks, because they read and write without bounds checks."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from xlakernel.core.errors import ArgumentError, InputError, StructureError

from ..operators.arguments import is_known, is_on_cpu


def three_arrays(caller: str, arrays: Any, names: str) -> tuple[Any, Any, Any]:
    """Return the three arrays that a matrix is constructed from.

    Raises:
      InputError: if *arrays* is not a tuple or list of three.
    """
    if isinstance(arrays, (tuple, list)) and len(arrays) == 3:
        first, second, third = arrays
        return first, second, third
    kind = type(arrays).__name__
    given = f"a {kind} of {len(arrays)}" if isinstance(arrays, (tuple, list)) else f"of type {kind}"
    converters = {"BCOO": "from_bcoo", "BCSR": "from_bcsr"}.get(kind, "from_dense and from_scipy")
    convert = "" if caller == "COO" else f".to{caller.lower()}()"
    raise InputError(
        f"{caller}: the first argument is {given}; expected the tuple ({names}). Other matrices are converted by "
        f"{caller}.{converters}, those of this package by A.to{caller.lower()}(); SciPy's "
        f"(data, (row, col)) is COO((data, row, col), shape=...){convert}."
    )


def should_check(caller: str, check: bool | None, *arrays: Any) -> bool:
    """Return True if the values of the index *arrays* must be checked: if they are known and *check* is not False.

    Raises:
      ArgumentError: if *check* is True and an array is traced, or if *check* is not True, False or None.
    """
    if check is not None and not isinstance(check, bool):
        raise ArgumentError(f"{caller}: check is {check!r}; allowed: True, False or None.")
    if check and any(isinstance(array, jax.core.Tracer) for array in arrays):
        raise ArgumentError(
            f"{caller}: check=True, but the indices are traced, and have no values yet. Make the matrix outside of "
            "jit, where it is checked, and pass it in; or trust them with check=False."
        )
    return check is not False and all(map(is_known, arrays))


def check_compressed_values(caller: str, indices: Any, indptr: Any, extent: int, lines: tuple[str, str]) -> None:
    """Check the index arrays of a compressed matrix.

    Args:
      caller: the function to name in messages.
      indices: places of the entries.
      indptr: the first entry of each line.
      extent: the number of places in a line.
      lines: the names of a line and of a place, ``"row"`` and ``"column"`` or the reverse.

    Raises:
      StructureError: if an index is out of range, or *indptr* is not monotone from 0 to at most the number of entries.
    """
    line, place = lines
    indptr = to_inspect(indptr)
    first, last = int(indptr[0]), int(indptr[-1])
    if first != 0:
        raise StructureError(f"{caller}: indptr begins with {first}; the first {line} begins at 0.")
    falls = indptr[1:] < indptr[:-1]
    if falls.any():
        where = int(falls.argmax())
        raise StructureError(
            f"{caller}: indptr decreases from {int(indptr[where])} to {int(indptr[where + 1])} at {line} {where}; it "
            "must not."
        )
    if last > indices.shape[0]:
        raise StructureError(
            f"{caller}: indptr ends with {last}, but there are {indices.shape[0]} indices; it must end with at most "
            "that."
        )
    # If there are no places, padding is at 0.
    check_places(caller, "indices", to_inspect(indices), extent, place, padding=last == extent == 0)


def check_coordinate_values(caller: str, row: Any, col: Any, shape: tuple[int, int]) -> None:
    """Check the index arrays of a matrix in coordinates.

    Raises:
      StructureError: if an index is out of range. Only padding may be, with the row and the column of *shape*.
    """
    row, col = to_inspect(row), to_inspect(col)
    check_places(caller, "row", row, shape[0], "row", padding=True)
    check_places(caller, "col", col, shape[1], "column", padding=True)
    halves = (row == shape[0]) != (col == shape[1])
    if halves.any():
        where = int(halves.argmax())
        raise StructureError(
            f"{caller}: entry {where} is at ({row[where]}, {col[where]}), and the shape is {shape}; an entry is "
            "inside, or is padding, where both are out of range."
        )


def check_places(caller: str, what: str, indices: Any, extent: int, place: str, *, padding: bool = False) -> None:
    """Raise `StructureError` if an index is not from 0 to *extent* - 1; *padding* allows *extent* too."""
    wrong = (indices < 0) | (indices >= extent + padding)
    if wrong.any():
        where = tuple(map(int, np.unravel_index(int(wrong.argmax()), wrong.shape)))
        raise StructureError(
            f"{caller}: {what}[{', '.join(map(str, where))}] is {int(indices[where])}; a matrix with {extent} {place}s "
            f"has {place}s 0 to {extent - 1}."
        )


def to_inspect(array: Any) -> Any:
    """Return an array on the CPU as a NumPy array, for checks that compile nothing; an array on a GPU as it is."""
    return np.asarray(array) if is_on_cpu(array) else array
