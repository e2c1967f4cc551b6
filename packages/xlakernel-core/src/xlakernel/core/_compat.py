"""The only file of this package that imports private JAX, each use with its reason."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax

# core: a result inside `jax.shard_map` says over which mesh axes it varies, by a type that jax 0.8 made private. And
#   whether something is being traced has no public name.
# dispatch: `jax.experimental.custom_partitioning` needs the devices while a program is lowered, and only a primitive
#   that is registered there gets them.
# effects: an effect keeps a call whose results nobody uses from being removed. The public `jax.ffi.ffi_call` has the
#   same need and answers it with a private class; JAX has no public way to define one.
# lib.xla_client, xla_bridge: how an array is split is known to XLA's partitioner alone, which asks about operations by
#   name; programs with the one name that is public, of `jax.experimental.custom_partitioning`, are not cached.
#   And JAX makes its CPU devices once, before a test knows that it needs several of them.
# sharding_impls: whether a program is for several devices shows in the context of its lowering. And XLA may ask to
#   split a call whose arrays belong to no mesh; the sharding for these is not public.
# xla_bridge, too: the public `jax.live_arrays` is of one platform, and starts it if it was not in use.
from jax._src import core, dispatch, effects, sharding_impls, xla_bridge
from jax._src.lib import xla_client
from jax.interpreters import batching
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec, get_abstract_mesh, use_abstract_mesh

from .errors import SideEffectError


@dataclasses.dataclass(frozen=True)
class NativeCallEffect(effects.Effect):  # type: ignore[misc]  # jax._src has no stubs
    """The effect of a kernel that was declared to have one.

    Attributes:
      owner: the kernel's or operator's name, for messages. It does not count in comparisons: JAX exports only an effect
        that equals a new one of its class.
    """

    owner: str = dataclasses.field(default="", compare=False)

    def __str__(self) -> str:
        return "NativeCall"


for _allowed in (
    effects.lowerable_effects,
    effects.control_flow_allowed_effects,
    effects.remat_allowed_effects,
    effects.custom_derivatives_allowed_effects,
    effects.partial_eval_kept_effects,
):
    _allowed.add_type(NativeCallEffect)


def _refuse_effects(jaxprs: Sequence[Any], where: str, what: str) -> None:
    owner = next((e.owner for jaxpr in jaxprs for e in jaxpr.effects if isinstance(e, NativeCallEffect)), None)
    if owner is not None:
        raise SideEffectError(
            f"{owner}: has_side_effect=True, and {where} under jax.vmap, where {what} for each slice of the batch. JAX "
            "would run the kernel for all of them, and then select the results. Map with jax.lax.map instead of "
            "jax.vmap, or call the kernel for every slice and pass it the flag."
        )


def _guard_branches(rule: Callable[..., Any]) -> Callable[..., Any]:
    def guarded(axis_data: Any, args: Sequence[Any], dims: Sequence[Any], **params: Any) -> Any:
        if dims[0] is not None and "branches_platforms" not in params:  # which platform it is, is never mapped
            _refuse_effects(params["branches"], "it stands in a branch of jax.lax.cond or switch", "the branch differs")
        return rule(axis_data, args, dims, **params)

    return guarded


def _guard_loops(rule: Callable[..., Any]) -> Callable[..., Any]:
    def guarded(axis_data: Any, args: Sequence[Any], dims: Sequence[Any], **params: Any) -> Any:
        jaxprs = params["cond_jaxpr"], params["body_jaxpr"]
        if any(isinstance(effect, NativeCallEffect) for jaxpr in jaxprs for effect in jaxpr.effects):
            # Whether the condition is mapped shows in what the rule makes of it: its result is no scalar then.
            traced = jax.make_jaxpr(lambda *args: rule(axis_data, args, dims, **params)[0])(*args)
            loops = [eqn for eqn in traced.eqns if eqn.primitive is jax.lax.while_p]
            if any(eqn.params["cond_jaxpr"].out_avals[0].shape for eqn in loops):
                where = "it stands in a jax.lax.while_loop, or in a fori_loop of traced bounds,"
                _refuse_effects(jaxprs, where, "the number of steps differs")
        return rule(axis_data, args, dims, **params)

    return guarded


# JAX's rules refuse one effect by name, that of `jax.experimental.io_callback`; there is no registry for others.
_rules = batching.fancy_primitive_batchers
_rules[jax.lax.cond_p] = _guard_branches(_rules[jax.lax.cond_p])
_rules[jax.lax.while_p] = _guard_loops(_rules[jax.lax.while_p])


def set_global(context: Any, value: Any) -> None:
    """Set a `jax.make_user_context` for every thread; its public ``set_global`` came after jax 0.7."""
    context._obj.set_global(value)


def get_global(context: Any) -> Any:
    """Read what `set_global` wrote."""
    return context._obj.get_global()


def is_tracing() -> bool:
    """Whether JAX traces what is called here. The arguments of a call do not say so: they may be constants."""
    return not core.trace_state_clean()


def new_cpu_devices(count: int) -> list[jax.Device]:
    """Return *count* new devices on the CPU, beside those that JAX lists."""
    client: Any = xla_client.make_cpu_client(asynchronous=True, num_devices=count)
    devices: list[jax.Device] = client.local_devices()
    return devices


def live_arrays() -> list[jax.Array]:
    """Return the arrays of all platforms that are in use."""
    return [array for backend in tuple(xla_bridge._backends.values()) for array in backend.live_arrays()]


def varying_axes(aval: Any) -> frozenset[Any]:
    """Return the manual mesh axes that a value varies over."""
    varying = aval.manual_axis_type.varying if hasattr(aval, "manual_axis_type") else aval.vma
    return frozenset(varying)


def vary_alike(values: Sequence[Any]) -> list[Any]:
    """Let all of *values* vary over the manual mesh axes that any of them varies over.

    JAX does this for the operands of its own operations; the transpose of the cast is the sum that a gradient needs.
    """
    own = [varying_axes(jax.typeof(value)) for value in values]
    every = frozenset().union(*own)
    missing = [tuple(sorted(every - axes, key=str)) for axes in own]
    return [_vary(value, axes) if axes else value for value, axes in zip(values, missing, strict=True)]


def _vary(value: Any, axes: tuple[Any, ...]) -> Any:
    if hasattr(jax.lax, "pcast"):
        return jax.lax.pcast(value, axes, to="varying")
    return jax.lax.pvary(value, axes)  # type: ignore[attr-defined]  # before jax 0.8


def result_aval(shape: Sequence[Any], dtype: Any, operands: Sequence[Any], spec: Any = None) -> jax.core.ShapedArray:
    """Return the type of a result: it varies like all the operands together, and is sharded as *spec* says.

    Args:
      shape: its shape.
      dtype: its dtype.
      operands: the operands' types.
      spec: its `PartitionSpec` over the explicit axes of the mesh; None: not sharded.
    """
    # The mesh of the operands, which may lie on one where the program sets none.
    mesh = next((x.sharding.mesh for x in operands if not x.sharding.mesh.empty), get_abstract_mesh())
    sharding = NamedSharding(mesh, PartitionSpec(*([None] * len(shape))) if spec is None else spec)
    varying = frozenset().union(*(varying_axes(operand) for operand in operands))
    if hasattr(core, "ManualAxisType"):
        manual = core.ManualAxisType(varying=varying)
        return jax.core.ShapedArray(tuple(shape), dtype, sharding=sharding, manual_axis_type=manual)
    return jax.core.ShapedArray(tuple(shape), dtype, sharding=sharding, vma=varying)  # type: ignore[call-arg]


def jit_alone(run: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Return the jitted evaluation of one primitive outside of any program.

    It is marked as JAX marks its own: where ``jax.debug_nans`` finds a NaN it says whose, instead of looking for it
    inside, where it finds the same call again.
    """

    def alone(*inputs: Any) -> Any:
        return run(*inputs)

    alone.__name__ = alone.__qualname__ = name
    alone._apply_primitive = True  # type: ignore[attr-defined]
    return jax.jit(alone)


