"""``output_init``: the values that outputs begin with, as bytes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, cast

import jax
import numpy as np

from .call.sharding import ShardingRule
from .errors import AliasError, LaunchError, ShardingRuleError
from .specs import Struct

#: A value as its dtype and bytes: 1, 1.0 and True are equal in Python, and a NaN is not even equal to itself.
Frozen = tuple[np.dtype[Any], bytes]
#: One value for all outputs, or one for each; None: arbitrary.
OutputInit = Frozen | tuple[Frozen | None, ...] | None


def freeze(kernel: str, output_init: Any, parameters: Sequence[str]) -> OutputInit:
    """Return what the user gave as *output_init*, so that equal values are equal.

    Args:
      kernel: its name, for messages.
      output_init: what the user gave.
      parameters: the names of the kernel's parameters, for a dictionary, which is bound by name as ``outs`` is.

    Raises:
      LaunchError: if it is neither a number nor a pytree of numbers and None.
    """
    if isinstance(output_init, Mapping) and set(output_init) <= set(parameters):
        output_init = tuple(output_init[name] for name in parameters if name in output_init)
    leaves, tree = jax.tree.flatten(output_init, is_leaf=lambda leaf: leaf is None)
    if jax.tree_util.treedef_is_leaf(tree):
        return _freeze_number(kernel, output_init)
    return tuple(_freeze_number(kernel, leaf) for leaf in leaves)


def check_structure(kernel: str, output_init: Any, outs: Any) -> None:
    """Raise `LaunchError` unless each value that the user gave stands where an output does.

    Args:
      kernel: its name, for the message.
      output_init: as the user gave it.
      outs: the outputs' tree.
    """
    leaves, tree = jax.tree.flatten(output_init, is_leaf=lambda leaf: leaf is None)
    # A number, or numbers in the order of the kernel's parameters; what has names may have another order than these.
    plain = {jax.tree.structure(x) for x in (0, (0,) * len(leaves), [0] * len(leaves))}
    if tree not in plain | {outs}:
        raise LaunchError(
            f"{kernel}: output_init is a {tree}, the outputs are a {outs}; give one number for all of them, a tuple "
            "with a number or None for each in order, or the structure of outs."
        )


def check_aliases(kernel: str, output_init: OutputInit, aliases: Mapping[int, int]) -> None:
    """Raise `AliasError` if an output that begins with an input is given a value to begin with too."""
    if output_init is None:
        return
    for i, o in aliases.items():
        named = isinstance(o, int) and 0 <= o < len(output_init) and output_init[o] is not None
        if is_for_all(output_init) or named:
            raise AliasError(
                f"{kernel}: output {o} begins with input {i} (input_output_aliases), and cannot begin with an "
                "output_init too. Give None for it, and a value for each other output."
            )


def check_sums(kernel: str, output_init: OutputInit, rule: str | None) -> None:
    """Raise `ShardingRuleError` if devices would each add the value that an output begins with to their sum of it."""
    if output_init is None or rule is None:
        return
    summed = ShardingRule.parse(rule, kernel).summed
    values = (output_init,) * len(summed) if is_for_all(output_init) else output_init
    for i, (value, missing) in enumerate(zip(cast("tuple[Frozen | None, ...]", values), summed, strict=False)):
        number = 0 if value is None else np.frombuffer(value[1], value[0])[0]
        if missing and number != 0:
            raise ShardingRuleError(
                f"{kernel}: sharding_rule {rule!r} sums output {i} over {sorted(map(str, missing))}, and output_init "
                f"lets it begin with {number}, which would be added once for each device. Begin with 0 and add it to "
                "the result, or write the factor in brackets."
            )


def is_for_all(output_init: OutputInit) -> bool:
    """Whether it is one number for all outputs."""
    return bool(output_init) and isinstance(output_init[0], np.dtype)  # type: ignore[index]  # not empty


def _freeze_number(kernel: str, value: Any) -> Frozen | None:
    if value is None:
        return None
    if not isinstance(value, (bool, int, float, complex, np.generic)) or np.asarray(value).dtype.hasobject:
        raise LaunchError(
            f"{kernel}: output_init has {value!r} of type {type(value).__name__}; expected a number for all outputs, "
            "or a pytree with a number or None for each of them."
        )
    return np.asarray(value).dtype, np.asarray(value).tobytes()


def for_each(kernel: str, output_init: OutputInit, count: int) -> tuple[Frozen | None, ...]:
    """Return the value of each of *count* outputs.

    Raises:
      LaunchError: if there is a value too many or too few.
    """
    if output_init is None:
        return (None,) * count
    if is_for_all(output_init):
        return (cast(Frozen, output_init),) * count
    if len(output_init) != count:
        raise LaunchError(
            f"{kernel}: output_init has {len(output_init)} values for {count} outputs; give one number for all of "
            "them, or a number or None for each."
        )
    return cast("tuple[Frozen | None, ...]", output_init)


def patterns(kernel: str, output_init: OutputInit, outs: Sequence[Struct]) -> tuple[bytes | None, ...]:
    """Return for each output the bytes that its elements begin with; None: arbitrary ones.

    Raises:
      LaunchError: if there is a value too many or too few, or one that its output's dtype does not have.
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
            f"{kernel}: output_init is {value!r} for output {index}, whose dtype {np.dtype(dtype).name} does not have "
            "that value."
        )
    return cast.tobytes()


def or_zeros(
    begin: Sequence[bytes | None], outs: Sequence[Struct], aliased: Collection[int]
) -> tuple[bytes | None, ...]:
    """Return the patterns of a launch of no threads: *begin*, or else zeros, except where an input's memory is."""
    return tuple(
        None if i in aliased else pattern or bytes(np.dtype(out.dtype).itemsize)
        for i, (pattern, out) in enumerate(zip(begin, outs, strict=True))
    )
