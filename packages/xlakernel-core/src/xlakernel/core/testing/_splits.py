"""A kernel under plain `jax.jit` with inputs that are split over devices, where JAX asks its sharding rule."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from ._compare import compare
from ._report import CheckFailure
from ._subject import Subject

_AXIS = "devices"
_ADVICE = "If the kernel has a sharding_rule, bracket the factor that it needs whole."
_HOW = {"cpu": 'call jax.config.update("jax_num_cpu_devices", 4) before JAX starts'}


def check_splits(subject: Subject, devices: Sequence[jax.Device]) -> str:
    """Split each dimension of each input in turn, over as many devices as divide it; return what was tried."""
    platform = devices[0].platform
    if len(devices) < 2:
        return f"sharding rules not tried on one device: {_HOW.get(platform, f'use several {platform} devices')}"
    jitted, expected = jax.jit(subject.function), subject.single(subject.every(0))
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
        results = jitted(*placed)
        try:
            compare(results, expected, subject.tolerance, what=f"split along {place}: ")
        except CheckFailure as failure:
            raise CheckFailure(f"{failure} {_ADVICE}") from None
        tried += 1
    remark = f"split along {tried} dimension{'s' * (tried != 1)} of the inputs"
    return remark + (f", but not along {', '.join(left)}, which 2 to {len(devices)} do not divide" if left else "")


def _dimensions(subject: Subject) -> Iterator[tuple[int, int, int]]:
    """Yield the number of an input, one of its dimensions, and the extent, for all that are not 0 or 1."""
    for number, x in enumerate(subject.inputs):
        for dimension, extent in enumerate(x.shape):
            if extent > 1:
                yield number, dimension, extent
