"""Sharding rules: under plain `jax.jit` with inputs that are split over devices, or part by part on one device."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from ..errors import GatheredOperandsWarning
from ._compare import compare
from ._parts import check_parts
from ._report import CheckFailure, NotTried
from ._subject import Subject, devices_of

_AXIS = "devices"
_ADVICE = "If the kernel has a sharding_rule, bracket the factor that it needs whole."
_HOW = {"cpu": 'call jax.config.update("jax_num_cpu_devices", 4) before JAX starts'}


def check_splits(subject: Subject) -> str:
    """What the rules say of a call that is split is true."""
    if not subject.inputs:
        raise NotTried("there are no inputs to split")
    devices = devices_of(subject)
    if len(devices) > 1:
        return _split_inputs(subject, devices)
    platform = devices[0].platform
    return check_parts(subject, _HOW.get(platform, f"use several {platform} devices"))


def _split_inputs(subject: Subject, devices: Sequence[jax.Device]) -> str:
    """Split each dimension of each input in turn, over as many devices as divide it; return what was tried."""
    jitted, expected = jax.jit(subject.function), subject.single()
    tried, left = 0, []
    for number, dimension, extent in _dimensions(subject):
        count = next((n for n in range(len(devices), 1, -1) if extent % n == 0), 0)
        place = f"dimension {dimension} of input {number}"
        if not count:
            left.append(f"{place} (extent {extent})")
            continue
        mesh = jax.sharding.Mesh(np.array(devices[:count]), (_AXIS,), axis_types=(AxisType.Auto,))
        specs = [PartitionSpec()] * len(subject.inputs)
        specs[number] = PartitionSpec(*[None] * dimension, _AXIS)
        placed = [jax.device_put(x, NamedSharding(mesh, spec)) for x, spec in zip(subject.inputs, specs, strict=True)]
        with warnings.catch_warnings():  # a kernel without a rule is right too
            warnings.simplefilter("ignore", GatheredOperandsWarning)
            results = jax.block_until_ready(jitted(*placed))
        try:
            compare(results, expected, subject.tolerance, what=f"split along {place}: ")
        except CheckFailure as failure:
            raise CheckFailure(f"{failure} {_ADVICE}") from None
        tried += 1
    undivided = f"not along {', '.join(left)}, which 2 to {len(devices)} do not divide"
    if not tried:  # no extent that the devices could share
        return check_parts(subject, "give inputs whose extents the number of devices divides")
    where = f"on {len(devices)} {devices[0].platform} devices"
    return (
        f"{where}, split along {tried} dimension{'s' * (tried != 1)} of the inputs{f', but {undivided}' * bool(left)}"
    )


def _dimensions(subject: Subject) -> Iterator[tuple[int, int, int]]:
    """Yield the number of an input, one of its dimensions, and the extent, for all that are not 0 or 1."""
    for number, x in enumerate(subject.inputs):
        for dimension, extent in enumerate(x.shape):
            if extent > 1:
                yield number, dimension, extent
