"""Measurement of a function's operators before the function is compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from .._compat import is_tracing
from ..config import AUTO, use_backend
from ..errors import ArgumentError, KernelTypeError
from . import auto
from .choices import AutoChoice


def tune(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> list[AutoChoice]:
    """Call a function once, and measure the backends of each operator that it calls.

    Calls of operators inside ``jax.jit`` are never measured, but use earlier measurements. So tune first, with arrays
    like those of the program, then compile. The function runs inside ``use_backend("auto")`` and ``jax.disable_jit()``:
    Python executes each step of its loops, so choose a short run. Calls that have a choice already are measured anew.

    Calls inside ``jax.vmap``, ``jax.grad`` or another transformation are not measured: tune the function without the
    transformation. Calls in debug mode, of arrays on several devices, or in a program of several processes are not
    measured either. Operators with side effects are measured only by `tune`, which runs their kernels many times.

    Args:
      function: the function to call: any function that calls operators, ``op.call``, or an operator itself.
      *args: the function's arguments.
      **kwargs: the function's keywords.

    Returns:
      The choices, in the order of the first calls. An operator with one kernel for the platform has no choice.

    Raises:
      ArgumentError: if `tune` is called inside a transformation of JAX.
      KernelTypeError: if *function* cannot be called.

    Example:
      >>> import jax, numpy as np
      >>> from xlakernel.core import XLACustomKernel, tune, use_backend
      >>> op = XLACustomKernel("tuned", replace=True)
      >>> _ = op.def_kernel("multiplied", "cpu", lambda outs: lambda x: 2 * x)
      >>> _ = op.def_kernel("added", "cpu", lambda outs: lambda x: x + x)
      >>> double = jax.jit(lambda x: op(x, outs=x))
      >>> x = np.ones(1000, np.float32)
      >>> [choice] = tune(double, x)
      >>> choice.call
      'float32[1024] -> float32[1024]'
      >>> with use_backend("auto"):
      ...     y = double(x)  # compiled with the fastest backend
    """
    if not callable(function):
        raise KernelTypeError(f"tune: expected a function and its arguments; got {function!r}. Write tune(f, *args).")
    if is_tracing() or auto.any_traced(jax.tree.leaves((args, kwargs))):
        raise ArgumentError(
            f"tune: {function!r} cannot be measured inside jax.jit or another transformation of JAX, where arrays have "
            "no values. Call tune before, with arrays like those of the program."
        )
    before, auto.state.tuned = auto.state.tuned, {}
    try:
        with use_backend(AUTO), jax.disable_jit():
            jax.block_until_ready(function(*args, **kwargs))
        return list(auto.state.tuned.values())
    finally:
        auto.state.tuned = before
