"""Neurons of a block of threads: their states, their random inputs, and their steps.

A thread keeps the states of a few neurons in registers, or loads the states of a few neurons at once from memory. With
states in registers, thread *k* has the neuron ``first // 4 * 4 + k``, where *first* is the first neuron of the block,
and then every neuron that follows at the distance of the number of threads. So four neurons that share the words of
random numbers are in neighbouring lanes of a warp. Each lane computes the words of the four neurons for one of four
steps, and the lanes exchange these words.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np
from numba import cuda

from ....kernels.cuda.device.memory import load
from ....kernels.cuda.device.warp import ALL
from ...model.populations import Functions
from ...random.generator import Generator

#: With states in registers, the number of the first thread's first neuron is a multiple of this number.
ALIGNMENT = 4


class Inputs(NamedTuple):
    """The arrays that a run reads; see `kernels.numba.simulation`."""

    starts: Any
    entries: Any
    edges: Any
    scales: Any
    pending: Any
    state: Any
    parameters: Any
    shared: Any
    series: Any
    shared_series: Any
    key: Any
    first_step: Any
    groups: Any
    probes: Any
    probe_words: Any


class Outputs(NamedTuple):
    """The arrays that a run writes; *records* and *lists* have the spikes of the last steps, see `spikes`."""

    pending: Any
    state: Any
    counts: Any
    spike_steps: Any
    spike_neurons: Any
    spike_count: Any
    traces: Any
    records: Any
    lists: Any


class Block(NamedTuple):
    """A block: its number, its first neuron and the one after its last, and the key of the random numbers."""

    number: Any
    first: Any
    stop: Any
    key0: Any
    key1: Any


class Moment(NamedTuple):
    """A step of a block: *t* is its number in this run, and *step* its number since the network's first step.

    *head* is the first row of sums for this step, and *behind* for the step after the one whose spikes are delivered.
    *row* and *stamp* are those of the records in which this step writes spikes, see `spikes`.
    """

    t: Any
    step: Any
    head: Any
    behind: Any
    row: Any
    stamp: Any


class BlockStep(NamedTuple):
    """The numbers and arrays of a block in a step; *scratch* has the kernel's arrays in shared memory."""

    form: Any
    block: Any
    moment: Any
    scales: Any
    ring: Any
    scratch: Any
    ins: Any
    outs: Any


class Neurons(NamedTuple):
    """Device functions for the neurons of a block. *held* is a tuple of what the thread keeps in registers.

    Attributes:
      open: ``open(form, block, ins)`` returns *held* before the first step; *ins* are `Inputs`.
      draw: ``draw(block, held, t, step)`` returns *held* with the random inputs of a step; all threads call it.
      update: ``update(step, held)`` advances all neurons of the block by a `BlockStep`, announces their spikes, and
        returns the next *held*.
      store: ``store(block, states, held)`` writes the states that are in registers.
    """

    open: Any
    draw: Any
    update: Any
    store: Any


def _of_each(count: int, function: Any) -> Any:
    """Return a device function ``of_each(given, i, parts)`` that calls *function* for *count* neurons of a thread.

    The first neuron is *i*. The result is a tuple of ``function(given, i, part)`` for each neuron and its part.
    """
    if count == 0:
        return cuda.jit(device=True, forceinline=True)(lambda given, i, parts: ())
    rest = _of_each(count - 1, function)

    @cuda.jit(device=True, forceinline=True)
    def of_each(given, i, parts):
        return (function(given, i, parts[0]), *rest(given, i + cuda.blockDim.x, parts[1:]))

    return of_each


@functools.cache
def _transposing(count: int) -> Any:
    """Return a device function that transposes the words of *count* random inputs."""
    if count == 0:
        return cuda.jit(device=True, forceinline=True)(lambda words: ())
    rest = _transposing(count - 1)

    @cuda.jit(device=True, forceinline=True)
    def transpose(words):
        return (_transposed(words[0]), *rest(words[1:]))

    return transpose


