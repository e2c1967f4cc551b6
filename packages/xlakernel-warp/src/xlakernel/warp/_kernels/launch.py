"""One launch of a Warp kernel by Warp's own public function, on arrays at given addresses."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import warp

from xlakernel.core.backend.gpu import Array, driver, fill, warp_streams
from xlakernel.core.errors import LaunchError

from .._internals import code, compilation, launches
from .._internals.threads import launching
from .._platforms.devices import MakeArray, arrays_on_cpu, arrays_on_gpu, check_cpu

#: Threads of a block on a GPU, by Warp's default.
USUAL_BLOCK = 256


@dataclasses.dataclass(frozen=True)
class Slot:
    """The argument for one of a kernel's parameters: an array, or a static scalar.

    Attributes:
      dtype: Warp's type of the parameter, or of the array's elements.
      number: the array's number; inputs are numbered before outputs.
      shape: the array's extents, without those of a vector or matrix.
      value: the value of a static scalar; None: an array.
      adjoint: in an adjoint launch, the number of the array with this array's cotangents; None: there is none.
    """

    dtype: Any
    number: int = -1
    shape: tuple[int, ...] = ()
    value: np.generic | None = None
    adjoint: int | None = None


@dataclasses.dataclass(frozen=True)
class WarpLaunch:
    """The work of a call: stores of initial values (fills), then the launch.

    Attributes:
      name: the kernel's name, for messages.
      kernel: the kernel, not a generic one.
      dims: threads along each dimension.
      block_dim: threads of a block; None: Warp's default.
      slots: the kernel's parameters.
      arrays: the inputs, then the outputs.
      fills: (number of an array, bytes of an element) for outputs with an initial value.
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
        """True if the launch has no thread."""
        return 0 in self.dims

    def block_on(self, platform: str) -> int:
        """Return the number of threads per block that the kernel is compiled for on ``"cpu"`` or ``"cuda"``."""
        if platform == "cpu":
            return self.block_dim or 1 if launches.cpu_blocks() else 1
        return self.block_dim or USUAL_BLOCK

    def code_on(self, platform: str) -> str:
        """Return a key of the kernel's binary on ``"cpu"`` or ``"cuda"``, with the present values of its globals."""
        return compilation.content_or_id(self.name, self.kernel, platform, self.block_on(platform))

    def is_outdated(self, platform: str) -> bool:
        """Return True if Warp compiled the kernel before an object that it refers to changed."""
        return code.is_outdated(self.kernel, self.block_on(platform))

    # On the CPU

    def recorded(self, addresses: Sequence[int]) -> Any:
        """Return the recorded ``warp.Launch`` on arrays at these addresses, without an access to their memory."""
        check_cpu(self.name)
        compilation.load(self.name, self.kernel, "cpu", self.block_on("cpu"))
        given = self._arguments(arrays_on_cpu(addresses))
        launch = self._launch(given, device="cpu", record_cmd=True)
        if launch is None:
            raise compilation.failed_before(self.name, self.kernel)
        return launch

    def run_on_cpu(self, stream: int, addresses: Sequence[int]) -> None:
        """Do the work now, on arrays at these addresses."""
        for number, pattern in self.fills:
            memory = (ctypes.c_uint8 * self.arrays[number].nbytes).from_address(addresses[number])
            np.ctypeslib.as_array(memory).reshape(-1, len(pattern))[:] = np.frombuffer(pattern, np.uint8)
        if not self.is_empty:
            with launching():
                self._launch(self._arguments(arrays_on_cpu(addresses)), device="cpu")

    # On a GPU

    def prepare(self, stream: int, addresses: Sequence[int]) -> Callable[[], None]:
        """Make the Warp arrays now, because a capture may not allow it, and return a function that does the work."""
        device = driver.current_device()
        compilation.load(self.name, self.kernel, f"cuda:{device}", self.block_on("cuda"))
        given = self._arguments(arrays_on_gpu(self.arrays, addresses, device))
        return functools.partial(self._run_on_gpu, stream, device, addresses, given)

    def _run_on_gpu(self, stream: int, device: int, addresses: Sequence[int], given: dict[str, Any]) -> None:
        for number, pattern in self.fills:
            fill(self.arrays[number], addresses[number], pattern, stream)
        if not self.is_empty:
            with warp_streams.entered(stream, device) as its_stream:
                self._launch(given, stream=its_stream)

    # On both

    def _arguments(self, make: MakeArray) -> dict[str, Any]:
        """Return the kernel's arguments as ``warp.launch`` takes them."""
        with self._refusals():
            given = [
                make(slot.number, slot.shape, slot.dtype) if slot.value is None else slot.value.item()
                for slot in self.slots
            ]
            if not self.adjoint:
                return {"inputs": given}
            adjoints = []
            for slot, value in zip(self.slots, given, strict=True):
                if slot.adjoint is not None:
                    # As with Warp's tape, an array's cotangent is passed twice: in ``adj_inputs``, and as ``grad`` of
                    # the array. Without ``grad``, a store would not clear the cotangent of the overwritten element, and
                    # a view (``x[i]``) of the array would have no cotangent.
                    value.grad = make(slot.adjoint, slot.shape, slot.dtype)
                adjoints.append(value.grad if slot.value is None else value)
            return {"inputs": given, "adj_inputs": adjoints}

    def _launch(self, given: dict[str, Any], **options: Any) -> Any:
        if self.block_dim is not None:
            options["block_dim"] = self.block_dim
        with self._refusals():
            return warp.launch(self.kernel, dim=self.dims, **given, adjoint=self.adjoint, record_tape=False, **options)

    @contextlib.contextmanager
    def _refusals(self) -> Iterator[None]:
        """Convert Warp's errors for an invalid launch to `LaunchError`."""
        try:
            yield
        except (ValueError, RuntimeError, TypeError, OverflowError) as error:
            raise LaunchError(f"{self.name}: Warp does not launch the kernel with dim={self.dims}: {error}") from error
