"""Functions that run as one compiled program when they are called outside of ``jax.jit``."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from .._compat import is_tracing
from ..config import AUTO, is_auto_possible
from ..errors import XLAKernelError
from ..interrupts import is_raised_by_handler


def jit_when_eager(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """Return *function* with its calls outside of ``jax.jit`` and other transformations compiled by ``jax.jit``.

    Such a call then costs as much as a jitted call: the Python code of *function*, with its checks, runs once for each
    set of shapes and dtypes. *function* is called directly

    - while JAX traces;
    - if the context or the keyword ``backend`` may request ``"auto"``, because measuring the backends needs arrays;
    - if an argument is a NumPy array, a tuple or dictionary with one, or a list of numbers: ``jax.jit`` would wrap
      numbers that JAX's dtypes cannot hold before *function* could check them.

    Args:
      function: a function of pytrees of arrays. It may call operators.
      **options: those of ``jax.jit``. A call with an unhashable static argument is not compiled.
    """
    jitted = jax.jit(function, **options)

    @functools.wraps(function)
    def call(*args: Any, **keywords: Any) -> Any:
        if is_tracing() or is_auto_possible() or keywords.get("backend") == AUTO:
            return function(*args, **keywords)
        if any(map(_is_unchecked, (*args, *keywords.values()))):
            return function(*args, **keywords)
        try:
            return jitted(*args, **keywords)
        except (TypeError, ValueError, OverflowError, XLAKernelError) as error:
            if is_raised_by_handler(error):
                raise
        # The function itself raises the error again, without JAX's frames and its note about them.
        return function(*args, **keywords)

    return call


def _is_unchecked(value: Any) -> bool:
    """Return True if *value* is or contains a NumPy array, or is a list of other objects than JAX's arrays."""
    if not isinstance(value, (list, tuple, dict)):
        return isinstance(value, (np.ndarray, np.generic))
    leaves = jax.tree.leaves(value)
    if isinstance(value, list):
        return not all(isinstance(leaf, jax.Array) for leaf in leaves)
    return any(isinstance(leaf, (np.ndarray, np.generic)) for leaf in leaves)
