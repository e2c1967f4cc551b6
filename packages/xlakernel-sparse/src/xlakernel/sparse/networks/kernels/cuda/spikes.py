"""Spikes of a block in a step: their number and the first few in its record, and the others in its list.

Each word follows the number of its step, the stamp, for which its readers wait.
"""

from __future__ import annotations

from numba import cuda

from ....kernels.cuda.device.memory import store_stamped


@cuda.jit(device=True, forceinline=True)
def write_spike(form, block, outs, row, stamp, number, neuron):
    """Write the spike with this *number* among those of a block into a *row* of the records or lists."""
    if number < form.slots - 1:
        store_stamped(outs.records[row], block.number * form.slots + 1 + number, stamp, neuron)
    else:
        store_stamped(outs.lists[row], block.first + number, stamp, neuron)


@cuda.jit(device=True, forceinline=True)
def write_count(form, block, outs, row, stamp, count):
    """Write the number of a block's spikes, after all of them."""
    store_stamped(outs.records[row], block.number * form.slots, stamp, count)


@cuda.jit(device=True, forceinline=True)
def spike_of(form, block, outs, row, number):
    """Return the neuron of a spike that the block itself wrote."""
    if number < form.slots - 1:
        return outs.records[row, 2 * (block.number * form.slots + 1 + number)]
    return outs.lists[row, 2 * (block.first + number)]


@cuda.jit(device=True, forceinline=True)
def record_spikes(form, block, moment, found, groups, outs):
    """Record the spikes of a block, by all warps but the first."""
    for k in range(cuda.threadIdx.x - 32, found, cuda.blockDim.x - 32):
        spike = spike_of(form, block, outs, moment.row, k)
        if outs.counts.shape[1] > 0 and groups[spike] >= 0:
            cuda.atomic.add(outs.counts, (moment.t, groups[spike]), 1)
        if outs.spike_steps.size == 0:
            cuda.atomic.add(outs.spike_count, 0, 1)
        else:
            at = cuda.atomic.add(outs.spike_count, 0, 1)
            if 0 <= at < outs.spike_steps.size:
                outs.spike_steps[at], outs.spike_neurons[at] = moment.step, spike
