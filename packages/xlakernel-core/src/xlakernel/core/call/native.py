"""Calls of native handlers, the calls that all backends make.

The calls are bound to primitives of this package. `jax.ffi.ffi_call` is not used, because its batching may pass a
kernel a buffer of another rank than the kernel was compiled for. Here ``jax.vmap`` adds leading dimensions to the
arrays, and the handler loops over these dimensions.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters import mlir
from jax.sharding import AxisType

from .._compat import is_partitioned, vary_alike
from ..config import Settings, is_exporting
from ..errors import PlatformError, SideEffectError, VmapMethodError
from ..structs import Struct
from .batch import BatchFunction
from .outs import is_symbolic
from .primitive import Call, CallPrimitive
from .scalars import Entry, Scalar, number_of
from .sharding.gathered import watch
from .sharding.partition import may_split
from .sharding.rule import ShardingRule

#: The names of batching methods. ``vmap_method`` may also be None, which forbids `jax.vmap`, or a function that
#: computes the whole batch.
VMAP_METHODS = ("native", "expand_dims", "broadcast_all", "sequential", "sequential_unrolled")


@dataclasses.dataclass(frozen=True)
class Target:
    """A registered handler, and its arguments besides the inputs and results of a call.

    Attributes:
      name: the name that the handler is registered under.
      attributes: FFI attributes by name, each a one-dimensional array.
      scratch: the size in bytes of each block of temporary memory, passed after the results.
    """

    name: str
    attributes: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    scratch: tuple[int, ...] = ()


class Kernel(abc.ABC):
    """A kernel of a backend, and the construction of its handlers. Hashable: equal kernels run the same code."""

    #: The kernel's name, for messages.
    name: str
    #: The JAX platforms that the kernel runs on, such as ``("cpu",)``.
    platforms: tuple[str, ...]
    #: True: the kernel takes a whole batch at once; otherwise the handler runs the kernel for each slice of a batch.
    takes_batches: bool = False
    #: The names of the parameters that the kernel declares as scalars; None: parameters given by keyword are scalars.
    scalars: tuple[str, ...] | None = None
    #: True: the kernel's scalars are operands; otherwise they are static, and `target` gets their values.
    takes_scalars: bool = False
    #: The end of the message of a call with a wrong number of arguments.
    arity_advice: str = ""
    #: The end of the message of a call that has no derivative.
    derivative_advice: str = ""

    def on(self, platform: str) -> Kernel:
        """Return the kernel for one of its platforms."""
        return self

    def number(self, name: str, value: Any) -> Any:
        """Return the value of the static scalar *name* as a number; a backend may allow other values."""
        return value

    @property
    def launch_functions(self) -> tuple[Callable[..., Any], ...]:
        """Functions of the inputs, and of scalars by name, that return the kernel's launch dimensions."""
        return ()

    def given(self, scalars: Sequence[Entry]) -> Kernel:
        """Return the kernel for a call with these known values of *scalars*."""
        return self

    @abc.abstractmethod
    def target(
        self,
        inputs: Sequence[Struct],
        outs: Sequence[Struct],
        scalars: Mapping[str, Any],
        *,
        ordered: bool = False,
        debug: bool = False,
        levels: int = 0,
    ) -> Target:
        """Build and register the handler for arguments of these types.

        Called when a program is lowered, so a program for another platform never compiles the kernel.

        Args:
          inputs: the inputs of one slice of a batch.
          outs: the results of one slice.
          scalars: the scalars, sorted by name. A scalar is a `Scalar` if it is an operand, and a NumPy scalar if it is
            static. The operands follow the inputs.
          ordered: True if the slices of a batch must run one after the other.
          debug: True to check the kernel's reads and writes (`config.debug_mode`).
          levels: the number of leading dimensions of *inputs* and *outs* that belong to the batch; 0 unless the kernel
            `takes_batches`. In an input that all slices share, these dimensions have an extent of 1.
        """


