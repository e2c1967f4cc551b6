"""One launch of a Warp kernel by Warp's own public function, on arrays at given addresses."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import re
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import warp

from xlakernel.core.backend.gpu import Array
from xlakernel.core.errors import CompileError, DeviceError, LaunchError

from . import _inside
from ._alone import launching

# What kernels failed to compile with.
_failures: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()

# What Python allows as the name of a parameter, and C++ does not.
_RESERVED = re.compile(
    "alignas|alignof|asm|auto|bitand|bitor|bool|case|catch|char|char16_t|char32_t|compl|const|const_cast|constexpr|"
    "decltype|default|delete|do|double|dynamic_cast|enum|explicit|export|extern|false|float|friend|goto|inline|int|long|"
    "mutable|namespace|new|noexcept|nullptr|operator|private|protected|public|register|reinterpret_cast|short|signed|"
    "sizeof|static|static_assert|static_cast|struct|switch|template|this|thread_local|throw|true|typedef|typeid|"
    "typename|union|unsigned|using|virtual|void|volatile|wchar_t|xor"
)

#: Threads of a block on a GPU, unless one says otherwise.
USUAL_BLOCK = 256
#: ``make(slot, address)``: a Warp array.
_MakeArray = Callable[["Slot", int], Any]


@dataclasses.dataclass(frozen=True)
class Slot:
    """Where one of a kernel's parameters comes from.

    Attributes:
      dtype: Warp's type of it, or of the array's elements.
      number: of the array that it is, among the inputs and then the outputs.
      shape: the array's extents, without those of a vector or matrix.
      value: of a static scalar; None: it is an array.
      adjoint: number of the array with its derivatives, in an adjoint launch; None: there is none.
    """

    dtype: Any
    number: int = -1
    shape: tuple[int, ...] = ()
    value: np.generic | None = None
    adjoint: int | None = None


@dataclasses.dataclass(frozen=True)
class WarpLaunch:
    """What a call does: fills, then the launch.

    Attributes:
      name: the kernel's name, for messages.
      kernel: the kernel, and no generic one.
      dims: threads along each dimension.
      block_dim: threads of a block; None: what Warp takes.
      slots: the kernel's parameters.
      arrays: the inputs, then the outputs.
      fills: (array, bytes of an element) for those that begin with a value.
      adjoint: whether Warp's adjoint of the kernel is launched.
    """

    name: str
    kernel: Any
    dims: tuple[int, ...]
    block_dim: int | None
    slots: tuple[Slot, ...]
    arrays: tuple[Array, ...]
    fills: tuple[tuple[int, bytes], ...] = ()
    adjoint: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether it has no thread."""
        return 0 in self.dims

    def block_on(self, platform: str) -> int:
        """The threads of a block that the kernel is compiled for on ``"cpu"`` or ``"cuda"``."""
        if platform == "cpu":
            return self.block_dim or 1 if _inside.cpu_blocks() else 1
        return self.block_dim or USUAL_BLOCK

    def code_on(self, platform: str) -> str:
        """What tells the kernel's binary on ``"cpu"`` or ``"cuda"`` apart, with what it refers to as that is now."""
        try:
            return _inside.content(self.kernel, self.block_on(platform))
        except Exception as error:  # noqa: BLE001  # Warp lets errors of all kinds escape, and `load` says what they are
            if _inside.is_left_out(self.kernel, ()):
                _failures[self.kernel] = self._refused(platform, error)
            return f"object {id(self.kernel)}"

    def is_outdated(self, platform: str) -> bool:
        """Return True if Warp compiled the kernel before something that it refers to changed."""
        return _inside.is_outdated(self.kernel, self.block_on(platform))

    def load(self, device: str) -> None:
        """Have Warp compile and load the kernel.

        Raises:
          CompileError: if it does not.
        """
        with _inside.lock:
            self._load(device)

    def _load(self, device: str) -> None:
        if _inside.is_left_out(self.kernel, _failures):
            again = (
                f"{self.name}: Warp {warp.__version__} has given up on the kernel, here or when it compiled another "
                'one of its file or notebook. Define it anew; with @wp.kernel(module="unique") Warp says what is wrong.'
            )
            raise CompileError(_failures.get(self.kernel, again))
        if _inside.is_merged(self.kernel):
            raise CompileError(
                f"{self.name}: Warp {warp.__version__} takes two definitions of the kernel for one, which refer to "
                'different functions, types or values: with module="unique" it returned the first kernel for both. '
                'Leave module="unique" out, or give the functions different names.'
            )
        _inside.forget_failed(self.kernel.module, _failures)
        _inside.restore_overload(self.kernel)
        # Warp 1.14 compiles a module anew for a launch on the CPU unless it is told that blocks have one thread there.
        block_dim = self.block_on("cpu" if device == "cpu" else "cuda")
        load = functools.partial(warp.load_module, self.kernel.module, device=device, block_dim=block_dim)
        try:
            _inside.undisturbed(self.kernel.module, load)
        except Exception as error:  # Warp lets errors of all kinds escape
            _failures[self.kernel] = self._refused(device, error)
            _inside.hash_anew(self.kernel.module)
            _inside.drop_overload(self.kernel)
            raise CompileError(_failures[self.kernel]) from error

    def _refused(self, device: str, error: Exception) -> str:
        named = re.search(r'function "(\w+)"', str(error))
        other = ""
        if reserved := [name for name, _ in _inside.parameters(self.kernel) if _RESERVED.fullmatch(name)]:
            other = f" C++, which Warp writes, reserves the name of the parameter {reserved[0]!r}: rename it."
        if named and named[1] not in (self.name, self.kernel.key):
            other = (
                f" Warp compiles the kernels of a file or notebook together. If {named[1]} is no part of this one, mend"
                ' it all the same, or give it a module of its own: @warp.kernel(module="unique").'
            )
        return (
            f"{self.name}: Warp {warp.__version__} does not compile the kernel for {device}. Warp says: "
            f"{type(error).__name__}: {error}{other}"
        )

    # On the CPU

    def recorded(self, addresses: Sequence[int]) -> Any:
        """Return the ``warp.Launch`` on arrays at these addresses, which nothing reads."""
        if not warp.is_cpu_available():
            raise DeviceError(
                f"{self.name}: this build of Warp does not include CPU support. Install a wheel from PyPI, "
                "pip install warp-lang, or run the program on a GPU."
            )
        self.load("cpu")
        launch = self._launch(self._on_the_cpu, addresses, device="cpu", record_cmd=True)
        if launch is None:
            again = (
                f"{self.name}: Failed to load Warp module {self.kernel.module.name!r} on the CPU, which failed to "
                "build before. Warp printed why when it did."
            )
            raise CompileError(_failures.get(self.kernel, again))
        return launch

    def run_on_the_cpu(self, stream: int, addresses: Sequence[int]) -> None:
        """Do all of it now, on arrays at these addresses."""
        for number, pattern in self.fills:
            memory = np.ctypeslib.as_array(_bytes_at(addresses[number], self.arrays[number].nbytes))
            memory.reshape(-1, len(pattern))[:] = np.frombuffer(pattern, np.uint8)
        if not self.is_empty:
            with launching():
                self._launch(self._on_the_cpu, addresses, device="cpu")

    def _on_the_cpu(self, slot: Slot, address: int) -> Any:
        return warp.array(ptr=address, shape=slot.shape, dtype=slot.dtype, device="cpu", copy=False)

    # On a GPU

    def prepare(self, stream: int, addresses: Sequence[int]) -> Callable[[], None]:
        """Return what does all of it on a stream; it makes no arrays, which a capture may not allow."""
        from xlakernel.core.backend.gpu import driver, warp_streams

        device = driver.current_device()
        self.load(f"cuda:{device}")

        def array(slot: Slot, address: int) -> Any:
            return warp_streams.device_array(address, self.arrays[slot.number].nbytes, slot.shape, slot.dtype, device)

        given = self._arguments(array, addresses)
        return functools.partial(self._run_on_a_gpu, stream, device, addresses, given)

    def run_on_a_gpu(self, stream: int, addresses: Sequence[int]) -> None:
        """Do all of it on a stream."""
        self.prepare(stream, addresses)()

    def _run_on_a_gpu(self, stream: int, device: int, addresses: Sequence[int], given: dict[str, Any]) -> None:
        from xlakernel.core.backend.gpu import fill, warp_streams

        for number, pattern in self.fills:
            fill(self.arrays[number], addresses[number], pattern, stream)
        if not self.is_empty:
            with warp_streams.entered(stream, device) as its_stream:
                self._call(given, stream=its_stream)

    # Both

    def _launch(self, array: _MakeArray, addresses: Sequence[int], **options: Any) -> Any:
        return self._call(self._arguments(array, addresses), **options)

    def _arguments(self, array: _MakeArray, addresses: Sequence[int]) -> dict[str, Any]:
        with self._refusals():
            given = [
                array(slot, addresses[slot.number]) if slot.value is None else slot.value.item() for slot in self.slots
            ]
            if not self.adjoint:
                return {"inputs": given}
            adjoints = []
            for slot, value in zip(self.slots, given, strict=True):
                if slot.adjoint is not None:
                    # As Warp's tape does, give an array's cotangent twice: as the argument that belongs to it, and as
                    # its own gradient. Only then does a store clear the cotangent of what it overwrites, and a view
                    # (``x[i]``) of the array has no other.
                    value.grad = array(slot, addresses[slot.adjoint])
                adjoints.append(value.grad if slot.value is None else value)
            return {"inputs": given, "adj_inputs": adjoints}

    def _call(self, given: dict[str, Any], **options: Any) -> Any:
        if self.block_dim is not None:
            options["block_dim"] = self.block_dim
        with self._refusals():
            return warp.launch(self.kernel, dim=self.dims, **given, adjoint=self.adjoint, record_tape=False, **options)

    @contextlib.contextmanager
    def _refusals(self) -> Iterator[None]:
        try:
            yield
        except (ValueError, RuntimeError, TypeError, OverflowError) as error:
            raise LaunchError(f"{self.name}: Warp does not launch the kernel with dim={self.dims}: {error}") from error


def _bytes_at(address: int, nbytes: int) -> Any:
    import ctypes

    return (ctypes.c_uint8 * nbytes).from_address(address)
