"""Uses of private JAX modules, each with its reason."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax

# core: inside `jax.shard_map`, the type of a result contains the mesh axes that the result varies over. jax 0.8 made
#   the class of this part of a type private. `trace_state_clean` has no public name.
# dispatch: JAX provides the devices when it lowers a primitive only if the primitive is registered there, as that of
#   `jax.experimental.custom_partitioning` is.
# effects: JAX keeps a call with unused results only if the call has an effect. There is no public way to define an
#   effect; the public `jax.ffi.ffi_call` uses a private class, too.
# lib.xla_client, xla_bridge: only a callback of XLA's partitioner, registered for the name of a custom call, gets the
#   sharding that XLA chose for an array. The only public way is `jax.experimental.custom_partitioning`, and JAX does
#   not cache programs with it. Besides, JAX creates its CPU devices once, and a test may later need several.
# sharding_impls: the context of a lowering tells if the program is for several devices. Besides, XLA may split a call
#   whose arrays belong to no mesh; there is no public sharding for such arrays.
# xla_bridge: the public `jax.live_arrays` lists the arrays of one platform, and initialises an unused platform.
from jax._src import core, dispatch, effects, sharding_impls, xla_bridge
from jax._src.lib import xla_client
from jax.interpreters import batching
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec, get_abstract_mesh, use_abstract_mesh

from .errors import SideEffectError


@dataclasses.dataclass(frozen=True)
class NativeCallEffect(effects.Effect):  # type: ignore[misc]  # jax._src has no stubs
    """The effect of a kernel with ``has_side_effect=True``.

    Attributes:
      owner: the kernel's or operator's name, for messages. Comparisons ignore the name: JAX exports an effect only if
        it equals a new instance of its class.
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
            f"{owner}: has_side_effect=True, but it is called {where} under jax.vmap, and {what} from slice to slice "
            "of the batch. JAX would run the kernel for all slices, and then select results. Map with jax.lax.map "
            "instead of jax.vmap, or call the kernel unconditionally and pass it the condition."
        )


def _guard_branches(rule: Callable[..., Any]) -> Callable[..., Any]:
    def guarded(axis_data: Any, args: Sequence[Any], dims: Sequence[Any], **params: Any) -> Any:
        if dims[0] is not None and "branches_platforms" not in params:  # a platform is never mapped
            _refuse_effects(params["branches"], "in a branch of jax.lax.cond or switch", "the branch differs")
        return rule(axis_data, args, dims, **params)

    return guarded


def _guard_loops(rule: Callable[..., Any]) -> Callable[..., Any]:
    def guarded(axis_data: Any, args: Sequence[Any], dims: Sequence[Any], **params: Any) -> Any:
        jaxprs = params["cond_jaxpr"], params["body_jaxpr"]
        if any(isinstance(effect, NativeCallEffect) for jaxpr in jaxprs for effect in jaxpr.effects):
            # If the condition depends on the slice, JAX's rule makes a loop whose condition is an array.
            traced = jax.make_jaxpr(lambda *args: rule(axis_data, args, dims, **params)[0])(*args)
            loops = [eqn for eqn in traced.eqns if eqn.primitive is jax.lax.while_p]
            if any(eqn.params["cond_jaxpr"].out_avals[0].shape for eqn in loops):
                where = "in a jax.lax.while_loop, or a fori_loop with traced bounds,"
                _refuse_effects(jaxprs, where, "the number of steps differs")
        return rule(axis_data, args, dims, **params)

    return guarded


# JAX's own rules reject only the effect of `jax.experimental.io_callback`, and have no registry of effects to reject.
_rules = batching.fancy_primitive_batchers
_rules[jax.lax.cond_p] = _guard_branches(_rules[jax.lax.cond_p])
_rules[jax.lax.while_p] = _guard_loops(_rules[jax.lax.while_p])


def clear_caches() -> None:
    """Clear JAX's caches; repeat this if another thread changes a dictionary of caches while JAX iterates over it."""
    for _ in range(100):
        with contextlib.suppress(RuntimeError):
            jax.clear_caches()
            return
    jax.clear_caches()


def is_tracing() -> bool:
    """Return True while JAX traces, even if no argument of the call is a tracer."""
    return not core.trace_state_clean()


def context_of_jax(setting: str) -> Callable[..., Any]:
    """Return the context manager of one of JAX's settings; jax.enable_x64 was in another module before JAX 0.8."""
    found: Callable[..., Any] = getattr(jax if hasattr(jax, setting) else jax.experimental, setting)
    return found


def new_cpu_devices(count: int) -> list[jax.Device]:
    """Return *count* new CPU devices, which `jax.devices` does not list."""
    client: Any = xla_client.make_cpu_client(asynchronous=True, num_devices=count)
    devices: list[jax.Device] = client.local_devices()
    return devices


def live_arrays() -> list[jax.Array]:
    """Return the live arrays of all platforms that are in use."""
    return [array for backend in tuple(xla_bridge._backends.values()) for array in backend.live_arrays()]


