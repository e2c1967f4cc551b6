"""A kernel inside `jax.shard_map`, and in a new process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from .._compat import varying_axes
from ..programs.export import deserialize, export
from ._child import DEVICES
from ._compare import compare
from ._report import CheckFailure, NotTried
from ._subject import Axes, Subject, devices_of

_AXIS = "devices"


def check_export(subject: Subject) -> str:
    """In a process that knows only the artifact, the results are the same."""
    results = subject.child.ask(_run_artifact, _artifact(subject), subject.inputs)
    compare(results, subject.single(), subject.tolerance)
    return "loaded in a new process"


def check_sharding(subject: Subject) -> str:
    """Each device computes its slice in `jax.shard_map`: on the devices here, or on four CPUs in a new process."""
    if not subject.inputs:
        raise NotTried("there are no inputs to shard")
    devices = devices_of(subject)

    def here(*call: Any) -> Any:
        return _run_sharded(subject.function, *call, devices=devices, check_results=True)

    _check_programs(subject, here, len(devices))
    if len(devices) > 1:
        return f"on {len(devices)} {devices[0].platform} devices"
    if devices[0].platform != "cpu":
        raise NotTried(f"there is one {devices[0].platform} device, on which it is right", "use several of them")
    artifact = _artifact(subject)
    _check_programs(subject, lambda *call: subject.child.ask(_run_artifact_sharded, artifact, *call), DEVICES)
    return f"traced here, and run on {DEVICES} devices in a new process"


def _check_programs(subject: Subject, run: Callable[..., Any], devices: int) -> None:
    programs: dict[str, Axes] = {"all sharded": (0,) * len(subject.inputs)}
    if len(subject.inputs) > 1:
        programs["input 0 unsharded"] = (None, *programs["all sharded"][1:])
    for explicit in (False, True):
        for name, axes in programs.items():
            stacked, expected = subject.batch((devices,), [axes])
            what = f"{'Explicit' if explicit else 'Auto'} axes, {name}: "
            compare(run(stacked, axes, explicit), expected, subject.tolerance, batch=1, what=what)


def _run_sharded(
    function: Callable[..., Any],
    inputs: Sequence[Any],
    axes: Axes,
    explicit: bool,
    *,
    devices: Sequence[jax.Device],
    check_results: bool = False,
) -> Any:
    """Call *function* once on each device, with its slice of every input, or all of it where the axis is None."""
    kind = AxisType.Explicit if explicit else AxisType.Auto
    mesh = jax.sharding.Mesh(np.array(devices), (_AXIS,), axis_types=(kind,))
    specs = tuple(PartitionSpec() if axis is None else PartitionSpec(_AXIS) for axis in axes)

    def body(*blocks: jax.Array) -> Any:
        results = function(*(x if axis is None else x[0] for x, axis in zip(blocks, axes, strict=True)))
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


# Programs as bytes: written here, and run in the new process.


def _artifact(subject: Subject) -> bytes:
    structs = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in subject.inputs]
    return export(jax.jit(subject.function))(*structs).serialize()


def _run_artifact(artifact: bytes, inputs: Sequence[Any]) -> Any:
    return jax.tree.map(np.asarray, jax.jit(deserialize(artifact).call)(*inputs))


def _run_artifact_sharded(artifact: bytes, *call: Any) -> Any:
    return jax.tree.map(np.asarray, _run_sharded(deserialize(artifact).call, *call, devices=jax.local_devices()))
