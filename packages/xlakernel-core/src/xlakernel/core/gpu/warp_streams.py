"""Arrays and streams of NVIDIA Warp over XLA's memory and streams, for every backend that launches with Warp.

Warp is imported inside the functions: xlakernel.core does not depend on Warp.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any

# A Warp device has one current stream for all threads.
_lock = threading.RLock()
# Modules with kernels that plans launch. Warp would unload such a module when other kernels are defined in it.
_modules: set[Any] = set()


def device_array(address: int, nbytes: int, shape: Sequence[int], dtype: Any, device: int) -> Any:
    """Return a ``warp.array`` over GPU memory that it does not own. *dtype* is one of Warp's, such as a vector's."""
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
        # sync_enter would wait for the previous current stream; a recording would then depend on that stream.
        warp.ScopedStream(stream, sync_enter=False),
        _captured(stream),
    ):
        yield stream


@contextlib.contextmanager
def _registered(device: Any, handle: int) -> Iterator[Any]:
    """Register a stream with Warp in this context only, so that the caller may destroy the stream afterwards.

    Warp itself unregisters a stream when its ``warp.Stream`` is collected, and the traceback of an error may keep this
    object alive. Warp's native code would then use the handle of the destroyed stream, for example when an array is
    freed in a capture, and crash. The driver may also give the handle to a new stream, which Warp would unregister.
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
    """Announce to Warp a capture by others, so that Warp allocates and frees memory as in a capture of its own."""
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
    """Make Warp set up a GPU now. Its first allocation does this on the default stream, and so would end a capture."""
    import warp

    warp.empty(1, dtype=warp.uint8, device=warp.get_cuda_device(device))
