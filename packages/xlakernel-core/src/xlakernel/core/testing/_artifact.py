"""A function as bytes that another process can load."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from ..programs.export import deserialize, export


def save(function: Callable[..., Any], inputs: Sequence[Any]) -> bytes:
    """Export *function* for arrays of the shapes and dtypes of *inputs*."""
    structs = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in inputs]
    return export(jax.jit(function))(*structs).serialize()


def load(artifact: bytes) -> Callable[..., Any]:
    """Return the function that `save` wrote."""
    return deserialize(artifact).call
