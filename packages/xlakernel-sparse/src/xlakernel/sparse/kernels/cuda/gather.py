"""A compressed matrix times a vector."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from numba import cuda

from xlakernel.cuda import numba_cuda_kernel

from . import entries
from .launches import blocks_of, multiprocessors, share_of
from .memory import load
from .numbers import in_memory, kind_of
from .staging import SHARED_BYTES, stage_bits
from .walk import TILE, walk_of

_THREADS = 256
_EVENT_THREADS = 512
_PREFETCH = False
_MOST = 8
_RESIDENT = 3


@functools.cache
def _kernel(operand: str, kind: type, homogeneous: bool) -> Any:
    of_entry = entries.products(operand, kind, entries.from_memory, homogeneous=homogeneous)
    walk = walk_of(of_entry, prefetch=_PREFETCH)

    @cuda.jit(launch_bounds=_THREADS)
    def gather_vector(data: Any, indices: Any, indptr: Any, x: Any, y: Any, share: Any) -> None:
        start = np.int64(cuda.grid(1) // 32) * share
        stop = min(start + share, np.int64(load(indptr, y.size)))
        if start < stop:
            walk(data, indices, indptr, y.size, x, start, stop, y, 0)

    return gather_vector


@functools.cache
def _events_kernel(kind: type, homogeneous: bool) -> Any:
    of = entries.counted if homogeneous else entries.looked_up
    walk = walk_of(of(kind, entries.from_bits))

    @cuda.jit(launch_bounds=_EVENT_THREADS)
    def gather_events(data: Any, indices: Any, indptr: Any, x: Any, y: Any, share: Any) -> None:
        words = cuda.shared.array(0, np.uint32)
        stage_bits(x, words)
        cuda.syncthreads()
        start = np.int64(cuda.grid(1) // 32) * share
        stop = min(start + share, np.int64(load(indptr, y.size)))
        if start < stop:
            walk(data, indices, indptr, y.size, words, start, stop, y, 0)

    return gather_events


def gather_vector(
    out: jax.ShapeDtypeStruct, *, operand: str, shape: tuple[int, int], homogeneous: bool
) -> Callable[..., Any]:
    """Return ``f(data, indices, indptr, x)``, the matrix times a vector."""
    kind, struct = kind_of(out.dtype), in_memory(out)
    bits = 4 * blocks_of(shape[1], 32)

    def multiply(data: Any, indices: Any, indptr: Any, x: Any) -> Any:
        if operand == "binary" and bits <= SHARED_BYTES:
            kernel, threads, shared = _events_kernel(kind, homogeneous), _EVENT_THREADS, bits
            # The events are packed once a block, so there are no more blocks than run at once.
            resident = min(_RESIDENT, SHARED_BYTES // (bits + 1024)) or 1
            share = share_of(indices.size, multiprocessors() * resident * threads // 32, most=1 << 62)
        else:
            kernel, threads, shared = _kernel(operand, kind, homogeneous), _THREADS, 0
            share = share_of(indices.size, multiprocessors() * 64, most=_MOST * TILE)
        run = numba_cuda_kernel(
            kernel,
            struct,
            grid=blocks_of(indices.size, share * threads // 32),
            block=threads,
            shared_mem=shared,
            output_init=0,
        )
        return run(data, indices, indptr, x, share=share).astype(out.dtype)

    return multiply
