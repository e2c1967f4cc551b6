"""Stand-ins for the GPU: drivers that record their calls, and hand-made calls of XLA."""

import ctypes
import itertools

import jax
import numpy as np
import pytest

from xlakernel.core.ffi import abi
from xlakernel.core.gpu.replaying.cuda_abi import CUDA_MEMCPY3D, CUlaunchConfig
from xlakernel.core.gpu.replaying.launch import build_handler


class FakeDriver:
    """A CUDA driver that records its calls in order, and refuses those of *refusals*.

    Attributes:
      calls: (function, arguments…); a launch as (function, handle, grid, block, shared memory, stream, attributes,
        parameters).
      parameter_sizes: the sizes of a kernel's parameters, by its handle.
      refusals: code by function.
      device: the current device.
      functions: address by name.
    """

    def __init__(self):
        self.calls = []
        self.parameter_sizes = {}
        self.refusals = {}
        self.device = 0
        address, size, bits, stream = ctypes.c_uint64, ctypes.c_size_t, ctypes.c_uint32, ctypes.c_void_p
        fill_row, fill_rows = [address, bits, size, stream], [address, size, bits, size, size, stream]
        copy_row = [address, address, size, stream]
        launch = [ctypes.POINTER(CUlaunchConfig), ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p]
        kinds = {
            "cuLaunchKernelEx": (self._launch, launch),
            "cuMemcpyDtoDAsync_v2": (None, copy_row),
            "cuMemcpy3DAsync_v2": (self._copy_rows, [ctypes.POINTER(CUDA_MEMCPY3D), stream]),
            "cuCtxGetDevice": (self._current_device, [ctypes.POINTER(ctypes.c_int)]),
            "cuGetErrorName": (self._error_name, [ctypes.c_int, ctypes.POINTER(ctypes.c_char_p)]),
        }
        kinds |= {f"cuMemsetD{bits}Async": (None, fill_row) for bits in (8, 16, 32)}
        kinds |= {f"cuMemsetD2D{bits}Async": (None, fill_rows) for bits in (8, 16, 32)}
        self._callbacks = {name: self._callback(name, *kind) for name, kind in kinds.items()}
        self.functions = {name: ctypes.cast(c, ctypes.c_void_p).value for name, c in self._callbacks.items()}

    def _callback(self, name, function, parameters):
        def called(*arguments):
            if name in self.refusals:
                return self.refusals[name]
            if function is None:
                self.calls.append((name, *arguments))
            else:
                function(*arguments)
            return 0

        return ctypes.CFUNCTYPE(ctypes.c_int, *parameters)(called)

    def _launch(self, config, handle, parameters, extra):
        config = config.contents
        assert not extra
        attributes = ctypes.string_at(config.attrs, 72 * config.numAttrs) if config.numAttrs else b""
        sizes = self.parameter_sizes.get(handle, ())
        values = tuple(ctypes.string_at(parameters[i], size) for i, size in enumerate(sizes))
        grid = (config.gridDimX, config.gridDimY, config.gridDimZ)
        block = (config.blockDimX, config.blockDimY, config.blockDimZ)
        shared = config.sharedMemBytes
        self.calls.append(("cuLaunchKernelEx", handle, grid, block, shared, config.hStream, attributes, values))

    def _copy_rows(self, parameters, stream):
        fields = {name: getattr(parameters.contents, name) for name, _ in CUDA_MEMCPY3D._fields_}
        self.calls.append(("cuMemcpy3DAsync_v2", {name: value for name, value in fields.items() if value}, stream))

    def _current_device(self, answer):
        answer[0] = self.device

    def _error_name(self, code, answer):
        answer[0] = {1: b"CUDA_ERROR_INVALID_VALUE", 700: b"CUDA_ERROR_ILLEGAL_ADDRESS"}.get(code)


@pytest.fixture
def driver():
    """A `FakeDriver`."""
    return FakeDriver()


