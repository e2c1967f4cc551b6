"""The launch of one kernel by Numba, on arrays at given addresses."""

from __future__ import annotations

import dataclasses
import math
import threading
from collections.abc import Sequence
from typing import Any

import numba
from numba import cuda

from xlakernel.core.backend.gpu import Array, driver, fill
from xlakernel.core.backend.native import is_of_numba
from xlakernel.core.errors import LaunchError

from .arrays import array_at
from .device import shared_mem_limits
from .errors import compile_error
from .geometry import Geometry

# Numba warns of launches with few blocks. `warnings.catch_warnings` is not safe with other threads; changing Numba's
# setting, which is also global, at worst silences a warning of another thread.
_silence = threading.Lock()


@dataclasses.dataclass(frozen=True)
class Slot:
    """The source of one of a kernel's parameters.

    Attributes:
      type: the parameter's Numba type.
      number: the number of its array among the inputs, the scalars, and the outputs, in this order.
      dtype: NumPy name of the array's dtype.
      shape: the array's extents; for a *shared* array, without the batch.
      shared: the number of slices of a batch that share the array; 0: each slice has its own, or there is no batch.
      is_scalar: whether the array has one element (in each slice), which the kernel loads and passes on by value.
    """

    type: Any
    number: int
    dtype: str
    shape: tuple[int, ...] = ()
    shared: int = 0
    is_scalar: bool = False

    def argument(self, addresses: Sequence[int]) -> Any:
        """Return the argument to pass to Numba."""
        return array_at(addresses[self.number], self.type, self.dtype, self.shape, shared=self.shared)


@dataclasses.dataclass(frozen=True)
class KernelLaunch:
    """The launch of a kernel, called as ``launch(stream, addresses)``.

    Attributes:
      kernel: the kernel's name, for messages.
      dispatcher: our copy of Numba's dispatcher.
      geometry: the grid and blocks.
      shared_mem: bytes of dynamic shared memory of a block.
      slots: the kernel's parameters.
      function: the user's Python function, for messages.
      arrays: the inputs of a call, then its scalars, then its outputs.
      fills: pairs of an array's number and the bytes that fill each of its elements before the launch.
      debug: whether the kernel reports the exceptions that it raises. If so, it is launched synchronously.
    """

    kernel: str
    dispatcher: Any
    geometry: Geometry
    shared_mem: int
    slots: tuple[Slot, ...]
    function: Any
    arrays: tuple[Array, ...]
    fills: tuple[tuple[int, bytes], ...]
    debug: bool = False

    def __call__(self, stream: int, addresses: Sequence[int]) -> None:
        """Fill outputs and launch the kernel on *stream*."""
        for number, pattern in self.fills:
            fill(self.arrays[number], addresses[number], pattern, stream)
        if not self.geometry.is_empty:
            self._launch(stream, addresses)

    @property
    def signature(self) -> tuple[Any, ...]:
        """The types of the kernel's parameters."""
        return tuple(slot.type for slot in self.slots)

    def _launch(self, stream: int, addresses: Sequence[int]) -> None:
        arguments = [slot.argument(addresses) for slot in self.slots]
        if self.debug:
            # Numba reads the kernel's exception with a copy that waits for the default stream, and for no other.
            cuda.external_stream(stream).synchronize()
            on: Any = 0
        else:
            on = cuda.external_stream(stream)
        try:
            # The launch must not compile: code could depend on its configuration (numba-cuda 0.30), and other launches
            # use the same code.
            compiled = self.dispatcher.compile(self.signature)
            if self.shared_mem:
                # The kernel's limit is 48 KiB less its shared arrays of a fixed size.
                function = driver.load_kernel(int(compiled.library.get_cufunc().handle))
                driver.allow_shared_mem(function, self.shared_mem)
            self._configured(on)(*arguments)
        except Exception as error:
            if self.signature not in self.dispatcher.signatures:
                if not is_of_numba(error):
                    raise
                cause = error if numba.config.FULL_TRACEBACKS else None
                of_function = [slot.type.dtype if slot.is_scalar else slot.type for slot in self.slots]
                raise compile_error(self.kernel, self.function, of_function, error) from cause
            self._check_resources()
            if self.debug:  # the kernel's own exception, or an error of the driver, which debug mode explains
                raise
            raise LaunchError(
                f"{self.kernel}: the launch ({self.geometry}, {self.shared_mem} bytes of dynamic shared memory) is "
                f"refused: {str(error).rstrip('.')}."
            ) from error
        self._check_resources()

    def _configured(self, stream: Any) -> Any:
        launch = (self.geometry.grid, self.geometry.block, stream, self.shared_mem)
        with _silence:
            before = numba.config.CUDA_LOW_OCCUPANCY_WARNINGS
            numba.config.CUDA_LOW_OCCUPANCY_WARNINGS = 0
            try:
                return self.dispatcher[launch]
            finally:
                numba.config.CUDA_LOW_OCCUPANCY_WARNINGS = before

    def _check_resources(self) -> None:
        """Raise `LaunchError` if the compiled kernel needs more than a block, or a cooperative grid, may have.

        The driver may record such a launch and refuse it at the replay.
        """
        compiled = self.dispatcher.overloads[self.signature]
        fixed, most = compiled.shared_mem_per_block, max(shared_mem_limits().values())
        if fixed + self.shared_mem > most:
            raise LaunchError(
                f"{self.kernel}: a block has {fixed} bytes of shared arrays of a fixed size and {self.shared_mem} "
                f"bytes of dynamic shared memory; the GPU allows {most} together. Reduce one of them."
            )
        threads = math.prod(self.geometry.block)
        if threads > compiled.max_threads_per_block:
            raise LaunchError(
                f"{self.kernel}: block {self.geometry.block} has {threads} threads; as it is compiled, with "
                f"{compiled.regs_per_thread} registers a thread, {compiled.max_threads_per_block} fit. Make the block "
                "smaller, or compile the kernel with cuda.jit(max_registers=...) or launch_bounds=..."
            )
        if not compiled.cooperative:
            return
        blocks, most = (
            math.prod(self.geometry.grid),
            compiled.max_cooperative_grid_blocks(self.geometry.block, self.shared_mem),
        )
        if blocks > most:
            raise LaunchError(
                f"{self.kernel}: synchronises its whole grid, so all blocks must be on the device at once. Grid "
                f"{self.geometry.grid} has {blocks} blocks; only {most} fit, with {threads} threads and "
                f"{self.shared_mem} bytes of dynamic shared memory each. Launch fewer blocks, and let each thread do "
                "more."
            )
