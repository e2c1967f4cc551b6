"""Calls that run through Python, with hand-made call frames: the stream, its context, and the handshake."""

import ctypes

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from xlakernel.core.ffi import abi

pytest.importorskip("cuda.bindings")
from xlakernel.core.gpu.python_call import build_python_handler
from xlakernel.core.native.machine import gate

STREAM = 0x5EED
F32 = ("float32", (3,))


def cumsum(x, out):
    np.cumsum(x, out=out)


class Frame:
    """A call with arrays of the host, and a table of functions that gives a stream, or an error for it."""

    ERROR, CONTEXT = 0xE44, 0xC7C7

    def __init__(self, inputs, outputs, stream=STREAM):
        self.errors, self.keep = [], []
        function = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)

        @function
        def stream_get(arguments):
            struct = abi.STREAM_GET_ARGS
            assert self.word(arguments, struct["struct_size"]).value == struct.nbytes
            assert self.word(arguments, struct["ctx"]).value == self.CONTEXT
            self.word(arguments, struct["stream"]).value = stream or 0
            return None if stream else self.ERROR

        @function
        def error_create(arguments):
            address = self.word(arguments, abi.ERROR_CREATE_ARGS["message"]).value
            self.errors.append(ctypes.string_at(address).decode())
            return self.ERROR

        functions = {"XLA_FFI_Stream_Get": stream_get, "XLA_FFI_Error_Create": error_create}
        self.keep.append(functions)
        self.api = self.struct(160, {abi.API[n]: ctypes.cast(f, ctypes.c_void_p).value for n, f in functions.items()})
        fields = {abi.CALL_FRAME["api"]: self.api, abi.CALL_FRAME["ctx"]: self.CONTEXT}
        for part, struct, arrays in (("args", abi.ARGS, inputs), ("rets", abi.RETS, outputs)):
            buffers = self.struct(8 * len(arrays), {8 * i: self.buffer(array) for i, array in enumerate(arrays)})
            fields |= {abi.CALL_FRAME[part] + struct["size"]: len(arrays), abi.CALL_FRAME[part] + struct[part]: buffers}
        self.address = self.struct(168, fields)

    @staticmethod
    def word(address, offset):
        return ctypes.c_int64.from_address(address + offset)

    def struct(self, size, fields):
        words = (ctypes.c_int64 * max(1, size // 8))()
        self.keep.append(words)
        for offset, value in fields.items():
            self.word(ctypes.addressof(words), offset).value = value
        return ctypes.addressof(words)

    def buffer(self, array):
        dims = self.struct(8 * array.ndim, {8 * axis: extent for axis, extent in enumerate(array.shape)})
        values = {
            "dtype": abi.DATA_TYPES[array.dtype.name],
            "data": array.ctypes.data,
            "rank": array.ndim,
            "dims": dims,
        }
        return self.struct(48, {abi.BUFFER[name]: value for name, value in values.items()})

    def pass_to(self, handler):
        return ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(handler.address)(self.address)


@pytest.mark.parametrize("current", [0, 0xC0, 0xBAD])
def test_xlas_stream_and_its_context_are_what_a_launch_finds(host_launchable, fake_driver, current):
    streams, contexts = [], []

    def copy(x, out):
        contexts.append(fake_driver.current)
        out[:] = x
        if x[0] == 2:
            raise ValueError("two")

    handler = build_python_handler(host_launchable(copy, [F32], [F32], streams=streams))
    fake_driver.current = current
    for number in (1, 2):
        out = np.zeros(3, np.float32)
        frame = Frame([np.full(3, number, np.float32)], [out])
        assert frame.pass_to(handler) == (Frame.ERROR if number == 2 else None)
        assert_array_equal(out, np.full(3, number))
        assert [text.partition(" (")[0] for text in frame.errors] == ["ValueError: two"][: number - 1]
        assert fake_driver.current == current
    # A stream that waits for XLA's, and that XLA's waits for, also after an exception.
    assert streams == [fake_driver.OWN_STREAM] * 2
    assert fake_driver.order == [(fake_driver.OWN_STREAM, STREAM), (STREAM, fake_driver.OWN_STREAM)] * 2
    assert contexts == [fake_driver.CONTEXT] * 2
    assert fake_driver.contexts == []


def test_an_error_in_place_of_a_stream_is_returned(host_launchable, fake_driver):
    streams = []
    handler = build_python_handler(host_launchable(cumsum, [F32], [F32], streams=streams))
    frame = Frame([np.ones(3, np.float32)], [np.zeros(3, np.float32)], stream=None)
    assert frame.pass_to(handler) == Frame.ERROR
    assert not streams and not frame.errors


def test_a_driver_that_refuses_is_an_error(host_launchable, fake_driver):
    from cuda.bindings.driver import CUresult

    streams = []
    handler = build_python_handler(host_launchable(cumsum, [F32], [F32], streams=streams))
    fake_driver.refuses["cuStreamGetCtx"] = CUresult.CUDA_ERROR_INVALID_CONTEXT
    frame = Frame([np.ones(3, np.float32)], [np.zeros(3, np.float32)])
    assert frame.pass_to(handler) == Frame.ERROR
    assert not streams
    assert "DeviceError" in frame.errors[0] and "CUDA_ERROR_INVALID_CONTEXT" in frame.errors[0]


@pytest.mark.parametrize("minor", [None, 0, 3], ids=["the runtime does not say", "0", "3"])
def test_the_handshake_is_answered_as_in_machine_code(host_launchable, minor):
    handler = build_python_handler(host_launchable(cumsum, [F32], [F32]))
    frame = Frame([], [])
    metadata = frame.struct(40, {abi.METADATA["traits"]: -1, abi.METADATA["api_version"] + 16: -1})
    extension = frame.struct(32, {abi.METADATA_EXTENSION["metadata"]: metadata})
    frame.word(frame.address, abi.CALL_FRAME["extension_start"]).value = extension
    version = abi.API["api_version"] + abi.API_VERSION["minor_version"]
    if minor is None:
        frame.word(frame.address, abi.CALL_FRAME["api"]).value = 0
    else:
        ctypes.c_int32.from_address(frame.api + version).value = minor
    assert frame.pass_to(handler) is None

    def answered(offset):
        return ctypes.c_int32.from_address(metadata + offset).value

    found = [answered(abi.METADATA["api_version"] + abi.API_VERSION[f"{part}_version"]) for part in ("major", "minor")]
    assert found == [abi.API_MAJOR, abi.OLDEST_API_MINOR if minor is None else minor]
    assert answered(abi.METADATA["traits"]) == 0  # not compatible with command buffers


def test_python_is_not_called_when_the_process_ends(host_launchable, monkeypatch):
    """JAX's clean-up waits for the threads of machine code (`test_native_gate`)."""
    streams = []
    handler = build_python_handler(host_launchable(cumsum, [F32], [F32], streams=streams), stream=STREAM)
    monkeypatch.setattr(gate._closed, "value", 1)
    frame = Frame([np.ones(3, np.float32)], [np.zeros(3, np.float32)])
    assert frame.pass_to(handler) == Frame.ERROR
    assert not streams and gate._inside.value == 0
    assert "the process is ending" in frame.errors[0]
