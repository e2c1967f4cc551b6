"""Registration of kernels for deserialized programs; `xlakernel.core.deserialize` calls `prepare`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp

from xlakernel.core.backend.native import Argument, read_kernel
from xlakernel.core.errors import ExportError

from ._compile import NumbaKernel, argument
from ._recipe import COMPILER

_MOST_DIMENSIONS = 64  # as in NumPy


def prepare(target: str, data: Mapping[str, Any]) -> Callable[[], Any]:
    """Find the kernel that *data* describes, and return a function that compiles and registers it as *target*.

    *target* is the name in the program; a call of the kernel in this process may use another name.

    Raises:
      ExportError: if the kernel is not the one that was exported.
    """
    kernel = NumbaKernel(read_kernel(COMPILER, target, data))
    arguments = [_argument(kernel.name, *described) for described in data["arguments"]]
    _check_arguments(target, kernel, arguments)
    mode = {name: data["mode"][name] is True for name in ("ordered", "debug")}
    return lambda: kernel.register(arguments, mode, target)


def _check_arguments(target: str, kernel: NumbaKernel, arguments: Sequence[Argument]) -> None:
    """Raise `ExportError` unless each parameter of the kernel has one input or output of the call, and none is left.

    The handler uses the numbers of inputs and outputs as indices into memory.
    """
    given = {source: sorted(a.index for a in arguments if a.source == source) for source in ("input", "output")}
    count = len(kernel.parameters)
    counted = all(indices == list(range(len(indices))) for indices in given.values())
    if not counted or sum(map(len, given.values())) != len(arguments) or len(arguments) != count:
        raise ExportError(
            f"deserialize: {target!r} passes the arguments {given} to the kernel {kernel.name}, which has {count} "
            "parameters. The program is damaged, or was not written by xlakernel.core.export; do not load it."
        )


def _argument(kernel: str, source: Any, index: int, dtype: str, ndim: int, scalar: str) -> Argument:
    if not (type(index) is type(ndim) is int and 0 <= ndim <= _MOST_DIMENSIONS):
        raise ExportError(
            f"deserialize: the kernel {kernel} has an invalid argument, {source} {index!r} with {ndim!r} dimensions."
        )
    if scalar and (ndim or jnp.dtype(scalar).itemsize != jnp.dtype(dtype).itemsize):
        raise ExportError(f"deserialize: {kernel} has an invalid scalar: {scalar} in {source} {index}, {dtype!r}.")
    return argument(f"{kernel}: {source} {index}", source, index, jnp.dtype(dtype), ndim, scalar)
