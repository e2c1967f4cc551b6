"""The handler that runs a launchable through Python, slice by slice, on XLA's stream.

The handler serves work that cannot be recorded, and debug mode. XLA calls the handler from any of its threads. The
handler holds the GIL during a call and has no state between calls.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from cuda.bindings import driver as cuda
from llvmlite import ir
from numba.core import cgutils
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import cpu_target

from ..errors import DeviceError, DtypeError
from ..ffi import abi
from ..ffi.registry import Handler
from ..native.debugging.call_frame import ArrayView, api_of, arrays_of, counts_of, dtype_of
from ..native.machine.frame import I32, NULL, POINTER, answer_handshake, get_stream, load, new_error
from ..native.machine.machine_code import NAME, MachineCode, load_module, new_function, new_module
from ..native.machine.status import CallError, describe
from ..native.machine.upcall import Upcall, emit_upcall
from .driver import check
from .launchable import Launchable

#: ``run(addresses)``: launch the work of each slice of the batch, on arrays at these addresses.
Run = Callable[[Mapping[ArrayView, int]], None]
#: ``observe(stream, inputs, outputs, run)``: run a call, on copies of its arrays for example.
Observe = Callable[[int, Sequence[ArrayView], Sequence[ArrayView], Run], None]


def build_python_handler(
    launchable: Launchable, *, observer: Observe | None = None, stream: int | None = None
) -> Handler:
    """Build the handler that calls ``launchable.launch``.

    Args:
      launchable: the work of a call.
      observer: runs the call in place of the handler, as in debug mode (`debug`).
      stream: the handle of the stream to launch on in place of XLA's, for calls on the CPU platform, where XLA has no
        stream. The CUDA driver is then not called.

    Returns:
      The handler. XLA does not capture it in a CUDA graph.

    Raises:
      DtypeError: if an array has a dtype that handlers do not support.
    """
    for array in launchable.arrays:
        if array.dtype not in abi.DATA_TYPES:
            raise DtypeError(
                f"{launchable.label}: {array} has a dtype that handlers do not support; allowed: "
                f"{', '.join(abi.DATA_TYPES)}. Cast before and after the call, or view it as one of them."
            )
    call = _PythonCall(launchable, observer, stream)
    code = _compile_entry(call.upcall, has_stream=stream is None)
    return Handler(code.address_of(NAME), (code, call))


@global_compiler_lock
def _compile_entry(upcall: Upcall, *, has_stream: bool) -> MachineCode:
    """Return machine code that answers the handshake, or passes the call frame and the call's stream to *upcall*."""
    module = new_module(cpu_target.target_context)
    function, builder = new_function(module, "", ir.FunctionType(POINTER, [POINTER]), linkage="external")
    (frame,) = function.args
    extension = load(builder, frame, abi.CALL_FRAME, "extension_start")
    with builder.if_then(cgutils.is_not_null(builder, extension), likely=False):
        answer_handshake(builder, frame, extension, ir.Constant(I32, 0))
    api, stream = load(builder, frame, abi.CALL_FRAME, "api"), NULL
    if has_stream:
        error, stream = get_stream(builder, api, load(builder, frame, abi.CALL_FRAME, "ctx"))
        with builder.if_then(cgutils.is_not_null(builder, error), likely=False):
            builder.ret(error)
    builder.ret(emit_upcall(builder, upcall, [frame, stream], api))
    return load_module(cpu_target.target_context.codegen(), module, keep=True)