def require_devices(primitive: Any) -> None:
    """Let JAX know the devices when it lowers *primitive*, as its own `custom_partitioning` asks for itself."""
    dispatch.prim_requires_devices_during_lowering.add(primitive)


def is_partitioned(context: Any) -> bool:
    """Whether a program that is being lowered is one that XLA splits over several devices."""
    axes = context.module_context.axis_context
    return isinstance(axes, sharding_impls.ShardingContext) and axes.num_devices > 1


def register_partitioner(target: str, partition: Callable[..., Any]) -> None:
    """Have XLA's partitioner, on every platform, ask *partition* about calls of *target*; the results are not split."""
    keywords = {
        "name": target,
        "prop_user_sharding": lambda sharding, *_: sharding,
        "partition": partition,
        "infer_sharding_from_operands": lambda *_: sharding_impls.replicated_hlo_sharding,
        "can_side_effecting_have_replicated_sharding": True,
    }
    xla_client.register_custom_call_partitioner(**keywords)
    xla_bridge.register_plugin_callbacks(
        lambda **c_api: xla_client.register_custom_call_partitioner(**keywords, **c_api)
    )


def replicated(sharding: Any) -> Any:
    """Return the sharding that splits nothing over the devices of *sharding*, which belongs to no mesh."""
    return sharding_impls.GSPMDSharding.get_replicated(sharding._device_assignment)


