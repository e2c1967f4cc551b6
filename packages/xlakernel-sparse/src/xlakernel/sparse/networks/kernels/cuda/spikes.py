"""Spikes of a block in a step: their number and the first few in its record, and the others in its list.

Each word, the number or a spike's neuron, is stored together with a stamp, which says in which step it was written.
Readers wait for this stamp.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import cuda

from ....kernels.cuda.device.memory import prefetch, store_stamped


def announcing(wide: bool) -> Any:
    """Return the function ``announce(step, number, i, segment)`` of `neurons` that writes a spike for other blocks.

    The function starts to load the segment's entries into L2, while the spike is on its way to the other blocks.
    """
    words = 2 if wide else 1

    @cuda.jit(device=True, forceinline=True)
    def announce(step, number, i, segment):
        form, block, moment, _, _, _, ins, outs = step
        write_spike(form, block, outs, moment.row, moment.stamp, number, i)
        prefetch(ins.starts, i * form.blocks, form.blocks + 1)
        prefetch(ins.entries, words * np.int64(segment[0]), words * np.int64(segment[1]))

    return announce


@cuda.jit(device=True, forceinline=True)
def write_spike(form, block, outs, row, stamp, number, neuron):
    """Write the spike with this *number* among those of a block into a *row* of the records or lists."""
    if number < form.slots - 1:
        store_stamped(outs.records[row], block.number * form.slots + 1 + number, stamp, neuron)
    else:
        store_stamped(outs.lists[row], block.first + number, stamp, neuron)


@cuda.jit(device=True, forceinline=True)
def write_count(form, block, outs, row, stamp, count):
    """Write the number of a block's spikes, which is known after all of them are written."""
    store_stamped(outs.records[row], block.number * form.slots, stamp, count)


@cuda.jit(device=True, forceinline=True)
def spike_of(form, block, outs, row, number):
    """Return the neuron of a spike that the block itself wrote."""
    if number < form.slots - 1:
        return outs.records[row, 2 * (block.number * form.slots + 1 + number)]
    return outs.lists[row, 2 * (block.first + number)]


def recording(spike_of: Any, first: int) -> Any:
    """Return a function ``record(form, block, moment, found, groups, outs)`` that records a block's *found* spikes.

    Args:
      spike_of: a function with the arguments of `spike_of` that returns the neuron of a spike.
      first: the first thread that records; all threads may call ``record``.
    """

    @cuda.jit(device=True, forceinline=True)
    def record(form, block, moment, found, groups, outs):
        thread, threads = cuda.threadIdx.x - first, cuda.blockDim.x - first
        are_listed, are_counted = outs.spike_steps.size > 0, outs.counts.shape[1] > 0
        if not are_listed and thread == 0 and found > 0:
            cuda.atomic.add(outs.spike_count, 0, found)
        if thread >= 0 and (are_listed or are_counted):
            k = np.int64(thread)
            while k < found:
                spike = spike_of(form, block, outs, moment.row, k)
                if are_counted and groups[spike] >= 0:
                    cuda.atomic.add(outs.counts, (moment.t, groups[spike]), 1)
                if are_listed:
                    at = cuda.atomic.add(outs.spike_count, 0, 1)
                    if 0 <= at < outs.spike_steps.size:
                        outs.spike_steps[at], outs.spike_neurons[at] = moment.step, spike
                k += threads

    return record
