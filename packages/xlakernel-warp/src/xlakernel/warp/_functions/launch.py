"""A call of a function that launches kernels, on Warp arrays at given addresses."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import warp

from xlakernel.core.backend import Struct
from xlakernel.core.backend.gpu import Array, driver, warp_streams
from xlakernel.core.errors import CompileError, ResultError

from .._internals.threads import launching
from .._parameters import number_arrays
from .._platforms.devices import MakeArray, arrays_on_cpu, arrays_on_gpu
from .._signature import Signature


@dataclasses.dataclass(frozen=True)
class FunctionLaunch:
    """The work of a call.

    Attributes:
      function: the function.
      signature: its parameters.
      arrays: the inputs, then the outputs.
      scalars: static scalars by name.
    """

    function: Callable[..., Any]
    signature: Signature
    arrays: tuple[Array, ...]
    scalars: Mapping[str, Any]

    def prepare(self, stream: int, addresses: Sequence[int]) -> Callable[[], None]:
        """Make the Warp arrays now, because a capture may not allow it, and return a function that does the work."""
        device = driver.current_device()
        given = self._arguments(arrays_on_gpu(self.arrays, addresses, device))

        def run() -> None:
            with warp_streams.entered(stream, device):
                self._call(given)

        return run

    def run_on_gpu(self, stream: int, addresses: Sequence[int]) -> None:
        """Do the work on a stream."""
        self.prepare(stream, addresses)()

    def run_on_cpu(self, stream: int, addresses: Sequence[int]) -> None:
        """Do the work now, on arrays at these addresses."""
        with launching():
            # If a module failed to compile before, Warp skips launches of its kernels without an error.
            module = warp.get_module(self.function.__module__)
            if module.load(warp.get_device("cpu"), 1) is None:
                raise CompileError(
                    f"{self.signature.name}: Failed to load Warp module {module.name!r} on the CPU: its compilation "
                    "failed before, when Warp printed the reason."
                )
            self._call(self._arguments(arrays_on_cpu(addresses)))

    def _arguments(self, make: MakeArray) -> list[Any]:
        return [make(*slot) if isinstance(slot, tuple) else slot for slot in self._slots]

    @functools.cached_property
    def _slots(self) -> list[Any]:
        """Return a tuple of number, shape and dtype for each array parameter, and the value of each scalar."""
        signature, slots = self.signature, []
        numbers = number_arrays(signature.parameters, signature.in_out, len(signature.inputs))
        for parameter in signature.parameters:
            if not parameter.is_array:
                slots.append(self.scalars[parameter.name])
                continue
            array = self.arrays[numbers[parameter.name]]
            dtype = parameter.type_for(Struct(array.shape, jnp.dtype(array.dtype)))
            slots.append((numbers[parameter.name], parameter.outer(array.shape), dtype))
        return slots

    def _call(self, given: list[Any]) -> None:
        result = self.function(*given)
        if result is not None:
            raise ResultError(
                f"{self.signature.name}: Function must not return a value, and returned {type(result).__name__}; it "
                "writes its results into its output parameters."
            )
