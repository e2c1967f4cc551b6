"""A run whose blocks of threads add the entries of their own spikes to sums in memory that all blocks share.

This run is for networks in which a source has few entries in a block. In `simulation`, each block looks up a segment
of each spike, and most segments of such a network would be empty. Here, blocks instead meet at a barrier once in each
step, after they have added all entries of the step. Before the barrier, a block may add entries while another has not
read its sums of the same step; therefore there is one more row of sums for each receptor.

A block keeps the segments of its spikes in shared memory, and divides them among its warps.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import cuda

from ....kernels.cuda.device.memory import add_released, load, load_acquired, prefetch
from ...model.populations import Functions, tuple_of
from .arrays import begin_block, end_block, record_states
from .delivery import THREADS, Form, delivery
from .neurons import Block, BlockStep, Moment, neurons
from .spikes import recording


@cuda.jit(device=True, forceinline=True)
def _reach(barrier):
    """Count this block at the *barrier*; all threads call it. After `_wait`, all blocks see what the threads wrote."""
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        add_released(barrier, 0, 1)


@cuda.jit(device=True, forceinline=True)
def _wait(barrier, times):
    """Wait until all blocks have reached the *barrier* this many times; all threads call it."""
    if cuda.threadIdx.x == 0:
        # Both counts wrap in 32 bits; the sign of their difference is right nevertheless.
        wanted = np.int32(np.uint32(times) * np.uint32(cuda.gridDim.x))
        while np.int32(load_acquired(barrier, 0) - wanted) < 0:
            pass
    cuda.syncthreads()


@cuda.jit(device=True, forceinline=True)
def _spike_of(form, block, outs, row, number):
    return outs.lists[row, block.first + number]


def _scattering(wide: bool) -> Any:
    """Return a device function that adds the entries of a block's spikes."""
    _, load_entry, add_entry, _, _ = delivery(wide)

    @cuda.jit(device=True, forceinline=True)
    def scatter(form, block, head, count, sums, ins, outs, scratch):
        _, begins, lengths, _, _ = scratch
        warp, warps = cuda.threadIdx.x >> 5, cuda.blockDim.x >> 5
        # If there are fewer spikes than warps, several warps share a spike: a power of two, as divisions take longer.
        shift = 0
        while count << (shift + 1) <= warps and count > 0:
            shift += 1
        lane, step = cuda.threadIdx.x & (32 << shift) - 1, 32 << shift
        k = np.int64(warp >> shift)
        while k < count:
            if k < THREADS:
                begin, length = np.int64(np.uint32(begins[np.uint64(k)])), lengths[np.uint64(k)]
            else:
                spike = np.int64(outs.lists[0, block.first + k])
                begin = np.int64(load(ins.starts, spike))
                length = np.int32(np.int64(load(ins.starts, spike + 1)) - begin)
            number = np.int64(lane)
            while number < length:
                # Two entries at once, so that the loads overlap.
                bits, weight = load_entry(form, ins.entries, begin + number)
                other = number + step
                if other < length:
                    other_bits, other_weight = load_entry(form, ins.entries, begin + other)
                    add_entry(form, head, sums, other_bits, other_weight)
                add_entry(form, head, sums, bits, weight)
                number += 2 * step
            k += warps >> shift

    return scatter


def block_run(functions: Functions, receptors: int, wide: bool, held: tuple[int, bool]) -> Any:
    """Return a device function that makes all steps of a block; see `neurons` and `simulation` for the arguments."""
    at_once, in_registers = held
    record = recording(_spike_of, 0)
    words, scales_of, scatter = 2 if wide else 1, tuple_of(receptors), _scattering(wide)

    @cuda.jit(device=True, forceinline=True)
    def announce(step, number, i, segment):
        _, begins, lengths, _, _ = step.scratch
        begin, length = segment
        step.outs.lists[0, step.block.first + number] = i
        if number < THREADS:
            if not in_registers:
                begin = load(step.ins.starts, np.int64(i))
                length = load(step.ins.starts, np.int64(i) + 1) - begin
            begins[np.uint64(number)], lengths[np.uint64(number)] = np.int32(begin), np.int32(length)
            prefetch(step.ins.entries, words * np.int64(np.uint32(begin)), words * np.int64(np.uint32(length)))

    open_neurons, draw, update, store = neurons(
        functions, receptors, announce, at_once=at_once, in_registers=in_registers
    )

    @cuda.jit(device=True, forceinline=True)
    def run_block(which, form, number, sums, scratch, ins, outs, learning, past):
        thread, found = cuda.threadIdx.x, scratch[4]
        first, stop = np.int64(ins.edges[number]), np.int64(ins.edges[number + 1])
        block, scales = Block(np.int64(number), first, stop, ins.key[0], ins.key[1]), scales_of(ins.scales)
        own, barrier = sums[first:], outs.records[0]
        begin_block(form, block, own, ins, outs)
        form = Form(1, form.rows, form.width, form.target_bits, form.row_bits, form.slots, form.every)
        step, head, recorded = ins.first_step[0], 0, 0
        held_neurons = open_neurons(form, block, ins)
        if thread < 2:
            found[thread] = 0
        _reach(barrier)
        held_neurons = draw(block, held_neurons, 0, step)
        _wait(barrier, 1)
        for t in range(ins.series.shape[0]):
            parity, moment = t & 1, Moment(t, np.int64(step), head, 0, 0, 0)
            held_neurons = update(BlockStep(form, block, moment, scales, own, scratch, ins, outs), held_neurons)
            cuda.syncthreads()
            count = found[parity]
            head += receptors
            if head >= form.rows:
                head = 0
            scatter(form, block, head, count, sums, ins, outs, scratch)
            _reach(barrier)
            if thread == 0:
                found[1 - parity] = 0  # not read after `_reach`; the next step counts in it after `_wait`
            record(form, block, moment, count, ins.groups, outs)
            recorded = record_states(form, block, step, recorded, store, held_neurons, ins, outs)
            step += 1
            held_neurons = draw(block, held_neurons, t + 1, step)
            _wait(barrier, t + 2)
        store(block, outs.state, held_neurons)
        end_block(form, block, head, own, outs)

    return run_block