@cuda.jit(device=True, forceinline=True)
def _exchange(one, other, distance):
    """Exchange *other* of the lower with *one* of the upper of two lanes at this distance, 1 or 2."""
    is_upper = cuda.threadIdx.x & distance != 0
    got = cuda.shfl_xor_sync(ALL, one if is_upper else other, distance)
    return (got, other) if is_upper else (one, got)


@cuda.jit(device=True, forceinline=True)
def _transposed(words):
    """Transpose the four words of four lanes: return word ``lane & 3`` of each of these lanes."""
    a, b, c, d = words
    a, b = _exchange(a, b, 1)
    c, d = _exchange(c, d, 1)
    a, c = _exchange(a, c, 2)
    b, d = _exchange(b, d, 2)
    return a, b, c, d


@cuda.jit(device=True, forceinline=True)
def _generator(block, i, step):
    return Generator(block.key0, block.key1, np.uint32(i), np.uint32(step))


@cuda.jit(device=True, forceinline=True)
def _first_of_thread(block):
    return (block.first & -ALIGNMENT) + cuda.threadIdx.x


def neurons(functions: Functions, receptors: int, announce: Any, *, at_once: int, in_registers: bool) -> Neurons:
    """Return the device functions for the neurons of a population.

    Args:
      functions: the `Functions` of the population.
      receptors: the number of receptors.
      announce: ``announce(step, number, i, segment)`` announces the spike of neuron *i*; *number* is that of the spike
        among the block's. *segment* is the neuron's first entry (stored synapse) and the number of its entries, uint32.
        Both are 0 if states are in memory: reading them would then take longer than the rest.
      at_once: the number of neurons that a thread loads at once, or for which it draws random inputs at once.
      in_registers: True if these are all neurons of a thread, with states in registers; False for states in memory.
    """
    advance = _advance(functions, receptors, announce)
    return (_in_registers if in_registers else _in_memory)(functions, advance, at_once)


class _Advance(NamedTuple):
    """Device functions for a step of neuron *i*.

    ``arrived(step, i)`` loads the sums that arrive. ``advance(step, i, state, ...)`` announces a spike, if the neuron
    fires, and returns the next state. A thread loads for several neurons before it advances any of them.
    """

    arrived: Any
    advance: Any


def _advance(functions: Functions, receptors: int, announce: Any) -> _Advance:
    inputs_of, arrived_of, update = functions.inputs, functions.arrived, functions.update

    @cuda.jit(device=True, forceinline=True)
    def place(step, i):
        return step.moment.head * step.form.width + i - step.block.first

    @cuda.jit(device=True, forceinline=True)
    def arrived(step, i):
        return arrived_of(step.ring, place(step, i), step.form.width, step.scales)

    @cuda.jit(device=True, forceinline=True)
    def advance(step, i, state, sums, parameters, noise, segment):
        form, block, moment, _, ring, scratch, ins, _ = step
        following, fired = update(
            state,
            sums,
            parameters,
            inputs_of(ins.series[moment.t], ins.shared_series[moment.t], i, noise),
            _generator(block, i, moment.step),
        )
        at = place(step, i)
        for receptor in range(receptors):
            ring[np.uint64(at + receptor * form.width)] = 0
        if fired:
            announce(step, cuda.atomic.add(scratch[4], moment.t & 1, 1), i, segment)
        return following

    return _Advance(arrived, advance)


