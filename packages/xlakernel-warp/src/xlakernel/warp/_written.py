"""Parameters in recipes, made of what JSON has."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import warp

from xlakernel.core.errors import ExportError

from ._parameters import Parameter
from ._types import PYTHON_SCALARS, split_warptype

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


def listed(parameters: Sequence[Parameter]) -> list[list[str]]:
    """Return names and types of parameters, for `check_listed`."""
    return [[parameter.name, warp.types.type_repr(_annotation(parameter))] for parameter in parameters]


def _annotation(parameter: Parameter) -> Any:
    dtype = Any if parameter.dtype is None else PYTHON_SCALARS.get(parameter.dtype, parameter.dtype)
    return warp.array(dtype=dtype, ndim=parameter.ndim) if parameter.is_array else dtype
