"""Arguments of a function: arrays and streams of each library, with stand-ins for those that need a GPU."""

import ctypes
import functools
import gc
import sys
import threading
import time
import types
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from xlakernel.core.errors import DtypeError, ResultError
from xlakernel.cuda import DeviceBuffer, StreamHandle, cuda_callable
from xlakernel.cuda._environment import has_bfloat16_arrays
from xlakernel.cuda._functions import dlpack as _dlpack
from xlakernel.cuda._functions import libraries

gpu = pytest.importorskip("xlakernel.core.backend.gpu", exc_type=ImportError)
from xlakernel.core.gpu import target  # noqa: E402  # needs them

STREAM, DEVICE = 0x57, 3
X = jax.ShapeDtypeStruct((2, 3), jnp.float32)
SCALAR = jax.ShapeDtypeStruct((), jnp.bfloat16)


@pytest.fixture(autouse=True)
def _a_device_is_current(monkeypatch):
    monkeypatch.setattr(libraries, "current_device", lambda: DEVICE)
    monkeypatch.delitem(sys.modules, "warp", raising=False)  # a recording asks an imported Warp for its GPU


@pytest.fixture
def launch(monkeypatch):
    """Return a function that runs another one as it is recorded: on the arrays X and *scalar*, at 0x1000, 0x2000."""
    seen = []
    for module in (gpu, target):  # the second one where a recording is registered again
        monkeypatch.setattr(module, "register", lambda launchable, **_: seen.append(launchable))

    def run(func, *, scalar=SCALAR, **options):
        static = options.pop("static", {})
        cuda_callable(func, (scalar,), **options).xlakernel.target([X], [scalar], static)
        seen[-1].launch(STREAM, [0x1000, 0x2000])

    return run


class Recorder(types.ModuleType):
    """A stand-in for a library: what it was asked for is in `asked`."""

    def __init__(self, name):
        super().__init__(name)
        self.asked = []

    def note(self, what):
        return lambda *args, **kwargs: self.asked.append((what, args, kwargs)) or self.asked[-1]


class Scope:
    """A stand-in for a stream or a guard that can be current."""

    entered = ()
    is_capturing = False

    def __init__(self, *args, **kwargs):
        self.made_of = args, kwargs

    def __enter__(self):
        Scope.entered = (*Scope.entered, self)
        return self

    def __exit__(self, *_):
        assert Scope.entered[-1] is self
        Scope.entered = Scope.entered[:-1]

    def __del__(self):
        pass


class NewStream(Scope):
    @classmethod
    def from_external(cls, external):
        return cls(external)


@pytest.fixture
def cupy(monkeypatch):
    fake = Recorder("cupy")
    fake.ndarray = fake.note("ndarray")
    fake.cuda = types.SimpleNamespace(
        Stream=NewStream,
        ExternalStream=Scope,
        MemoryPointer=lambda memory, offset: (memory, offset),
        UnownedMemory=lambda *args: args,
        get_allocator=lambda: lambda nbytes: f"{nbytes} bytes of the pool",
        using_allocator=Scope,
    )
    monkeypatch.setitem(sys.modules, "cupy", fake)
    return fake


@pytest.fixture
def warp(monkeypatch):
    fake = Recorder("warp")
    fake.array = fake.note("array")
    fake.get_cuda_device = lambda ordinal: f"cuda:{ordinal}"
    fake.dtype_from_numpy = lambda dtype: f"warp {dtype}"
    fake.Stream = Scope
    fake.ScopedStream = Scope
    monkeypatch.setitem(sys.modules, "warp", fake)
    return fake


@pytest.fixture
def numba(monkeypatch):
    pytest.importorskip("numba_cuda", reason="numba-cuda is not installed")
    from numba import cuda

    fake = Recorder("numba")
    monkeypatch.setattr(cuda, "from_cuda_array_interface", fake.note("array"))
    monkeypatch.setattr(cuda, "external_stream", lambda handle: f"stream {handle}")
    monkeypatch.setattr(cuda, "defer_cleanup", Scope)
    return fake


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_numba(launch, numba, dtype):
    given = []
    run = functools.partial(
        launch,
        lambda x, out, stream: given.extend([x, out, stream]),
        scalar=jax.ShapeDtypeStruct((), dtype),
        arrays="numba",
    )
    if dtype == jnp.bfloat16 and not has_bfloat16_arrays():  # numba-cuda before 0.29
        with pytest.raises(DtypeError, match="bfloat16, which arrays of 'numba' cannot have"):
            run()
        return
    run()
    (_, (x,), sync), (_, (out,), _), stream = given
    assert stream == f"stream {STREAM}"
    assert sync == {"owner": None, "sync": False}
    assert (x["shape"], x["data"], x["version"]) == ((2, 3), (0x1000, False), 3)
    assert x["stream"] == STREAM  # so that what its methods do goes there too
    assert (out["shape"], np.dtype(out["typestr"])) == ((), dtype)


