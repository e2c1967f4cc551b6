"""The product of two dense matrices at the entries of a compressed one."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numba import cuda

from xlakernel.cuda import numba_cuda_kernel

from .device.memory import load
from .device.numbers import kind_of
from .device.terms import term
from .device.walk import TILE
from .device.warp import next_row, row_at, warp_sum
from .launches import blocks_of, kept_whole, multiprocessors, share_of

_THREADS = 256
_MOST_GROUP = 8  # threads for an entry; with float32, they read 32 bytes of a row at once


def _group_of(columns: int) -> int:
    return min(_MOST_GROUP, 1 << (columns - 1).bit_length())


def _product(kind: type, events: str) -> Any:
    """Return a device function that multiplies two elements; zeros of *events*, "u" or "v", add nothing."""
    of = term("weighted" if events else "dense", kind)

    @cuda.jit(device=True, forceinline=True)
    def swapped(one: Any, other: Any) -> Any:
        return of(other, one)

    return swapped if events == "u" else of


@functools.cache
def _kernel(kind: type, group: int, events: str) -> Any:
    product, total = _product(kind, events), warp_sum(kind, within=group)
    entries = 32 // group

    @cuda.jit(launch_bounds=_THREADS)
    def sample(indices: Any, indptr: Any, u: Any, v: Any, out: Any, columns: Any, share: Any) -> None:
        rows = np.int64(indptr.size - 1)
        start = np.int64(cuda.grid(1) // 32) * share
        limit = min(start + share, np.int64(out.size))
        stop = min(limit, np.int64(load(indptr, rows)))
        for k in range(max(start, stop) + cuda.laneid, limit, 32):
            out[k] = 0  # padding
        if start >= stop:
            return
        mine, sub = cuda.laneid // group, cuda.laneid % group
        row = row_at(indptr, rows, start)
        end = np.int64(load(indptr, row + 1))
        while start < stop:
            last = min(end, stop)
            for first in range(start, last, entries):
                k = min(first + mine, last - 1)
                column = np.int64(load(indices, k))
                found = kind(0)
                for c in range(sub, columns, group):
                    found = kind(found + product(load(u, row * columns + c), load(v, column * columns + c)))
                found = total(found)
                if sub == 0 and first + mine < last:
                    out[k] = found
            start = last
            if start < stop:
                row, end = next_row(indptr, rows, row, start)

    return sample


def sampled_product(
    outs: Sequence[jax.ShapeDtypeStruct], *, shape: tuple[int, int], events: str = ""
) -> Callable[..., Any]:
    """Return a function ``f(indices, indptr, u, v)`` that multiplies *u* by the transpose of *v* at the entries.

    Args:
      outs: the result, ``(nnz,)``; 0 for padding.
      shape: rows and columns of the compressed matrix: the numbers of rows of *u* and of *v*.
      events: the input with inactive zeros, ``"u"`` or ``"v"``; ``""``: neither.
    """
    (out,) = outs

    def multiply(indices: Any, indptr: Any, u: Any, v: Any) -> Any:
        columns = u.shape[1] if u.ndim == 2 else 1
        if not out.size or not columns or not shape[0]:
            return jnp.zeros(out.shape, out.dtype)
        share = share_of(indices.size, multiprocessors() * 64, most=4 * TILE)
        run = numba_cuda_kernel(
            _kernel(kind_of(out.dtype), _group_of(columns), events),
            out,
            grid=blocks_of(indices.size, share * _THREADS // 32),
            block=_THREADS,
            shared_mem=kept_whole(),
        )
        return run(indices, indptr, u, v, columns=columns, share=share)

    return multiply
