"""A Python function that launches Warp kernels, as core sees it: recorded on GPUs, called by Python on the CPU."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import warp

from xlakernel.core.backend import (
    FORMAT,
    Callables,
    Kernel,
    Recipe,
    Struct,
    Target,
    fingerprint,
    write_static,
    write_structs,
)
from xlakernel.core.backend.gpu import Array, Closure, Launchable, arrays_of
from xlakernel.core.errors import CompileError, DeviceError, PlatformError, ResultError

from ._alone import launching
from ._gpu import check_device, device_set_up
from ._parameters import Parameter
from ._platform import OnBothPlatforms, OnPlatform, Static
from ._python import python_target
from ._split import SplitParameters
from ._written import listed


@dataclasses.dataclass(frozen=True, eq=False)
class WarpFunction(OnBothPlatforms):
    """A function that launches Warp kernels; equal to another one of the same function.

    Attributes:
      function: the function.
      split: its parameters.
      graph_mode: Warp's, for messages.
    """

    function: Callable[..., None]
    split: SplitParameters
    graph_mode: Any

    @property
    def parameters(self) -> tuple[Parameter, ...]:  # type: ignore[override]  # read-only here
        """The function's parameters."""
        return self.split.parameters

    @property
    def name(self) -> str:  # type: ignore[override]  # read-only here
        """The function's name."""
        return self.split.name

    @property
    def place(self) -> str:
        """File and line of the function."""
        code = getattr(self.function, "__code__", None)
        return f"{code.co_filename}:{code.co_firstlineno}" if code is not None else repr(self.function)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, WarpFunction) and other._identity == self._identity

    def __hash__(self) -> int:
        return hash(self._identity)

    @property
    def _identity(self) -> tuple[Any, ...]:
        return id(self.function), self.split, self.graph_mode

    def on(self, platform: str) -> Kernel:
        """Return what runs it there."""
        return _OnCpu(self) if platform == "cpu" else _OnGpu(self)

    @property
    def callables(self) -> Callables:
        """The function, as exported programs know it."""
        return Callables(self.function)

    def launchable(
        self,
        inputs: Sequence[Struct],
        outs: Sequence[Struct],
        static: Static,
        *,
        on_a_gpu: bool,
        ordered: bool,
        debug: bool,
    ) -> Launchable:
        """Return what a call does, and how to make its target in another process."""
        arrays = arrays_of(inputs, outs)
        named = {parameter.name: parameter for parameter in self.split.parameters}
        scalars = {name: named[name].value_of(value, self.name).item() for name, value in static.items()}
        launch = FunctionLaunch(self.function, self.split, arrays, len(inputs), scalars)
        found = self.callables.examine()
        how = {"on_a_gpu": on_a_gpu, "ordered": ordered, "debug": debug}
        return Launchable(
            name=self._target_name(arrays, static, found.digest, has_unknown=bool(found.unknown), is_recorded=on_a_gpu),
            label=self.name,
            place=self.place,
            arrays=arrays,
            launch=launch.run_on_a_gpu if on_a_gpu else launch.run_on_the_cpu,
            prepare=launch.prepare if on_a_gpu else None,
            record="auto",
            recording=device_set_up,
            closed_over=(self.function,),
            aliased=frozenset(range(len(self.split.in_out))),
            recipe=functools.partial(self._recipe, inputs, outs, static, found.digest, how),
        )

    def _recipe(
        self, inputs: Sequence[Struct], outs: Sequence[Struct], static: Static, content: str, how: dict[str, bool]
    ) -> Recipe:
        """Return the recipe that makes the target in another process; `_function_export.prepare` reads it.

        Args:
          inputs: the structs of its inputs.
          outs: the structs of its outputs.
          static: its static scalars.
          content: the fingerprint that the function had when its target was made.
          how: what else `launchable` was given.

        Raises:
          ExportError: if it cannot be made there, or only something else.
        """
        data = {
            "format": FORMAT,
            **self.callables.write(content),
            "warp": warp.__version__,
            "parameters": listed(self.parameters),
            "num_outputs": len(self.split.outputs) + len(self.split.in_out),
            "in_out": list(self.split.in_out),
            "graph_mode": self.graph_mode.name,
            "inputs": write_structs(inputs),
            "outs": write_structs(outs),
            "static": write_static(static),
            "how": how,
        }
        return Recipe("xlakernel.warp._function_export", data)

    def _target_name(
        self, arrays: Sequence[Array], static: Static, content: str, *, has_unknown: bool, is_recorded: bool
    ) -> str:
        options = {
            "place": self.place,  # equal code at two places is told apart in messages
            "warp": warp.__version__,
            "static": [(name, value.dtype.name, value.tobytes()) for name, value in sorted(static.items())],
            "in_out": self.split.in_out,
            # An object is told by its identity, and what it holds may be another array by now, or another number.
            "state": Closure((self.function,)).state if has_unknown else None,
            # Python reads a variable of an enclosing function at each call, and only this function may have changed it.
            "closure": None if is_recorded or not getattr(self.function, "__closure__", None) else id(self.function),
        }
        digest = hashlib.sha256(f"{content} {fingerprint((), options)}".encode()).hexdigest()[:32]
        listed = ", ".join(map(str, arrays))
        name = getattr(self.function, "__qualname__", type(self.function).__qualname__)
        return f"xlakernel.warp/{self.function.__module__}.{name}({listed})#{digest}"