def spec_of(sharding: Any, mesh: Any) -> PartitionSpec:
    """Return how *sharding*, which XLA chose, splits an array over *mesh*; not at all, where axes cannot say it.

    XLA may split an axis in two, for which `PartitionSpec` has no words and JAX's decoder various exceptions.
    """
    try:
        return sharding_impls.parse_flatten_op_sharding(sharding._hlo_sharding, mesh)[0]
    except (ValueError, LookupError, AssertionError, NotImplementedError, StopIteration):
        return PartitionSpec()


def without_explicit_axes(mesh: Any) -> Any:
    """Return a context in which no axis of *mesh* is explicit: what one device runs has no shardings in its types."""
    return use_abstract_mesh(AbstractMesh(mesh.axis_sizes, mesh.axis_names, (AxisType.Auto,) * len(mesh.axis_names)))


def explicit_specs(function: Any, operands: Sequence[Any]) -> list[PartitionSpec] | None:
    """Return how the results of *function* are sharded over explicit mesh axes; None if no operand is.

    Args:
      function: returns a list of arrays; it is only traced.
      operands: the operands' types.
    """
    if not any(AxisType.Explicit in x.sharding.mesh.axis_types and any(x.sharding.spec) for x in operands):
        return None
    return [PartitionSpec() if x.sharding is None else x.sharding.spec for x in jax.eval_shape(function, *operands)]


def match_type(value: Any, like: Any) -> Any:
    """Return *value* as varying, and as sharded over explicit mesh axes, as *like* is, an array or a type."""
    aval = like if isinstance(like, jax.core.ShapedArray) else jax.typeof(like)
    missing = varying_axes(aval) - varying_axes(jax.typeof(value))
    if missing:
        value = _vary(value, tuple(sorted(missing, key=str)))
    if jax.typeof(value).sharding == aval.sharding or AxisType.Explicit not in aval.sharding.mesh.axis_types:
        return value
    return jax.sharding.reshard(value, aval.sharding)


def align_axes(values: Sequence[Any], axes: Sequence[int | None]) -> list[Any]:
    """Return *values* with the axes that ``jax.vmap`` is to map sharded alike, as it asks on an explicit mesh.

    They differ where a call without a sharding rule has returned one of them: its results are not sharded.

    Args:
      values: arrays, or None where there is none.
      axes: the axis of each that is mapped; None: it is not.
    """
    mapped = {
        i: axis
        for i, (x, axis) in enumerate(zip(values, axes, strict=True))
        if x is not None and axis is not None and AxisType.Explicit in jax.typeof(x).sharding.mesh.axis_types
    }
    specs = {i: tuple(jax.typeof(values[i]).sharding.spec) for i in mapped}
    aligned = list(values)
    wanted = next((entry for i, spec in specs.items() if (entry := spec[mapped[i]]) is not None), None)
    for i, spec in specs.items():
        if spec[mapped[i]] != wanted:
            names = _names(wanted)
            entries: list[Any] = [tuple(name for name in _names(entry) if name not in names) or None for entry in spec]
            entries[mapped[i]] = wanted
            mesh = jax.typeof(values[i]).sharding.mesh
            aligned[i] = jax.sharding.reshard(values[i], NamedSharding(mesh, PartitionSpec(*entries)))
    return aligned


def _names(entry: Any) -> tuple[Any, ...]:
    return () if entry is None else entry if isinstance(entry, tuple) else (entry,)