class _PythonCall:
    def __init__(self, launchable: Launchable, observer: Observe | None, stream: int | None) -> None:
        self.launchable = launchable
        self.observer = observer
        self.stream = stream
        self.upcall = self._answer

    def _answer(self, frame: int, stream: int) -> int | None:
        """Return an XLA_FFI_Error, or None on success."""
        try:
            self._call(frame, stream)
        except Exception as error:  # noqa: BLE001  # becomes the error of XLA's program
            label, place = self.launchable.label, self.launchable.place
            return new_error(api_of(frame), *describe(error, label, place, _location(error, place)))
        return None

    def _call(self, frame: int, stream: int) -> None:
        inputs, outputs = self._arrays(frame)
        views = [*inputs, *outputs]
        batch = self._batch(views)
        with contextlib.nullcontext(self.stream) if self.stream is not None else _own_stream(stream) as own:

            def run(addresses: Mapping[ArrayView, int]) -> None:
                for places in _slices(views, batch, [addresses[view] for view in views]):
                    self.launchable.launch(own, places)

            if self.observer is None:
                run({view: view.address for view in views})
            else:
                self.observer(own, inputs, outputs, run)

    def _arrays(self, frame: int) -> tuple[list[ArrayView], list[ArrayView]]:
        """Return the inputs and outputs, after checking that there are as many as declared."""
        arrays = self.launchable.arrays
        inputs, outputs = (sum(array.source == source for array in arrays) for source in ("input", "output"))
        expected, found = (inputs, outputs, 0), counts_of(frame)
        if found != expected:
            text = "{} inputs, {} outputs and {} attributes"
            raise self._wrong(f"made for {text.format(*expected)}; the call has {text.format(*found)}")
        return arrays_of(frame, arrays)

    def _batch(self, views: Sequence[ArrayView]) -> tuple[int, ...]:
        """Return the extents of the batch, after checking that the arrays agree on it and are as declared."""
        arrays = self.launchable.arrays
        levels = len(views[0].shape) - arrays[0].ndim if views else 0
        for array, view in zip(arrays, views, strict=True):
            same_rank = levels >= 0 and len(view.shape) == levels + array.ndim
            same_type = dtype_of(view) == abi.DATA_TYPES[array.dtype]
            if not (same_rank and same_type and view.shape[levels:] == array.shape):
                raise self._wrong(
                    f"made for {', '.join(map(str, arrays))}, after any batch dimensions; {array.source} "
                    f"{array.index} of the call is {_dtype_name(dtype_of(view))}[{','.join(map(str, view.shape))}]"
                )
        # The extent of an axis is that of the arrays that do not have 1 there, or 1.
        extents = zip(*(view.shape[:levels] for view in views), strict=True)
        batch = tuple(next((extent for extent in axis if extent != 1), 1) for axis in extents)
        for array, view in zip(arrays, views, strict=True):
            shared = 1 if array.source == "input" else None
            if any(own not in (extent, shared) for own, extent in zip(view.shape[:levels], batch, strict=True)):
                raise self._wrong(
                    f"the batch dimensions of the call's arrays differ: {array} has {view.shape[:levels]}, another has "
                    f"{batch}; an input has those of the outputs, or 1"
                )
        return batch

    def _wrong(self, text: str) -> CallError:
        return CallError(f"xlakernel: {self.launchable.label}: {text}", "INVALID_ARGUMENT")


def _dtype_name(code: int) -> str:
    return next((name for name, known in abi.DATA_TYPES.items() if known == code), f"dtype {code} of XLA's FFI")


def _slices(views: Sequence[ArrayView], batch: tuple[int, ...], addresses: Sequence[int]) -> Iterator[list[int]]:
    """Yield the addresses of each slice's arrays, in order, given those of the whole arrays."""
    strides = []
    for view in views:
        nbytes = math.prod(view.shape[len(batch) :]) * view.dtype.itemsize
        below = [math.prod(view.shape[axis + 1 : len(batch)]) for axis in range(len(batch))]
        strides.append([0 if view.shape[axis] == 1 else nbytes * below[axis] for axis in range(len(batch))])
    for position in itertools.product(*map(range, batch)):
        yield [
            address + sum(i * stride for i, stride in zip(position, own, strict=True))
            for address, own in zip(addresses, strides, strict=True)
        ]


@contextlib.contextmanager
def _own_stream(stream: int) -> Iterator[int]:
    """Yield a stream that waits for the present work on XLA's stream; on exit, make XLA's stream wait for that stream.

    Unlike XLA's streams, this stream is ordered with CUDA's default stream, where libraries copy and launch by default.
    """
    with _context_of(stream):
        context = int(check(cuda.cuCtxGetCurrent()))
        known = vars(_streams).setdefault("by_context", {})
        if context not in known:
            own = check(cuda.cuStreamCreate(cuda.CUstream_flags.CU_STREAM_DEFAULT))
            known[context] = own, check(cuda.cuEventCreate(cuda.CUevent_flags.CU_EVENT_DISABLE_TIMING))
        own, event = known[context]
        _let_wait(own, stream, event)
        try:
            yield int(own)
        except BaseException:
            with contextlib.suppress(DeviceError):  # it would repeat the error of the call
                _let_wait(stream, own, event)
            raise
        _let_wait(stream, own, event)


_streams = threading.local()  # by thread: another thread must not record an event again before the wait on it


def _let_wait(stream: Any, other: Any, event: Any) -> None:
    """Make *stream* wait for the present work on the *other* stream."""
    check(cuda.cuEventRecord(event, other))
    check(cuda.cuStreamWaitEvent(stream, event, 0))  # 0: no flags


@contextlib.contextmanager
def _context_of(stream: int) -> Iterator[None]:
    """Make the stream's context current in this thread, unless XLA has done so."""
    context = check(cuda.cuStreamGetCtx(stream))
    if int(check(cuda.cuCtxGetCurrent())) == int(context):
        yield
        return
    check(cuda.cuCtxPushCurrent(context))
    try:
        yield
    finally:
        cuda.cuCtxPopCurrent()  # unchecked: it would repeat the error of the call


def _location(error: BaseException, place: str) -> tuple[str, str, int] | None:
    """Return function, file and line of the innermost frame in the file of the definition, or None."""
    own = place.rpartition(":")[0]
    frames = [(frame.f_code, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    found = [(code.co_qualname, own, line) for code, line in frames if code.co_filename == own]
    return found[-1] if found else None
