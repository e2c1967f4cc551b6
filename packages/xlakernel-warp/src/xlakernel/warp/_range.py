"""An entry of a Warp kernel that runs a range of a launch's threads."""

from __future__ import annotations

from typing import Any


def range_entry(launch: Any) -> int:
    """Return its address."""
    raise NotImplementedError
