"""A compressed matrix times a vector."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from numba import cuda

from xlakernel.cuda import numba_cuda_kernel

from .device import entries
from .device.memory import load
from .device.numbers import in_memory, kind_of
from .device.staging import stage_bits, stage_slice
from .device.walk import TILE, walk_of
from .launches import blocks_of, filling, kept_whole, multiprocessors, share_of, shared_bytes, threads_for

_THREADS = 256
_EVENT_THREADS = 1024


@functools.cache
def _kernel(operand: str, kind: type, homogeneous: bool) -> Any:
    walk = walk_of(entries.products(operand, kind, entries.from_memory, homogeneous=homogeneous))

    @cuda.jit(launch_bounds=_THREADS)
    def gather_vector(data: Any, indices: Any, indptr: Any, x: Any, y: Any, share: Any) -> None:
        start = np.int64(cuda.grid(1) // 32) * share
        stop = min(start + share, np.int64(load(indptr, y.size)))
        if start < stop:
            walk(data, indices, indptr, y.size, x, start, stop, y, 0)

    return gather_vector


@functools.cache
def _staged_kernel(operand: str, kind: type, homogeneous: bool) -> Any:
    of_entry = entries.products(operand, kind, entries.from_front, homogeneous=homogeneous)
    walk = walk_of(of_entry)

    @cuda.jit(launch_bounds=threads_for(kind))
    def gather_staged(data: Any, indices: Any, indptr: Any, x: Any, y: Any, staged: Any, share: Any) -> None:
        front = cuda.shared.array(0, kind)
        stage_slice(x, 0, staged, front)
        cuda.syncthreads()
        start = np.int64(cuda.grid(1) // 32) * share
        stop = min(start + share, np.int64(load(indptr, y.size)))
        if start < stop:
            walk(data, indices, indptr, y.size, (front, x, np.int32(staged)), start, stop, y, 0)

    return gather_staged


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


class _Launch(NamedTuple):
    """A kernel and its launch: one block on each multiprocessor if *fills*, else many small blocks."""

    kernel: Any
    threads: int
    shared_mem: int
    fills: bool
    static: dict[str, int]


def _launch_of(operand: str, dtype: Any, columns: int, entries: int, homogeneous: bool) -> _Launch:
    kind = kind_of(dtype)
    if operand == "binary":
        bits = 4 * blocks_of(columns, 32)
        if bits <= shared_bytes():
            return _Launch(_events_kernel(kind, homogeneous), _EVENT_THREADS, filling(bits), True, {})
    else:
        size = np.dtype(kind).itemsize
        staged = min(columns, shared_bytes() // size)
        # Copying the vector in every block should cost little, compared with the lookups.
        if entries >= 2 * staged * multiprocessors():
            kernel = _staged_kernel(operand, kind, homogeneous)
            return _Launch(kernel, threads_for(kind), filling(staged * size), True, {"staged": staged})
    return _Launch(_kernel(operand, kind, homogeneous), _THREADS, kept_whole(), False, {})


def gather_vector(
    out: jax.ShapeDtypeStruct, *, operand: str, shape: tuple[int, int], homogeneous: bool
) -> Callable[..., Any]:
    """Return a function ``f(data, indices, indptr, x)`` that multiplies the matrix by a vector."""

    def multiply(data: Any, indices: Any, indptr: Any, x: Any) -> Any:
        kernel, threads, shared_mem, fills, static = _launch_of(operand, out.dtype, shape[1], indices.size, homogeneous)
        if fills:
            share = share_of(indices.size, multiprocessors() * threads // 32, most=1 << 62)
        else:
            share = share_of(indices.size, multiprocessors() * 64, most=8 * TILE)
        run = numba_cuda_kernel(
            kernel,
            in_memory(out),
            grid=blocks_of(indices.size, share * threads // 32),
            block=threads,
            shared_mem=shared_mem,
            output_init=0,
        )
        return run(data, indices, indptr, x, share=share, **static).astype(out.dtype)

    return multiply
