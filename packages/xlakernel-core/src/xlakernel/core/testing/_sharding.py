"""A kernel inside `jax.shard_map`, and in a new process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from .._compat import varying_axes
from ._artifact import save
from ._child import DEVICES
from ._compare import compare
from ._report import CheckFailure, NotTried
from ._subject import Array, Subject, devices_of

_AXIS = "devices"


def run_sharded(
    function: Callable[..., Any],
    inputs: Sequence[Any],
    whole: Sequence[int],
    explicit: bool,
    devices: Sequence[jax.Device],
    *,
    check_results: bool = False,
) -> Any:
    """Call *function* once on each device, with its slice of every input but those in *whole*."""
    kind = AxisType.Explicit if explicit else AxisType.Auto
    mesh = jax.sharding.Mesh(np.array(devices), (_AXIS,), axis_types=(kind,))
    specs = tuple(PartitionSpec() if i in whole else PartitionSpec(_AXIS) for i in range(len(inputs)))

    def body(*blocks: jax.Array) -> Any:
        results = function(*(x if i in whole else x[0] for i, x in enumerate(blocks)))
        if check_results:
            _check_varying(results, blocks)
        return jax.tree.map(lambda y: y[None], results)

    placed = [jax.device_put(x, NamedSharding(mesh, spec)) for x, spec in zip(inputs, specs, strict=True)]
    return jax.jit(jax.shard_map(body, mesh=mesh, in_specs=specs, out_specs=PartitionSpec(_AXIS)))(*placed)


def _check_varying(results: Any, inputs: Sequence[Any]) -> None:
    """JAX would take a result that does not say so for equal on all devices, and return one of them."""
    varying = frozenset().union(*(varying_axes(jax.typeof(x)) for x in inputs))
    for number, result in enumerate(jax.tree.leaves(results)):
        said = varying_axes(jax.typeof(result))
        if said != varying:
            raise CheckFailure(
                f"inside jax.shard_map the inputs vary over the mesh axes {sorted(varying)}, but result {number} says "
                f"that it varies over {sorted(said)}: out_specs without the axis would pass, and "
                "give the result of one device for that of all."
            )


def check_export(subject: Subject) -> str:
    """In a process that knows only the artifact, the results are the same."""
    artifact = save(subject.function, subject.inputs)
    compare(subject.child.ask("call", artifact, subject.inputs), subject.single(subject.every(0)), subject.tolerance)
    return "loaded in a new process"


def check_sharding(subject: Subject) -> str:
    """Each device computes its slice in `jax.shard_map`: on the devices here, or on four CPUs in a new process."""
    if not subject.inputs:
        raise NotTried("there are no inputs to shard")
    devices = devices_of(subject)

    def here(inputs: Sequence[Any], whole: Sequence[int], explicit: bool) -> Any:
        return run_sharded(subject.function, inputs, whole, explicit, devices, check_results=True)

    _check_programs(subject, here, len(devices))
    if len(devices) > 1:
        return f"on {len(devices)} {devices[0].platform} devices"
    if devices[0].platform != "cpu":
        raise NotTried(f"there is one {devices[0].platform} device, on which it is right", "use several of them")
    artifact = save(subject.function, subject.inputs)
    _check_programs(subject, lambda *call: subject.child.ask("shard", artifact, *call), DEVICES)
    return f"traced here, and run on {DEVICES} devices in a new process"


def _check_programs(subject: Subject, run: Callable[..., Any], devices: int) -> None:
    for explicit in (False, True):
        for whole in [(), (0,)] if len(subject.inputs) > 1 else [()]:
            picks = [tuple(0 if i in whole else k for i in range(len(subject.inputs))) for k in range(devices)]
            taken = [subject.taken(pick) for pick in picks]
            stacked: list[Array] = [
                taken[0][i] if i in whole else np.stack([inputs[i] for inputs in taken])
                for i in range(len(subject.inputs))
            ]
            expected = jax.tree.map(lambda *ys: np.stack(ys), *map(subject.single, picks))
            what = f"{'Explicit' if explicit else 'Auto'} axes, {'input 0 unsharded' if whole else 'all sharded'}: "
            compare(run(stacked, whole, explicit), expected, subject.tolerance, batch=1, what=what)
