"""Warp's devices: checks that this build of Warp supports them, their setup, and arrays over their memory."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import warp

from xlakernel.core.backend.gpu import Array, driver, warp_streams
from xlakernel.core.errors import DeviceError

#: ``make(number, shape, dtype)``: a Warp array on the memory of array *number* of a call.
MakeArray = Callable[[int, tuple[int, ...], Any], Any]


def check_cpu(name: str) -> None:
    """Raise `DeviceError` if this build of Warp has no CPU support; *name* is the kernel's name, for the message."""
    if not warp.is_cpu_available():
        raise DeviceError(
            f"{name}: this build of Warp does not include CPU support. Install a wheel from PyPI, "
            "pip install warp-lang, or run the program on a GPU."
        )


def check_gpu(name: str) -> None:
    """Raise `DeviceError` if there is no GPU, or Warp does not run on it; *name* is the kernel's name."""
    driver.devices()
    if not warp.is_cuda_available():
        raise DeviceError(
            f"{name}: this build of Warp does not include CUDA support, or finds no driver. Install a wheel from PyPI, "
            "pip install warp-lang, and check the output of warp.init()."
        )


@contextlib.contextmanager
def device_set_up() -> Iterator[None]:
    """Make Warp set up the current device before a launch is recorded on it."""
    warp_streams.set_up(driver.current_device())
    yield


def arrays_on_cpu(addresses: Sequence[int]) -> MakeArray:
    """Return a `MakeArray` for host memory; *addresses* has the address of each array of a call."""

    def make(number: int, shape: tuple[int, ...], dtype: Any) -> Any:
        return warp.array(ptr=addresses[number], shape=shape, dtype=dtype, device="cpu", copy=False)

    return make


def arrays_on_gpu(arrays: Sequence[Array], addresses: Sequence[int], device: int) -> MakeArray:
    """Return a `MakeArray` for a GPU's memory; *addresses* has the address of each array of a call."""

    def make(number: int, shape: tuple[int, ...], dtype: Any) -> Any:
        return warp_streams.device_array(addresses[number], arrays[number].nbytes, shape, dtype, device)

    return make
