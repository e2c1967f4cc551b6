"""A function that launches Warp kernels: recorded on GPUs, called by Python on the CPU."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import warp

from xlakernel.core.backend import (
    FORMAT,
    Callables,
    Recipe,
    Same,
    Struct,
    Target,
    fingerprint,
    write_static,
    write_structs,
)
from xlakernel.core.backend.gpu import Array, Closure, Launchable, arrays_of, register, register_again
from xlakernel.core.errors import PlatformError

from .._internals.launches import cpu_blocks
from .._parameters import Parameter
from .._platforms.base import OnBothPlatforms, Static
from .._platforms.devices import check_cpu, check_gpu, device_set_up
from .._platforms.python_target import python_target
from .._platforms.written import listed
from .._signature import Signature
from .launch import FunctionLaunch


@dataclasses.dataclass(frozen=True, eq=False)
class WarpFunction(OnBothPlatforms):
    """A function that launches Warp kernels.

    Attributes:
      function: the function.
      signature: its parameters.
      graph_mode: Warp's graph mode; some modes exclude the CPU.
      platform: the platform that a program is lowered for; empty before lowering.
    """

    function: Callable[..., None]
    signature: Signature
    graph_mode: Any
    platform: str = ""

    derivative_advice = (
        " jax_callable has no options for derivatives: wrap the call in jax.custom_jvp or jax.custom_vjp."
    )

    @property
    def _key(self) -> tuple[Any, ...]:
        return Same(self.function), self.signature, self.graph_mode, self.platform

    def __eq__(self, other: object) -> bool:
        return isinstance(other, WarpFunction) and other._key == self._key

    def __hash__(self) -> int:
        return hash(self._key)

    @property
    def parameters(self) -> tuple[Parameter, ...]:  # type: ignore[override]  # read-only here
        """The function's parameters."""
        return self.signature.parameters

    @property
    def name(self) -> str:  # type: ignore[override]  # read-only here
        """The function's name."""
        return self.signature.name

    @property
    def place(self) -> str:
        """File and line of the function."""
        code = getattr(self.function, "__code__", None)
        return f"{code.co_filename}:{code.co_firstlineno}" if code is not None else repr(self.function)

    @property
    def callables(self) -> Callables:
        """The function in the form that exported programs find and compare."""
        return Callables(self.function)

    def register(
        self,
        inputs: Sequence[Struct],
        outs: Sequence[Struct],
        static: Static,
        *,
        ordered: bool,
        debug: bool,
        target: str | None = None,
    ) -> Target:
        """Register the handler of a call, unless that was done before; *target* is its name in a loaded program."""
        launchable = self._launchable(inputs, outs, static, ordered=ordered, debug=debug)
        if self.platform == "cpu":
            self._check_cpu()
            return python_target(launchable, once=ordered, debug=debug, target=target)
        check_gpu(self.name)
        if target is not None:
            return register_again(launchable, target, debug=debug)
        return register(launchable, once=ordered, debug=debug)

    def _check_cpu(self) -> None:
        if self.graph_mode.name not in ("NONE", "JAX"):
            raise PlatformError(
                f"{self.name}: JaxCallableGraphMode.{self.graph_mode.name} is not supported for JAX CPU calls: a graph "
                "of Warp's needs a GPU. Use JaxCallableGraphMode.JAX, which runs everywhere."
            )
        check_cpu(self.name)

    def _launchable(
        self, inputs: Sequence[Struct], outs: Sequence[Struct], static: Static, *, ordered: bool, debug: bool
    ) -> Launchable:
        """Return the work of a call, with the recipe of its target (its registered handler)."""
        arrays, on_gpu = arrays_of(inputs, outs), self.platform != "cpu"
        named = {parameter.name: parameter for parameter in self.parameters}
        scalars = {name: named[name].value_of(value, self.name).item() for name, value in static.items()}
        launch = FunctionLaunch(self.function, self.signature, arrays, scalars)
        found = self.callables.examine()
        return Launchable(
            name=self._target_name(arrays, static, found.digest, has_unknown=bool(found.unknown)),
            label=self.name,
            place=self.place,
            arrays=arrays,
            launch=launch.run_on_gpu if on_gpu else launch.run_on_cpu,
            prepare=launch.prepare if on_gpu else None,
            record="auto",
            recording=device_set_up,
            closed_over=(self.function,),
            aliases=tuple(self.signature.aliases.items()),
            recipe=functools.partial(
                self._recipe, inputs, outs, static, found.digest, {"ordered": ordered, "debug": debug}
            ),
            own=self.callables.identity,
        )

    def _recipe(
        self,
        inputs: Sequence[Struct],
        outs: Sequence[Struct],
        static: Static,
        content: str,
        options: dict[str, bool],
    ) -> Recipe:
        """Return the recipe, from which `_callable_export.prepare` makes the target in another process.

        Raises:
          ExportError: if another process cannot make the target, or the function's fingerprint is no longer *content*.
        """
        data = {
            "format": FORMAT,
            **self.callables.write(content),
            "warp": warp.__version__,
            "parameters": listed(self.parameters),
            "num_outputs": len(self.signature.outputs) + len(self.signature.in_out),
            "in_out": list(self.signature.in_out),
            "graph_mode": self.graph_mode.name,
            "platform": self.platform,
            "cpu_blocks": cpu_blocks(),
            "inputs": write_structs(inputs),
            "outs": write_structs(outs),
            "static": write_static(static),
            "options": options,
        }
        return Recipe("xlakernel.warp._callable_export", data)

    def _target_name(self, arrays: Sequence[Array], static: Static, content: str, *, has_unknown: bool) -> str:
        options = {
            "place": self.place,  # in messages: equal code at another place needs its own target
            "warp": warp.__version__,
            "static": [(name, value.dtype.name, value.tobytes()) for name, value in sorted(static.items())],
            "in_out": self.signature.in_out,
            # For an unknown object, the fingerprint has only the identity, although the contents may have changed.
            "state": Closure((self.function,)).state if has_unknown else None,
        }
        digest = hashlib.sha256(f"{content} {fingerprint((), options)}".encode()).hexdigest()[:32]
        listed_arrays = ", ".join(map(str, arrays))
        name = getattr(self.function, "__qualname__", type(self.function).__qualname__)
        return f"xlakernel.warp/{self.function.__module__}.{name}({listed_arrays})#{digest}"
