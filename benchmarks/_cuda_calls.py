"""What calls of Numba CUDA kernels cost on a GPU, beside XLA's own operations, brainevent and Warp.

`call_overhead.py` runs it where JAX has a CUDA device. A case that fails is reported and left out, and the marks that
need it do not hold.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numba
import numpy as np
from _harness import Mark, Part, gpu_devices, ratio, save_gpu_chart, time_beside
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from numba import cuda

from xlakernel.cuda import numba_cuda_callable, numba_cuda_kernel

numba.config.CUDA_LOW_OCCUPANCY_WARNINGS = 0  # the grids are small on purpose, and each warning would be timed

SIZE, BLOCK = 4096, 256
UNROLLED, LOOP, STEPS = 200, 1000, 2000
OURS, XLA, BRAINEVENT, WARP = "xlakernel", "jax.numpy", "brainevent", "warp.jax_kernel"
CALLABLE, ONE_BY_ONE = f"{OURS}, callable", f"{OURS}, kernel by kernel"
# A loop's value that an odd number of calls replaces is copied in each iteration, if no call works in its memory.
IN_PLACE = ", in place"

Binary = Callable[[Any, Any], Any]
#: name → what makes a function of two arrays; it may fail, as where a peer is not installed.
Makers = Mapping[str, Callable[[], Binary]]


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

    return _one(brainevent.numba_cuda_kernel(add_kernel, outs=_struct(SIZE), launch_dims=SIZE))


def warp_add() -> Binary:
    import warp

    warp.config.quiet = True

    def add(x, y, out):
        i = warp.tid()
        out[i] = x[i] + y[i]

    add.__annotations__ = dict.fromkeys(("x", "y", "out"), warp.array(dtype=warp.float32))  # in this file: strings
    return _one(warp.jax_kernel(warp.kernel(add)))


ADDERS: Makers = {OURS: our_add, XLA: lambda: jnp.add, BRAINEVENT: brainevent_add, WARP: warp_add}


def _one(function: Callable[..., Any]) -> Binary:
    """Return *function* with its result instead of a sequence of one."""

    def call(x: Any, y: Any) -> Any:
        result = function(x, y)
        return result[0] if isinstance(result, (tuple, list)) else result

    return call


def _struct(size: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((size,), jnp.float32)


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

    return _one(brainevent.numba_cuda_callable(both_kernels, outs=_struct(SIZE)))


def xla_kernels() -> Binary:
    return lambda x, y: jax.lax.optimization_barrier(x + y) - 1  # two kernels: nothing is fused over a barrier


PAIRS: Makers = {CALLABLE: our_callable, ONE_BY_ONE: our_kernels, XLA: xla_kernels, BRAINEVENT: brainevent_callable}
PAIRS_IN_PLACE: Makers = {
    CALLABLE + IN_PLACE: lambda: our_callable({0: 0}),
    ONE_BY_ONE + IN_PLACE: lambda: our_kernels({0: 0}),
}


def thrice(pair: Binary) -> Binary:
    """Return a step of six kernels."""

    def step(x: Any, y: Any) -> Any:
        for _ in range(3):
            x = jax.lax.optimization_barrier(pair(x, y))
        return x

    return step


# Programs


def unrolled(step: Binary) -> Binary:
    """Return a program of `UNROLLED` steps, one behind the other."""

    def program(x: Any, y: Any) -> Any:
        for _ in range(UNROLLED):
            x = jax.lax.optimization_barrier(step(x, y))
        return x

    return program


def looped(step: Binary, steps: int = LOOP) -> Binary:
    """Return a program that repeats a step in a ``fori_loop``."""
    return lambda x, y: jax.lax.fori_loop(0, steps, lambda _, value: step(value, y), x)


def prepare(title: str, makers: Makers, program: Callable[[Binary], Binary]) -> dict[str, functools.partial[Any]]:
    """Return the programs of the cases that work and give what XLA's gives; say of the others why not."""
    x, y = jnp.arange(SIZE, dtype=jnp.float32), jnp.full(SIZE, 2, jnp.float32)
    expected = jax.jit(program(makers[XLA]()))(x, y)
    cases: dict[str, functools.partial[Any]] = {}
    for name, make in makers.items():
        try:
            case = functools.partial(jax.jit(program(make())), x, y)
            np.testing.assert_allclose(case(), expected, rtol=1e-6)
        except Exception as error:  # noqa: BLE001  # whatever ails one, the others are measured
            said = f"{type(error).__name__}: {error}".strip().splitlines()[0]
            print(f"{title}: {name} is not measured: {said}")
        else:
            cases[name] = case
    return cases


