"""Functions that run as one compiled program when they are called outside of ``jax.jit``."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax

from .._compat import is_tracing
from ..config import AUTO, is_auto_possible
from ..errors import XLAKernelError


def jit_when_eager(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """Return *function* with its calls outside of ``jax.jit`` and other transformations compiled by ``jax.jit``.

    Such a call then costs as much as a jitted call: the Python code of *function*, with its checks, runs once for each
    set of shapes and dtypes. *function* is called directly while JAX traces, and if the context or the keyword
    ``backend`` may request ``"auto"``, because measuring the backends needs arrays.

    Args:
      function: a function of pytrees of arrays. It may call operators.
      **options: those of ``jax.jit``. A call with an unhashable static argument is not compiled.
    """
    jitted = jax.jit(function, **options)

    @functools.wraps(function)
    def call(*args: Any, **keywords: Any) -> Any:
        if is_tracing() or is_auto_possible() or keywords.get("backend") == AUTO:
            return function(*args, **keywords)
        try:
            return jitted(*args, **keywords)
        except (TypeError, ValueError, XLAKernelError):
            pass  # the function itself raises the error again, without JAX's frames and its note about them
        return function(*args, **keywords)

    return call
