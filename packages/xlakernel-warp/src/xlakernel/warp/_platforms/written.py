"""Lists of parameters and settings in exported programs, and their comparison when a program is loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import warp

from xlakernel.core.errors import ExportError

from .._internals.launches import cpu_blocks
from .._parameters import Parameter


def listed(parameters: Sequence[Parameter]) -> list[list[str]]:
    """Return names and types of parameters."""
    return [[parameter.name, warp.types.type_repr(parameter.annotation)] for parameter in parameters]


def check_listed(what: str, kind: str, there: Sequence[Sequence[str]], here: Sequence[Sequence[str]]) -> None:
    """Raise `ExportError` if the parameters or options (*kind*) of *what* differ *here* from the exported, *there*."""
    if [list(pair) for pair in there] != [list(pair) for pair in here]:
        one, other = (", ".join(": ".join(pair) for pair in found) for found in (there, here))
        raise ExportError(
            f"deserialize: {what} is not the one that was exported: its {kind} were ({one}), and are ({other}). Bring "
            "back the source that was exported, or export the program again."
        )


def check_blocks(what: str, data: Mapping[str, Any]) -> None:
    """Raise `ExportError` if Warp's setting for blocks on the CPU differs from that in *data*, the recipe of *what*."""
    if data["platform"] == "cpu" and data["cpu_blocks"] != cpu_blocks():
        raise ExportError(
            f"deserialize: {what} was exported with warp.config.enable_cpu_blocks = {data['cpu_blocks']}; other blocks "
            "may change its results. Set it before the program is loaded."
        )
