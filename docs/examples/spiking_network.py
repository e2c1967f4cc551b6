"""A spiking network in one native call, its raster plot, and the speed beside plain JAX.

Leaky integrate-and-fire neurons, 80 % excitatory, connected at random with 2 % probability through
conductance-based synapses: the "COBA" benchmark of Brette et al. (2007), after Vogels and Abbott
(2005). `xlakernel.sparse.networks` runs pieces of many steps, each in one call, with a line of
progress. The same network is then a step in ``jax.lax.scan``, in plain ``jax.numpy``, and the first
spikes and the rates of both are compared::

    python spiking_network.py
    python spiking_network.py --neurons 20000 --seconds 0.5 --seed 1 --out raster.png

It needs xlakernel-sparse and matplotlib. Other sizes keep the connection probability and scale the
weights by 4000 / neurons, one over the number of inputs, which keeps the mean conductance at a
given rate. The fluctuations around it do change: small networks fire faster, large ones slower.

References:
  Vogels and Abbott (2005), J. Neurosci. 25:10786, doi:10.1523/JNEUROSCI.3508-05.2005
  Brette et al. (2007), J. Comput. Neurosci. 23:349, doi:10.1007/s10827-007-0038-6
  Vogels et al. (2011), Science 334:1569, doi:10.1126/science.1211095
"""

import argparse
import math
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numba
import numpy as np
from jax import Array, lax
from matplotlib.figure import Figure

from xlakernel.sparse import CSR
from xlakernel.sparse.networks import Network, Population, Projection, Record, run_in_pieces

# Times in ms, potentials in mV, conductances in units of the leak conductance. Values of Brette et
# al. (2007), benchmark 1, with the weights of the authors' Brian script (6 nS and 67 nS to 10 nS).
DT, TAU_M, REFRACTORY = 0.1, 20.0, 5.0
E_LEAK, V_THRESHOLD, V_RESET = -60.0, -50.0, -60.0
E_EXCITATORY, E_INHIBITORY = 0.0, -80.0
TAU_SYNAPSE = np.array([[5.0], [10.0]], np.float32)  # first excitatory, then inhibitory
WEIGHT = np.array([[0.6], [6.7]], np.float32)  # at 4000 neurons
# 200 pA into 10 nS, as in Vogels et al. (2011). The benchmark has no drive: its activity sustains
# itself, but may end by chance, and ends within 0.2 s in the scaled network of 20 000 neurons.
DRIVE = 20.0
CONNECTIVITY, EXCITATORY = 0.02, 0.8

MIN_NEURONS, MAX_NEURONS = 100, 300_000  # two inputs to a neuron; synapses numbered in int32
BYTES_PER_SYNAPSE = 40  # at the peak, while connecting
PIECE = 1000  # steps of a native call between two reports of progress
TIMED = 10_000  # steps of the call that is timed
CHUNK = 200  # steps between two looks at the progress
PLAIN_BUDGET = 5.0  # s, after which a plain version is stopped
SAME = 5.0  # ms, for which all versions must agree
MAX_DOTS = 200_000  # in the raster; with more spikes only every k-th neuron is drawn

# ---- the network


class State(NamedTuple):
    v: Array  # (n,) mV
    g: Array  # (2, n) excitatory and inhibitory conductance
    refractory: Array  # (n,) steps left
    arrivals: Array  # (2, n) spikes that arrive in the next step; whole numbers: sums are exact


class Synapses(NamedTuple):
    """Neuron ``i`` projects to ``targets[offsets[i]:offsets[i + 1]]``."""

    offsets: np.ndarray  # (n + 1,) int32
    targets: np.ndarray  # (synapses,) int32


class Run(NamedTuple):
    events: np.ndarray  # int64, ascending: step * n + neuron of each spike
    steps: int
    speed: float  # steps per second, without compilation


def excitatory_count(n: int) -> int:
    return round(EXCITATORY * n)


