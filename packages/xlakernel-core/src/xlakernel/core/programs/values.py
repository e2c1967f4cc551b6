"""Types, scalars and formats in recipes, as JSON values."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from ..errors import ExportError
from ..output_init import Frozen
from ..structs import Struct

#: The version of the format of recipes, the same for all backends.
FORMAT = 4
#: The minor version of Python, which bytecode depends on.
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


def check_format(package: str, target: str, data: Mapping[str, Any]) -> None:
    """Raise `ExportError` unless a recipe has the format of this *package*, and the bytecode of this Python."""
    if data.get("format") != FORMAT:
        raise ExportError(
            f"deserialize: {target!r} was exported by another {package}, whose recipes are of format "
            f"{data.get('format')!r}; this one reads format {FORMAT}. Install that version, or export again."
        )
    if (python := data["checks"]["python"]) != PYTHON:
        raise ExportError(
            f"deserialize: {target!r} was exported by Python {python}; this is Python {PYTHON}, whose bytecode "
            f"differs. Load the program with Python {python}, or export it again with this one."
        )


def write_structs(structs: Sequence[Struct]) -> list[list[Any]]:
    """Return shapes and dtypes as JSON values, for `read_structs`."""
    return [[list(map(int, struct.shape)), struct.dtype.name] for struct in structs]


def read_structs(written: Sequence[Any]) -> list[Struct]:
    """Return the structs that `write_structs` wrote."""
    return [Struct(tuple(shape), jnp.dtype(dtype)) for shape, dtype in written]


def write_static(static: Mapping[str, np.generic]) -> dict[str, list[str]]:
    """Return static scalars by name as JSON values, for `read_static`."""
    return {name: [value.dtype.name, value.tobytes().hex()] for name, value in static.items()}


def read_static(written: Mapping[str, Any]) -> dict[str, np.generic]:
    """Return the scalars that `write_static` wrote."""
    found = {name: read_frozen(*value) for name, value in written.items()}
    return {name: np.frombuffer(value, dtype)[0] for name, (dtype, value) in found.items()}


def write_init(init: Sequence[Frozen | None]) -> list[list[str] | None]:
    """Return the initial values of outputs as JSON values, for `read_init`."""
    return [None if given is None else [given[0].name, given[1].hex()] for given in init]


def read_init(written: Sequence[Any]) -> tuple[Frozen | None, ...] | None:
    """Return the initial values that `write_init` wrote; None if there are no outputs."""
    return tuple(None if value is None else read_frozen(*value) for value in written) or None


def read_frozen(dtype: str, value: str) -> Frozen:
    """Return a number, written as the name of its dtype and hexadecimal digits, as its dtype and bytes."""
    return jnp.dtype(dtype), bytes.fromhex(value)
