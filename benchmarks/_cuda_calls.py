"""What calls of Numba CUDA kernels cost on a GPU, beside XLA's own operations, brainevent and Warp.

`call_overhead.py` runs it where JAX has a CUDA device.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping

import jax
import jax.numpy as jnp
import numba
import numpy as np
from _harness import OURS, Mark, Part, gpu_devices
from _programs import (
    BRAINEVENT,
    EAGER,
    IN_PLACE,
    LOOP,
    SIZE,
    UNROLLED,
    WARP,
    XLA,
    Binary,
    Makers,
    Measurements,
    looped,
    measure_recording,
    measure_six_kernels,
    one,
    over,
    prepare,
    single,
    struct,
    timed,
    unrolled,
    xla_pair,
)
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from numba import cuda

from xlakernel.cuda import numba_cuda_callable, numba_cuda_kernel

numba.config.CUDA_LOW_OCCUPANCY_WARNINGS = 0  # the grids are small on purpose, and each warning would be timed

BLOCK = 256
CALLABLE, ONE_BY_ONE = f"{OURS}, callable", f"{OURS}, kernel by kernel"


@cuda.jit
def add_kernel(x, y, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = x[i] + y[i]


@cuda.jit
def decrement_kernel(x, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = x[i] - 1


def both_kernels(x, y, out, stream):
    """Launch one after the other, with a temporary between them."""
    blocks = (out.size + BLOCK - 1) // BLOCK
    total = cuda.device_array(out.shape, np.float32)
    add_kernel[blocks, BLOCK, stream](x, y, total)
    decrement_kernel[blocks, BLOCK, stream](total, out)


# One kernel


def our_add(aliases: Mapping[int, int] | None = None) -> Binary:
    return numba_cuda_kernel(
        add_kernel, outs=lambda x, y: x, launch_dims=lambda x, y: x.shape, input_output_aliases=aliases
    )


def brainevent_add() -> Binary:
    import brainevent

    return one(brainevent.numba_cuda_kernel(add_kernel, outs=struct(SIZE), launch_dims=SIZE))


def warp_add() -> Binary:
    import warp
    from _warp_kernels import add_kernel

    return one(warp.jax_kernel(add_kernel))


ADDERS: Makers = {OURS: our_add, XLA: lambda: jnp.add, BRAINEVENT: brainevent_add, WARP: warp_add}


# Two kernels


def our_kernels(aliases: Mapping[int, int] | None = None) -> Binary:
    add = our_add(aliases)
    decrement = numba_cuda_kernel(
        decrement_kernel, outs=lambda x: x, launch_dims=lambda x: x.shape, input_output_aliases=aliases
    )
    return lambda x, y: decrement(add(x, y))


def our_callable(aliases: Mapping[int, int] | None = None) -> Binary:
    return numba_cuda_callable(both_kernels, outs=lambda x, y: x, input_output_aliases=aliases)


def brainevent_callable() -> Binary:
    import brainevent

    return one(brainevent.numba_cuda_callable(both_kernels, outs=struct(SIZE)))


PAIRS: Makers = {CALLABLE: our_callable, ONE_BY_ONE: our_kernels, XLA: xla_pair, BRAINEVENT: brainevent_callable}
PAIRS_IN_PLACE: Makers = {
    CALLABLE + IN_PLACE: lambda: our_callable({0: 0}),
    ONE_BY_ONE + IN_PLACE: lambda: our_kernels({0: 0}),
}


# What is measured


def measure_one_kernel(rounds: int) -> Iterator[Part]:
    """Time one kernel: unrolled in a program, in a loop, and as a program of its own."""
    title = f"one kernel of {SIZE} floats"
    seconds = timed(prepare(f"{title}, unrolled", ADDERS, unrolled), UNROLLED, 20, rounds)
    yield Part(
        f"{title}, unrolled",
        seconds,
        [
            Mark(f"{title}, unrolled, over XLA's own add", over(seconds, OURS, XLA), 1.3),
            Mark(f"{title}, unrolled, over {BRAINEVENT}", over(seconds, OURS, BRAINEVENT), 1 / 100),
        ],
    )
    makers = {**ADDERS, OURS + IN_PLACE: lambda: our_add({0: 0})}
    cases = prepare(f"{title}, in a loop", makers, looped)
    yield Part(f"{title}, an iteration of a loop", timed(cases, LOOP, 3, rounds), [])
    cases = prepare(f"{title}, a jitted call", ADDERS, single)
    if OURS in cases:
        cases[OURS + EAGER] = functools.partial(our_add(), *cases[OURS].args)
    seconds = timed(cases, 1, 1000, rounds)
    mark = Mark(f"{title}, a jitted call, over a jitted jnp.add", over(seconds, OURS, XLA), 1.15)
    yield Part(f"{title}, a call", seconds, [mark])


def measure_callable(rounds: int) -> Iterator[Part]:
    """Time a function of two kernels with a temporary, beside its two kernels."""
    makers = {name: make for name, make in PAIRS.items() if name != BRAINEVENT}
    title = "two kernels, unrolled"
    seconds = timed(prepare(title, makers, unrolled), UNROLLED, 10, rounds)
    marks = [Mark(f"{title}: the callable, over kernel by kernel", over(seconds, CALLABLE, ONE_BY_ONE), 1.2)]
    yield Part(title, seconds, marks)
    title = "two kernels, an iteration of a loop"
    seconds = timed(prepare(title, {**PAIRS, **PAIRS_IN_PLACE}, looped), LOOP, 3, rounds)
    in_place = over(seconds, CALLABLE + IN_PLACE, ONE_BY_ONE + IN_PLACE)
    marks = [
        Mark(f"{title}: the callable, over kernel by kernel", over(seconds, CALLABLE, ONE_BY_ONE), 1.2),
        Mark(f"{title}: the same in place", in_place, 1.2),
        Mark(f"{title}: the callable, over {BRAINEVENT}'s", over(seconds, CALLABLE, BRAINEVENT), 1 / 20),
    ]
    yield Part(title, seconds, marks)


def measure_sharded(rounds: int) -> Iterator[Part]:
    """Time a kernel that each GPU runs on its own part, beside one GPU that has one part."""
    devices = gpu_devices()
    if len(devices) < 2:
        print("There is one GPU: a kernel on several is not measured.")
        return
    for size in (SIZE, 2**20):
        for what, program, steps in (("unrolled", unrolled, UNROLLED), ("an iteration of a loop", looped, LOOP)):
            title = f"{size} floats on each of {len(devices)} GPUs, {what}"
            cases = {}
            for name, make in ((OURS, our_add), (XLA, lambda: jnp.add)):
                for count in (1, len(devices)):
                    sharded, x, y = _sharded(program(make()), devices[:count], size)
                    np.testing.assert_allclose(sharded(x, y), np.asarray(x) + steps)
                    cases[f"{name}, {count}"] = functools.partial(sharded, x, y)
            seconds = timed(cases, steps, 3, rounds)
            values = [over(seconds, f"{name}, {len(devices)}", f"{name}, 1") for name in (OURS, XLA)]
            peer = "not known" if values[1] is None else f"{values[1]:.2f} x"
            yield Part(title, seconds, [Mark(f"{title}, over one GPU (jnp.add: {peer})", values[0], 1.15)])


def _sharded(program: Binary, devices: list[jax.Device], size: int) -> tuple[Binary, jax.Array, jax.Array]:
    mesh = jax.make_mesh((len(devices),), ("i",), (AxisType.Auto,), devices=devices)
    spec = PartitionSpec("i")
    program = jax.jit(jax.shard_map(program, mesh=mesh, in_specs=(spec, spec), out_specs=spec))
    values = np.arange(size * len(devices), dtype=np.float32) % 1000
    x, y = (jax.device_put(array, NamedSharding(mesh, spec)) for array in (values, np.ones_like(values)))
    return program, x, y


MEASUREMENTS: Measurements = {
    "one kernel": measure_one_kernel,
    "six kernels": functools.partial(measure_six_kernels, {OURS: our_kernels, XLA: xla_pair}),
    "callable": measure_callable,
    "recording": functools.partial(measure_recording, {f"{OURS}, kernel": our_add, CALLABLE: our_callable}),
    "several GPUs": measure_sharded,
}