def connect(n: int, rng: np.random.Generator) -> Synapses:
    """Connect each ordered pair of different neurons with probability ``CONNECTIVITY``.

    The gaps between the successes of a coin are geometric. Drawing those takes memory for the
    synapses that exist, not for the pairs that could.
    """
    pairs = n * (n - 1)
    mean = pairs * CONNECTIVITY
    pair = rng.geometric(CONNECTIVITY, int(mean + 10 * math.sqrt(mean)))
    np.cumsum(pair, out=pair)
    pair = pair[: np.searchsorted(pair, pairs, side="right")] - 1
    offsets = np.searchsorted(pair, np.arange(n + 1) * (n - 1)).astype(np.int32)
    source, target = np.divmod(pair, n - 1)
    return Synapses(offsets, (target + (target >= source)).astype(np.int32))


def initial_state(n: int, rng: np.random.Generator) -> State:
    """Start near the working point, as the authors' Brian script does."""
    v = np.minimum(rng.normal(-65.0, 5.0, n), V_THRESHOLD).astype(np.float32)
    g = rng.normal([[4.0], [20.0]], [[1.5], [12.0]], (2, n)).clip(0.0).astype(np.float32)
    return State(*map(jnp.asarray, (v, g, np.zeros(n, np.int32), np.zeros((2, n), np.float32))))


def advance(state: State) -> tuple[Array, Array, Array, Array]:
    """Advance the neurons by ``DT``, by backward Euler: stable at any conductance."""
    weight = WEIGHT * np.float32(4000 / state.v.size)
    g = np.exp(-DT / TAU_SYNAPSE) * state.g + weight * state.arrivals
    drift = E_LEAK + DRIVE + g[0] * E_EXCITATORY + g[1] * E_INHIBITORY
    v = (state.v + DT / TAU_M * drift) / (1.0 + DT / TAU_M * (1.0 + g[0] + g[1]))
    v = jnp.where(state.refractory > 0, V_RESET, v)
    spiked = v >= V_THRESHOLD
    refractory = jnp.where(spiked, round(REFRACTORY / DT), jnp.maximum(state.refractory - 1, 0))
    return jnp.where(spiked, V_RESET, v), g, refractory, spiked


# ---- all steps in one call


class Neuron(NamedTuple):
    """The state of one neuron; as arrays, of all."""

    v: Any
    excitation: Any
    inhibition: Any
    refractory: Any


class Constants(NamedTuple):
    """Numbers of a neuron in single precision, in which the literals of a function are not."""

    rate: Any = np.float32(DT / TAU_M)
    one: Any = np.float32(1)
    rest: Any = np.float32(E_LEAK + DRIVE)
    decay_excitation: Any = np.float32(np.exp(-DT / TAU_SYNAPSE[0, 0]))
    decay_inhibition: Any = np.float32(np.exp(-DT / TAU_SYNAPSE[1, 0]))
    excitatory: Any = np.float32(E_EXCITATORY)
    inhibitory: Any = np.float32(E_INHIBITORY)
    threshold: Any = np.float32(V_THRESHOLD)
    reset: Any = np.float32(V_RESET)
    refractory: Any = np.int32(round(REFRACTORY / DT))


@numba.njit
def integrate(state, arrived, p, rng):
    """Advance one neuron as `advance` does all."""
    excitation = p.decay_excitation * state.excitation + arrived.excitation
    inhibition = p.decay_inhibition * state.inhibition + arrived.inhibition
    drift = p.rest + excitation * p.excitatory + inhibition * p.inhibitory
    v = (state.v + p.rate * drift) / (p.one + p.rate * (p.one + excitation + inhibition))
    if state.refractory > 0:
        v = p.reset
    fired = v >= p.threshold
    refractory = p.refractory if fired else max(state.refractory - 1, 0)
    return Neuron(p.reset if fired else v, excitation, inhibition, refractory), fired


def make_network(synapses: Synapses) -> Network:
    offsets, targets = synapses
    n = offsets.size - 1
    middle = excitatory_count(n)
    projections = []
    for kind, (first, stop) in enumerate([(0, middle), (middle, n)]):
        weight = WEIGHT[kind] * np.float32(4000 / n)
        own, rows = targets[offsets[first] : offsets[stop]], offsets[first : stop + 1] - offsets[first]
        matrix = CSR(tuple(map(jnp.asarray, (weight, own, rows))), shape=(stop - first, n))
        receptor = ("excitation", "inhibition")[kind]
        projections.append(Projection(matrix, 1, receptor, source=slice(first, stop)))
    return Network(Population(integrate, n), projections)


