"""Table of the libraries whose arrays and streams a function can take."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from xlakernel.core.backend import install_command
from xlakernel.core.errors import ArgumentError, MissingDependencyError

from .._environment import has_bfloat16_arrays, numba_cuda
from .buffer import DeviceBuffer, StreamHandle

#: Makes an array from a buffer and XLA's stream.
MakeArray = Callable[[DeviceBuffer, int], Any]
#: Makes a stream from its handle and the device's ordinal, and makes it current if the library has current streams.
EnterStream = Callable[[int, int], AbstractContextManager[Any]]
#: The name of a library, or a constructor.
Choice = str | Callable[..., Any]


@dataclasses.dataclass(frozen=True)
class Library:
    """The arrays and streams of one library over XLA's memory and streams.

    Attributes:
      modules: the modules to import.
      install: returns the command that installs the library.
      array: see `MakeArray`.
      stream: see `EnterStream`.
      has_dtype: returns True if the library's arrays can have a dtype.
      recording: context manager around recordings: allocates temporaries outside of the library's pool, and delays the
        reuse of their memory.
      unused: see ``Launchable.unused``.
      check: raises an exception if the library cannot be used.
    """

    modules: tuple[str, ...]
    install: Callable[[], str]
    array: MakeArray
    stream: EnterStream
    has_dtype: Callable[[np.dtype[Any]], bool]
    recording: Callable[[], AbstractContextManager[Any]] = contextlib.nullcontext
    unused: Callable[[Sequence[int], int], Collection[int]] = lambda sizes, position: ()
    check: Callable[[], object] = lambda: None

    def require(self, asked_by: str) -> None:
        """Import the library, or raise `MissingDependencyError`."""
        self.check()
        for module in self.modules:
            try:
                importlib.import_module(module)
            except ImportError as error:
                raise MissingDependencyError(
                    f"{asked_by}: needs {module}, which cannot be imported: {error}. Install it with {self.install()}."
                ) from error

    @property
    def version(self) -> str:
        """The version of the imported module."""
        return str(getattr(sys.modules.get(self.modules[0]), "__version__", None))


def _is_plain(dtype: np.dtype[Any]) -> bool:
    """Return True for NumPy's own dtypes, False for those of ml_dtypes."""
    return dtype.isbuiltin == 1


# Numba


def _numba_array(buffer: DeviceBuffer, stream: int) -> Any:
    from numba import cuda

    # XLA's stream is the array's default stream, so that `out[:] = x` and `out.copy_to_device(x)` run on it. In place
    # of a typestr, which bfloat16 lacks, Numba also accepts a dtype.
    interface = {
        "shape": buffer.shape,
        "typestr": buffer.dtype,
        "data": (buffer.ptr, False),
        "strides": None,
        "stream": stream,
        "version": 3,
    }
    return cuda.from_cuda_array_interface(interface, owner=None, sync=False)


@contextlib.contextmanager
def _numba_stream(handle: int, device: int) -> Iterator[Any]:
    from numba import cuda

    yield cuda.external_stream(handle)


def _numba_has_dtype(dtype: np.dtype[Any]) -> bool:
    return _is_plain(dtype) or (dtype.name == "bfloat16" and has_bfloat16_arrays())


def _numba_recording() -> Any:
    """Delay the release of device arrays, so that no address is used twice."""
    from numba import cuda

    return cuda.defer_cleanup()


# CuPy


def _cupy_memory(pointer: int, nbytes: int, owner: Any, device: int) -> Any:
    import cupy

    return cupy.cuda.MemoryPointer(cupy.cuda.UnownedMemory(pointer, nbytes, owner, device), 0)


def _cupy_array(buffer: DeviceBuffer, stream: int) -> Any:
    import cupy

    return cupy.ndarray(
        buffer.shape, buffer.dtype, memptr=_cupy_memory(buffer.ptr, buffer.nbytes, buffer, buffer.device)
    )


def _cupy_stream(handle: int, device: int) -> Any:
    import cupy

    if hasattr(cupy.cuda.Stream, "from_external"):  # CuPy 14, which deprecates ExternalStream
        return cupy.cuda.Stream.from_external(StreamHandle(handle))
    return cupy.cuda.ExternalStream(handle, device)


def _cupy_recording() -> Any:
    """Allocate each CuPy array from the address ranges of the recording, not from larger blocks of CuPy's pool."""
    import cupy

    from xlakernel.core.backend.gpu import addresses  # type: ignore[attr-defined,unused-ignore]

    usual = cupy.cuda.get_allocator()

    def allocate(nbytes: int) -> Any:
        address = addresses.temporary(nbytes) if nbytes else None
        return usual(nbytes) if address is None else _cupy_memory(address, nbytes, None, current_device())

    return cupy.cuda.using_allocator(allocate)  # in this thread only


