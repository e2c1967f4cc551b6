"""Checks of the numbers of threads of a launch, and of its blocks, as users give them."""

from __future__ import annotations

import operator
from typing import Any

from xlakernel.core.backend import extents
from xlakernel.core.errors import LaunchError, StaticArgumentError

MAX_DIMS = 4
_MAX_BLOCK = 1024


def check_launch_dims(name: str, dims: Any) -> Any:
    """Return threads along each dimension as a tuple of integers; None and functions as they are."""
    return dims if dims is None or callable(dims) else extents(name, "launch_dims", dims, most=MAX_DIMS)


def check_block_dim(name: str, block_dim: Any) -> int | None:
    """Return the threads of a block as an integer; None, for Warp's default, as it is."""
    if block_dim is None:
        return None
    if isinstance(block_dim, bool) or not hasattr(block_dim, "__index__"):
        raise StaticArgumentError(f"{name}: block_dim must be an integer or None, and is {block_dim!r}.")
    threads = operator.index(block_dim)
    if not 1 <= threads <= _MAX_BLOCK:
        raise LaunchError(f"{name}: block_dim must be positive and at most {_MAX_BLOCK}, and is {block_dim}.")
    return threads