def simulate_in_one_call(synapses: Synapses, state: State, steps: int) -> Run:
    n = state.v.size
    network = make_network(synapses)
    begin = network.initial(Neuron(state.v, *state.g, state.refractory))
    record = Record(spikes=math.ceil(n * steps / round(REFRACTORY / DT)) + n)
    run = partial(run_in_pieces, network, begin, Constants(), steps=steps, piece=PIECE, record=record)
    _, recording = run()
    # Again, a part of it, without compilation and progress.
    part = min(steps, TIMED)
    compiled = jax.jit(lambda network, state: network.run(state, Constants(), steps=part, record=record))
    jax.block_until_ready(compiled(network, begin))
    start = time.perf_counter()
    jax.block_until_ready(compiled(network, begin))
    speed = part / (time.perf_counter() - start)
    step, neuron, total = recording.spikes
    return Run((step.astype(np.int64) * n + neuron)[:total], steps, speed)


# ---- delivering spikes with plain jax.numpy
#
# All that was tried, in steps/s for the default network on two cores; the neurons without any
# delivery do 200 000.
#     loop over the spikes: find the next by a reduction, scatter its row     55 000
#         find it by a two-level search instead                               65 000
#         add a dense int8 row of the n x n matrix instead                    45 000
#         find at most 16 at once by top_k, loop when there are more          40 000
#         find it by argmax and clear it                                      32 000
#         find all by nonzero                                                 12 000
#     gather the inputs of each neuron from a padded table and sum             6 000
#     segment_sum over all synapses                                            2 000
#     dense matrix times vector, float32 (int8 and bfloat16: slower)             400
# Run here: the first, close to the fastest, readable, and without n x n memory; and the gather, the
# usual way of writing it, whose cost does not depend on the number of spikes.


def padded_table(offsets: np.ndarray, values: np.ndarray, fill: int) -> np.ndarray:
    """Lay the rows of a CSR structure out as a rectangle."""
    length = np.diff(offsets)
    table = np.full((length.size, length.max(initial=1)), fill, np.int32)
    table[np.arange(table.shape[1]) < length[:, None]] = values
    return table


def event_table(synapses: Synapses) -> np.ndarray:
    """For each neuron, where in the flattened arrivals it adds; ``2 * n`` is nowhere."""
    n = synapses.offsets.size - 1
    table = padded_table(*synapses, fill=2 * n)
    inhibitory = table[excitatory_count(n) :]
    inhibitory[inhibitory < n] += n
    return table


def deliver_loop(spiked: Array, table: Array) -> Array:
    n = spiked.size
    events = jnp.where(spiked, jnp.arange(n), -1)

    def last_before(i: Array | int) -> Array:
        return jnp.max(jnp.where(events < i, events, -1))

    def add(carry: tuple[Array, Array]) -> tuple[Array, Array]:
        arrivals, i = carry
        return arrivals.at[table[i]].add(1.0, mode="promise_in_bounds"), last_before(i)

    start = jnp.zeros(2 * n + 1, jnp.float32), last_before(n)
    arrivals, _ = lax.while_loop(lambda carry: carry[1] >= 0, add, start)
    return arrivals[:-1].reshape(2, n)


def input_tables(synapses: Synapses) -> list[np.ndarray]:
    """For each neuron, its excitatory inputs, and its inhibitory ones; ``n`` is none."""
    neurons = np.arange(synapses.offsets.size, dtype=np.int32)
    order = np.argsort(synapses.targets, kind="stable")
    source = np.repeat(neurons[:-1], np.diff(synapses.offsets))[order]
    target = synapses.targets[order]
    excitatory = source < excitatory_count(neurons[-1])
    return [
        padded_table(np.searchsorted(target[kind], neurons), source[kind], neurons[-1])
        for kind in (excitatory, ~excitatory)
    ]


