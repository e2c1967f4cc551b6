"""Arrays of plastic projections on a GPU, and the traces of spikes in these arrays.

A projection is plastic if a rule changes its weights. A trace is a sum over a neuron's earlier spikes that decays
exponentially. It is stored without its decay since the last step that is a multiple of its period, see `model.rules`.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numba
import numpy as np
from numba import cuda

from ...model.plastic_projections import Places
from ...model.rules import FORGOTTEN, LONGEST_PERIOD, PERIOD
from .delivery import THREADS
from .spikes import spike_of, write_count, write_spike


class Learning(NamedTuple):
    """The arrays of plastic projections in a kernel.

    Attributes:
      table, starts, entries, incoming_starts, incoming, numbers, words, shared: those of `run_inputs`.
      weights: the weights that the run changes.
      traces, last: for each block, a copy of all traces, and the steps of the last spikes.
      before: for each thread, the trace and age of its spike's source before this spike, in shared memory.
      factors: in shared memory, for two steps in turn and the traces of sources and of targets of each projection: the
        steps since the last multiple of the period, the decay since then, and the inverse of this decay.
      stride: the number of traces of a block.
      depth: the number of steps whose spikes may be on their way, the longest delay of a plastic projection.
    """

    table: Any
    starts: Any
    entries: Any
    incoming_starts: Any
    incoming: Any
    numbers: Any
    words: Any
    shared: Any
    weights: Any
    traces: Any
    last: Any
    before: Any
    factors: Any
    stride: Any
    depth: Any


class PastArrays(NamedTuple):
    """Traces, last spikes, and the spikes of the last steps, before and after a run."""

    traces: Any
    last: Any
    has_fired: Any
    next_traces: Any
    next_last: Any
    next_has_fired: Any


@cuda.jit(device=True, forceinline=True)
def places_of(table, number):
    """Return the `Places` of a projection."""
    # Numba builds a named tuple only from a call that lists its fields.
    return Places(
        np.int64(table[number, 0]), np.int64(table[number, 1]), np.int64(table[number, 2]), np.int64(table[number, 3]),
        np.int64(table[number, 4]), np.int64(table[number, 5]), np.int64(table[number, 6]), np.int64(table[number, 7]),
        np.int64(table[number, 8]), np.int64(table[number, 9]), np.int64(table[number, 10]),
        np.int64(table[number, 11]),
    )  # fmt: skip


@cuda.jit(device=True, forceinline=True)
def period_of(tau):
    """Return the period of traces, in steps."""
    return np.int32(min(max(np.float32(PERIOD) * tau, np.float32(1)), np.float32(LONGEST_PERIOD)))


@cuda.jit(device=True, forceinline=True)
def age_of(last, step):
    """Return the steps since a neuron's last spike, infinite if there was none."""
    return np.float32(math.inf) if last < 0 else np.float32(np.int32(step) - last)


@cuda.jit(device=True, forceinline=True)
def exp(value):
    """Return the exponential, float32."""
    return np.float32(math.exp(np.float32(value)))


@cuda.jit(device=True, forceinline=True)
def row_of(learning, records, t):
    """Return the row of the records for step *t* of a run, and the stamp of this step, see `spikes`."""
    return (t + learning.depth) & (records.shape[0] - 1), t + learning.depth + 1


@cuda.jit(device=True, forceinline=True)
def set_factors(learning, t, step):
    """Set the factors of step *t* of a run; all threads call it. The last warp acts, as it has the fewest neurons."""
    number, at = cuda.threadIdx.x - cuda.blockDim.x + 32, t & 1
    while 0 <= number < 2 * learning.numbers.shape[0]:
        projection, side = number >> 1, number & 1
        tau = learning.numbers[projection, side]
        since = np.float32(np.uint32(step) % np.uint32(period_of(tau)))
        learning.factors[at, projection, side, 0] = since
        learning.factors[at, projection, side, 1] = exp(-since / tau)
        learning.factors[at, projection, side, 2] = exp(since / tau)
        number += 32


@cuda.jit(device=True, forceinline=True)
def factors_of(learning, projection, side, t):
    """Return the factors of step *t* for the traces of sources (*side* is 0) or of targets (*side* is 1)."""
    at = t & 1
    return (
        learning.factors[at, projection, side, 0],
        learning.factors[at, projection, side, 1],
        learning.factors[at, projection, side, 2],
    )


@cuda.jit(device=True, forceinline=True)
def refer(traces, first, count, tau, since):
    """Multiply stored traces by the decay of a period if *since* is 0; all threads call it."""
    if since == np.float32(0):
        factor = exp(-np.float32(period_of(tau)) / tau)
        for i in range(first + cuda.threadIdx.x, first + count, cuda.blockDim.x):
            value = traces[np.uint64(i)] * factor
            traces[np.uint64(i)] = value if value >= np.float32(FORGOTTEN) else np.float32(0)
        cuda.syncthreads()


@cuda.jit(device=True, forceinline=True)
def open_past(learning, past, form, block, found, outs):
    """Fill the traces of a block, and the records of its spikes before the run; all threads call it."""
    thread, threads = cuda.threadIdx.x, cuda.blockDim.x
    count = past.last.shape[0]
    base = block.number * count
    for k in range(thread, count, threads):
        learning.traces[base + k], learning.last[base + k] = past.traces[k], past.last[k]
    for ago in range(learning.depth):
        row, stamp = row_of(learning, outs.records, np.int32(-1 - ago))
        cuda.syncthreads()
        if thread == 0:
            found[0] = 0
        cuda.syncthreads()
        for i in range(block.first + thread, block.stop, threads):
            if past.has_fired[ago, i] != 0:
                write_spike(form, block, outs, row, stamp, cuda.atomic.add(found, 0, 1), i)
        cuda.syncthreads()
        if thread == 0:
            write_count(form, block, outs, row, stamp, found[0])
    cuda.syncthreads()


@cuda.jit(device=True, forceinline=True)
def close_past(learning, past, form, block, steps, outs):
    """Write the traces of a block, and its spikes in the last steps; all threads call it.

    Block 0 writes the traces of all sources.
    """
    thread, threads = cuda.threadIdx.x, cuda.blockDim.x
    base = block.number * past.next_last.shape[0]
    for number in range(learning.table.shape[0]):
        at = places_of(learning.table, number)
        for k in range(thread, at.sources + at.targets, threads):
            target = at.first_target + k - at.sources
            if block.number == 0 if k < at.sources else block.first <= target < block.stop:
                past.next_traces[at.pre + k] = learning.traces[base + at.pre + k]
                past.next_last[at.pre + k] = learning.last[base + at.pre + k]
    for ago in range(learning.depth):
        row, _ = row_of(learning, outs.records, steps - 1 - ago)
        for k in range(thread, outs.records[row, 2 * block.number * form.slots], threads):
            past.next_has_fired[ago, spike_of(form, block, outs, row, k)] = 1


def shared_size(projections: int) -> int:
    """Return the bytes of the shared arrays for this number of plastic projections."""
    return 8 * THREADS + 48 * projections if projections else 0


def shared_arrays(projections: int) -> Any:
    """Return a device function that returns the shared arrays *before* and *factors* of `Learning`."""

    @cuda.jit(device=True, inline="always")
    def shared():
        before = cuda.shared.array(THREADS, numba.float32), cuda.shared.array(THREADS, numba.float32)
        return before, cuda.shared.array((2, projections, 2, 3), numba.float32)

    return shared
