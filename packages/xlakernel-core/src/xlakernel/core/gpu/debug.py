"""Debug mode on the device: a call runs through Python, on copies of its arrays, and is waited for.

What is checked of the copies is what `native.debug` checks on the CPU. Here they lie in device memory between guards,
and are looked at on the host.
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
from .driver import check
from .launchable import Launchable
from .python_call import Run, build_python_handler


def build_debug_handler(launchable: Launchable, *, once: bool, stream: int | None = None) -> Handler:
    """Build the handler that checks what ``launchable.launch`` does.

    Args:
      launchable: what to launch; compiled so that its kernels check what they can.
      once: whether a call must launch it only once.
      stream: see `build_python_handler`; the driver is asked for memory all the same.

    Returns:
      The handler.

    Raises:
      DtypeError: if an array has a dtype that handlers cannot take.
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
                "in debug mode to learn from what.",
                "INTERNAL",
            )
        self.observe(inputs, outputs, run, DeviceMemory(stream))


class DeviceMemory(Memory):
    """The memory of a call on the device.

    Args:
      stream: everything happens in its order. What comes before the call must be done.
    """

    # What a block of 1024 threads writes of the widest elements, one each, where it checks no index.
    guard = 16 * 1024

    def __init__(self, stream: int) -> None:
        self.stream = stream
        self._originals: dict[tuple[int, int], Any] = {}

    def read(self, view: ArrayView) -> Any:
        """Return a copy of the data, which is fetched once."""
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
        """Give the addresses of copies on the device; fetch them when all went well, and free them."""
        addresses: list[int] = []
        failed = True
        try:
            for block in blocks:
                addresses.append(_allocate(block.nbytes))  # noqa: PERF401  # those before a failure must be freed
            self._upload(blocks, addresses)
            yield addresses
            self._download(blocks, addresses)
            failed = False
        finally:
            freed = [cuda.cuMemFree(address) for address in addresses]
            if not failed:  # else they repeat the failure
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
    except BaseException as error:  # it may be what the library makes of a failure on the device
        _check_device(launchable, stream, error)
        raise
    _check_device(launchable, stream)


def _check_device(launchable: Launchable, stream: int, raised: BaseException | None = None) -> None:
    failure = _wait(stream)
    if failure:
        who = f"kernel {launchable.label!r} of {launchable.place}"
        raise CallError(f"{who} failed on the device: {failure}", "INTERNAL") from raised


def _wait(stream: int) -> str:
    """Wait for all work on the stream; return what went wrong on the device, or an empty text."""
    (status,) = cuda.cuStreamSynchronize(stream)
    if not status:
        # What is on the default stream, where a library may have launched, belongs to the call too.
        (status,) = cuda.cuStreamSynchronize(cuda.CU_STREAM_LEGACY)
    if not status:
        return ""
    text = f"{status.name} ({_explained(status)})."
    if cuda.cuStreamSynchronize(stream)[0]:  # it repeats itself, as what destroys a context does
        text += (
            " The device's context is lost, and all arrays with it: every later call fails. Restart the process. "
            "NVIDIA's compute-sanitizer finds the thread and the address."
        )
    return text


def _explained(status: Any) -> str:
    failed, text = cuda.cuGetErrorString(status)
    return "unknown" if failed else text.decode()
