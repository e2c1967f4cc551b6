"""What transformations of a wrapped kernel cost: batches, gradients, exported programs, and memory.

    python benchmarks/transforms.py [--platform cpu] [--rounds 15] [--only light-batch …] [--out benchmarks/results]
                                    [--quick]

Everything here is measured on the CPU, also where there is a GPU.
All cases of a part are timed in turn, round by round; a ratio is the median of the rounds' ratios. The exit status is 1
if a mark does not hold. A part is a function in `PARTS` that returns what its cases took, and its marks.
"""

from __future__ import annotations

import functools
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from _fresh import measure, measure_first_call
from _harness import (
    Mark,
    Part,
    arguments,
    machine,
    parse,
    print_marks,
    print_table,
    ratio,
    save_chart,
    slug,
    summary,
    time_beside,
    write_json,
)
from _kernels import add_kernel, decay_kernel, decay_vjp_kernel, exp_kernel

from xlakernel.numba import numba_kernel


def first(x: Any, *_: Any) -> Any:
    """Give the result the shape and dtype of the first input."""
    return x


ROWS, COLUMNS = 1000, 16
BATCH, FLAT, SEQUENTIAL, XLA = "vmap", "one call on all of it", "vmap, sequential", "vmap of jnp.add"


def measure_light_batch(rounds: int) -> Part:
    """Time a batch whose slices are so light that the way from one to the next counts."""
    x = jnp.arange(ROWS * COLUMNS, dtype=jnp.float32).reshape(ROWS, COLUMNS)
    y = jnp.ones_like(x)
    add = numba_kernel(add_kernel, outs=first)
    mapped = {
        BATCH: jax.vmap(add),
        SEQUENTIAL: jax.vmap(numba_kernel(add_kernel, outs=first, vmap_method="sequential")),
        XLA: jax.vmap(jnp.add),
    }
    cases = {name: functools.partial(jax.jit(function), x, y) for name, function in mapped.items()}
    cases[FLAT] = functools.partial(jax.jit(add), x.ravel(), y.ravel())
    for name, case in cases.items():
        np.testing.assert_array_equal(case().ravel(), (x + y).ravel(), err_msg=name)
    seconds = time_beside(cases, calls={name: 200 if name == SEQUENTIAL else 2000 for name in cases}, rounds=rounds)
    allowed = [1.5 * flat + ROWS * 20e-9 for flat in seconds[FLAT]]
    marks = [
        Mark(
            f"vmap of {ROWS} × {COLUMNS} floats, over 1.5 × one call on all plus 20 ns a row",
            ratio({**seconds, "allowed": allowed}, BATCH, "allowed"),
            1,
        ),
        Mark(
            f"vmap of {ROWS} × {COLUMNS} floats, over vmap_method='sequential'",
            ratio(seconds, BATCH, SEQUENTIAL),
            1 / 8,
        ),
    ]
    return Part(f"a batch of {ROWS} × {COLUMNS} floats", seconds, marks)


SLICES, LENGTH = 64, 100_000
CALLS = 3
ONE_CORE, TWO_CORES = "1 core", "2 cores"


def measure_heavy_batch(rounds: int) -> Part:
    """Time a batch that is worth several threads, in a process that has one core and in one that has two."""
    title = f"a batch of {SLICES} × {LENGTH} floats of exp"
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        print(f"This process has one core: {title} cannot be measured.")
        return Part(title, {}, [Mark(f"{title} on 2 cores, over 1 core: there is one core", 1, 1 / 1.7)])
    with _serve(cores[:1]) as one, _serve(cores[:2]) as two:
        servers = {ONE_CORE: one, TWO_CORES: two}
        seconds: dict[str, list[float]] = {name: [] for name in servers}
        for counted in range(rounds + 1):  # as in `time_beside`: in turn, the first not counted
            for name, server in servers.items():
                value = _ask(server)
                if counted:
                    seconds[name].append(value)
        for server in servers.values():
            _stdin(server).close()
    mark = Mark(f"{title} on 2 cores, over 1 core", ratio(seconds, TWO_CORES, ONE_CORE), 1 / 1.7)
    return Part(title, seconds, [mark])


def _serve(cores: list[int]) -> subprocess.Popen[str]:
    """Start a process on *cores* that answers each line with a measurement.

    It is pinned before it imports JAX: XLA counts the cores that it has when it makes its threads.
    """
    folder = str(Path(__file__).parent)
    script = (
        f"import os, sys; os.sched_setaffinity(0, {cores}); sys.path.insert(0, {folder!r}); "
        "import transforms; transforms.serve_heavy_batch()"
    )
    return subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _stdin(server: subprocess.Popen[str]) -> Any:
    assert server.stdin is not None
    return server.stdin


def _ask(server: subprocess.Popen[str]) -> float:
    _stdin(server).write("\n")
    _stdin(server).flush()
    assert server.stdout is not None
    return float(server.stdout.readline())


def serve_heavy_batch() -> None:
    """Answer each line of the input with the seconds that a call takes."""
    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        x = jnp.linspace(-5, 5, SLICES * LENGTH, dtype=jnp.float32).reshape(SLICES, LENGTH)
        program = jax.jit(jax.vmap(numba_kernel(exp_kernel, outs=first)))
        np.testing.assert_allclose(program(x), jnp.exp(x), rtol=1e-5)
        for _ in sys.stdin:
            start = time.perf_counter()
            for _ in range(CALLS):
                program(x).block_until_ready()
            print((time.perf_counter() - start) / CALLS, flush=True)