def deliver_gather(spiked: Array, tables: list[Array]) -> Array:
    inputs = jnp.append(spiked.astype(jnp.float32), 0.0).at
    return jnp.stack([inputs[table].get(mode="promise_in_bounds").sum(1) for table in tables])


# ---- running it


def show_progress(label: str, done: int, steps: int, speed: float) -> None:
    line = f"  {label:21} {done:6} of {steps} steps, {speed:7,.0f} steps/s"
    if sys.stdout.isatty():
        print(f"\r{line}", end="\n" if done == steps else "", flush=True)
    elif done * 4 // steps > max(done - CHUNK, 0) * 4 // steps:  # a line for each quarter
        print(line, flush=True)


def simulate(
    label: str,
    deliver: Callable[[Array, Any], Array],
    connections: Any,
    state: State,
    steps: int,
    budget: float = math.inf,
) -> Run:
    """Run ``steps`` steps, or as many as fit into ``budget`` seconds.

    ``deliver(spiked, connections)`` counts the spikes that reach each neuron in the next step.
    They pass through the scan's carry: what is stored cannot be fused with the arithmetic of the
    neurons, so that it rounds alike whatever delivers.
    """

    def step(connections: Any, state: State) -> tuple[State, Array]:
        v, g, refractory, spiked = advance(state)
        return State(v, g, refractory, deliver(spiked, connections)), spiked

    @jax.jit
    def run_chunk(connections: Any, state: State) -> tuple[State, Array]:
        return lax.scan(lambda state, _: step(connections, state), state, length=CHUNK)

    connections = jax.tree.map(jnp.asarray, connections)
    compiled = run_chunk.lower(connections, state).compile()
    chunks, done, seconds, speed = [], 0, 0.0, 0.0
    while done < steps and seconds < budget:
        start = time.perf_counter()
        state, spiked = jax.block_until_ready(compiled(connections, state))
        seconds += time.perf_counter() - start
        events = np.flatnonzero(np.asarray(spiked)[: steps - done])
        chunks.append(events + done * state.v.size)
        done = min(done + CHUNK, steps)
        speed = len(chunks) * CHUNK / seconds
        show_progress(label, done, steps, speed)
    if done < steps:
        print("\n" * sys.stdout.isatty() + f"  stopped after {seconds:.0f} s")
    return Run(np.concatenate(chunks), done, speed)


