"""`run_in_pieces`: long runs that report their progress, and that Ctrl-C ends without loss."""

from __future__ import annotations

import math
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np

from xlakernel.core.errors import ArgumentError, InputError

from ..operators.arguments import as_integer
from .model.noise import Normal, Poisson
from .model.recording import Record, Recording, Spikes
from .network import Network
from .state import NetworkState

#: The least room for the spikes of a piece.
_LEAST_ROOM = 1024
#: Seconds from one line of progress to the next.
_INTERVAL = 0.5


def run_in_pieces(
    network: Network,
    state: NetworkState,
    parameters: Any = None,
    key: jax.Array | None = None,
    *,
    steps: int,
    piece: int = 10_000,
    inputs: Any = None,
    plasticity: Any = None,
    record: Record | None = None,
    progress: bool | Callable[[NetworkState, Recording], object] = True,
    backend: str | None = None,
) -> tuple[NetworkState, Recording]:
    """Run a network for many steps in pieces, and report progress after each piece.

    The results are those of one `Network.run` for all steps, bit by bit. Ctrl-C ends the run after the current piece:
    a warning says how many steps were made, and the state after them and their recording are returned. Another run can
    continue from this state. A second Ctrl-C raises KeyboardInterrupt.

    Args:
      network: the network.
      state: from `Network.initial`, or from an earlier run.
      parameters: as for `Network.run`.
      key: a key of `jax.random`, or None, as for `Network.run`.
      steps: the number of steps, at least 1.
      piece: the number of steps of a piece, at least 1; rounded up to a multiple of all traces' *every*.
      inputs: for all steps, as for `Network.run`. NumPy arrays are moved to the device piece by piece.
      plasticity: for all steps, as for `Network.run`: numbers, or arrays ``(steps,)`` of any supported dtype.
      record: what to record; its room is for the spikes of all steps.
      progress: True for a line with the steps made, the time of a step and the time left; False for none; or a function
        that is called after each piece with the state and the recording of that piece.
      backend: as for `Network.run`.

    Returns:
      The state after the last step, and the `Recording` in NumPy arrays, which take no memory of a GPU.

    Raises:
      InputError: if *network* is of another type.
      ArgumentError: if an argument is invalid, or traced; inside of ``jax.jit`` and ``jax.vmap``, use `Network.run`.
      ShapeError: if a shape does not fit the population.
      DtypeError: if a field has a dtype that is not supported.
      CompileError: if Numba cannot compile a population's function, or if its results are not a state and a bool.
    """
    length = _check(network, state, (parameters, key, inputs, plasticity), piece, progress)
    record = Record() if record is None else record
    # Lists are not converted: JAX does not take them for arrays, and the checks below reject them.
    series = jax.tree.map(
        lambda values: values if isinstance(values, list) else np.asarray(values),
        (inputs, plasticity),
        is_leaf=lambda values: isinstance(values, list),
    )

    def run(network: Network, state: NetworkState, given: Any, series: Any, *, count: int, room: int) -> Any:
        of_piece = record._replace(spikes=room)
        inputs, plasticity = series
        return network.run(
            state, *given, steps=count, inputs=inputs, plasticity=plasticity, record=of_piece, backend=backend
        )

    # JAX traces a run of all steps here, for its checks; nothing is computed.
    jax.eval_shape(
        lambda inputs, plasticity: network.run(
            state, parameters, key, steps=steps, inputs=inputs, plasticity=plasticity, record=record, backend=backend
        ),
        *series,
    )
    traces: Any = record.trace.values() if isinstance(record.trace, Mapping) else [record.trace] * bool(record.trace)
    every = math.lcm(*(trace.every for trace in traces))
    steps, length, made = int(steps), min(-(-length // every) * every, int(steps)), int(state.step)
    run_piece = jax.jit(run, static_argnames=("count", "room"))
    left = int(record.spikes)
    room = min(left, max(_LEAST_ROOM, 2 * left * length // steps))
    found: list[Recording] = []
    report = _progress_line(made, steps, length) if progress is True else progress
    with _deferred_interrupts() as interrupts:
        for first in range(0, steps, length):
            count = min(length, steps - first)
            values = tuple(_slice(part, first, first + count) for part in series)
            while True:
                following, recording = run_piece(network, state, (parameters, key), values, count=count, room=room)
                total = int(recording.spikes.total)
                if min(total, left) <= room:
                    break
                room = min(record.spikes, 2 * total)  # then the piece is run again, with the same results
            found.append(_on_host(recording, min(total, left)))
            state, left = following, left - min(total, left)
            if report:
                report(state, found[-1])
            if interrupts:
                break
    if progress is True:
        sys.stdout.write("\n")
    if interrupts:
        warnings.warn(
            f"run_in_pieces: interrupted after {first + count} of {steps} steps. The returned state and recording are "
            "those of the steps made.",
            stacklevel=2,
        )
    return state, _join(found, record.spikes)


def _check(network: Any, state: Any, given: Any, piece: Any, progress: Any) -> int:
    """Return the number of steps of a piece; the other arguments are checked by `Network.run`."""
    if not isinstance(network, Network):
        raise InputError(f"run_in_pieces: the network is a {type(network).__name__}; allowed: a Network.")
    if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves((network, state, given))):
        raise ArgumentError(
            "run_in_pieces: an argument is traced; allowed: arrays, as progress is reported between the pieces. Use "
            "Network.run inside of jax.jit and jax.vmap."
        )
    if not isinstance(progress, bool) and not callable(progress):
        raise ArgumentError(f"run_in_pieces: progress is {progress!r}; allowed: True, False, or a function.")
    length = as_integer(piece)
    if length is None or length < 1:
        raise ArgumentError(f"run_in_pieces: piece is {piece!r}; allowed: an integer of at least 1.")
    return length


def _slice(series: Any, first: int, stop: int) -> Any:
    """Return the values of some steps; random inputs and numbers are returned as they are."""

    def of_steps(values: Any) -> Any:
        return values if isinstance(values, Poisson | Normal) or np.ndim(values) == 0 else values[first:stop]

    return jax.tree.map(of_steps, series, is_leaf=lambda values: isinstance(values, Poisson | Normal))


@contextmanager
def _deferred_interrupts() -> Iterator[Sequence[int]]:
    """Provide a list of the interrupts so far. The first is only added to it; later ones are handled as before, too.

    Python handles signals only in the main thread; in other threads the list stays empty.
    """
    seen: list[int] = []
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield seen
        return

    def handle(number: int, frame: Any) -> None:
        seen.append(number)
        if len(seen) > 1:
            before(number, frame)

    signal.signal(signal.SIGINT, handle)
    try:
        yield seen
    finally:
        signal.signal(signal.SIGINT, before)


def _progress_line(first_step: int, steps: int, length: int) -> Callable[[NetworkState, Recording], None]:
    """Return a function that overwrites a line with the steps made, the time of a step, and the time left.

    The time of a step excludes the first piece and a shorter last piece, whose times include compilation.
    """
    before, last, written = 0, 0.0, 0.0
    elapsed, counted = 0.0, 0

    def report(state: NetworkState, _: Recording) -> None:
        nonlocal before, last, written, elapsed, counted
        now, done = time.perf_counter(), int(state.step) - first_step
        if before and done - before == length:
            elapsed, counted = elapsed + now - last, counted + length
        before, last = done, now
        line = f"{done} of {steps} steps"
        if counted:
            line += f", {elapsed / counted * 1e6:.3g} µs a step"
        if counted and done < steps:
            line += f", {elapsed / counted * (steps - done):.0f} s left"
        if done == steps or now - written > _INTERVAL:
            written = now
            sys.stdout.write(f"\r{line:<60}")
            sys.stdout.flush()

    return report


def _on_host(recording: Recording, count: int) -> Recording:
    """Return a piece's recording in NumPy arrays, with the first *count* spikes."""
    host: Any = jax.tree.map(np.asarray, recording)
    step, neuron, total = host.spikes
    # Copied, as a view would keep the array of the whole room.
    return Recording(host.counts, Spikes(step[:count].copy(), neuron[:count].copy(), total), host.trace)


def _join(found: Sequence[Recording], room: int) -> Recording:
    """Return the joint recording of consecutive pieces."""

    def fill(parts: Sequence[Any]) -> Any:
        spikes = np.full(room, -1, np.int32)
        together = np.concatenate(parts)
        spikes[: together.size] = together
        return spikes

    steps, neurons, totals = zip(*(recording.spikes for recording in found), strict=True)
    total: Any = np.asarray(min(sum(int(each) for each in totals), 2**31 - 1)).astype(np.int32)
    trace: Any = jax.tree.map(lambda *parts: np.concatenate(parts), *(recording.trace for recording in found))
    counts: Any = np.concatenate([recording.counts for recording in found])
    return Recording(counts, Spikes(fill(steps), fill(neurons), total), trace)
