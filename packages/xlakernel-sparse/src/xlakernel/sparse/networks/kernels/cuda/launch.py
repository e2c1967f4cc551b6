"""The launch of the GPU's kernel: threads, shared memory, and the arrays that only the kernel needs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from numba import cuda

from xlakernel.cuda import numba_cuda_kernel

from ....kernels.cuda.launches import shared_bytes
from ...layout import Layout
from ...model.plastic_projections import Plastic
from ...model.populations import Part, functions_of
from .delivery import THREADS
from .neurons import ALIGNMENT
from .simulation import simulation
from .traces import shared_size

#: Bytes of shared memory for everything but the sums and the arrays of plastic projections.
_BESIDES = 9 * 1024
#: The fewest and the most words of a record: the number of a block's spikes in a step, and the first of these spikes.
#: One warp reads all words of a record.
_SLOTS = (4, 32)
#: Neurons of a block for each word of its record. If not all spikes fit in the record, reading takes another round.
_NEURONS_OF_A_SLOT = 200
#: The most neurons whose states a thread keeps in registers, and the most threads of such a block. If blocks share
#: their sums, a thread has more neurons, so that more loads overlap.
_HELD, _HELD_SCATTERED = (2, THREADS), (5, 768)
#: The most neurons whose states a thread loads from memory at once.
_MOST_LOADED = 4
#: The fewest threads of a block: without plastic projections, and with them, whose synapses the threads share.
_LEAST_THREADS, _THREADS_OF_PLASTICITY = 64, 384


def run(
    outs: Sequence[Any],
    *,
    parts: tuple[Part, ...],
    plastic: tuple[Plastic, ...],
    layout: Layout,
    every: int,
    is_random: bool,
    batched: bool,
) -> Callable[..., Any]:
    """Return a function that makes a run, with the inputs and results of the kernel in `kernels.numba.simulation`.

    If *batched*, a batch is one launch, and all of its blocks must be resident at once.
    """
    # This product is rounded, and never fused with an addition.
    product = cuda.libdevice.fmul_rn
    functions = tuple(functions_of(part, layout.receptors, is_random, product) for part in parts)
    pending, state, counts, steps, _, total, traces, *learned = outs
    last, has_fired = learned[2:]
    room, size = steps.shape[0], layout.size
    slots = _SLOTS[0]
    while slots < _SLOTS[1] and slots * _NEURONS_OF_A_SLOT < layout.width:
        slots *= 2
    # At least two warps: unless blocks share their sums, all warps but the first record spikes.
    least = _THREADS_OF_PLASTICITY if plastic else _LEAST_THREADS
    scattered = layout.scattered
    words, limits = (0, _HELD_SCATTERED) if scattered else (slots * layout.blocks, _HELD)
    threads, held = _threads(layout.width, words, least, *limits)
    memory = layout.rows * layout.width
    in_shared = not scattered and 4 * memory <= shared_bytes() - _BESIDES - shared_size(len(plastic))
    sums = (layout.rows + len(layout.receptors)) * layout.size if scattered else layout.blocks * memory
    kernel = simulation(
        functions,
        len(layout.receptors),
        ahead=layout.ahead,
        joined=next((number for number, one in enumerate(plastic) if one.delay == layout.ahead), None),
        wide=layout.wide,
        scattered=scattered,
        threads=threads,
        held=held,
        in_shared=in_shared,
        batched=batched,
        rules=tuple(one.functions for one in plastic),
    )
    # A power of two: the row of a step is then found by a bitwise and.
    rows = 1 << (layout.ahead + max(layout.ahead, has_fired.shape[0]) - 1).bit_length()
    struct = jax.ShapeDtypeStruct
    # A block may write spikes of later steps before another block writes those of an earlier step. So there is space
    # for all spikes of the step in which the room is filled, and of the *ahead* steps after it.
    written = struct((room + (1 + layout.ahead) * size if room else 0,), jnp.int32)
    launch = numba_cuda_kernel(
        kernel,
        (
            pending,
            state,
            counts,
            written,
            written,
            total,
            traces,
            *learned,
            # Blocks that share their sums need only a barrier, which is one number, and a list of their own spikes.
            struct((1, 1) if scattered else (rows, 2 * layout.blocks * slots), jnp.int32),
            struct((1, size) if scattered else (rows, 2 * size), jnp.int32),
            struct((0 if in_shared else sums,), jnp.int32),
            struct((layout.blocks * last.shape[0],), jnp.float32),
            struct((layout.blocks * last.shape[0],), jnp.int32),
        ),
        grid=layout.blocks,
        block=threads,
        shared_mem=4 * memory if in_shared else 0,
        output_init=(None, None, 0, -1, -1, 0, None, None, None, None, 0, 0, 0, None, None, None),
        batch_axis="y" if batched else None,
    )
    call = functools.partial(
        launch, width=layout.stride, target_bits=layout.target_bits, row_bits=layout.row_bits, slots=slots, every=every
    )

    def simulate(*ins: jax.Array) -> Any:
        pending, state, counts, steps, neurons, total, traces, *learned = call(*ins)
        if room:
            steps, neurons = _ordered(steps, neurons, room)
        # The kernel's sum wraps to negative numbers.
        total = jnp.where(total < 0, jnp.iinfo(jnp.int32).max, total)
        return pending, state, counts, steps, neurons, total, traces, *learned[:4]

    return simulate


def _threads(width: int, words: int, least: int, most_held: int, most: int) -> tuple[int, tuple[int, bool]]:
    """Return the number of threads of a block, and *at_once* and *in_registers* of `neurons`.

    If one neuron for each thread suffices, there are threads for all *words* of the records, if possible, so that they
    are read at once. With two to *most_held* neurons for each, the threads are as few as possible, at most *most*, and
    so have more registers. With more neurons, states are in memory.
    """
    places = width + ALIGNMENT - 1
    count = -(-places // most)
    if count > most_held:
        return THREADS, (min(-(-places // THREADS), _MOST_LOADED), False)
    wanted = max(places, min(words, THREADS)) if count == 1 else -(-places // count)
    return max(least, -(-wanted // 32) * 32), (count, True)


def _ordered(steps: jax.Array, neurons: jax.Array, room: int) -> tuple[jax.Array, jax.Array]:
    """Return the first *room* spikes, in order of step and neuron."""
    last = jnp.iinfo(jnp.int32).max
    # Unused places have the step -1, and are sorted to the end.
    key = jnp.where(steps < 0, last, steps)
    key, neurons = jax.lax.sort((key, neurons), num_keys=2)
    return jnp.where(key == last, -1, key)[:room], neurons[:room]
