"""Descriptions of objects that a function may refer to, such as kernels of other libraries, for `fingerprint`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import warp_kinds
from .versioned import origin

# Package and name of a type → the public attributes that determine what its objects do.
_ATTRIBUTES: Mapping[tuple[str, str], tuple[str, ...]] = {
    ("builtins", "method"): ("__func__", "__self__"),
    ("cupy", "RawKernel"): ("code", "file_path", "name", "options", "backend", "enable_cooperative_groups"),
    ("cupy", "RawModule"): (
        *("code", "file_path", "options", "backend", "name_expressions", "enable_cooperative_groups"),
    ),
    ("cupy", "ElementwiseKernel"): (
        *("name", "in_params", "out_params", "operation", "preamble", "reduce_dims", "no_return", "return_tuple"),
        "kwargs",
    ),
    ("cupy", "ReductionKernel"): (
        *("name", "in_params", "out_params", "map_expr", "reduce_expr", "post_map_expr", "identity", "reduce_type"),
        *("preamble", "reduce_dims", "options"),
    ),
    ("cupy", "ParameterInfo"): ("name", "ctype", "dtype", "raw", "is_const"),
    ("cupy", "ufunc"): ("name", "types"),
    ("functools", "_lru_cache_wrapper"): ("__wrapped__",),
    ("functools", "partial"): ("func", "args", "keywords"),
}


def describe(value: Any) -> Any:
    """Return a description of *value* that `fingerprint` can hash; None if its kind is unknown."""
    kind = value if isinstance(value, type) else type(value)
    package = origin(kind)
    if package == "warp":
        return warp_kinds.describe(value)
    names = _ATTRIBUTES.get((package, type(value).__qualname__))
    if names is None or not all(hasattr(value, name) for name in names):
        return None
    if getattr(value, "file_path", None) is not None:  # the file may change
        return None
    return [(name, getattr(value, name)) for name in names]
