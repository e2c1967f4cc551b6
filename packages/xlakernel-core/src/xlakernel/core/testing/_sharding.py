"""Checks on several devices: in `jax.shard_map`, and with inputs that XLA splits by the sharding rule."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.interpreters.partial_eval import dce_jaxpr
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from .._compat import new_cpu_devices, varying_axes
from ..errors import GatheredOperandsWarning
from ..measure.comparison import CheckFailure, compare
from ._report import NotTried
from ._subject import Axes, Subject

_AXIS = "devices"
_cpu_devices = functools.cache(lambda: new_cpu_devices(8))


def _devices_of(subject: Subject) -> Sequence[jax.Device]:
    """Return the devices of the inputs' platform; on the CPU, new devices, because JAX has only one by default."""
    (device,) = subject.arrays()[0].devices()
    if device.platform == "cpu":
        return _cpu_devices()
    devices: list[jax.Device] = jax.local_devices(backend=device.platform)
    if len(devices) == 1:
        raise NotTried(f"there is one {device.platform} device; use several of them")
    return devices


def check_shard_map(subject: Subject) -> str:
    """Each device computes its slice in `jax.shard_map`."""
    devices = _devices_of(subject)[:4]
    if not all(x.size for x in subject.inputs):
        raise NotTried("JAX cannot read arrays without elements back from several devices")
    programs: dict[str, Axes] = {"all sharded": (0,) * len(subject.inputs)}
    if len(subject.inputs) > 1:
        programs["input 0 unsharded"] = (None, *programs["all sharded"][1:])
    for kind in (AxisType.Auto, AxisType.Explicit):
        for name, axes in programs.items():
            stacked, expected = subject.batch((len(devices),), [axes])
            results = _run_sharded(subject, stacked, axes, jax.sharding.Mesh(np.array(devices), _AXIS, (kind,)))
            compare(results, expected, subject.tolerance, batch=1, what=f"{kind.name} axes, {name}: ")
    return _where(devices)


def _run_sharded(subject: Subject, inputs: Sequence[Any], axes: Axes, mesh: jax.sharding.Mesh) -> Any:
    """Call the kernel on each device, with the device's slice of each input; an input with axis None is not split."""
    specs = tuple(PartitionSpec() if axis is None else PartitionSpec(_AXIS) for axis in axes)
    used = _used_inputs(subject)

    def body(*blocks: jax.Array) -> Any:
        results = subject.function(*(x if axis is None else x[0] for x, axis in zip(blocks, axes, strict=True)))
        _check_varying(results, blocks, used)
        return jax.tree.map(lambda y: y[None], results)

    placed = [jax.device_put(x, NamedSharding(mesh, spec)) for x, spec in zip(inputs, specs, strict=True)]
    return jax.jit(jax.shard_map(body, mesh=mesh, in_specs=specs, out_specs=PartitionSpec(_AXIS)))(*placed)


def _used_inputs(subject: Subject) -> list[list[bool]]:
    """Return, for each result, a list with True for each input that the result depends on."""
    program = jax.make_jaxpr(subject.function)(*subject.arrays()).jaxpr
    every = range(len(program.outvars))
    return [dce_jaxpr(program, [number == which for which in every])[1] for number in every]


def _check_varying(results: Any, inputs: Sequence[Any], used: Sequence[Sequence[bool]]) -> None:
    """Raise `CheckFailure` unless each result varies over the mesh axes of the inputs that it depends on.

    JAX assumes that a result whose type does not vary is equal on all devices, and returns the result of one device.
    """
    for number, (result, uses) in enumerate(zip(jax.tree.leaves(results), used, strict=True)):
        given = (varying_axes(jax.typeof(x)) for x, is_used in zip(inputs, uses, strict=True) if is_used)
        varying, declared = frozenset().union(*given), varying_axes(jax.typeof(result))
        if not varying <= declared:
            raise CheckFailure(
                f"inside jax.shard_map the inputs vary over the mesh axes {sorted(varying)}, but the type of result "
                f"{number} varies over {sorted(declared)}: out_specs without the axis would be accepted, and "
                "the result of one device returned for all."
            )


def check_sharding_rule(subject: Subject) -> str:
    """Results are right if one dimension of one input is split, for each input and each dimension in turn.

    A dimension is split over the largest number of devices that divides its extent.
    """
    devices = _devices_of(subject)
    tried, left = 0, []
    for number, x in enumerate(subject.inputs):
        for dimension, extent in enumerate(x.shape):
            place = f"dimension {dimension} of input {number}"
            count = next((n for n in range(len(devices), 1, -1) if extent and extent % n == 0), 0)
            if count:
                _check_split(subject, number, dimension, devices[:count], f"split along {place}: ")
                tried += 1
            elif extent > 1:
                left.append(f"{place} (extent {extent})")
    undivided = f"not along {', '.join(left)}: no number of devices from 2 to {len(devices)} divides the extent"
    if not tried:
        raise NotTried(undivided if left else "there is nothing to split")
    splits = f"split along {tried} dimension{'s' * (tried != 1)} of the inputs"
    return f"{_where(devices)}, {splits}{f', but {undivided}' * bool(left)}"


def _check_split(subject: Subject, number: int, dimension: int, devices: Sequence[jax.Device], what: str) -> None:
    mesh = jax.sharding.Mesh(np.array(devices), _AXIS, (AxisType.Auto,))
    specs = [PartitionSpec()] * len(subject.inputs)
    specs[number] = PartitionSpec(*[None] * dimension, _AXIS)
    placed = [jax.device_put(x, NamedSharding(mesh, spec)) for x, spec in zip(subject.inputs, specs, strict=True)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GatheredOperandsWarning)  # a kernel without a rule is right too
        results = jax.block_until_ready(jax.jit(subject.function)(*placed))
    compare(results, subject.expected(), subject.tolerance, what=what)


def _where(devices: Sequence[jax.Device]) -> str:
    return f"on {len(devices)} {devices[0].platform} devices"
