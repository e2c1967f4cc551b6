"""Descriptions of NVIDIA Warp's kernels and of the objects that kernels may refer to, for `kinds`.

Warp is imported when its first object is described; xlakernel.core does not require Warp.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

# Optional attributes of a user-defined Warp function, besides its Python code.
_PARTS_OF_A_FUNCTION = (
    *("native_snippet", "adj_native_snippet", "replay_snippet"),
    *("custom_grad_func", "custom_replay_func", "inline_hint"),
)


def describe(value: Any) -> Any:
    """Return a description of an object or class from Warp that `fingerprint` can hash; None if there is none."""
    names, described = _KINDS.get(type(value).__qualname__, ((), _describe_value))
    return described(value) if all(hasattr(value, name) for name in names) else None


def code_of(value: Any) -> list[Any]:
    """Return everything that the code of a kernel or function depends on: its bytecode, types and static values."""
    adjoint = getattr(value, "adj", None)
    types = {name: _type(kind) for name, kind in getattr(adjoint, "arg_types", {}).items()}
    # The static values are those of `warp.static`, which evaluates arbitrary Python expressions.
    return [value.func, types, dict(getattr(adjoint, "resolved_static_expressions", {}))]


def _kernel(value: Any) -> Any:
    return [value.key, code_of(value), value.options, value.module, value.sig]


def _module(value: Any) -> Any:
    # Only the options are described, since kernels are described where they are used. "block_dim" is left out, since
    # some versions of Warp change this option when they load the module.
    return {name: option for name, option in value.options.items() if name != "block_dim"}


def _function(value: Any) -> Any:
    if value.func is None:  # a builtin of Warp
        return value.key
    declared = {**value.user_overloads, **getattr(value, "user_templates", {})}
    # Overloads made from a generic function are left out: they depend on the kernels that were compiled so far.
    own = {s: f for s, f in sorted(declared.items()) if getattr(f, "generic_parent", None) is None}
    return [value.key, [_overload(one) for one in own.values() or (value,)]]


def _overload(value: Any) -> Any:
    return [code_of(value), [getattr(value, name, None) for name in _PARTS_OF_A_FUNCTION]]


def _struct(value: Any) -> Any:
    return [value.key, {name: _type(field.type) for name, field in value.vars.items()}]


# Name of a class → public attributes that all of its objects must have, and the function that describes them.
_KINDS: Mapping[str, tuple[tuple[str, ...], Callable[[Any], Any]]] = {
    "Kernel": (("key", "func", "options", "module", "sig"), _kernel),
    "Module": (("options",), _module),
    "Function": (("key", "func"), _function),
    "Struct": (("key", "vars"), _struct),
}


def _describe_value(value: Any) -> Any:
    """Return a description of a type, an annotation, or a number, vector or matrix."""
    import warp

    kind = type(value)
    if isinstance(value, type) or warp.types.is_array(value):
        # An array with data is not described, since its content may change.
        return None if getattr(value, "device", None) is not None else _type(value)
    if warp.types.type_is_composite(kind):
        return [_type(kind), bytes(value)]
    return [_type(kind), value.value] if warp.types.type_is_value(kind) else None


def _type(kind: Any) -> Any:
    import warp

    element = getattr(kind, "dtype", kind)
    return [warp.types.type_repr(kind), element if type(element).__qualname__ == "Struct" else None]