def report(label: str, plain: Run, ours: Run, n: int) -> bool:
    """Print how a plain version compares; return whether its spikes agree.

    The compilers round differently, and the network is chaotic: after some time the spikes differ.
    """
    expected = ours.events[: np.searchsorted(ours.events, plain.steps * n)]
    count = min(expected.size, plain.events.size)
    differ = np.flatnonzero(plain.events[:count] != expected[:count])
    until = (expected[differ[0]] // n if differ.size else plain.steps) * DT
    same = until >= min(plain.steps * DT, SAME)
    print(
        f"{label}: {plain.speed:,.0f} steps/s, one call is {ours.speed / plain.speed:.1f} times as "
        f"fast; {'the same' if same else 'NOT THE SAME'} spikes for {until:.1f} ms "
        f"({plain.events.size} and {expected.size} in {plain.steps * DT:g} ms)"
    )
    return same


def plot_raster(run: Run, n: int, path: Path) -> str:
    """Write the raster plot; return the mean rates, in words."""
    step, neuron = np.divmod(run.events, n)
    n_excitatory, duration = excitatory_count(n), run.steps * DT
    bins = np.append(np.arange(0.0, duration - DT / 2, 5.0), duration)
    drawn = neuron % (1 + run.events.size // MAX_DOTS) == 0
    figure = Figure(figsize=(10, 6.5), layout="constrained")
    raster, rate = figure.subplots(2, 1, sharex=True, height_ratios=[3, 1])
    words = [f"mean rate {run.events.size / n / duration * 1e3:.1f} Hz"]
    for label, color, chosen, count in (
        ("excitatory", "#1f5fa8", neuron < n_excitatory, n_excitatory),
        ("inhibitory", "#c8372d", neuron >= n_excitatory, n - n_excitatory),
    ):
        dots = chosen & drawn
        raster.plot(step[dots] * DT, neuron[dots], ".", ms=1.8, mew=0, color=color)
        spikes, _ = np.histogram(step[chosen] * DT, bins)
        rate.stairs(spikes / count / np.diff(bins) * 1e3, bins, color=color, label=label, lw=1.2)
        words.append(f"{label} {spikes.sum() / count / duration * 1e3:.1f} Hz")
    raster.set(ylabel="neuron", ylim=(-0.5, n - 0.5), title=f"{n} neurons, {words[0]}")
    rate.set(xlabel="time (ms)", ylabel="rate (Hz)", xlim=(0.0, duration), ylim=(0.0, None))
    rate.legend(loc="lower right", ncols=2, frameon=False)
    figure.savefig(path, dpi=150)
    return ", ".join(words)


# ---- the command line


def number(kind: type, least: float, most: float, what: str) -> Callable[[str], Any]:
    def parse(text: str) -> Any:
        try:
            value = kind(text)
        except ValueError:
            value = math.nan
        if not least <= value <= most:  # NaN ends here too
            bounds = f"{what} from {least:g} to {most:g}"
            raise argparse.ArgumentTypeError(f"expected {bounds}, got {text!r}")
        return value

    return parse


def png_path(text: str) -> Path:
    path = Path(text)
    if path.suffix.lower() != ".png":
        raise argparse.ArgumentTypeError(f"expected a file name ending in .png, got {text!r}")
    try:
        existed = path.exists()
        path.open("ab").close()  # permission bits do not tell all: a read-only file system, say
        if not existed:
            path.unlink()
    except (OSError, ValueError) as error:
        raise argparse.ArgumentTypeError(f"cannot write {text!r}: {error}") from None
    return path


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    for option, parse, default, text in (
        ("--neurons", number(int, MIN_NEURONS, MAX_NEURONS, "a whole number"), "4000", "how many"),
        ("--seconds", number(float, DT * 1e-3, 1e6, "a number"), "1", "biological time"),
        ("--out", png_path, "spiking_network.png", "raster plot to write"),
        ("--seed", number(int, 0, 2**63, "a whole number"), "0", "of network and initial state"),
    ):
        parser.add_argument(option, type=parse, default=default, help=f"{text} ({default})")
    options = parser.parse_args(arguments)
    n, seconds = options.neurons, options.seconds
    # 40 bytes a spike, were all neurons to fire as fast as their refractory period lets them
    needed = n**2 * CONNECTIVITY * BYTES_PER_SYNAPSE + n * seconds * 1e3 / REFRACTORY * 40
    memory = 0.8 * os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if needed > memory:
        parser.error(
            f"--neurons {n} for --seconds {seconds:g} may need {needed / 1e9:,.1f} GB of memory, "
            f"and {memory / 1e9:,.1f} GB are allowed (80 % of this machine's); ask for less"
        )
    return options


def compare(n: int, steps: int, seed: int, out: Path) -> bool:
    """Run all versions of one network; return whether their spikes agree."""
    rng = np.random.default_rng(seed)
    synapses, state = connect(n, rng), initial_state(n, rng)
    print(f"{n} neurons, {synapses.targets.size} synapses, {steps * DT:g} ms in steps of {DT} ms")

    ours = simulate_in_one_call(synapses, state, steps)
    rates = plot_raster(ours, n, out)
    versions = (
        ("jax.numpy, spike loop", deliver_loop, event_table),
        ("jax.numpy, gather", deliver_gather, input_tables),
    )
    plain = {
        label: simulate(label, deliver, prepare(synapses), state, steps, PLAIN_BUDGET)
        for label, deliver, prepare in versions
    }
    print(f"{rates}; raster plot in {out}\none call: {ours.speed:,.0f} steps/s")
    same = [report(label, run, ours, n) for label, run in plain.items()]
    return all(same)


def main(arguments: list[str] | None = None) -> int:
    options = parse_arguments(arguments)
    steps = round(options.seconds * 1e3 / DT)
    with jax.default_device(jax.local_devices(backend="cpu")[0]):  # the kernel is one for the CPU
        same = compare(options.neurons, steps, options.seed, options.out)
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
