"""Calls and their primitives, with the rules by which JAX traces, maps, partitions and lowers a call."""

from __future__ import annotations

import abc
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from .._compat import NativeCallEffect, is_partitioned, jit_primitive, require_devices, result_aval
from ..errors import DifferentiationError
from ..structs import Struct, is_smooth
from .derivatives.declaration import WAYS
from .derivatives.multilinear import zero_tangent
from .sharding.partition import may_split, partitioned
from .sharding.rule import ShardingRule

#: JAX's names of platforms.
_PLATFORMS = ("cpu", "cuda", "rocm", "tpu")


class Call(abc.ABC):
    """A call without its inputs. Hashable; ``str`` returns the name for messages."""

    #: The results of one slice of the batch that ``jax.vmap`` made.
    outs: tuple[Struct, ...]
    #: True: the call runs even if its results are not used.
    has_side_effect: bool
    #: The end of the message of a call that has no derivative.
    derivative_advice: str = ""

    @property
    @abc.abstractmethod
    def batch(self) -> tuple[Any, ...]:
        """The sizes of the leading dimensions that ``jax.vmap`` added to the results, outermost first."""

    @property
    def results(self) -> list[Struct]:
        """The results, batch dimensions included."""
        return [Struct((*self.batch, *out.shape), out.dtype) for out in self.outs]

    @abc.abstractmethod
    def rule(self, inputs: Sequence[Any]) -> ShardingRule | None:
        """Return the sharding rule for inputs of these types, batch dimensions included; None if there is none."""

    @abc.abstractmethod
    def part(self, outs: Sequence[Struct]) -> Call:
        """Return the call for one device's part, with the results *outs*, batch dimensions included."""

    @abc.abstractmethod
    def bind(self, inputs: Sequence[Any]) -> list[jax.Array]:
        """Trace the call."""

    @abc.abstractmethod
    def mapped(self, inputs: Sequence[Any], axes: Sequence[int | None], size: Any) -> list[Any]:
        """Trace the call under one more ``jax.vmap``; the batch is the first dimension of each result."""

    # The implementation.

    def on(self, platform: str, inputs: Sequence[Any]) -> Call:
        """Return the call as it is lowered for *platform*, one of JAX's names, with inputs of these types."""
        return self

    @abc.abstractmethod
    def run(self, platform: str, *inputs: Any) -> list[Any]:
        """Compute the call by its implementation, inside a program that is lowered for *platform*."""

    def lower(self, platform: str, context: Any, *operands: Any) -> Any:
        """Lower the call to its implementation."""
        lowering = mlir.lower_fun(functools.partial(self.run, platform), multiple_results=True)
        return lowering(context, *operands)


class CallPrimitive(Primitive):
    """A primitive with a `Call` as its parameter ``call``; a subclass may have other parameters.

    Args:
      name: the primitive's name in programs.
      splits: True if XLA may split the primitive's calls over devices by their sharding rules. JAX then provides the
        devices when it lowers a program.
    """

    multiple_results = True

    def __init__(self, name: str, *, splits: bool) -> None:
        super().__init__(name)
        self._jitted = functools.lru_cache(maxsize=1024)(self._make_jitted)
        self.register_rules()
        if splits:
            require_devices(self)

    def register_rules(self) -> None:
        """Make the methods of this primitive its rules in JAX, in place of rules that others have added."""
        self.def_impl(self._run_eagerly)  # type: ignore[no-untyped-call]  # JAX has no types there
        self.def_effectful_abstract_eval(self._abstract_eval)  # type: ignore[no-untyped-call]
        batching.primitive_batchers[self] = self.batch
        ad.primitive_jvps[self] = self._jvp
        ad.primitive_transposes[self] = self._transpose
        for platform in _PLATFORMS:
            mlir.register_lowering(self, functools.partial(self._lower, platform), platform=platform)

    def call_of(self, **params: Any) -> Call:
        """Return the call that has these parameters."""
        call: Call = params["call"]
        return call

    def _run_eagerly(self, *inputs: Any, **params: Any) -> list[jax.Array]:
        with jax.disable_jit(False):  # jax.disable_jit is for functions of the user, not for this program
            return self._jitted(**params)(*inputs)

    def _make_jitted(self, **params: Any) -> Callable[..., list[jax.Array]]:
        return jit_primitive(functools.partial(self.bind, **params), str(self.call_of(**params)))

    def _abstract_eval(self, *inputs: Any, **params: Any) -> Any:
        call = self.call_of(**params)
        rule = call.rule(inputs)
        specs = [None] * len(call.outs) if rule is None else rule.result_specs(inputs)
        avals = [result_aval(x.shape, x.dtype, inputs, spec) for x, spec in zip(call.results, specs, strict=True)]
        return avals, ({NativeCallEffect(str(call))} if call.has_side_effect else set())

    def batch(self, inputs: Sequence[Any], axes: Sequence[int | None], **params: Any) -> tuple[list[Any], list[int]]:
        """Map the call; the rule of ``jax.vmap``."""
        size = next(x.shape[axis] for x, axis in zip(inputs, axes, strict=True) if axis is not None)
        results = self.call_of(**params).mapped(inputs, axes, size)
        return results, [0] * len(results)

    def _jvp(self, inputs: Sequence[Any], _: Any, **params: Any) -> tuple[list[Any], list[Any]]:
        """Raise `DifferentiationError` unless all results are integers or booleans, whose tangents are zero in JAX."""
        call = self.call_of(**params)
        if any(is_smooth(out.dtype) for out in call.outs):
            raise DifferentiationError(
                f"{call}: a kernel has no derivative of its own. Give its wrapper one of {WAYS}; give an "
                "XLACustomKernel one with def_reference, def_jvp, def_vjp or def_transpose, or a rule of its JAX "
                "primitive with def_jvp_rule; or keep the call out of the derivative with jax.lax.stop_gradient on its "
                f"inputs.{call.derivative_advice}"
            )
        results = call.bind(inputs)
        return results, [zero_tangent(result) for result in results]

    def _transpose(self, *_: Any, **params: Any) -> Any:
        raise DifferentiationError(
            f"{self.call_of(**params)}: reverse mode (jax.grad, jax.vjp) transposes this call, and a kernel has no "
            "transpose of its own. Give its wrapper transpose= for the inputs that it is linear in (an XLACustomKernel "
            "def_transpose, or a rule of its JAX primitive with def_transpose_rule). If it computes tangents in the "
            "jvp= of another kernel, give that kernel vjp= or reference= too (def_vjp or def_reference); or use "
            "forward mode (jax.jvp, jax.jacfwd)."
        )

    def _lower(self, platform: str, context: Any, *operands: Any, **params: Any) -> Any:
        call = self.call_of(**params).on(platform, context.avals_in)
        # Inside `jax.shard_map` each device runs the whole call on its part, and XLA must not split the call.
        rule = call.rule(context.avals_in) if is_partitioned(context) and may_split() else None
        if rule is None:
            return call.lower(platform, context, *operands)

        def run(outs: Sequence[Struct], *parts: Any) -> list[Any]:
            return call.part(outs).run(platform, *parts)

        split = partitioned(rule, run, call.results)
        return mlir.lower_fun(split, multiple_results=True)(context, *operands)
