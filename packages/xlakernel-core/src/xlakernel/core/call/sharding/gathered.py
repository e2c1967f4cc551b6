"""The warning about calls without a sharding rule that have operands split over devices.

XLA decides how to split an array when it partitions a program, after tracing and lowering. So a program for several
devices has an additional custom call beside each call without a rule, with the same operands. When XLA partitions the
custom call, it calls the function that is registered under the name of the custom call. The function warns if the
operands are split, and XLA removes the custom call. The program refers to no object of this process, so JAX can keep it
in its persistent cache.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.interpreters import mlir

from ..._compat import register_partitioner
from ...errors import GatheredOperandsWarning
from ...warning import place_of_user

_TARGET = "xlakernel_operands"
_places: dict[str, tuple[str, int]] = {}  # name of a kernel → file and line of its first call
_warned: set[str] = set()


def watch(context: Any, operands: Sequence[Any], kernel: str) -> None:
    """Warn, once for each *kernel*, if XLA splits one of the *operands* of a call that is being lowered."""
    chosen = [i for i, aval in enumerate(context.avals_in) if aval.shape]
    if not chosen:
        return
    register_partitioner(_TARGET, _partition)
    _places.setdefault(kernel, place_of_user())
    flag = jax.core.ShapedArray((), np.dtype(bool))
    context = context.replace(avals_in=[context.avals_in[i] for i in chosen], avals_out=[flag])
    rule = jax.ffi.ffi_lowering(_TARGET, has_side_effect=True)
    rule(context, *(operands[i] for i in chosen), kernel=kernel.encode().hex())


def _partition(shapes: Sequence[Any], shardings: Sequence[Any], _: Any, result: Any, config: Any) -> Any:
    """Examine how the operands are split, and return a program for the unused result."""
    text = config.decode() if isinstance(config, bytes) else config
    found = re.search(r'"([0-9a-f]*)"', text)
    if not all(sharding.is_replicated() or sharding.is_manual() for sharding in shardings) and found is not None:
        _warn(bytes.fromhex(found[1]).decode())
    local = [sharding.tile(shape) for shape, sharding in zip(shapes, shardings, strict=True)]
    inputs = ", ".join(f"%arg{i}: {_type_of(shape)}" for i, shape in enumerate(local))
    body = "%0 = stablehlo.constant dense<false> : tensor<i1> return %0 : tensor<i1>"
    program = f"module {{ func.func public @main({inputs}) -> tensor<i1> {{ {body} }} }}"
    return program.encode(), shardings, result


def _type_of(shape: Any) -> str:
    """Return the MLIR type for an `xla_client.Shape`."""
    with mlir.make_ir_context():
        element = str(mlir.dtype_to_ir_type(np.dtype(shape.numpy_dtype())))
    return f"tensor<{''.join(f'{n}x' for n in shape.dimensions())}{element}>"


def _warn(kernel: str) -> None:
    if kernel in _warned:
        return
    _warned.add(kernel)
    file, line = _places.get(kernel, (__file__, 0))
    message = (
        f"{kernel}: its operands are split over devices and it has no sharding rule, so each device gathers all of "
        "them and runs the whole call. Give it sharding_rule= (an operator: def_sharding_rule), such as "
        '"i j, j -> i", or call it inside jax.shard_map. A rule with all factors in brackets, "[i] -> [i]", declares '
        "that the kernel needs them whole."
    )
    warnings.warn_explicit(message, GatheredOperandsWarning, file, line)