class FakeCall:
    """Calls a handler as XLA does, with arrays at addresses that are never read.

    Args:
      inputs: (dtype, shape, address) of each.
      outputs: the same of the outputs.
      stream: XLA's stream; None: an error in its place.
      attributes: how many attributes there are.
      before: the numbers in memory before the extents of each array.
    """

    STREAM_ERROR, OUR_ERROR = 0xBAD, 0xE44

    def __init__(self, inputs=(), outputs=(), stream=0x5EED, attributes=0, before=()):
        self._owned = []
        self._before = before
        self.errors = []  # (text, code) of those that the handler made

        @ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
        def stream_get(arguments):
            if stream is None:
                return self.STREAM_ERROR
            assert self._word(arguments + abi.STREAM_GET_ARGS["ctx"]).value == 0xC7C7
            self._word(arguments + abi.STREAM_GET_ARGS["stream"]).value = stream
            return None

        @ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
        def error_create(arguments):
            text = ctypes.c_char_p.from_address(arguments + abi.ERROR_CREATE_ARGS["message"]).value
            code = ctypes.c_int.from_address(arguments + abi.ERROR_CREATE_ARGS["errc"]).value
            self.errors.append((text.decode(), code))
            return self.OUR_ERROR

        functions = {"XLA_FFI_Stream_Get": stream_get, "XLA_FFI_Error_Create": error_create}
        functions = {name: ctypes.cast(f, ctypes.c_void_p).value for name, f in functions.items()}
        self._owned += [stream_get, error_create]
        self.api = self._struct({abi.API[name]: address for name, address in functions.items()})
        fields = {abi.CALL_FRAME["api"]: self.api, abi.CALL_FRAME["ctx"]: 0xC7C7}
        fields[abi.CALL_FRAME["attrs"] + abi.ATTRS["size"]] = attributes
        for part, struct, arrays in (("args", abi.ARGS, inputs), ("rets", abi.RETS, outputs)):
            fields[abi.CALL_FRAME[part] + struct["size"]] = len(arrays)
            fields[abi.CALL_FRAME[part] + struct[part]] = self._words([self._buffer(*array) for array in arrays])
        self.frame = self._struct(fields)

    def run(self, handler):
        """Return what the handler returns: None, or the address of an error."""
        return ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(handler.address)(self.frame)

    def handshake(self, handler):
        """Return (major version, minor version, traits) as the handler answers XLA's question."""
        metadata = self._struct({})
        extension = self._struct({abi.METADATA_EXTENSION["metadata"]: metadata})
        self._word(self.frame + abi.CALL_FRAME["extension_start"]).value = extension
        assert self.run(handler) is None
        version = metadata + abi.METADATA["api_version"]
        places = (version + abi.API_VERSION["major_version"], version + abi.API_VERSION["minor_version"])
        return tuple(ctypes.c_int32.from_address(at).value for at in (*places, metadata + abi.METADATA["traits"]))

    def _buffer(self, dtype, shape, address):
        fields = {abi.BUFFER["dtype"]: abi.DATA_TYPES[dtype], abi.BUFFER["data"]: address}
        dims = self._words([*self._before, *shape]) + 8 * len(self._before)
        return self._struct(fields | {abi.BUFFER["rank"]: len(shape), abi.BUFFER["dims"]: dims})

    def _struct(self, fields):
        address = self._words([0] * 32)
        for offset, value in fields.items():
            self._word(address + offset).value = value
        return address

    def _words(self, values):
        words = (ctypes.c_int64 * max(len(values), 1))(*values)
        self._owned.append(words)
        return ctypes.addressof(words)

    @staticmethod
    def _word(address):
        return ctypes.c_int64.from_address(address)


@pytest.fixture(scope="session")
def fake_call():
    """The class `FakeCall`."""
    return FakeCall


#: Where `arrays_at` puts the first array of a call, and how far the next is from it.
FIRST, APART = 0x10_0000_0000, 0x1_0000_0000


@pytest.fixture(scope="session")
def arrays_at():
    """Return a function that returns the inputs and the outputs of a call of a plan, as `FakeCall` takes them.

    *batch* are the dimensions before each array's own; *shared* are numbers of arrays that have 1 there on some axes,
    which it maps to. Array and scratch block number i are at ``FIRST + i * APART``.
    """

    def make(plan, batch=(), shared=()):
        described = []
        for i, array in enumerate(plan.arrays):
            axes = dict(shared).get(i, ())
            leading = tuple(1 if axis in axes else extent for axis, extent in enumerate(batch))
            described.append((array.dtype, (*leading, *array.shape)))
        described += [("uint8", (nbytes,)) for nbytes in plan.scratch]
        placed = [(*array, FIRST + i * APART) for i, array in enumerate(described)]
        inputs = sum(array.source == "input" for array in plan.arrays)
        return placed[:inputs], placed[inputs:]

    return make


@pytest.fixture
def replay(driver, fake_call, arrays_at):
    """Return a function that builds a plan's handler, calls it, and returns the driver's calls."""

    def run(plan, batch=(), shared=(), **options):
        handler = build_handler([plan], label="recorded", functions=driver.functions, **options)
        call = fake_call(*arrays_at(plan, batch, shared))
        assert call.run(handler) is None, call.errors
        asked = list(driver.calls)
        driver.calls.clear()
        return asked

    return run


_numbers = itertools.count()