@pytest.mark.parametrize("release", ["14", "13"])
def test_cupy(launch, cupy, release):
    if release == "13":
        cupy.cuda.Stream = Scope  # which has no from_external
    given = []
    launch(lambda x, out, stream: given.extend([x, out, stream, Scope.entered]), arrays="cupy")
    (_, shape_and_dtype, memory), (_, scalar, _), stream, entered = given
    assert shape_and_dtype == ((2, 3), np.float32)
    assert scalar == ((), jnp.bfloat16)
    (pointer, nbytes, _, device), offset = memory["memptr"]
    assert (pointer, nbytes, device, offset) == (0x1000, 24, DEVICE, 0)
    assert entered == (stream,)
    made_of = stream.made_of[0]
    assert made_of == ((STREAM, DEVICE) if release == "13" else (StreamHandle(STREAM),))
    assert Scope.entered == ()


def test_warp(launch, warp):
    given = []
    launch(lambda x, out, stream: given.extend([x, out, stream, Scope.entered]), arrays="warp")
    (_, _, x), (_, _, out), stream, (scope,) = given
    assert (x["ptr"], x["capacity"], x["shape"], x["dtype"]) == (0x1000, 24, (2, 3), "warp float32")
    assert (x["device"], x["copy"]) == (f"cuda:{DEVICE}", False)
    assert (out["shape"], out["dtype"]) == ((1,), "warp bfloat16")
    assert stream.made_of == ((f"cuda:{DEVICE}",), {"cuda_stream": STREAM})
    assert scope.made_of == ((stream,), {"sync_enter": False})


def test_warp_modules_of_recorded_kernels_stay_loaded(launch, warp, monkeypatch):
    class Module:
        """A module that Warp unloads when there is no reference to it."""

    def capture_end(stream):
        module = Module()
        modules.append(weakref.ref(module))
        return types.SimpleNamespace(module_execs={module})

    modules = []
    monkeypatch.setattr(Scope, "is_capturing", True)
    warp.capture_begin = warp.note("capture_begin")
    warp.capture_end = capture_end
    launch(lambda x, out, stream: None, arrays="warp")
    gc.collect()
    assert modules[0]() is not None


def test_warps_stream_is_one_threads_at_a_time(launch, warp):
    inside, most = [], []

    def func(x, out, stream):
        inside.append(stream)
        most.append(len(inside))
        time.sleep(0.02)
        inside.pop()

    threads = [threading.Thread(target=launch, args=(func,), kwargs={"arrays": "warp"}) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] * 4


def test_a_constructor(launch):
    given = []
    launch(lambda x, out, stream: given.extend([x, out, stream]), arrays=lambda buffer: buffer)
    x, out, stream = given
    assert x == DeviceBuffer(0x1000, (2, 3), np.dtype(np.float32), DEVICE)
    assert out == DeviceBuffer(0x2000, (), np.dtype(jnp.bfloat16), DEVICE)
    assert stream == StreamHandle(STREAM)


def test_arrays_of_one_library_and_the_stream_of_another(launch, cupy, warp):
    given = []
    launch(lambda x, out, s: given.extend([x, s, Scope.entered]), arrays="cupy", stream="warp")
    (what, _, _), stream, entered = given
    assert what == "ndarray"
    assert stream.made_of[1] == {"cuda_stream": STREAM}
    assert len(entered) == 2  # CuPy's stream is current as well
    launch(lambda x, out, s: given.append(s), arrays="cupy", stream=lambda handle: -handle)
    assert given[-1] == -STREAM


@pytest.mark.parametrize(
    "func",
    [
        lambda x, alpha, out, n, s: given_to(x, out, s, alpha, n),
        lambda x, out, stream, n=0, alpha=0: given_to(x, out, stream, alpha, n),
    ],
)
def test_static_scalars_come_under_their_names(launch, func):
    GIVEN.clear()
    launch(func, arrays=lambda b: b.ptr, stream=int, static={"alpha": np.float64(0.5), "n": np.int64(3)})
    assert GIVEN == [0x1000, 0x2000, STREAM, 0.5, 3]
    assert [type(value) for value in GIVEN[-2:]] == [float, int]


GIVEN = []


def given_to(*args):
    GIVEN.extend(args)


def test_a_function_that_returns_its_result(launch):
    def func(x, out, stream):
        return x

    with pytest.raises(ResultError, match=r"func: returned DeviceBuffer; a function returns nothing"):
        launch(func, arrays=lambda b: b)