@dataclasses.dataclass(frozen=True)
class NativeCall(Call):
    """A call of one native kernel.

    Attributes:
      kernel: the kernel.
      outs: the results of one slice of the batch.
      attributes: static scalars, sorted by name.
      scalars: (name, dtype) of the scalars that are operands, sorted by name. They follow the inputs.
      aliases: (input, output) pairs that share memory.
      vmap_method: see `VMAP_METHODS`.
      has_side_effect: run the kernel even if its results are not used, and the slices of a batch one after the other.
      settings: the settings when the call was traced.
      sharding_rule: the rule that splits the call over devices; None: the call is not split.
      batch: sizes of the leading dimensions that ``vmap`` added, outermost first.
      wrapper: the wrapper that makes the call, compared by identity: a kernel that is wrapped again may refer to other
        values.
    """

    kernel: Kernel
    outs: tuple[Struct, ...]
    attributes: tuple[Entry, ...] = ()
    scalars: tuple[tuple[str, str], ...] = ()
    aliases: tuple[tuple[int, int], ...] = ()
    vmap_method: str | BatchFunction | None = "native"
    has_side_effect: bool = False
    settings: Settings = dataclasses.field(default_factory=Settings)
    sharding_rule: ShardingRule | None = None
    batch: tuple[Hashable, ...] = ()  # ints, or symbolic under jax.export
    wrapper: Hashable = dataclasses.field(default=None, repr=False)

    def __str__(self) -> str:
        return self.kernel.name

    def scalars_of(self, structs: Sequence[Struct]) -> dict[str, Any]:
        """Return the scalars by name, as `Kernel.target` takes them, given the structs of the operands."""
        static = {name: number_of(dtype, data) for name, dtype, data in self.attributes if data is not None}
        operands = {name: Scalar(dtype, x) for (name, dtype), x in zip(self.scalars, structs, strict=True)}
        return {**static, **operands}

    @property
    def derivative_advice(self) -> str:  # type: ignore[override]  # the kernel's
        """The end of the message of a call that has no derivative."""
        return self.kernel.derivative_advice

    def rule(self, inputs: Sequence[Any]) -> ShardingRule | None:
        """Return the sharding rule, batch dimensions included."""
        return None if self.sharding_rule is None else self.sharding_rule.batched(self.batch, inputs)

    def part(self, outs: Sequence[Struct]) -> NativeCall:
        """Return the call for one device's part, with the results *outs*, batch dimensions included."""
        levels = len(self.batch)
        slices = tuple(Struct(out.shape[levels:], out.dtype) for out in outs)
        return dataclasses.replace(self, outs=slices, batch=outs[0].shape[:levels], sharding_rule=None)

    def bind(self, inputs: Sequence[Any]) -> list[jax.Array]:
        """Trace the call."""
        return native_call(self, inputs)

    def mapped(self, inputs: Sequence[Any], axes: Sequence[int | None], size: Any) -> list[Any]:
        """Trace the call under one more ``jax.vmap``, by its `vmap_method`."""
        moved = [x if axis is None else jnp.moveaxis(x, axis, 0) for x, axis in zip(inputs, axes, strict=True)]
        batched = [axis is not None for axis in axes]
        call = self
        if self.vmap_method is None:
            raise VmapMethodError(f"{self}: jax.vmap is not allowed with vmap_method=None; give one of {VMAP_METHODS}.")
        if isinstance(self.vmap_method, BatchFunction):
            if any(batched[len(inputs) - len(self.scalars) :]):  # the function takes one scalar for the batch
                call = dataclasses.replace(self, vmap_method="native")
        elif self.vmap_method.startswith("sequential"):
            # Unrolled calls may run in any order.
            unroll = self.vmap_method.endswith("unrolled") and not self.has_side_effect
            if unroll and is_symbolic(size):
                raise VmapMethodError(
                    f"{self}: the batch has the symbolic size {size}, and vmap_method='sequential_unrolled' needs a "
                    "known size, since the program has a call for each slice. Use vmap_method='sequential'."
                )
            return _sequential(self, moved, batched, unroll=unroll)
        return _native(call, moved, batched, size)

    def run(self, platform: str, *inputs: Any) -> list[Any]:
        """Compute the call by its handler."""
        return native_call(self, inputs)

    def lower(self, platform: str, context: Any, *operands: Any) -> Any:
        """Lower the call to its handler, or to the function that computes its batch."""
        if self.batch and isinstance(self.vmap_method, BatchFunction):
            if any(AxisType.Explicit in aval.sharding.mesh.axis_types for aval in context.avals_in):
                # An explicit sharding forbids merging the levels of a batch.
                plain = [jax.core.ShapedArray(aval.shape, aval.dtype) for aval in context.avals_in]
                context = context.replace(avals_in=plain)
            return mlir.lower_fun(self._run_batch, multiple_results=True)(context, *operands)
        return self._lower_handler(platform, context, operands)

    def _lower_handler(self, platform: str, context: Any, operands: Sequence[Any]) -> Any:
        if platform not in self.kernel.platforms:
            raise PlatformError(
                f"{self}: this kernel runs on {' and '.join(self.kernel.platforms)}; the program is compiled for "
                f"{platform}. Move its inputs with jax.device_put(x, jax.devices({self.kernel.platforms[0]!r})[0]), or "
                "give an XLACustomKernel one kernel for each platform."
            )
        if is_partitioned(context) and self.has_side_effect:
            raise SideEffectError(
                f"{self}: has_side_effect=True in a program for several devices, where XLA may run the call on any of "
                "them. Call it inside jax.shard_map, which runs it on each device; or in a separate program, with "
                "inputs on one device (jax.device_put)."
            )
        if is_partitioned(context) and self.sharding_rule is None and not is_exporting():
            watch(context, operands, str(self))
        kernel = self.kernel.on(platform)
        levels = len(self.batch) if kernel.takes_batches else 0
        skipped = len(self.batch) - levels
        inputs, outs = (
            [Struct(aval.shape[skipped:], aval.dtype) for aval in avals]
            for avals in (context.avals_in, context.avals_out)
        )
        count = len(inputs) - len(self.scalars)
        scalars = self.scalars_of(inputs[count:])
        target = kernel.target(
            inputs[:count], outs, scalars, ordered=self.has_side_effect, debug=self.settings.debug, levels=levels
        )
        # The attributes are passed as ``backend_config``: as keywords they could clash with parameters of the rule.
        rule = jax.ffi.ffi_lowering(
            target.name,
            backend_config={name: mlir.ir_attribute(value) for name, value in target.attributes.items()},
            operand_output_aliases=dict(self.aliases),
            has_side_effect=self.has_side_effect,
        )
        scratch = [jax.core.ShapedArray((nbytes,), np.dtype(np.uint8)) for nbytes in target.scratch]
        context = context.replace(avals_out=[*context.avals_out, *scratch])
        return rule(context, *operands)[: len(self.outs)]

    def _run_batch(self, *operands: Any) -> list[Any]:
        assert isinstance(self.vmap_method, BatchFunction)
        count = len(operands) - len(self.scalars)
        with self.settings.applied():
            return self.vmap_method.run(self.batch, self.outs, operands[:count], operands[count:])


