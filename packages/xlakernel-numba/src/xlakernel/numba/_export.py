"""What `xlakernel.core.deserialize` calls to make the kernels of an exported program again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp

from xlakernel.core.native import Argument, array_type, numba_dtype, read_kernel

from ._compile import NumbaKernel
from ._recipe import COMPILER


def rebuild(target: str, data: Mapping[str, Any]) -> None:
    """Compile the kernel that *data* describes, and register it as *target*.

    The name is the program's, also where this version of Numba would give another one.

    Raises:
      ExportError: if the kernel is not the one that was exported.
    """
    kernel = NumbaKernel(read_kernel(COMPILER, target, data))
    kernel.register_as(target, [_argument(kernel.name, *described) for described in data["arguments"]], data["mode"])


def _argument(kernel: str, source: Any, index: int, dtype: str, ndim: int) -> Argument:
    where = f"{kernel}: {source} {index}"
    if source == "attribute":
        return Argument(source, index, dtype, ndim, numba_dtype(jnp.dtype(dtype), where))
    return Argument(source, index, dtype, ndim, array_type(jnp.dtype(dtype), ndim, where, readonly=source == "input"))
