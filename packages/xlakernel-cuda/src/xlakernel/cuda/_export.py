"""What `xlakernel.core.deserialize` calls to record the launches of an exported program again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from xlakernel.core.gpu.target import register_again
from xlakernel.core.native import read_kernel
from xlakernel.core.scalars import Scalar
from xlakernel.core.specs import Struct

from ._compile import NumbaCudaKernel
from ._environment import numba_cuda
from ._geometry import LaunchForm
from ._recipe import COMPILER


def prepare(target: str, data: Mapping[str, Any]) -> Callable[[], None]:
    """Find the launch that *data* describes, and return what records and registers it as *target*.

    The name is the program's, also where these versions of Numba CUDA and its libraries would give another one.

    Raises:
      ExportError: if the kernel is not the one that was exported.
    """
    numba_cuda()
    dispatcher = read_kernel(COMPILER, target, data)
    form = LaunchForm(dispatcher.py_func.__name__, data["grid"], data["block"], batch_axis=data["batch_axis"])
    init = tuple(None if given is None else _frozen(*given) for given in data["output_init"])
    kernel = NumbaCudaKernel(dispatcher, form.checked(), data["shared_mem"], init or None, frozenset(data["aliased"]))
    launchable = kernel.launchable(
        _structs(data["inputs"]),
        _structs(data["outs"]),
        {name: Scalar(dtype, *_structs([struct])) for name, (dtype, struct) in data["scalars"].items()},
        debug=data["debug"],
        levels=data["levels"],
    )

    def build() -> None:
        register_again(launchable, target, debug=data["debug"])

    return build


def _structs(described: Sequence[Any]) -> list[Struct]:
    return [Struct(tuple(shape), jnp.dtype(dtype)) for shape, dtype in described]


def _frozen(dtype: str, value: str) -> tuple[np.dtype[Any], bytes]:
    return jnp.dtype(dtype), bytes.fromhex(value)
