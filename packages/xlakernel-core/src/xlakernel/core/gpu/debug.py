"""Debug mode on the GPU: a handler runs its call through Python on copies of the arrays, and waits for the device.

The checks are those of debug mode on the CPU (`native.debugging`). The copies are in device memory, between guards, and
are compared on the host.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from cuda.bindings import driver as cuda

from ..errors import DeviceError
from ..ffi.registry import Handler
from ..native.debugging.call_frame import ArrayView
from ..native.debugging.memory import Memory
from ..native.debugging.observer import UNCHECKED_THREADS, Observer
from ..native.machine.status import CallError
from .driver import check, describe
from .launchable import Launchable
from .python_call import Run, build_python_handler


def build_debug_handler(launchable: Launchable, *, once: bool, stream: int | None = None) -> Handler:
    """Build the handler that runs ``launchable.launch`` under observation.

    Args:
      launchable: the work of a call; its kernels are compiled with the checks that their compiler provides.
      once: whether a call must launch the work only once.
      stream: see `build_python_handler`; memory still comes from the driver.

    Returns:
      The handler.

    Raises:
      DtypeError: if an array has a dtype that handlers do not support.
    """
    observer = _DeviceObserver(launchable.label, launchable.place, once=once)
    checked = dataclasses.replace(launchable, launch=functools.partial(_launch_and_wait, launchable))
    return build_python_handler(checked, observer=observer, stream=stream)


class _DeviceObserver(Observer):
    out_of_bounds = UNCHECKED_THREADS

    def __call__(self, stream: int, inputs: Sequence[ArrayView], outputs: Sequence[ArrayView], run: Run) -> None:
        """Observe the call *run*."""
        failure = _wait(stream)
        if failure:
            raise CallError(
                f"{failure} It comes from something that ran on the device before {self._who}. Run the whole program "
                "in debug mode to find the cause.",
                "INTERNAL",
            )
        self.observe(inputs, outputs, run, DeviceMemory(stream))


class DeviceMemory(Memory):
    """The memory of a call on the device.

    Args:
      stream: the stream of all copies. The work before the call must have finished.
    """

    # Without bounds checks, 1024 threads may each write an element beyond an array; the widest elements have 16 bytes.
    guard = 16 * 1024

    def __init__(self, stream: int) -> None:
        self.stream = stream
        self._originals: dict[tuple[int, int], Any] = {}

    def read(self, view: ArrayView) -> Any:
        """Return a copy of the data of *view*, which is fetched once."""
        key = view.address, view.nbytes
        if key not in self._originals:
            data = np.empty(view.nbytes, np.uint8)
            self._download([data], [view.address])
            data.flags.writeable = False
            self._originals[key] = data
        return self._originals[key]

    def write(self, view: ArrayView, data: Any) -> None:
        """Replace the data of *view*."""
        self._upload([data], [view.address])

    @contextlib.contextmanager
    def placed(self, blocks: Sequence[Any]) -> Iterator[list[int]]:
        """Yield the addresses of copies on the device; copy them back unless there was an error, and free them."""
        addresses: list[int] = []
        failed = True
        try:
            for block in blocks:
                addresses.append(_allocate(block.nbytes))  # noqa: PERF401  # if one fails, the others are freed
            self._upload(blocks, addresses)
            yield addresses
            self._download(blocks, addresses)
            failed = False
        finally:
            freed = [cuda.cuMemFree(address) for address in addresses]
            if not failed:  # after a failure, these calls would repeat its error
                for result in freed:
                    check(result)

    def _upload(self, blocks: Sequence[Any], addresses: Sequence[int]) -> None:
        for block, address in zip(blocks, addresses, strict=True):
            if block.nbytes:
                check(cuda.cuMemcpyHtoDAsync(address, block.ctypes.data, block.nbytes, self.stream))
        check(cuda.cuStreamSynchronize(self.stream))

    def _download(self, blocks: Sequence[Any], addresses: Sequence[int]) -> None:
        for block, address in zip(blocks, addresses, strict=True):
            if block.nbytes:
                check(cuda.cuMemcpyDtoHAsync(block.ctypes.data, address, block.nbytes, self.stream))
        check(cuda.cuStreamSynchronize(self.stream))


def _allocate(nbytes: int) -> int:
    try:
        return int(check(cuda.cuMemAlloc(nbytes)))
    except DeviceError as error:
        raise DeviceError(
            f"debug mode works on copies of a call's arrays, and the device has no {nbytes} bytes for one of them: "
            f"{error} JAX takes most of its memory at the start; leave some with XLA_PYTHON_CLIENT_MEM_FRACTION=.5 or "
            "XLA_PYTHON_CLIENT_PREALLOCATE=false."
        ) from error


def _launch_and_wait(launchable: Launchable, stream: int, addresses: Sequence[int]) -> None:
    try:
        launchable.launch(stream, addresses)
    except BaseException as error:  # perhaps a library's own report of a failure on the device
        _check_device(launchable, stream, error)
        raise
    _check_device(launchable, stream)


def _check_device(launchable: Launchable, stream: int, raised: BaseException | None = None) -> None:
    failure = _wait(stream)
    if failure:
        who = f"kernel {launchable.label!r} of {launchable.place}"
        raise CallError(f"{who} failed on the device: {failure}", "INTERNAL") from raised


def _wait(stream: int) -> str:
    """Wait for all work on the stream; return the description of a failure on the device, or an empty text."""
    (status,) = cuda.cuStreamSynchronize(stream)
    if not status:
        # A library may have launched on the default stream.
        (status,) = cuda.cuStreamSynchronize(cuda.CU_STREAM_LEGACY)
    if not status:
        return ""
    text = f"{describe(int(status))}."
    if cuda.cuStreamSynchronize(stream)[0]:  # an error that destroys the context is returned again
        text += (
            " The device's context is lost, and all arrays with it: every later call fails. Restart the process. "
            "NVIDIA's compute-sanitizer finds the thread and the address."
        )
    return text
