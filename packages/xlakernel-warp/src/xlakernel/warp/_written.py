"""Parts of recipes: what exported programs say of parameters, arrays and numbers, made of what JSON has, and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
import warp

from xlakernel.core.backend import Struct
from xlakernel.core.errors import ExportError
from xlakernel.core.output_init import Frozen

from ._parameters import Parameter
from ._platform import Static
from ._types import split_warptype

FORMAT = 2

_COMPOSITES: Mapping[str, tuple[Callable[[Any], bool], Callable[[Any, Any], Any]]] = {
    "transformation": (warp.types.type_is_transformation, lambda scalar, _: warp.types.transformation(scalar)),
    "quaternion": (warp.types.type_is_quaternion, lambda scalar, _: warp.types.quaternion(scalar)),
    "matrix": (warp.types.type_is_matrix, lambda scalar, shape: warp.types.matrix(tuple(shape), scalar)),
    "vector": (warp.types.type_is_vector, lambda scalar, shape: warp.types.vector(*shape, scalar)),
}


def write_annotations(parameters: Sequence[Parameter]) -> list[list[Any]]:
    """Return the annotations of parameters that are not generic, made of what JSON has: `read_annotations` reads it."""
    written = []
    for parameter in parameters:
        scalar, inner = split_warptype(parameter.dtype)
        kind = next((name for name, (is_one, _) in _COMPOSITES.items() if is_one(parameter.dtype)), None)
        written.append([parameter.ndim, kind, scalar.__name__, list(inner)])
    return written


def read_annotations(written: Sequence[Sequence[Any]]) -> list[Any]:
    """Return what was given to `write_annotations`, as ``warp.overload`` takes it."""
    found = []
    for ndim, kind, scalar, inner in written:
        dtype = getattr(warp, scalar)
        dtype = dtype if kind is None else _COMPOSITES[kind][1](dtype, inner)
        found.append(dtype if ndim is None else warp.array(dtype=dtype, ndim=ndim))
    return found


def write_structs(structs: Sequence[Struct]) -> list[tuple[list[int], str]]:
    """Return shapes and dtypes: `read_structs` reads them."""
    return [(list(map(int, struct.shape)), struct.dtype.name) for struct in structs]


def read_structs(written: Sequence[Any]) -> list[Struct]:
    """Return what was given to `write_structs`."""
    return [Struct(tuple(shape), jnp.dtype(dtype)) for shape, dtype in written]


def write_static(static: Static) -> dict[str, tuple[str, str]]:
    """Return static scalars by name: `read_static` reads them."""
    return {name: (value.dtype.name, value.tobytes().hex()) for name, value in static.items()}


def read_static(written: Mapping[str, Any]) -> dict[str, np.generic]:
    """Return what was given to `write_static`."""
    found = {name: read_frozen(*value) for name, value in written.items()}
    return {name: np.frombuffer(value, dtype)[0] for name, (dtype, value) in found.items()}


def read_frozen(dtype: str, value: str) -> Frozen:
    """Return a number as its dtype and bytes."""
    return jnp.dtype(dtype), bytes.fromhex(value)


def check_format(target: str, found: Any) -> None:
    """Raise `ExportError` unless a recipe is of the format that this version writes."""
    if found != FORMAT:
        raise ExportError(
            f"deserialize: {target!r} was exported by another xlakernel-warp, whose recipes are of format {found!r}; "
            f"this one reads format {FORMAT}. Install that version, or export again."
        )


def check_listed(what: str, kind: str, there: Sequence[Sequence[str]], here: Sequence[Sequence[str]]) -> None:
    """Raise `ExportError` unless names and their values are those that were exported.

    Args:
      what: whose they are, for messages: "the kernel mine.scale".
      kind: what they are, such as "parameters".
      there: the exported ones.
      here: those that are here.
    """
    if [list(pair) for pair in there] != [list(pair) for pair in here]:
        one, other = (", ".join(": ".join(pair) for pair in found) for found in (there, here))
        raise ExportError(
            f"deserialize: {what} is not the one that was exported: its {kind} were ({one}), and are ({other}). Bring "
            "back the source that was exported, or export the program again."
        )
