"""The kernel that a backend's generator makes for a call, and the checks of its results."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..errors import BackendNotFoundError, GeneratorError, ResultError, XLAKernelError
from ..interrupts import is_raised_by_handler
from ..structs import Struct, counted, text_of
from .backends import Backends
from .dispatch import Definition

# Class of a compiled kernel → its wrapper. Classes are given by names, so that no compiler has to be imported.
_WRAPPERS = {
    ("numba.core.registry", "CPUDispatcher"): "xlakernel.numba.numba_kernel",
    ("numba.cuda.dispatcher", "CUDADispatcher"): "xlakernel.cuda.numba_cuda_kernel",
    ("warp._src.context", "Kernel"): "xlakernel.warp.warp_kernel",
}


@dataclasses.dataclass(frozen=True)
class ChosenKernel:
    """The kernel of one backend for one call; its errors name this backend and list the other backends."""

    backends: Backends
    platform: str
    backend: str
    outs: Sequence[Struct]
    definition: Definition

    def __str__(self) -> str:
        return f"the {self.backend!r} kernel for {self.platform!r}"

    @property
    def name(self) -> str:
        """The operator's name."""
        return self.backends.name

    def generate(self, static: Mapping[str, Any]) -> Callable[..., list[Any]]:
        """Return the kernel as a function that returns a list of results, checked against ``outs``."""
        generator = self.definition.generators.get((self.platform, self.backend))
        if generator is None:  # registered after the trace, or an error
            generator = self.backends.entry(self.platform, self.backend).kernel_generator
            if not self.definition.is_part_of(self.definition.operator.definition):
                raise BackendNotFoundError(
                    f"{self.name}: {self} was registered after this program had been traced, and so were other kernels "
                    "or rules. Trace the function again."
                )
        kernel = self._guard(f"the generator of {self}", generator, outs=list(self.outs), **static)
        if not callable(kernel):
            raise GeneratorError(
                f"{self.name}: the generator of {self} returned {kernel!r}; expected a function of the inputs."
            )
        bases = ((base.__module__, base.__qualname__) for base in type(kernel).__mro__)
        wrapper = next((_WRAPPERS[base] for base in bases if base in _WRAPPERS), None)
        if wrapper is not None:
            raise GeneratorError(
                f"{self.name}: the generator of {self} returned {kernel!r}, a compiled kernel with output parameters; "
                f"expected a function of the inputs that returns the results. Wrap it with {wrapper}."
            )

        def run(*ins: Any) -> list[Any]:
            results = self._guard(str(self), kernel, *ins)
            flat = list(results) if isinstance(results, (tuple, list)) else [results]
            self._check(flat)
            return flat

        return run

    def _guard(self, what: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except XLAKernelError:
            raise
        except Exception as error:
            if is_raised_by_handler(error):
                raise
            others = [name for name in self.backends.available_backends(self.platform) if name != self.backend]
            raise GeneratorError(
                f"{self.name}: {what} failed with {type(error).__name__}: {error}. "
                + (f"Other backends for {self.platform!r}: {others}." if others else "There is no other backend.")
            ) from error

    def _check(self, results: list[Any]) -> None:
        unordered = any(isinstance(result, Mapping) for result in results)
        hint = " A dictionary has no order: return its values, in the order of outs." * unordered
        if len(results) != len(self.outs):
            raise ResultError(
                f"{self.name}: {self} returned {counted(len(results), 'result')}; outs describes {len(self.outs)}."
                f"{hint}"
            )
        for i, (result, out) in enumerate(zip(results, self.outs, strict=True)):
            if (getattr(result, "shape", None), getattr(result, "dtype", None)) != (out.shape, out.dtype):
                raise ResultError(
                    f"{self.name}: result {i} of {self} is {text_of(result)}; outs[{i}] is {text_of(out)}. The kernel "
                    f"must return what outs describes.{hint}"
                )