def varying_axes(aval: Any) -> frozenset[Any]:
    """Return the manual mesh axes that a value varies over."""
    varying = aval.manual_axis_type.varying if hasattr(aval, "manual_axis_type") else aval.vma
    return frozenset(varying)


def vary_alike(values: Sequence[Any]) -> list[Any]:
    """Make all of *values* vary over the manual mesh axes that any of them varies over.

    JAX does the same for the operands of its own operations. In a gradient, the transpose of the cast is a sum over the
    added axes.
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
    """Return the type of a result, which varies over all mesh axes that one of the *operands* (types) varies over.

    *spec* is the result's `PartitionSpec` over the explicit axes of the mesh; None: not sharded.
    """
    # Operands may be sharded over a mesh although no mesh is set.
    mesh = next((x.sharding.mesh for x in operands if not x.sharding.mesh.empty), get_abstract_mesh())
    sharding = NamedSharding(mesh, PartitionSpec(*([None] * len(shape))) if spec is None else spec)
    varying = frozenset().union(*(varying_axes(operand) for operand in operands))
    if hasattr(core, "ManualAxisType"):
        manual = core.ManualAxisType(varying=varying)
        return jax.core.ShapedArray(tuple(shape), dtype, sharding=sharding, manual_axis_type=manual)
    return jax.core.ShapedArray(tuple(shape), dtype, sharding=sharding, vma=varying)  # type: ignore[call-arg]


def jit_primitive(run: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Return *run*, the evaluation of one primitive outside of ``jax.jit``, as a jitted function.

    The function has the flag that JAX sets for its own primitives, so that ``jax.debug_nans`` reports a NaN for the
    primitive. Without the flag, JAX would run the body step by step, and so evaluate the same primitive again.
    """

    def evaluate(*inputs: Any) -> Any:
        return run(*inputs)

    evaluate.__name__ = evaluate.__qualname__ = name
    evaluate._apply_primitive = True  # type: ignore[attr-defined]
    return jax.jit(evaluate)


def require_devices(primitive: Any) -> None:
    """Make JAX provide the devices when it lowers *primitive*, as for its own `custom_partitioning`."""
    dispatch.prim_requires_devices_during_lowering.add(primitive)


def is_partitioned(context: Any) -> bool:
    """Return True if XLA splits the program that is being lowered over several devices."""
    axes = context.module_context.axis_context
    return isinstance(axes, sharding_impls.ShardingContext) and axes.num_devices > 1


@functools.cache
def register_partitioner(target: str, partition: Callable[..., Any]) -> None:
    """Register *partition* with XLA's partitioner, on every platform, for custom calls of *target*.

    The results of these calls are replicated.
    """
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
    """Return the replicated sharding over the devices of *sharding*, a sharding without a mesh."""
    return sharding_impls.GSPMDSharding.get_replicated(sharding._device_assignment)


def spec_of(sharding: Any, mesh: Any) -> PartitionSpec:
    """Return a *sharding* that XLA chose as a `PartitionSpec` over *mesh*; an empty spec if that is impossible.

    XLA may split an axis in two. `PartitionSpec` cannot express that, and JAX's decoder raises various exceptions.
    """
    try:
        return sharding_impls.parse_flatten_op_sharding(sharding._hlo_sharding, mesh)[0]
    except (ValueError, LookupError, AssertionError, NotImplementedError, StopIteration):
        return PartitionSpec()


def without_explicit_axes(mesh: Any) -> Any:
    """Return a context in which no axis of *mesh* is explicit: types in the program of one device have no sharding."""
    return use_abstract_mesh(AbstractMesh(mesh.axis_sizes, mesh.axis_names, (AxisType.Auto,) * len(mesh.axis_names)))


def explicit_specs(function: Any, operands: Sequence[Any]) -> list[PartitionSpec] | None:
    """Return the shardings of the results of *function* over explicit mesh axes; None if no operand has one."""
    if not any(AxisType.Explicit in x.sharding.mesh.axis_types and any(x.sharding.spec) for x in operands):
        return None
    return [PartitionSpec() if x.sharding is None else x.sharding.spec for x in jax.eval_shape(function, *operands)]


def match_type(value: Any, like: Any) -> Any:
    """Return *value* with the varying axes, and the sharding over explicit axes, of *like*, an array or a type."""
    aval = like if isinstance(like, jax.core.ShapedArray) else jax.typeof(like)
    missing = varying_axes(aval) - varying_axes(jax.typeof(value))
    if missing:
        value = _vary(value, tuple(sorted(missing, key=str)))
    if jax.typeof(value).sharding == aval.sharding or AxisType.Explicit not in aval.sharding.mesh.axis_types:
        return value
    return jax.sharding.reshard(value, aval.sharding)


def align_axes(values: Sequence[Any], axes: Sequence[int | None]) -> list[Any]:
    """Return *values* with the same sharding of all mapped axes, as ``jax.vmap`` requires on an explicit mesh.

    The shardings may differ, because results of a call without a sharding rule are not sharded, and other values that
    are mapped together with these results may be. A value that is None, or has no mapped axis, is returned unchanged.
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