@dataclasses.dataclass(frozen=True)
class _OnCpu(OnPlatform):
    described: WarpFunction

    platforms = ("cpu",)

    def registered(
        self, inputs: Sequence[Struct], outs: Sequence[Struct], static: Static, *, ordered: bool, debug: bool
    ) -> Target:
        """Register a handler that calls the function."""
        described, mode = self.described, self.described.graph_mode
        if mode.name not in ("NONE", "JAX"):
            raise PlatformError(
                f"{self.name}: JaxCallableGraphMode.{mode.name} is not supported for JAX CPU calls: a graph of Warp's "
                "needs a GPU. Take JaxCallableGraphMode.JAX, which runs everywhere."
            )
        if not warp.is_cpu_available():
            raise DeviceError(
                f"{self.name}: this build of Warp does not include CPU support. Install a wheel from PyPI, "
                "pip install warp-lang, or run the program on a GPU."
            )
        launchable = described.launchable(inputs, outs, static, on_a_gpu=False, ordered=ordered, debug=debug)
        return python_target(launchable, once=ordered, debug=debug)


@dataclasses.dataclass(frozen=True)
class _OnGpu(OnPlatform):
    described: WarpFunction

    platforms = ("cuda",)

    def registered(
        self, inputs: Sequence[Struct], outs: Sequence[Struct], static: Static, *, ordered: bool, debug: bool
    ) -> Target:
        """Record what the function launches, unless that was done before."""
        from xlakernel.core.backend.gpu import register

        check_device(self.name)
        launchable = self.described.launchable(inputs, outs, static, on_a_gpu=True, ordered=ordered, debug=debug)
        return register(launchable, once=ordered, debug=debug)


@dataclasses.dataclass(frozen=True)
class FunctionLaunch:
    """Calls the function with Warp arrays at given addresses.

    Attributes:
      function: the function.
      split: its parameters.
      arrays: the inputs, then the outputs.
      count: how many inputs there are.
      scalars: static scalars by name.
    """

    function: Callable[..., Any]
    split: SplitParameters
    arrays: tuple[Array, ...]
    count: int
    scalars: dict[str, Any]

    def prepare(self, stream: int, addresses: Sequence[int]) -> Callable[[], None]:
        """Return what does it on a stream; it makes no arrays, which a capture may not allow."""
        from xlakernel.core.backend.gpu import driver, warp_streams

        device = driver.current_device()

        def array(number: int, shape: tuple[int, ...], dtype: Any) -> Any:
            return warp_streams.device_array(addresses[number], self.arrays[number].nbytes, shape, dtype, device)

        given = list(self._arguments(array))

        def run() -> None:
            with warp_streams.entered(stream, device):
                self._call(given)

        return run

    def run_on_a_gpu(self, stream: int, addresses: Sequence[int]) -> None:
        """Do it on a stream."""
        self.prepare(stream, addresses)()

    def run_on_the_cpu(self, stream: int, addresses: Sequence[int]) -> None:
        """Do it now, on arrays at these addresses."""

        def array(number: int, shape: tuple[int, ...], dtype: Any) -> Any:
            return warp.array(ptr=addresses[number], shape=shape, dtype=dtype, device="cpu", copy=False)

        with launching():
            # A launch of a kernel whose module failed to build before does nothing, and says nothing.
            module = warp.get_module(self.function.__module__)
            if module.load(warp.get_device("cpu"), 1) is None:
                raise CompileError(
                    f"{self.split.name}: Failed to load Warp module {module.name!r} on the CPU, which failed to build "
                    "before. Warp printed why when it did."
                )
            self._call(list(self._arguments(array)))

    def _arguments(self, array: Callable[[int, tuple[int, ...], Any], Any]) -> Iterator[Any]:
        numbers = self.split.numbers(self.count)
        for parameter in self.split.parameters:
            if not parameter.is_array:
                yield self.scalars[parameter.name]
                continue
            number = numbers[parameter.name]
            found = self.arrays[number]
            shape = parameter.outer(found.shape) or (1,)  # Warp's arrays have a dimension at least
            yield array(number, shape, parameter.type_for(Struct(found.shape, np.dtype(found.dtype))))

    def _call(self, given: list[Any]) -> None:
        result = self.function(*given)
        if result is not None:
            raise ResultError(
                f"{self.split.name}: Function must not return a value, and returned {type(result).__name__}; it writes "
                "its results into its output parameters."
            )
