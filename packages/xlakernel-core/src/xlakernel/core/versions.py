"""The versions of what kernels and their times depend on."""

from __future__ import annotations

import importlib.metadata

# What is told of where a result comes from, if it is installed.
_DISTRIBUTIONS = (
    *("xlakernel-core", "xlakernel-numba", "xlakernel-cuda", "xlakernel-warp", "xlakernel-sparse"),
    *("jax", "jaxlib", "numpy", "numba", "numba-cuda", "warp-lang"),
)


def versions() -> dict[str, str]:
    """Return the versions of what is installed of that, by distribution."""
    found = {}
    for name in _DISTRIBUTIONS:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