def timed(cases: Mapping[str, Callable[[], Any]], per: int, calls: int, rounds: int) -> dict[str, list[float]]:
    """Time programs of *per* steps, those of brainevent by fewer calls; return seconds per step."""
    counts = {name: max(1, calls // 20) if name == BRAINEVENT else calls for name in cases}
    seconds = time_beside(cases, calls=counts, rounds=rounds)
    return {name: [value / per for value in values] for name, values in seconds.items()}


def over(seconds: Mapping[str, list[float]], name: str, peer: str) -> float | None:
    """Return how long *name* takes in terms of *peer*; None if one of both was not measured."""
    return ratio(seconds, name, peer) if {name, peer} <= seconds.keys() else None


def microseconds(seconds: Mapping[str, list[float]], name: str) -> float | None:
    """Return the median of *name*; None if it was not measured."""
    return statistics.median(seconds[name]) * 1e6 if name in seconds else None


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
    cases = prepare(f"{title}, a jitted call", ADDERS, lambda step: step)
    if OURS in cases:
        cases[f"{OURS}, eager"] = functools.partial(our_add(), *cases[OURS].args)
    seconds = timed(cases, 1, 1000, rounds)
    mark = Mark(f"{title}, a jitted call, over a jitted jnp.add", over(seconds, OURS, XLA), 1.15)
    yield Part(f"{title}, a call", seconds, [mark])


def measure_six_kernels(rounds: int) -> Iterator[Part]:
    """Time a step of six kernels in a loop, as a simulation has it."""
    title = f"six kernels a step, {STEPS} steps"
    makers = {OURS: our_kernels, XLA: xla_kernels}
    cases = prepare(title, makers, lambda pair: looped(thrice(pair), STEPS))
    seconds = timed(cases, STEPS, 1, rounds)
    yield Part(title, seconds, [Mark(f"{title}: a step", microseconds(seconds, OURS), 10, "µs")])


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


def measure_recording(rounds: int) -> Iterator[Part]:
    """Time how long a new shape takes to lower, its kernels being compiled already, beside an addition of XLA's."""
    title = "lowering for a new shape"
    makers: Makers = {f"{OURS}, kernel": our_add, CALLABLE: our_callable, XLA: lambda: lambda x, y: x + y}
    seconds: dict[str, list[float]] = {name: [] for name in makers}
    for counted in range(rounds + 1):  # as in `time_beside`: the first compiles the kernels and is not counted
        for name, make in makers.items():
            struct = _struct(10_007 + counted)
            start = time.perf_counter()
            jax.jit(make()).lower(struct, struct)
            if counted:
                seconds[name].append(time.perf_counter() - start)
    marks = []
    for name in (f"{OURS}, kernel", CALLABLE):
        beyond = statistics.median(ours - theirs for ours, theirs in zip(seconds[name], seconds[XLA], strict=True))
        marks.append(Mark(f"recording of {name}, beyond lowering jnp.add", beyond * 1e3, 5, "ms"))
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


PARTS: dict[str, Callable[[int], Iterator[Part]]] = {
    "one kernel": measure_one_kernel,
    "six kernels": measure_six_kernels,
    "callable": measure_callable,
    "recording": measure_recording,
    "several GPUs": measure_sharded,
}


def measure_cuda_calls(rounds: int, only: Collection[str] = tuple(PARTS)) -> list[Part]:
    """Measure on the GPU; a part that fails is one mark that does not hold."""
    found: list[Part] = []
    with jax.default_device(gpu_devices()[0]):
        for name in only:
            try:
                found.extend(PARTS[name](rounds))
            except Exception as error:  # noqa: BLE001  # the other parts are measured all the same
                print(f"{name}: it failed: {type(error).__name__}: {error}")
                found.append(Part(name, {}, [Mark(f"{name}: it failed", None, 0, "")]))
    return found


def plot(path: Path, parts: list[Part], described: Mapping[str, Any]) -> None:
    """Draw what the cases took, a chart for each part."""
    from matplotlib.figure import Figure

    heights = [len(part.seconds) for part in parts]
    figure = Figure(figsize=(9, 0.6 * len(parts) + 0.36 * sum(heights)), layout="constrained")
    charts = figure.subplots(len(parts), 1, height_ratios=heights, squeeze=False)[:, 0]
    for chart, part in zip(charts, parts, strict=True):
        values = {name: statistics.median(found) * 1e6 for name, found in reversed(part.seconds.items())}
        colors = ["#1f5fa8" if name.startswith(OURS) else "#b8c0cc" for name in values]
        bars = chart.barh(list(values), list(values.values()), color=colors)
        chart.bar_label(bars, [f" {value:.4g} µs" for value in values.values()])
        chart.set(xscale="log", title=f"{part.title}, µs", xlim=(min(values.values()) / 2, max(values.values()) * 4))
        chart.spines[["top", "right"]].set_visible(False)
    save_gpu_chart(figure, path, described)
