"""Recording of the work that a function launches: twice, on different addresses, to find the pointers in it.

The function runs inside a stream capture, in which nothing is executed, and the work is read from the driver's graph.
A word (8 bytes) that differs between two recordings as an address does is a pointer. Everything else must be equal. The
work is then the same for arrays at any addresses, and can be replayed.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from cuda.bindings import driver as cuda

from ...errors import DeviceError, LaunchError, RecordingError, XLAKernelError
from ..driver import allocation_of, check, context_of, describe, error_code
from ..launchable import Launchable
from ..plan import Array, Plan, Step
from .addresses import Ranges
from .graph import read_graph
from .match import Recording, StructMismatch, match

_ATTEMPTS = 5  # the largest number of recordings, until two agree
_ALIGNMENT = 256  # bytes, of XLA's buffers

_Code = cuda.CUresult
_RELAXED = cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED

# The cause in the function, by the error with which the driver ends a capture.
_REASONS = {
    _Code.CUDA_ERROR_STREAM_CAPTURE_IMPLICIT: (
        "it uses CUDA's default stream, to launch a kernel or to copy between host and device. Pass the stream that "
        "the function is given: kernel[grid, block, stream](...)"
    ),
    _Code.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED: (
        "it waits for the device, for example to read results on the host or to synchronise"
    ),
    _Code.CUDA_ERROR_STREAM_CAPTURE_UNJOINED: (
        "it launches work on another stream, and the given stream does not wait for that at the end: record an event "
        "there, and let the given stream wait for it"
    ),
    _Code.CUDA_ERROR_STREAM_CAPTURE_MERGE: "it lets two captures wait for each other",
    _Code.CUDA_ERROR_STREAM_CAPTURE_ISOLATION: "it waits for an event that was recorded before it was called",
    _Code.CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD: "it launches work from another thread",
}


def record(launchable: Launchable, device: int) -> tuple[Plan, Any]:
    """Launch *launchable* at least twice, and return its plan and the device arrays to keep alive for the plan.

    Raises:
      RecordingError: if the work cannot be recorded, or is not the same each time.
      LaunchError: if the driver refuses a launch.
    """
    with context_of(device), launchable.recording(), contextlib.ExitStack() as stack:
        return _record(launchable, device, stack)


def _record(launchable: Launchable, device: int, stack: contextlib.ExitStack) -> tuple[Plan, Any]:
    recordings: list[Recording] = []
    last: RecordingError | None = None
    for _ in range(_ATTEMPTS):
        ranges = Ranges(device)
        stack.callback(ranges.free)
        shifted = len(recordings) % 2
        addresses = [ranges.reserve(array.nbytes, shifted * _shift(array)) for array in launchable.arrays]
        try:
            new = _capture(launchable, ranges, addresses, stack)
        except _InterruptedCapture as error:
            last = error
            continue
        for old in recordings:
            try:
                return match(old, new, launchable, device)
            except StructMismatch as error:
                last = error
        recordings.append(new)
    raise RecordingError(str(last)) from last


class _InterruptedCapture(RecordingError):
    """A capture failed, perhaps because of another thread: the next attempt may succeed."""


def _shift(array: Array) -> int:
    """Return an offset from XLA's alignment that the array of a slice of a batch may have.

    One of two recordings uses this offset. Work that depends on the alignment then differs between the recordings.
    """
    return min(array.nbytes & -array.nbytes, _ALIGNMENT) % (2 * _ALIGNMENT)


def _capture(
    launchable: Launchable, ranges: Ranges, addresses: Sequence[int], stack: contextlib.ExitStack
) -> Recording:
    # The stream is a blocking one: during its capture the driver refuses launches on the default stream, where they
    # would run at once on the addresses of the recording.
    stream = check(cuda.cuStreamCreate(cuda.CUstream_flags.CU_STREAM_DEFAULT))
    # The stream of the next recording must not have the same handle: libraries such as PyTorch keep free memory for
    # each handle, and temporary memory is recognised by its different addresses.
    stack.callback(lambda: check(cuda.cuStreamDestroy(stream)))
    raised: BaseException | None = None
    work = _prepared(launchable, int(stream), addresses)
    check(cuda.cuStreamBeginCapture(stream, _RELAXED))
    try:
        with ranges.in_use():
            work()
    except BaseException as error:  # noqa: BLE001  # raised again below, after the end of the capture
        raised = error
    status, graph = cuda.cuStreamEndCapture(stream)
    with _destroyed(graph):
        if isinstance(raised, Exception) and not int(status):
            _check_reads(graph, raised, launchable.label)
        _check_capture(status, raised, launchable.label)
        capture = read_graph(graph, launchable.label)
    allocations = {word: found for word in _words(capture.steps) if (found := allocation_of(word))}
    return Recording(capture, ranges, allocations)


def _prepared(launchable: Launchable, stream: int, addresses: Sequence[int]) -> Callable[[], None]:
    if launchable.prepare is None:
        return functools.partial(launchable.launch, stream, addresses)
    return launchable.prepare(stream, addresses)


@contextlib.contextmanager
def _destroyed(graph: Any) -> Iterator[None]:
    try:
        yield
    finally:
        if graph is not None and int(graph):
            check(cuda.cuGraphDestroy(graph))


def _check_reads(graph: Any, raised: Exception, label: str) -> None:
    """Raise `RecordingError` if the work of a function before its exception cannot be replayed.

    The exception may come from data that the function has read: nothing runs during a recording, so a copy to the host
    gives arbitrary numbers, or sizes and grids that the driver refuses.
    """
    if isinstance(raised, XLAKernelError) and error_code(raised) is None:  # an error of ours, never caused by data
        return
    try:
        read_graph(graph, label)
    except RecordingError as error:
        said = f"{type(raised).__name__}: {raised}"
        raise RecordingError(f"{error} (Recording executes no work; the function then raised {said}.)") from raised


def _check_capture(status: Any, raised: BaseException | None, label: str) -> None:
    """Raise the function's exception, or the reason why its capture failed."""
    if raised is not None and error_code(raised) == _Code.CUDA_ERROR_OUT_OF_MEMORY:
        raise DeviceError(
            f"{label}: the device has too little free memory for the allocations of one recording ({raised}). "
            "XLA reserves most of the memory at its start. Leave some with XLA_PYTHON_CLIENT_MEM_FRACTION=.5 or "
            "XLA_PYTHON_CLIENT_PREALLOCATE=false, or pass the memory to the function as one of its outputs."
        ) from raised
    if raised is not None and "captur" in str(raised) and error_code(raised) is None:  # Warp's message has no code
        kind = _InterruptedCapture if status == _Code.CUDA_ERROR_STREAM_CAPTURE_INVALIDATED else RecordingError
        raise kind(f"{label} cannot be recorded: {type(raised).__name__}: {raised}.") from raised
    if raised is not None and (not int(status) or (isinstance(raised, XLAKernelError) and error_code(raised) is None)):
        raise raised
    if not int(status):
        return
    code = status if raised is None else error_code(raised) or status
    if reason := _REASONS.get(code):
        raise RecordingError(f"{label} cannot be recorded: {reason}.") from raised
    if code == _Code.CUDA_ERROR_STREAM_CAPTURE_INVALIDATED:
        raise _InterruptedCapture(
            f"{label} cannot be recorded: the driver ended the capture with {describe(int(code))}. Another thread used "
            "CUDA's default stream meanwhile, as PyTorch does, or the function ignores an error of the driver."
        ) from raised
    if raised is not None and error_code(raised) is not None:
        raise LaunchError(
            f"{label}: the CUDA driver refused a launch with {describe(code)}: a grid, a block or shared memory beyond "
            "the limits of the device, or a grid too large for a cooperative launch."
        ) from raised
    if raised is not None:
        raise raised
    raise RecordingError(f"{label} cannot be recorded: the driver ended the capture with {describe(int(status))}.")


def _words(steps: Sequence[Step]) -> set[int]:
    """Return all words of *steps* that may be pointers."""
    found: set[int] = set()
    for step in steps:
        block = getattr(step, "parameters", b"")
        found.update(int.from_bytes(block[at : at + 8], "little") for at in range(0, len(block) - 7, 8))
        found.update(int(getattr(step, side)) for side in ("source", "destination") if hasattr(step, side))
    return {word for word in found if 1 << 20 <= word < 1 << 57}
