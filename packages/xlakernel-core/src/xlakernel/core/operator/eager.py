"""Functions that run as one compiled program when they are called outside of every program."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax

from .._compat import is_tracing
from ..config import AUTO, is_auto_possible
from ..errors import XLAKernelError
from .primitive import OperatorPrimitive


def jit_when_eager(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """Return *function*, compiled by ``jax.jit`` for calls outside of every program.

    Such a call then costs what a jitted call costs: the Python code of *function*, with its checks, runs once for each
    set of shapes and dtypes. Inside a program *function* is called as it is, and also where ``"auto"`` may be asked
    for, by the context or by a keyword ``backend``, since backends are measured with arrays.

    Args:
      function: a function of pytrees of arrays. It may call operators.
      **options: those of ``jax.jit``. Static arguments that have no hash are allowed, and not fast.
    """

    @functools.lru_cache(maxsize=1)
    def jitted(generation: int) -> Callable[..., Any]:
        """Return the compiled function; another one once an operator has another kernel or rule."""

        @functools.wraps(function)
        def run(*args: Any, **keywords: Any) -> Any:  # a new one each time: JAX finds what it traced by the function
            return function(*args, **keywords)

        return jax.jit(run, **options)

    @functools.wraps(function)
    def call(*args: Any, **keywords: Any) -> Any:
        if is_tracing() or is_auto_possible() or keywords.get("backend") == AUTO:
            return function(*args, **keywords)
        try:
            return jitted(OperatorPrimitive.generation)(*args, **keywords)
        except (TypeError, ValueError, XLAKernelError):
            pass  # the function itself says why, without JAX's frames and its note about them
        return function(*args, **keywords)

    return call
