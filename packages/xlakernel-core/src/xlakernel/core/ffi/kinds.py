"""What tells objects apart that a function refers to, kernels of other libraries above all: for `fingerprint`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Package and name of a type → the attributes, all public, that say what its objects are.
_ATTRIBUTES: Mapping[tuple[str, str], tuple[str, ...]] = {
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
    ("warp", "Kernel"): ("key", "func", "options", "module", "sig"),
    ("warp", "Function"): ("key", "func", "native_snippet", "user_overloads"),
    # Its kernels are listed where they are used.
    ("warp", "Module"): ("options",),
}


def describe(value: Any) -> Any:
    """Return what *value* is, in what `fingerprint` understands; None: it is nothing that this knows."""
    kind = type(value)
    names = _ATTRIBUTES.get((kind.__module__.partition(".")[0], kind.__qualname__))
    if names is None or not all(hasattr(value, name) for name in names):
        return None
    if getattr(value, "file_path", None) is not None:  # the file may change
        return None
    if len(getattr(value, "user_overloads", ())) > 1:  # functions of other types under one name
        return None
    return [(name, getattr(value, name)) for name in names if name != "user_overloads"]