def _in_memory(functions: Functions, advance: _Advance, count: int) -> Neurons:
    """Return the functions for neurons whose states are in memory."""
    load_state, store_state, parameters_of = functions.load, functions.store, functions.parameters
    prepare, draw_inputs, are_equal = functions.prepare, functions.draw, functions.are_equal
    arrived, advance_one = advance
    places = tuple(range(count))

    @cuda.jit(device=True, forceinline=True)
    def constants_of(ins, i):
        return parameters_of(ins.parameters, ins.shared, i), prepare(ins.parameters, ins.shared, i)

    @cuda.jit(device=True, forceinline=True)
    def open_(form, block, ins):
        return constants_of(ins, block.first)

    @cuda.jit(device=True, forceinline=True)
    def draw(block, held, t, step):
        return held

    @cuda.jit(device=True, forceinline=True)
    def load_one(given, i, place):
        step, held = given
        i = min(i, step.block.stop - 1)
        constants = held if are_equal else constants_of(step.ins, i)
        return load_state(step.outs.state, step.outs.state, i), arrived(step, i), constants

    @cuda.jit(device=True, forceinline=True)
    def update_one(step, i, one):
        state, sums, constants = one
        if i < step.block.stop:
            noise = draw_inputs(constants[1], _generator(step.block, i, step.moment.step))
            segment = np.uint32(0), np.uint32(0)
            store_state(step.outs.state, i, advance_one(step, i, state, sums, constants[0], noise, segment))
        return 0

    load_all, update_all = (_of_each(count, one) for one in (load_one, update_one))

    @cuda.jit(device=True, forceinline=True)
    def update(step, held):
        block = step.block
        i = block.first + cuda.threadIdx.x
        while i < block.stop:
            update_all(step, i, load_all((step, held), i, places))
            i += count * cuda.blockDim.x
        return held

    @cuda.jit(device=True, forceinline=True)
    def store(block, states, held):
        pass

    return Neurons(open_, draw, update, store)


def _in_registers(functions: Functions, advance: _Advance, count: int) -> Neurons:
    """Return the functions for *count* neurons of a thread, with states, parameters and random inputs in registers.

    Threads without a neuron draw random inputs as well, as they compute words that other lanes need.
    """
    load_state, store_state, parameters_of = functions.load, functions.store, functions.parameters
    prepare = functions.prepare
    four_words, draw_four, zero, choose, inputs = functions.four
    transposed = _transposing(inputs)
    arrived, advance_one = advance
    places = tuple(range(count))

    @cuda.jit(device=True, forceinline=True)
    def within(block, i):
        return min(max(i, block.first), block.stop - 1)  # a thread without a neuron reads the values of another neuron

    @cuda.jit(device=True, forceinline=True)
    def open_one(given, i, place):
        form, block, ins = given
        i = within(block, i)
        begin, end = load(ins.starts, i * form.blocks), load(ins.starts, (i + 1) * form.blocks)
        segment = np.uint32(begin), np.uint32(end - begin)
        constants = parameters_of(ins.parameters, ins.shared, i), prepare(ins.parameters, ins.shared, i), segment
        return load_state(ins.state, ins.state, i), constants, zero()

    @cuda.jit(device=True, forceinline=True)
    def draw_one(given, i, one):
        block, step = given
        state, constants, _ = one
        words = transposed(four_words(_generator(block, i, step + (i & 3))))
        return state, constants, draw_four(constants[1], words, _generator(block, i, step))

    @cuda.jit(device=True, forceinline=True)
    def load_one(step, i, one):
        return one, arrived(step, within(step.block, i))

    @cuda.jit(device=True, forceinline=True)
    def update_one(step, i, loaded):
        (state, constants, noise), sums = loaded
        if step.block.first <= i < step.block.stop:
            state = advance_one(step, i, state, sums, constants[0], choose(noise, step.moment.t), constants[2])
        return state, constants, noise

    @cuda.jit(device=True, forceinline=True)
    def store_one(given, i, one):
        block, states = given
        if block.first <= i < block.stop:
            store_state(states, i, one[0])
        return 0

    open_all, draw_all, load_all, update_all, store_all = (
        _of_each(count, one) for one in (open_one, draw_one, load_one, update_one, store_one)
    )

    @cuda.jit(device=True, forceinline=True)
    def open_(form, block, ins):
        return open_all((form, block, ins), _first_of_thread(block), places)

    @cuda.jit(device=True, forceinline=True)
    def draw(block, held, t, step):
        if t & 3 == 0 and inputs:
            held = draw_all((block, step), _first_of_thread(block), held)
        return held

    @cuda.jit(device=True, forceinline=True)
    def update(step, held):
        first = _first_of_thread(step.block)
        return update_all(step, first, load_all(step, first, held))

    @cuda.jit(device=True, forceinline=True)
    def store(block, states, held):
        store_all((block, states), _first_of_thread(block), held)

    return Neurons(open_, draw, update, store)
