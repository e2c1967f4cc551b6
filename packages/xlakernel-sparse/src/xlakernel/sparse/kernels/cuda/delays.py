"""Delivery of events with delays: the rows of active events are added to the slots of a ring, in place."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from numba import cuda

from xlakernel.cuda import numba_cuda_kernel

from .device.memory import add_to, load
from .device.numbers import in_memory, kind_of
from .device.terms import counts, term, weight_at
from .device.tiles import LANES, active_tiles_of, empty_list
from .launches import blocks_of, kept_whole, multiprocessors, places_of

_THREADS = 512
_BLOCKS = 2  # on a multiprocessor, for numbers of 32 bits
_SHARES = _THREADS // LANES
_LEAST = 64  # places of a share, at least; see `places_of`


@cuda.jit(device=True, forceinline=True)
def _slot(delay: Any, t: Any, slots: Any) -> Any:
    """Return the slot of a delay; *t* is a slot, and the delay any integer."""
    delay = np.int64(delay)
    if delay < 0 or delay >= slots:  # as for traced delays only
        delay = (delay % slots + slots) % slots
    slot = t + delay
    return slot - slots if slot >= slots else slot


@functools.cache
def _kernel(operand: str, kind: type, homogeneous: bool, one_delay: bool) -> Any:
    of, is_active = term(operand, kind), counts(operand)
    weight, delay_at = weight_at(homogeneous=homogeneous), weight_at(homogeneous=one_delay)

    @cuda.jit(device=True, forceinline=True)
    def active(x: Any, row: Any) -> Any:
        return is_active(load(x, row))

    @cuda.jit(device=True, forceinline=True)
    def place(k: Any, to: Any) -> Any:
        _, indices, delays, _, _, t, slots, columns = to
        return _slot(delay_at(delays, k), t, slots) * columns + np.int64(load(indices, k))

    @cuda.jit(device=True, forceinline=True)
    def take(row: Any, first: Any, last: Any, to: Any) -> None:
        data, _, _, x, ring, _, _, _ = to
        value = load(x, row)
        k = first + cuda.laneid
        while k + 96 < last:  # a thread loads for four entries at a time
            p0, p1, p2, p3 = place(k, to), place(k + 32, to), place(k + 64, to), place(k + 96, to)
            w0, w1, w2, w3 = weight(data, k), weight(data, k + 32), weight(data, k + 64), weight(data, k + 96)
            add_to(ring, p0, of(w0, value))
            add_to(ring, p1, of(w1, value))
            add_to(ring, p2, of(w2, value))
            add_to(ring, p3, of(w3, value))
            k += 128
        while k < last:
            add_to(ring, place(k, to), of(weight(data, k), value))
            k += 32

    visit = active_tiles_of(active, take)

    @cuda.jit(launch_bounds=(_THREADS, _BLOCKS if np.dtype(kind).itemsize <= 4 else 1))
    def deliver(
        ring: Any,
        data: Any,
        indices: Any,
        indptr: Any,
        delays: Any,
        t: Any,
        x: Any,
        out: Any,
        slots: Any,
        columns: Any,
        share: Any,
    ) -> None:
        rows = np.int64(x.size)
        to = (data, indices, delays, x, out, np.int64(load(t, 0)), np.int64(slots), np.int64(columns))
        visit(indptr, x, rows, rows + indices.size, share, cuda.gridDim.x, cuda.blockIdx.x, empty_list(), to)

    return deliver


def delay_delivery(outs: Sequence[jax.ShapeDtypeStruct], *, operand: str, homogeneous: bool) -> Callable[..., Any]:
    """Return a function ``f(ring, data, indices, indptr, delays, t, x)`` that adds the weights of active rows.

    Args:
      outs: the ring.
      operand: ``"binary"`` or ``"weighted"``; see `terms`.
      homogeneous: if True, all entries have the weight ``data[0]``.
    """
    (out,) = outs
    slots, columns = out.shape
    wide = in_memory(out)

    def deliver(ring: Any, data: Any, indices: Any, indptr: Any, delays: Any, t: Any, x: Any) -> Any:
        if not indices.size or not x.size:
            return ring
        blocks = min(_BLOCKS * multiprocessors(), blocks_of(x.size + indices.size, _LEAST * _SHARES))
        run = numba_cuda_kernel(
            _kernel(operand, kind_of(out.dtype), homogeneous, delays.shape == (1,)),
            wide,
            grid=blocks,
            block=_THREADS,
            shared_mem=kept_whole(),
            input_output_aliases={0: 0},
        )
        share = places_of(x.size, indices.size, blocks * _SHARES)
        arrays = data, indices, indptr, delays, t, x
        # The ring is not reshaped: XLA would copy it.
        added = run(ring.astype(wide.dtype), *arrays, slots=slots, columns=columns, share=share)
        return added.astype(out.dtype)

    return deliver