native_call_p = CallPrimitive("xlakernel", splits=False)
#: The primitive of a call that XLA may split over devices.
partitioned_call_p = CallPrimitive("xlakernel_partitioned", splits=True)


def native_call(call: NativeCall, inputs: Sequence[Any]) -> list[jax.Array]:
    """Bind the primitive; see `NativeCall`."""
    primitive = native_call_p if call.sharding_rule is None or not may_split() else partitioned_call_p
    results: list[jax.Array] = primitive.bind(*vary_alike(inputs), call=call)  # type: ignore[no-untyped-call]
    return results


def _native(call: NativeCall, inputs: list[Any], batched: list[bool], size: Any) -> list[Any]:
    """Bind the call with one more leading dimension in each input, of extent 1 if all slices share the input."""
    aliased = {index for index, _ in call.aliases}  # each slice of an aliased result needs its own input
    copied = call.vmap_method == "broadcast_all"
    inputs = [
        x if own else jnp.broadcast_to(x[None], (size if copied or index in aliased else 1, *x.shape))
        for index, (x, own) in enumerate(zip(inputs, batched, strict=True))
    ]
    call = dataclasses.replace(call, batch=(size, *call.batch))
    if call.kernel.takes_batches:
        inputs = [_share_all_or_nothing(x, call.batch) for x in inputs]
    return native_call(call, inputs)


def _share_all_or_nothing(x: Any, batch: tuple[Any, ...]) -> Any:
    """Broadcast *x* over all levels of the batch unless all slices share it: a kernel gets one stride of slices."""
    levels = len(batch)
    shared = all(extent == 1 for extent in x.shape[:levels])
    return x if shared else jnp.broadcast_to(x, (*batch, *x.shape[levels:]))


def _sequential(call: NativeCall, inputs: list[Any], batched: list[bool], *, unroll: bool) -> list[Any]:
    """Run the slices one after the other, for kernels whose slices must not overlap in time."""
    mapped = [x for x, own in zip(inputs, batched, strict=True) if own]

    def step(carry: None, slices: list[Any]) -> tuple[None, list[Any]]:
        rest = iter(slices)
        return carry, native_call(call, [next(rest) if own else x for x, own in zip(inputs, batched, strict=True)])

    return jax.lax.scan(step, None, mapped, unroll=unroll)[1]  # type: ignore[no-any-return]