def _cupy_unused(sizes: Sequence[int], position: int) -> Collection[int]:
    """Return the offsets of the 8-byte words of an indexer that CuPy's generated kernels set themselves: the indices.

    An indexer consists of a size, and an extent and an index for each dimension. An array consists of a pointer, a
    size, and an extent and a stride for each dimension. (``CIndexer`` and ``CArray`` in
    cupy/_core/include/cupy/carray.cuh of github.com/cupy/cupy.)
    """
    size = sizes[position]
    is_indexer = size > 8 and size % 16 == 8 and any(other >= 16 and other % 16 == 0 for other in sizes)
    return range(8 + (size - 8) // 2, size, 8) if is_indexer else ()


# Warp


def _warp_array(buffer: DeviceBuffer, stream: int) -> Any:
    import warp

    from xlakernel.core.backend.gpu import warp_streams  # type: ignore[attr-defined,unused-ignore]

    # A Warp array has at least one dimension.
    return warp_streams.device_array(
        buffer.ptr, buffer.nbytes, buffer.shape or (1,), warp.dtype_from_numpy(buffer.dtype), buffer.device
    )


def _warp_stream(handle: int, device: int) -> Any:
    from xlakernel.core.backend.gpu import warp_streams  # type: ignore[attr-defined,unused-ignore]

    return warp_streams.entered(handle, device)


def _warp_recording() -> Any:
    from xlakernel.core.backend.gpu import warp_streams  # type: ignore[attr-defined,unused-ignore]

    warp_streams.set_up(current_device())
    return contextlib.nullcontext()


def _warp_has_dtype(dtype: np.dtype[Any]) -> bool:
    import warp

    try:
        warp.dtype_from_numpy(dtype)
    except TypeError:
        return False
    return True


LIBRARIES: Mapping[str, Library] = {
    "numba": Library(
        modules=("numba_cuda", "numba.cuda"),
        install=lambda: f"{install_command('cuda', 'cuda13')} (or [cuda12])",
        array=_numba_array,
        stream=_numba_stream,
        has_dtype=_numba_has_dtype,
        recording=_numba_recording,
        check=numba_cuda,
    ),
    "cupy": Library(
        modules=("cupy",),
        install=lambda: "pip install cupy-cuda13x (or cupy-cuda12x)",
        array=_cupy_array,
        stream=_cupy_stream,
        has_dtype=lambda dtype: _is_plain(dtype) or dtype.name == "bfloat16",
        recording=_cupy_recording,
        unused=_cupy_unused,
    ),
    "warp": Library(
        modules=("warp",),
        install=lambda: "pip install warp-lang",
        array=_warp_array,
        stream=_warp_stream,
        has_dtype=_warp_has_dtype,
        recording=_warp_recording,
    ),
}


@dataclasses.dataclass(frozen=True)
class Adapter:
    """The types of a function's arrays and of its stream.

    Attributes:
      arrays: a name in `LIBRARIES`, or a function of a `DeviceBuffer`.
      stream: a name in `LIBRARIES`, or a function of the handle; None: the library of *arrays*, or a `StreamHandle`.
    """

    arrays: Choice
    stream: Choice | None = None

    def check(self, asked_by: str) -> None:
        """Import the libraries of *arrays* and *stream*.

        Raises:
          ArgumentError: if a name is not in `LIBRARIES`.
          MissingDependencyError: if a library is not installed.
        """
        for what, choice in (("arrays", self.arrays), ("stream", self.stream)):
            if isinstance(choice, str) and choice in LIBRARIES:
                LIBRARIES[choice].require(f"{asked_by}: {what}={choice!r}")
            elif not callable(choice) and not (what == "stream" and choice is None):
                gets = "a function of the buffer" if what == "arrays" else "a function of the stream's handle, None"
                raise ArgumentError(
                    f"{asked_by}: {what} is {choice!r}; allowed: {', '.join(map(repr, LIBRARIES))}, or {gets}."
                )

    @property
    def libraries(self) -> tuple[str, ...]:
        """The names of the libraries of *arrays* and *stream*."""
        return tuple(dict.fromkeys(c for c in (self.arrays, self.stream) if isinstance(c, str)))

    def has_dtype(self, dtype: np.dtype[Any]) -> bool:
        """Return True if an array can have this dtype."""
        return LIBRARIES[self.arrays].has_dtype(dtype) if isinstance(self.arrays, str) else True

    def array(self, buffer: DeviceBuffer, stream: int) -> Any:
        """Return the argument for *buffer*."""
        if isinstance(self.arrays, str):
            return LIBRARIES[self.arrays].array(buffer, stream)
        return self.arrays(buffer)

    @contextlib.contextmanager
    def entered(self, handle: int, device: int) -> Iterator[Any]:
        """Make the stream current in the libraries, and yield the argument for it."""
        with contextlib.ExitStack() as stack:
            streams = {name: stack.enter_context(LIBRARIES[name].stream(handle, device)) for name in self.libraries}
            chosen = self.arrays if self.stream is None and isinstance(self.arrays, str) else self.stream
            if isinstance(chosen, str):
                yield streams[chosen]
            else:
                yield StreamHandle(handle) if chosen is None else chosen(handle)


@contextlib.contextmanager
def recording() -> Iterator[None]:
    """Prepare every imported library for a recording: a function may use others than the library of its arguments."""
    with contextlib.ExitStack() as stack:
        for library in _imported():
            stack.enter_context(library.recording())
        yield


def unused(sizes: Sequence[int], position: int) -> Collection[int]:
    """Return the offsets of words that kernels of the imported libraries never read; see ``Launchable.unused``."""
    return frozenset(at for library in _imported() for at in library.unused(sizes, position))


def _imported() -> Iterator[Library]:
    for library in LIBRARIES.values():
        if all(module in sys.modules for module in library.modules):
            yield library


def current_device() -> int:
    """Return the ordinal of the device whose context is current in this thread."""
    from xlakernel.core.backend.gpu import driver  # needs cuda-bindings

    return int(driver.current_device())
