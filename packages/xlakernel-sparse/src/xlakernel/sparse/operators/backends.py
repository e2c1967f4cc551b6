"""Registration of an operator's kernels; a backend is imported when a program is lowered for it."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Collection
from typing import Any

from xlakernel.core import XLACustomKernel
from xlakernel.core.backend import missing_package

from .operand import Operand

#: (backend, platform, package in `kernels`, extra to install or None), in the order of preference.
_BACKENDS = (
    ("numba", "cpu", "numba", None),
    ("warp", "cpu", "warp", "warp"),
    ("numba_cuda", "gpu", "cuda", "cuda"),
    ("warp", "gpu", "warp", "warp"),
    ("jax", "cpu", "reference", None),
    ("jax", "gpu", "reference", None),
    ("jax", "tpu", "reference", None),
)


def register(
    op: XLACustomKernel,
    generator: str,
    *,
    operand: Operand | None = None,
    without: Collection[str] = (),
    plain: Collection[str] = (),
) -> None:
    """Register the kernels of *op*.

    The default of a platform is the first backend with an installed package. The others are registered too: if their
    package is missing, a call raises an error that names the package.

    Args:
      op: the operator.
      generator: the name of the generator in each backend's package of kernels.
      operand: the kind of the operator's last input, or None; the name of the kind is passed to the generator.
      without: backends that have no kernel for *op*.
      plain: backends that use the kernel in plain JAX.
    """
    offered = [entry for entry in _BACKENDS if entry[0] not in without]
    for backend, platform, room, extra in sorted(offered, key=lambda entry: not _is_installed(entry[3])):
        room = "reference" if backend in plain else room
        op.def_kernel(backend, platform, _lazy(op.name, platform, room, extra, generator, operand))


def _is_installed(extra: str | None) -> bool:
    return extra is None or importlib.util.find_spec(f"xlakernel.{extra}") is not None


def _lazy(
    owner: str, platform: str, room: str, extra: str | None, name: str, operand: Operand | None
) -> Callable[..., Callable[..., Any]]:
    def generator(outs: Any, **static: Any) -> Callable[..., Any]:
        if extra is not None and not _is_installed(extra):
            raise missing_package(f"{owner}: this kernel", extra)
        kernels = importlib.import_module(f"xlakernel.sparse.kernels.{room}")
        make: Callable[..., Callable[..., Any]] = getattr(kernels, name)
        if room == "warp":  # the number of threads for a row depends on the platform
            static["platform"] = platform
        if operand is None:
            return make(outs, **static)
        kernel = make(outs, operand=operand.name, **static)
        return lambda *ins: kernel(*ins[:-1], operand.kernel_input(ins[-1], outs[0].dtype))

    generator.__name__ = generator.__qualname__ = f"{name}_{room}"
    generator.__doc__ = f"Make the {room} kernel of {owner}."
    return generator
