"""Networks of spiking neurons in one call: microseconds of a step of 0.1 ms.

Building and compiling are timed apart. Beside the published records of other simulators, which are in the comments of
the targets, plain JAX and peers are not measured yet.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import jax
from _harness import Mark, arguments, machine, parse, print_marks, slug, summary, write_json
from _network_models import STEP, Model, coba, microcircuit
from _plastic_model import plastic_network

#: Model, keywords, whether it takes random numbers, steps on the CPU and on a GPU, and the targets, in microseconds a
#: step. Elsewhere: microcircuit 27.2 µs (GeNN on an RTX 4090), COBA 53 and 89 µs (brainevent on an H100).
MODELS: dict[str, tuple[Callable[..., Model], dict[str, object], bool, tuple[int, int], dict[str, float]]] = {
    "COBA, 4 000 neurons": (coba, {"n": 4_000}, False, (2_000, 10_000), {"cpu": 10, "cuda": 2.5}),
    "COBA, 400 000 neurons": (coba, {"n": 400_000}, False, (100, 2_000), {"cuda": 6}),
    "microcircuit, Poisson input": (microcircuit, {}, True, (100, 10_000), {"cpu": 800, "cuda": 5}),
    "balanced, 11 250 neurons": (plastic_network, {"plastic": False}, True, (200, 10_000), {}),
    # The targets are twice the time of the network with constant weights, and on a GPU a tenth of real time.
    "balanced, plastic": (plastic_network, {}, True, (200, 10_000), {"cuda": 10}),
    "microcircuit, constant input": (microcircuit, {"noise": False}, False, (100, 10_000), {"cpu": 400}),
}


def measure(name: str, platform: str, rounds: int) -> tuple[dict[str, float], list[float], list[Mark]]:
    """Return seconds of building and of the first call, seconds a step in each round, and what must hold."""
    make, keywords, is_random, steps_of, targets = MODELS[name]
    steps = steps_of[platform == "cuda"]
    start = time.perf_counter()
    model = make(**keywords)
    jax.block_until_ready(model.network)
    built = time.perf_counter() - start
    state, key = model.network.initial(model.neurons), jax.random.key(0) if is_random else None
    run = jax.jit(
        lambda network, state: network.run(
            state, model.parameters, key, steps=steps, inputs=model.inputs, plasticity=model.plasticity
        )
    )
    seconds = []
    for _ in range(rounds + 1):
        start = time.perf_counter()
        jax.block_until_ready(run(model.network, state))
        seconds.append((time.perf_counter() - start) / steps)
    median = sorted(seconds[1:])[rounds // 2] * 1e6
    marks = [Mark(f"{name} ({platform})", median, targets[platform], "us")] if platform in targets else []
    return {"build": built, "first call": seconds[0] * steps}, seconds[1:], marks


def main() -> int:
    """Measure, print, write; return the exit status."""
    parser = arguments(__doc__)
    parser.add_argument("--only", nargs="+", choices=list(MODELS), default=list(MODELS), help="models to measure (all)")
    options = parse(parser)
    holds = True
    for platform in options.platforms:
        apart, times, marks = {}, {}, []
        with jax.default_device(jax.local_devices(backend=platform)[0]):
            for name in options.only:
                apart[name], times[name], found = measure(name, platform, options.rounds)
                marks += found
                median = summary({name: times[name]})[name]["median"]
                factor = median / (STEP * 1e3)
                print(
                    f"{name} ({platform}): {median:.4g} µs a step, {factor:.3g} of real time; {apart[name]}", flush=True
                )
        holds = print_marks(marks) and holds
        if options.out is not None:
            described = machine()
            content = {
                "machine": described,
                "seconds": apart,
                "microseconds": {"A step of 0.1 ms": summary(times)},
                "marks": [mark.as_dict() for mark in marks],
            }
            print("written:", write_json(options.out, f"networks-{slug(described, platform)}", content))
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
