"""Products of procedural matrices: groups of threads draw chunks of lines, and multiply their entries at once."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numba import cuda

from xlakernel.cuda import numba_cuda_kernel

from ...operators.connections import Rule, Walk, walk_of
from .device.columns import group_of, tiles_of
from .device.drawing import Draws, chunk_of
from .device.memory import add_to, load
from .device.numbers import in_memory, kind_of
from .device.terms import counts, term
from .device.warp import ALL, warp_sum
from .launches import kept_whole, multiprocessors

_THREADS = 256
_WARPS = _THREADS // 32
_BLOCKS = 8  # on a multiprocessor
_MOST_ROWS = 65_535  # the largest second extent of a grid


def group_size(rule: Rule, places: int, chunks: int) -> int:
    """Return the number of threads that draw a chunk: a power of two that draws most chunks in one batch."""
    mean = rule.mean_entries(places) / max(chunks, 1)
    slots = mean if rule.number is not None else mean + 2.5 * math.sqrt(mean)
    return 1 << (max(1, min(32, math.ceil(slots / 4))) - 1).bit_length()


def _grid(lines: int, each: int, chunks: int, tiles: int = 1) -> tuple[int, int, int]:
    """Return a grid in which a block takes *each* lines at a time; blocks of one column share their chunks."""
    across = max(1, min(math.ceil(lines / each), _BLOCKS * multiprocessors()))
    along = max(1, min(chunks, math.ceil(_BLOCKS * multiprocessors() / across), _MOST_ROWS))
    return across, along, tiles


@functools.cache
def _gather_vector(operand: str, kind: type, draws: Draws, threads: int) -> Any:
    of, total_of = term(operand, kind), warp_sum(kind, within=threads)
    zero, groups = kind(0), _THREADS // threads

    @cuda.jit(device=True, forceinline=True)
    def one(place: Any, weight: Any, x: Any) -> Any:
        return of(weight, load(x, place)) if place >= 0 else zero

    @cuda.jit(device=True, forceinline=True)
    def take(four: Any, weights: Any, total: Any, x: Any) -> Any:
        total = kind(total + one(four[0], weights[0], x))
        total = kind(total + one(four[1], weights[1], x))
        total = kind(total + one(four[2], weights[2], x))
        return kind(total + one(four[3], weights[3], x))

    visit = chunk_of(kind, draws, threads, take)

    @cuda.jit(launch_bounds=_THREADS)
    def gather_drawn(params: Any, key: Any, walk: Any, x: Any, y: Any) -> None:
        source = (params, load(key, 0), load(key, 1), walk, np.uint32(x.size))
        lines, chunks = np.int64(y.size), np.int64(load(walk, 1))
        first = np.int64(cuda.blockIdx.x) * groups
        while first < lines:
            line = first + cuda.threadIdx.x // threads
            total = zero
            chunk = np.int64(cuda.blockIdx.y)
            while chunk < chunks:
                total = visit(line < lines, np.uint32(line), np.uint32(chunk), total, source, x)
                chunk += cuda.gridDim.y
            total = total_of(total)
            if line < lines and cuda.threadIdx.x % threads == 0:
                add_to(y, line, total)
            first += np.int64(cuda.gridDim.x) * groups

    return gather_drawn


@functools.cache
def _shuffle(kind: type) -> Any:
    """Return a device function that broadcasts a weight from a lane."""

    @cuda.jit(device=True, forceinline=True)
    def of_real(weight: Any, lane: Any) -> Any:
        return kind(cuda.shfl_sync(ALL, weight, lane))

    @cuda.jit(device=True, forceinline=True)
    def of_complex(weight: Any, lane: Any) -> Any:
        return kind(complex(cuda.shfl_sync(ALL, weight.real, lane), cuda.shfl_sync(ALL, weight.imag, lane)))

    return of_complex if issubclass(kind, np.complexfloating) else of_real


@functools.cache
def _gather_matrix(operand: str, kind: type, draws: Draws, columns: int) -> Any:
    of, total_of, from_lane = term(operand, kind), warp_sum(kind, apart=columns), _shuffle(kind)
    zero, entries = kind(0), 32 // columns

    @cuda.jit(device=True, forceinline=True)
    def some(place: Any, weight: Any, total: Any, to: Any) -> Any:
        x, column = to
        for i in range(columns):
            lane = np.int32(i * entries + cuda.laneid // columns)
            at, its = cuda.shfl_sync(ALL, place, lane), from_lane(weight, lane)
            if at >= 0 and column < x.shape[1]:
                total = kind(total + of(its, load(x, np.int64(at) * x.shape[1] + column)))
        return total

    @cuda.jit(device=True, forceinline=True)
    def take(four: Any, weights: Any, total: Any, to: Any) -> Any:
        total = some(four[0], weights[0], total, to)
        total = some(four[1], weights[1], total, to)
        total = some(four[2], weights[2], total, to)
        return some(four[3], weights[3], total, to)

    visit = chunk_of(kind, draws, 32, take)

    @cuda.jit(launch_bounds=_THREADS)
    def gather_drawn_matrix(params: Any, key: Any, walk: Any, x: Any, y: Any) -> None:
        source = (params, load(key, 0), load(key, 1), walk, np.uint32(x.shape[0]))
        lines, chunks, width = np.int64(y.shape[0]), np.int64(load(walk, 1)), np.int64(y.shape[1])
        line = np.int64(cuda.blockIdx.x) * _WARPS + cuda.threadIdx.x // 32
        while line < lines:
            tile = np.int64(cuda.blockIdx.z) * columns
            while tile < width:
                column = tile + cuda.laneid % columns
                total = zero
                chunk = np.int64(cuda.blockIdx.y)
                while chunk < chunks:
                    total = visit(True, np.uint32(line), np.uint32(chunk), total, source, (x, column))
                    chunk += cuda.gridDim.y
                total = total_of(total)
                if cuda.laneid < columns and column < width:
                    add_to(y, line * width + column, total)
                tile += np.int64(cuda.gridDim.z) * columns
            line += np.int64(cuda.gridDim.x) * _WARPS

    return gather_drawn_matrix


@cuda.jit(device=True, forceinline=True)
def _list_active(flag: Any, line: Any, listed: Any, length: Any) -> Any:
    """List a block's active lines in shared memory, and return their number."""
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        length[0] = 0
    cuda.syncthreads()
    if flag:
        listed[cuda.atomic.add(length, 0, np.int32(1))] = line
    cuda.syncthreads()
    return length[0]


