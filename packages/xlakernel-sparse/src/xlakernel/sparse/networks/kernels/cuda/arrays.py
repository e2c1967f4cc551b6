"""Arrays of a block of threads: those of its network in a batch, its sums, and copies at the beginning and the end."""

from __future__ import annotations

import functools
from typing import Any

import numba
from numba import cuda


@functools.cache
def slices(batched: bool) -> Any:
    """Return a device function that returns one network's part of an array: all of it unless *batched*."""
    if batched:

        @cuda.jit(device=True, inline="always")
        def slice_of(array, number):
            return array[number]
    else:

        @cuda.jit(device=True, inline="always")
        def slice_of(array, number):
            return array

    return slice_of


@functools.cache
def sums_of_block(in_shared: bool, scattered: bool) -> Any:
    """Return a device function that returns the sums of a block, or those of all blocks if they are *scattered*."""
    if scattered:

        @cuda.jit(device=True, inline="always")
        def sums_of(memory, block, length):
            return memory
    elif in_shared:

        @cuda.jit(device=True, inline="always")
        def sums_of(memory, block, length):
            return cuda.shared.array(0, numba.int32)
    else:

        @cuda.jit(device=True, inline="always")
        def sums_of(memory, block, length):
            return memory[block * length : (block + 1) * length]

    return sums_of


@cuda.jit(device=True, forceinline=True)
def begin_block(form, block, ring, ins, outs):
    """Copy the sums of a block into *ring*, with 0 in further rows of *ring*, and the states of the block's neurons."""
    thread, threads, size = cuda.threadIdx.x, cuda.blockDim.x, block.stop - block.first
    for k in range(thread, form.rows * size, threads):
        row, i = k // size, k % size
        ring[row * form.width + i] = ins.pending[row, block.first + i] if row < ins.pending.shape[0] else 0
    for i in range(block.first + thread, block.stop, threads):
        for word in range(ins.state.shape[0]):
            outs.state[word, i] = ins.state[word, i]


@cuda.jit(device=True, forceinline=True)
def end_block(form, block, head, ring, outs):
    """Write the sums of a block; *head* is the row of *ring* for the next step."""
    size = block.stop - block.first
    for k in range(cuda.threadIdx.x, outs.pending.shape[0] * size, cuda.blockDim.x):
        row, i = k // size, k % size
        outs.pending[row, block.first + i] = ring[(head + row) % form.rows * form.width + i]


@cuda.jit(device=True, forceinline=True)
def record_states(form, block, step, recorded, store, held, ins, outs):
    """Record states of a block if this step is to be recorded; return the number of recorded steps."""
    if form.every == 0 or (step + 1) % form.every != 0:
        return recorded
    store(block, outs.state, held)
    cuda.syncthreads()
    for k in range(cuda.threadIdx.x, ins.probes.size, cuda.blockDim.x):
        if block.first <= ins.probes[k] < block.stop:
            outs.traces[recorded, k] = outs.state[ins.probe_words[k], ins.probes[k]]
    return recorded + 1
