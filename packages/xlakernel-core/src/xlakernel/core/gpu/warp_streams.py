"""Arrays and streams of NVIDIA Warp over XLA's memory and streams, for every backend that launches with Warp.

Warp is imported inside the functions: core does not depend on it.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any

# A Warp device has one current stream for all threads.
_lock = threading.RLock()
# Modules with kernels that plans launch. Warp would unload one when other kernels are defined in it.
_modules: set[Any] = set()


def device_array(address: int, nbytes: int, shape: Sequence[int], dtype: Any, device: int) -> Any:
    """Return a ``warp.array`` of Warp's *dtype*, a vector's for example, over memory of a GPU that it does not own."""
    import warp

    place = warp.get_cuda_device(device)
    return warp.array(ptr=address, capacity=nbytes, shape=tuple(shape), dtype=dtype, device=place, copy=False)


@contextlib.contextmanager
def entered(handle: int, device: int) -> Iterator[Any]:
    """Make the stream with this handle Warp's current one, and yield it as a ``warp.Stream``."""
    import warp

    with (
        _lock,
        _registered(warp.get_cuda_device(device), handle) as stream,
        # sync_enter would wait for the stream that was current before, and so tie a recording to it.
        warp.ScopedStream(stream, sync_enter=False),
        _captured(stream),
    ):
        yield stream


@contextlib.contextmanager
def _registered(device: Any, handle: int) -> Iterator[Any]:
    """Register a stream with Warp in this context, at the end of which the stream may be destroyed.

    Warp would unregister it when the object is collected, and the traceback of an error keeps that alive for longer.
    Meanwhile Warp's native code uses the handle, for example when an array is freed in a capture: after the stream was
    destroyed this crashes. The driver also gives the handle to the next stream, which would be unregistered in use.
    """
    import warp

    stream = warp.Stream(device, cuda_stream=handle)
    try:
        yield stream
    finally:
        stream.__del__()
        stream.cuda_stream = None  # Warp does not unregister it again


@contextlib.contextmanager
def _captured(stream: Any) -> Iterator[None]:
    """Announce to Warp a capture that it did not begin, so that it allocates and frees memory as in one of its own."""
    import warp

    if not stream.is_capturing:
        yield
        return
    mode = {"capture_mode": warp.CaptureMode.RELAXED} if hasattr(warp, "CaptureMode") else {}  # from Warp 1.15 on
    warp.capture_begin(stream=stream, force_module_load=False, external=True, **mode)
    try:
        yield
    finally:
        graph = warp.capture_end(stream=stream)
        _modules.update(getattr(graph, "module_execs", ()))


def set_up(device: int) -> None:
    """Make Warp set up a GPU: it does so on the default stream at its first allocation, which would end a capture."""
    import warp

    warp.empty(1, dtype=warp.uint8, device=warp.get_cuda_device(device))