LENGTHS = (16, 16_000)
GRAD, KERNELS, REFERENCE = "grad through vjp=", "the two kernels", "grad through reference="


def measure_gradient(rounds: int) -> Part:
    """Time a gradient whose reverse pass is a kernel, beside calls of both kernels."""
    backwards = numba_kernel(decay_vjp_kernel, outs=first)

    def vjp(primals: Any, _: Any, cotangents: Any) -> Any:
        return backwards(*primals, cotangents)

    run = numba_kernel(decay_kernel, outs=first, vjp=vjp)

    def in_jax(x: Any) -> Any:
        def step(total: Any, value: Any) -> Any:
            total = 0.9 * total + value
            return total, total * total

        return jax.lax.scan(step, jnp.zeros((), x.dtype), x)[1]

    def value_and_pullback(function: Callable[..., Any]) -> Callable[..., Any]:
        def both(x: Any, cotangent: Any) -> Any:
            value, pullback = jax.vjp(function, x)
            return value, pullback(cotangent)[0]

        return both

    programs = {
        GRAD: jax.jit(value_and_pullback(run)),
        KERNELS: jax.jit(lambda x, cotangent: (run(x), backwards(x, cotangent))),
        REFERENCE: jax.jit(value_and_pullback(numba_kernel(decay_kernel, outs=first, reference=in_jax))),
    }
    seconds: dict[str, list[float]] = {}
    marks = []
    for length in LENGTHS:
        x = jnp.linspace(-1, 1, length)
        cases = {f"{name}, {length}": functools.partial(program, x, x) for name, program in programs.items()}
        expected = value_and_pullback(in_jax)(x, x)
        for name, case in cases.items():
            jax.tree.map(
                functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5, err_msg=name), case(), expected
            )
        calls = {name: max(2, int(2000 / (1 + length / 200))) for name in cases}
        seconds |= time_beside(cases, calls=calls, rounds=rounds)
        value = ratio(seconds, f"{GRAD}, {length}", f"{KERNELS}, {length}")
        marks.append(Mark(f"value and gradient of {length} floats through vjp=, over the two kernels", value, 1.3))
    return Part("a gradient", seconds, marks)


def measure_exported(rounds: int) -> Part:
    """Time the first call of an exported program in a new process that has imported JAX and Numba."""
    found = measure_first_call(max(3, rounds // 3))
    seconds = {name: [one[name] for one in found] for name in found[0]}
    total = statistics.median(sum(one.values()) for one in found)
    mark = Mark("load and first call in a new process, beyond importing jax and numba", total, 2.0, "s")
    return Part("an exported program", seconds, [mark])


def measure_memory(_: int) -> Part:
    """Measure by how much the resident memory grows."""
    found = measure("memory_growth")
    return Part(
        "memory",
        {},
        [Mark(f"growth of the resident memory in {name}", grown, 5.0, "MB") for name, grown in found.items()],
    )


PARTS: dict[str, Callable[[int], Part]] = {
    "light-batch": measure_light_batch,
    "heavy-batch": measure_heavy_batch,
    "gradient": measure_gradient,
    "exported": measure_exported,
    "memory": measure_memory,
}


def plot(path: Path, parts: list[Part], described: dict[str, Any]) -> None:
    """Draw what the cases took, a chart for each part."""
    from matplotlib.figure import Figure

    heights = [len(part.seconds) for part in parts]
    figure = Figure(figsize=(9, 1.2 + 0.6 * sum(heights)), layout="constrained")
    charts = figure.subplots(len(parts), 1, height_ratios=heights, squeeze=False)[:, 0]
    for chart, part in zip(charts, parts, strict=True):
        values = {name: statistics.median(found) * 1e6 for name, found in reversed(part.seconds.items())}
        bars = chart.barh(list(values), list(values.values()), color="#1f5fa8")
        chart.bar_label(bars, [f" {value:.4g} µs" for value in values.values()])
        chart.set(title=f"{part.title}, µs", xlim=(0, 1.25 * max(values.values())))
        chart.spines[["top", "right"]].set_visible(False)
    save_chart(figure, path, described)


def main() -> int:
    """Measure, print, write; return the exit status."""
    parser = arguments(__doc__)
    parser.add_argument("--only", nargs="+", choices=list(PARTS), default=list(PARTS), help="parts to measure (all)")
    options = parse(parser)
    if "cpu" not in options.platforms:
        print("Nothing of this is measured on a GPU.")
        return 0

    load = [os.getloadavg()[0]]
    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        parts = {name: PARTS[name](options.rounds) for name in options.only}
    load.append(os.getloadavg()[0])
    measured = {name: part for name, part in parts.items() if part.seconds}
    for part in measured.values():
        print_table(f"{part.title}, µs", summary(part.seconds))
    marks = [mark for part in parts.values() for mark in part.marks]
    holds = print_marks(marks)
    if options.out is not None:
        described = machine()
        content = {
            "machine": described,
            "load_before_and_after": load,
            "microseconds": {name: summary(part.seconds) for name, part in measured.items()},
            "marks": [mark.as_dict() for mark in marks],
        }
        path = write_json(options.out, f"transforms-{slug(described)}", content)
        if measured:
            plot(path.with_suffix(".png"), list(measured.values()), described)
        print(f"\nwritten: {path} and .png")
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