class HostDriver:
    """A CUDA driver whose device memory is the host's, and which copies when the copy is waited for.

    Attributes:
      blocks: the memory that is allocated, by address.
      read: where on the device something was read.
      contexts: what is pushed in each thread.
      current: the context that XLA has made current.
      refuses: status by the name of a function.
      lost: the status that everything has once the context is lost.
      order: (stream, the stream that it was made to wait for).
    """

    STREAM, OWN_STREAM, CU_STREAM_LEGACY = 0x5EED, 0x0E, 1
    CONTEXT, ALIGNMENT = 0xC0, 256

    def __init__(self):
        from cuda.bindings.driver import CUevent_flags, CUresult, CUstream_flags

        self.CUevent_flags, self.CUstream_flags, self.CUresult = CUevent_flags, CUstream_flags, CUresult
        self.order = []
        self.success = CUresult.CUDA_SUCCESS
        self.blocks, self.read, self.refuses = {}, [], {}
        self.contexts, self.current, self.lost = [], self.CONTEXT, None
        self._waiting = []

    def _answer(self, function, *values):
        status = self.lost or self.refuses.get(function, self.success)
        return (status, *values)

    def cuMemAlloc(self, nbytes):
        block = np.full(nbytes + self.ALIGNMENT, 0xCD, np.uint8)
        status, address = self._answer("cuMemAlloc", block.ctypes.data + -block.ctypes.data % self.ALIGNMENT)
        if status == self.success:
            self.blocks[address] = block
        return status, address

    def cuMemFree(self, address):
        del self.blocks[address]
        return self._answer("cuMemFree")

    def cuMemcpyHtoDAsync(self, destination, source, nbytes, stream):
        self._waiting.append((destination, source, nbytes))
        return self._answer("cuMemcpyHtoDAsync")

    def cuMemcpyDtoHAsync(self, destination, source, nbytes, stream):
        self._waiting.append((destination, source, nbytes))
        self.read.append(source)
        return self._answer("cuMemcpyDtoHAsync")

    def cuStreamCreate(self, flags):
        assert flags == self.CUstream_flags.CU_STREAM_DEFAULT  # which keeps order with the default stream
        return self._answer("cuStreamCreate", self.OWN_STREAM)

    def cuEventCreate(self, flags):
        return self._answer("cuEventCreate", 0xE)

    def cuEventRecord(self, event, stream):
        self._recorded = stream
        return self._answer("cuEventRecord")

    def cuStreamWaitEvent(self, stream, event, flags=0):
        self.order.append((stream, self._recorded))
        return self._answer("cuStreamWaitEvent")

    def cuStreamSynchronize(self, stream):
        assert stream in (self.STREAM, self.OWN_STREAM, self.CU_STREAM_LEGACY)
        while self._waiting:
            ctypes.memmove(*self._waiting.pop(0))
        return self._answer("cuStreamSynchronize")

    def cuGetErrorString(self, status):
        return self.success, status.name.removeprefix("CUDA_ERROR_").lower().encode()

    def cuStreamGetCtx(self, stream):
        assert stream == self.STREAM
        return self._answer("cuStreamGetCtx", self.CONTEXT)

    def cuCtxGetCurrent(self):
        return self._answer("cuCtxGetCurrent", self.current)

    def cuCtxPushCurrent(self, context):
        self.contexts.append(self.current)
        self.current = context
        return self._answer("cuCtxPushCurrent")

    def cuCtxPopCurrent(self):
        popped, self.current = self.current, self.contexts.pop()
        return self._answer("cuCtxPopCurrent", popped)


@pytest.fixture
def fake_driver(monkeypatch):
    """Put a `HostDriver` in the place of CUDA's."""
    from xlakernel.core.gpu import debug, driver, python_call

    fake = HostDriver()
    for module in (debug, driver, python_call):
        monkeypatch.setattr(module, "cuda", fake)
    return fake


@pytest.fixture(scope="session")
def host_launchable():
    """Return a function that makes a launchable of a function of NumPy arrays: those that are at the addresses.

    ``inputs`` and ``outputs`` are (dtype, shape) pairs; ``streams`` collects the handles of the streams.
    """
    from xlakernel.core.gpu.launchable import Launchable
    from xlakernel.core.gpu.plan import arrays_of

    def make(function, inputs=(), outputs=(), streams=None):
        structs = ([jax.ShapeDtypeStruct(shape, dtype) for dtype, shape in specs] for specs in (inputs, outputs))
        arrays = arrays_of(*structs)

        def launch(stream, addresses):
            if streams is not None:
                streams.append(stream)
            function(*(_array_at(address, array) for address, array in zip(addresses, arrays, strict=True)))

        place = f"{function.__code__.co_filename}:{function.__code__.co_firstlineno}"
        return Launchable(f"host_{next(_numbers)}", function.__name__, place, arrays, launch)

    return make


def _array_at(address, array):
    data = (ctypes.c_uint8 * array.nbytes).from_address(address) if array.nbytes else bytearray()
    return np.frombuffer(data, array.dtype).reshape(array.shape)
