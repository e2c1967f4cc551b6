"""Options of Numba's wrappers of functions, which determine the machine code besides the function."""

from __future__ import annotations

from typing import Any

# Attributes of ufuncs (identity and layout) and of stencils (mode and options).
_NAMES = ("identity", "reorderable", "signature", "is_dynamic", "mode", "options")


def options_of(wrapper: Any) -> tuple[Any, ...]:
    """Return the options of a dispatcher, a ufunc, an intrinsic, a stencil or a C callback, for `fingerprint`."""
    compiler = getattr(wrapper, "_compiler", None)
    # The options of a C callback are attributes of its compiler.
    source = wrapper if hasattr(wrapper, "targetoptions") else compiler
    builder = getattr(wrapper, "gufunc_builder", None)
    return (
        dict(sorted((getattr(source, "targetoptions", None) or {}).items())),
        sorted((getattr(source, "locals", None) or {}).items()),
        getattr(compiler, "pipeline_class", None),
        _declared_signatures(wrapper),
        str(getattr(wrapper, "_sig", "")),  # a C callback's
        (getattr(wrapper, "_prefer_literal", None), getattr(wrapper, "_ctor_kwargs", None)),  # an intrinsic's
        {name: getattr(wrapper, name) for name in _NAMES if hasattr(wrapper, name)},
        (getattr(builder, "targetoptions", None), getattr(builder, "writable_args", None)),
    )


def _declared_signatures(wrapper: Any) -> list[str] | None:
    """Return the declared signatures with the types of their results; None if the wrapper compiles on demand.

    Declared signatures are final: arguments are converted to them. Other signatures depend only on earlier calls.
    """
    if getattr(wrapper, "_can_compile", True) and not getattr(wrapper, "_frozen", False):
        return None
    compiled = getattr(wrapper, "overloads", {}).values()
    return [str(one.signature) for one in compiled] or [str(one) for one in getattr(wrapper, "types", [])]