def test_an_error_inside_leaves_no_stream_current(launch, cupy):
    with pytest.raises(ZeroDivisionError):
        launch(lambda x, out, stream: 1 // 0, arrays="cupy")
    assert Scope.entered == ()


# Recordings


@pytest.fixture
def blocks(monkeypatch):
    """Let recordings give out temporaries, as `xlakernel.core.gpu.recording.addresses` does."""
    given = []
    fake = types.ModuleType("xlakernel.core.gpu.recording.addresses")
    fake.recording = True
    fake.temporary = lambda nbytes: (given.append(nbytes) or 0x5000) if fake.recording else None
    monkeypatch.setitem(sys.modules, fake.__name__, fake)
    monkeypatch.setattr(gpu, "addresses", fake, raising=False)
    return fake, given


def test_cupys_temporaries_are_where_the_recording_sees_them(cupy, numba, blocks):
    fake, given = blocks
    with libraries.recording():
        allocator = Scope.entered[-1].made_of[0][0]
        (pointer, nbytes, _, device), offset = allocator(100)
        assert (pointer, nbytes, device, offset) == (0x5000, 100, DEVICE, 0)
        assert allocator(0) == "0 bytes of the pool"
        fake.recording = False
        assert allocator(100) == "100 bytes of the pool"
    assert given == [100]
    assert Scope.entered == ()


def test_numbas_temporaries_are_not_freed_meanwhile(numba):
    with libraries.recording():
        assert len(Scope.entered) == 1
    assert Scope.entered == ()


# Buffers


def test_a_buffer_has_the_array_interface():
    buffer = DeviceBuffer(0x1000, (2, 3), np.dtype(np.float16), DEVICE)
    assert (buffer.ptr, buffer.nbytes) == (0x1000, 12)
    interface = buffer.__cuda_array_interface__
    assert (interface["version"], interface["strides"], interface["stream"]) == (3, None, None)
    assert (interface["shape"], interface["typestr"], interface["data"]) == ((2, 3), "<f2", (0x1000, False))
    assert DeviceBuffer(0x1000, (0,), buffer.dtype, 0).__cuda_array_interface__["data"] == (0, False)
    assert not hasattr(DeviceBuffer(0x1000, (2,), np.dtype(jnp.bfloat16), 0), "__cuda_array_interface__")


def test_a_stream_has_the_stream_protocol():
    assert StreamHandle(STREAM).__cuda_stream__() == (0, STREAM)
    assert (int(StreamHandle(STREAM)), hex(StreamHandle(STREAM))) == (STREAM, hex(STREAM))


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint64", "float16", "float32", "complex64"])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3, 4)], ids=str)
def test_dlpack_is_read_by_a_consumer(monkeypatch, dtype, shape):
    """NumPy reads capsules of the CPU: so the device is said to be that."""
    monkeypatch.setattr(_dlpack, "CUDA", 1)
    data = np.arange(np.prod(shape, dtype=int)).astype(dtype).reshape(shape)
    buffer = DeviceBuffer(data.ctypes.data, shape, data.dtype, 0)
    assert buffer.__dlpack_device__() == (1, 0)
    seen = np.from_dlpack(buffer)
    np.testing.assert_array_equal(seen, data)
    assert (seen.dtype, seen.shape) == (data.dtype, shape)
    del seen  # and what it was read from is freed


def test_what_is_in_a_capsule():
    capsule = DeviceBuffer(0x1000, (2, 5), np.dtype(jnp.bfloat16), DEVICE).__dlpack__(stream=STREAM)
    pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
        ("PyCapsule_GetPointer", ctypes.pythonapi)
    )
    tensor = _dlpack._DLManagedTensor.from_address(pointer(capsule, b"dltensor")).tensor
    assert (tensor.data, tensor.device_type, tensor.device_id, tensor.byte_offset) == (0x1000, 2, DEVICE, 0)
    assert (tensor.ndim, tensor.code, tensor.bits, tensor.lanes) == (2, 4, 16, 1)
    assert [list((ctypes.c_int64 * 2).from_address(at)) for at in (tensor.shape, tensor.strides)] == [[2, 5], [5, 1]]
    assert ctypes.sizeof(_dlpack._DLManagedTensor) == 64  # as in dlpack.h


def test_a_refusal_of_a_consumer_is_its_own_error():
    with pytest.raises((BufferError, RuntimeError)):
        np.from_dlpack(DeviceBuffer(0x1000, (2,), np.dtype(np.float32), DEVICE))


def test_dtypes_and_options_that_dlpack_lacks():
    buffer = DeviceBuffer(0x1000, (2,), np.dtype(jnp.float8_e5m2), DEVICE)
    with pytest.raises(BufferError, match="no dtype float8_e5m2"):
        buffer.__dlpack__()
    for asked in ({"copy": True}, {"dl_device": (1, 0)}):
        with pytest.raises(BufferError, match=f"stays on CUDA device {DEVICE}"):
            buffer.__dlpack__(**asked)
