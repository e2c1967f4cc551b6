"""How NVIDIA Warp launches on a stream of XLA's, or on one that is being recorded: for every backend that lets it.

Warp is imported when it is asked for something: core does not need it.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any

# A device of Warp's has one current stream, whatever the thread.
_lock = threading.RLock()
# Warp unloads a module when other kernels are defined in it, unless a graph of its own holds it. Plans live for ever.
_modules: set[Any] = set()


def device_array(address: int, nbytes: int, shape: Sequence[int], dtype: Any, device: int) -> Any:
    """Return a ``warp.array`` over memory of a GPU, which nobody owns.

    Args:
      address: of the memory.
      nbytes: its size.
      shape: extents, without those of a vector or matrix.
      dtype: Warp's.
      device: the driver's ordinal of the GPU.
    """
    import warp

    place = warp.get_cuda_device(device)
    return warp.array(ptr=address, capacity=nbytes, shape=tuple(shape), dtype=dtype, device=place, copy=False)


@contextlib.contextmanager
def entered(handle: int, device: int) -> Iterator[Any]:
    """Make the stream with this handle the one that Warp launches on, and give it as a ``warp.Stream``."""
    import warp

    stream = warp.Stream(warp.get_cuda_device(device), cuda_stream=handle)
    # Waiting for the stream that was current before would tie a recording to it.
    with _lock, warp.ScopedStream(stream, sync_enter=False), _captured(stream):
        yield stream


@contextlib.contextmanager
def _captured(stream: Any) -> Iterator[None]:
    """Tell Warp of a capture that it has not begun itself, so that it allocates and frees as one allows."""
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
    """Have Warp set up a GPU, which it does on the default stream when it first allocates there.

    That would spoil a recording.
    """
    import warp

    warp.empty(1, dtype=warp.uint8, device=warp.get_cuda_device(device))
