"""Test grids for the sparse kernels of every backend: structures, dtypes, operands, numbers of columns."""

from __future__ import annotations

import itertools

import jax
import numpy as np
import pytest
from structures import draw

OPERANDS = ("dense", "binary", "weighted")
DTYPES = ("float32", "float64", "complex64", "complex128", "int8", "int32", "int64", "uint8", "uint16", "uint64")
# One of each kind; the others are marked slow, because each compiles kernels.
KINDS = ("float64", "complex64", "int32")
# Narrow data, with products that are summed in float32.
NARROW = ("float16", "bfloat16")
COLUMNS = (0, 1, 2, 3, 5, 8, 17, 32, 33, 100)

STRUCTURES = {
    "square": lambda: draw(0, (30, 30)),
    "wide": lambda: draw(1, (5, 200), 20, padding=3),
    "tall": lambda: draw(2, (200, 5), 2, padding=1),
    "one row": lambda: draw(3, (1, 7), 5),
    "one column": lambda: draw(4, (9, 1), 2),
    "empty rows": lambda: draw(5, (50, 40), 0.3),
    "no entries": lambda: draw(6, (4, 6), 0),
    "only padding": lambda: draw(6, (4, 6), 0, padding=5),
    "no rows": lambda: draw(7, (0, 6), padding=2),
    "no columns": lambda: draw(8, (6, 0)),
    "nothing": lambda: draw(9, (0, 0)),
    "heavy tail": lambda: draw(10, (300, 100), 20, heavy=True, padding=2),
}
# One of each kind; the others are marked slow.
FIRST_STRUCTURES = ("wide", "empty rows", "only padding", "no rows", "nothing", "heavy tail")
# Large enough for several threads.
LARGE = {
    "large": lambda: draw(20, (3000, 2500), 50, padding=11),
    "large, heavy tail": lambda: draw(21, (4000, 3000), 60, heavy=True),
    "few long rows": lambda: draw(22, (3, 50_000), 50_000),
    "few columns": lambda: draw(23, (30_000, 3), 5),
    "many columns, few entries": lambda: draw(24, (100, 400_000), 10),
    "many columns, heavy tail": lambda: draw(25, (4000, 20_000), 60, heavy=True),
}

each_operand = pytest.mark.parametrize("operand", OPERANDS)
each_side = pytest.mark.parametrize("transpose", [False, True], ids=["A@x", "A.T@x"])
each_rank = pytest.mark.parametrize("columns", [None, 6], ids=["vector", "matrix"])
each_weight = pytest.mark.parametrize("homogeneous", [False, True], ids=["weights", "homogeneous"])

# The dtypes of indices and of indptr; other tests use int32 for both.
each_index = pytest.mark.parametrize(
    ("index", "pointer"),
    [
        ("int64", "int64"),
        pytest.param("int32", "int64", marks=pytest.mark.slow),
        pytest.param("int64", "int32", marks=pytest.mark.slow),
    ],
)


def weight_in_turn(operand, transpose, columns):
    """Return True if a product is tested with one weight for all entries, False if with a weight for each.

    Each operand, side and rank has both, but not every combination of them: each compiles a kernel.
    """
    return (OPERANDS.index(operand) + transpose + (columns not in (None, 1))) % 2 == 1


def each_product(*operands, columns=(None, 6)):
    """Parametrise a test by kinds of products; the other kind of weights is marked slow."""
    return pytest.mark.parametrize(
        ("operand", "transpose", "columns", "homogeneous"),
        [
            pytest.param(*case, homogeneous, marks=[pytest.mark.slow] * (homogeneous != weight_in_turn(*case)))
            for case in itertools.product(operands, (False, True), columns)
            for homogeneous in (False, True)
        ],
    )


def slow_but(values, first):
    """Return *values*, or tuples of them, as parameters; all but *first* are marked slow."""
    parts = (value if isinstance(value, tuple) else (value,) for value in values)
    return [
        pytest.param(*part, marks=[pytest.mark.slow] * (value not in first))
        for value, part in zip(values, parts, strict=True)
    ]


def struct(shape, dtype):
    return jax.ShapeDtypeStruct(shape, np.dtype(dtype))
