"""``output_init``: the initial values of outputs, as bytes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, cast

import jax
import numpy as np

from .call.sharding.rule import ShardingRule
from .errors import AliasError, LaunchError, ShardingRuleError
from .structs import Struct

#: A value as dtype and bytes, because in Python 1, 1.0 and True are equal, and a NaN is not equal to itself.
Frozen = tuple[np.dtype[Any], bytes]
#: One value for all outputs, or a value for each output. None: the initial content is arbitrary.
OutputInit = Frozen | tuple[Frozen | None, ...] | None


def freeze(kernel: str, output_init: Any, parameters: Sequence[str]) -> OutputInit:
    """Return the user's *output_init*, a number or a pytree of numbers and None, as a hashable value.

    The keys of a dictionary are names of outputs; its values are returned in the order of the kernel's *parameters*.
    Raise `LaunchError` for any other value.
    """
    if isinstance(output_init, Mapping) and set(output_init) <= set(parameters):
        output_init = tuple(output_init[name] for name in parameters if name in output_init)
    leaves, tree = jax.tree.flatten(output_init, is_leaf=lambda leaf: leaf is None)
    if jax.tree_util.treedef_is_leaf(tree):
        return _freeze_number(kernel, output_init)
    return tuple(_freeze_number(kernel, leaf) for leaf in leaves)


def _freeze_number(kernel: str, value: Any) -> Frozen | None:
    if value is None:
        return None
    if not isinstance(value, (bool, int, float, complex, np.generic)) or np.asarray(value).dtype.hasobject:
        raise LaunchError(
            f"{kernel}: output_init has {value!r} of type {type(value).__name__}; expected a number for all outputs, "
            "or a pytree with a number or None for each of them."
        )
    return np.asarray(value).dtype, np.asarray(value).tobytes()


def check_structure(kernel: str, output_init: Any, outs: Any) -> None:
    """Raise `LaunchError` unless the user's values have the structure of the outputs, *outs*."""
    leaves, tree = jax.tree.flatten(output_init, is_leaf=lambda leaf: leaf is None)
    # The order of a tuple or list is that of the kernel's parameters. The order of a pytree with names may differ.
    plain = {jax.tree.structure(x) for x in (0, (0,) * len(leaves), [0] * len(leaves))}
    if tree not in plain | {outs}:
        raise LaunchError(
            f"{kernel}: output_init is a {tree}, the outputs are a {outs}; give one number for all of them, a tuple "
            "with a number or None for each in order, or the structure of outs."
        )


def check_aliases(kernel: str, output_init: OutputInit, aliases: Sequence[tuple[int, int]]) -> None:
    """Raise `AliasError` if an output that reuses the memory of an input also has an initial value."""
    for i, o in aliases:
        if _value_of(output_init, o) is not None:
            raise AliasError(
                f"{kernel}: output {o} begins with the values of input {i} (input_output_aliases), so it cannot have "
                "an output_init. Give None for it, and a value for each other output."
            )


def check_sums(kernel: str, output_init: OutputInit, rule: str | None) -> None:
    """Raise `ShardingRuleError` if an output that is summed over devices has an initial value other than 0.

    Each device would start its partial sum from this value, and the total would contain the value repeatedly.
    """
    if output_init is None or rule is None:
        return
    for i, missing in enumerate(ShardingRule.parse(rule, kernel).summed):
        value = _value_of(output_init, i)
        number = 0 if value is None else np.frombuffer(value[1], value[0])[0]
        if missing and number != 0:
            raise ShardingRuleError(
                f"{kernel}: sharding_rule {rule!r} sums output {i} over {sorted(map(str, missing))}, and output_init "
                f"is {number}, which would be added once for each device. Set output_init to 0 and add {number} to the "
                "result, or write the factor in brackets."
            )


def _is_for_all(output_init: OutputInit) -> bool:
    return bool(output_init) and isinstance(output_init[0], np.dtype)  # type: ignore[index]  # not empty


def _value_of(output_init: OutputInit, output: Any) -> Frozen | None:
    """Return the value of one output; None if there is none."""
    if output_init is None or _is_for_all(output_init):
        return cast("Frozen | None", output_init)
    named = isinstance(output, int) and 0 <= output < len(output_init)
    return cast("Frozen | None", output_init[output]) if named else None


def for_each(kernel: str, output_init: OutputInit, count: int) -> tuple[Frozen | None, ...]:
    """Return the value of each of *count* outputs; raise `LaunchError` for another number of values."""
    if output_init is not None and not _is_for_all(output_init) and len(output_init) != count:
        raise LaunchError(
            f"{kernel}: output_init has {len(output_init)} values for {count} outputs; give one number for all of "
            "them, or a number or None for each."
        )
    return tuple(_value_of(output_init, i) for i in range(count))


def patterns(kernel: str, output_init: OutputInit, outs: Sequence[Struct]) -> tuple[bytes | None, ...]:
    """Return for each output the bytes of an element's initial value; None: the value is arbitrary.

    Raise `LaunchError` if the number of values is wrong, or a value cannot be represented in the dtype of its output.
    """
    values = for_each(kernel, output_init, len(outs))
    return tuple(
        None if value is None else _pattern(kernel, i, np.frombuffer(value[1], value[0])[0], out.dtype)
        for i, (value, out) in enumerate(zip(values, outs, strict=True))
    )


def _pattern(kernel: str, index: int, value: Any, dtype: Any) -> bytes:
    number, kind = np.asarray(value), np.dtype(dtype)
    real_only = not jax.dtypes.issubdtype(kind, np.complexfloating)
    with np.errstate(all="ignore"):
        cast = (number.real if real_only else number).astype(kind)
    same = cast == number or (cast != cast and number != number)  # a NaN is not equal to itself
    rounded = jax.dtypes.issubdtype(kind, np.inexact) and np.isfinite(cast) and not (real_only and number.imag)
    if not (same or rounded):
        raise LaunchError(
            f"{kernel}: output_init is {value!r} for output {index}, but its dtype {np.dtype(dtype).name} does not "
            "have that value."
        )
    return cast.tobytes()


def or_zeros(
    begin: Sequence[bytes | None], outs: Sequence[Struct], aliased: Collection[int]
) -> tuple[bytes | None, ...]:
    """Return the bytes that fill each output if a launch has no threads: the output's bytes in *begin*, or else zeros.

    An *aliased* output gets None, and keeps the values of the input.
    """
    return tuple(
        None if i in aliased else pattern or bytes(np.dtype(out.dtype).itemsize)
        for i, (pattern, out) in enumerate(zip(begin, outs, strict=True))
    )
