"""Reductions along the rows of a compressed matrix in plain JAX."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from ...operators.reductions import reduce_rows_in_jax


def reduce_rows(outs: Sequence[Any], *, method: str) -> Callable[..., Any]:
    """Return a function ``f(data, indptr)`` that reduces the weights of each row."""
    run = functools.partial(reduce_rows_in_jax, outs=outs, method=method)
    return lambda data, indptr: run(data, indptr)[0]