@functools.cache
def _scatter_vector(operand: str, kind: type, draws: Draws, threads: int) -> Any:
    of, is_active = term(operand, kind), counts(operand)
    groups = _THREADS // threads

    @cuda.jit(device=True, forceinline=True)
    def take(four: Any, weights: Any, value: Any, y: Any) -> Any:
        if four[0] >= 0:
            add_to(y, four[0], of(weights[0], value))
        if four[1] >= 0:
            add_to(y, four[1], of(weights[1], value))
        if four[2] >= 0:
            add_to(y, four[2], of(weights[2], value))
        if four[3] >= 0:
            add_to(y, four[3], of(weights[3], value))
        return value

    visit = chunk_of(kind, draws, threads, take)

    @cuda.jit(launch_bounds=_THREADS)
    def scatter_drawn(params: Any, key: Any, walk: Any, x: Any, y: Any) -> None:
        listed, length = cuda.shared.array(_THREADS, np.int64), cuda.shared.array(1, np.int32)
        source = (params, load(key, 0), load(key, 1), walk, np.uint32(y.size))
        lines, chunks = np.int64(x.size), load(walk, 1)
        # The chunks of each listed line that this block draws.
        share = np.uint32((chunks + cuda.gridDim.y - 1 - cuda.blockIdx.y) // cuda.gridDim.y)
        first = np.int64(cuda.blockIdx.x) * _THREADS
        while first < lines:
            line = first + cuda.threadIdx.x
            flag = False
            if line < lines:
                flag = is_active(load(x, line))
            items = np.uint32(_list_active(flag, line, listed, length)) * share
            start = np.uint32(0)
            while start < items:
                item = np.uint32(start + np.uint32(cuda.threadIdx.x // threads))
                wanted = item < items
                item = item if wanted else np.uint32(0)
                which = np.uint32(item // share)
                chunk = np.uint32(cuda.blockIdx.y + np.uint32(item - which * share) * cuda.gridDim.y)
                its = listed[which]
                visit(wanted, np.uint32(its), chunk, load(x, its), source, y)
                start = np.uint32(start + np.uint32(groups))
            first += np.int64(cuda.gridDim.x) * _THREADS

    return scatter_drawn


@functools.cache
def _scatter_matrix(operand: str, kind: type, draws: Draws, columns: int) -> Any:
    of, is_active, from_lane = term(operand, kind), counts(operand), _shuffle(kind)
    entries = 32 // columns

    @cuda.jit(device=True, forceinline=True)
    def some(place: Any, weight: Any, value: Any, to: Any) -> None:
        y, column, here = to
        for i in range(columns):
            lane = np.int32(i * entries + cuda.laneid // columns)
            at, its = cuda.shfl_sync(ALL, place, lane), from_lane(weight, lane)
            if at >= 0 and here:
                add_to(y, np.int64(at) * y.shape[1] + column, of(its, value))

    @cuda.jit(device=True, forceinline=True)
    def take(four: Any, weights: Any, value: Any, to: Any) -> Any:
        some(four[0], weights[0], value, to)
        some(four[1], weights[1], value, to)
        some(four[2], weights[2], value, to)
        some(four[3], weights[3], value, to)
        return value

    visit = chunk_of(kind, draws, 32, take)

    @cuda.jit(launch_bounds=_THREADS)
    def scatter_drawn_matrix(params: Any, key: Any, walk: Any, x: Any, y: Any) -> None:
        source = (params, load(key, 0), load(key, 1), walk, np.uint32(y.shape[0]))
        lines, chunks, width = np.int64(x.shape[0]), np.int64(load(walk, 1)), np.int64(y.shape[1])
        line = np.int64(cuda.blockIdx.x) * _WARPS + cuda.threadIdx.x // 32
        while line < lines:
            tile = np.int64(cuda.blockIdx.z) * columns
            while tile < width:
                column = tile + cuda.laneid % columns
                value = load(x, line * width + min(column, width - 1))
                here = column < width and is_active(value)
                if cuda.any_sync(ALL, here):
                    chunk = np.int64(cuda.blockIdx.y)
                    while chunk < chunks:
                        visit(True, np.uint32(line), np.uint32(chunk), value, source, (y, column, here))
                        chunk += cuda.gridDim.y
                tile += np.int64(cuda.gridDim.z) * columns
            line += np.int64(cuda.gridDim.x) * _WARPS

    return scatter_drawn_matrix


def _launch_of(
    out: jax.ShapeDtypeStruct, operand: str, shape: tuple[int, int], transpose: bool, rule: Rule, walk: Walk
) -> tuple[Any, tuple[int, int, int]]:
    """Return the kernel of a product, and its grid."""
    lines, places = shape
    kind, draws = kind_of(out.dtype), Draws(rule.distribution, by_number=rule.number is not None)
    if len(out.shape) == 2:
        columns = group_of(out.shape[1])
        make = _scatter_matrix if transpose else _gather_matrix
        return make(operand, kind, draws, columns), _grid(lines, _WARPS, walk.chunks, tiles_of(out.shape[1]))
    threads = group_size(rule, places, walk.chunks)
    if transpose:
        return _scatter_vector(operand, kind, draws, threads), _grid(lines, _THREADS, walk.chunks)
    return _gather_vector(operand, kind, draws, threads), _grid(lines, _THREADS // threads, walk.chunks)


def procedural_product(
    outs: Sequence[jax.ShapeDtypeStruct], *, operand: str, shape: tuple[int, int], transpose: bool, rule: Rule
) -> Callable[..., Any]:
    """Return a function ``f(params, key, x)`` that multiplies a matrix of drawn rows, or its transpose, by *x*.

    Args:
      outs: the result.
      operand: ``"dense"``, ``"binary"`` or ``"weighted"``; see `terms`.
      shape: rows and columns of the matrix.
      transpose: if True, multiply by the transposed matrix.
      rule: how the rows are drawn.
    """
    (out,) = outs
    walk = walk_of(rule, shape[1])
    if not out.size or 0 in shape or not walk.chunks:
        return lambda params, key, x: jnp.zeros(out.shape, out.dtype)
    kernel, grid = _launch_of(out, operand, shape, transpose, rule, walk)
    run = numba_cuda_kernel(kernel, in_memory(out), grid=grid, block=_THREADS, shared_mem=kept_whole(), output_init=0)
    return lambda params, key, x: run(params, key, walk.array(), x).astype(out.dtype)
