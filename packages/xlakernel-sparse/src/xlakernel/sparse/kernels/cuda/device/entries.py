"""Lookup of the operand for four entries at a time or for one, and the terms that the entries add to a sum."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numba import cuda

from .memory import is_aligned, load, load4, load4_if, load_if
from .terms import term, weight_at

Device = Callable[..., Any]


class Entries(NamedTuple):
    """Device functions for the entries of a matrix, and the type of their sums.

    Attributes:
      kind: NumPy's scalar type of the terms.
      raw: ``raw(data, indices, k)``: the loaded data of four entries from *k* on, a multiple of four.
      terms: ``terms(raw, data, source, k)``: the four terms of these entries; *source* holds the operand.
      one: ``one(data, indices, source, k)``: the term of one entry.
      value: ``value(data, total)``: the number that *total*, a sum of terms, adds to the output.
      aligned: ``aligned(data, indices)``: True if four entries can be loaded at a time.
    """

    kind: type
    raw: Device
    terms: Device
    one: Device
    value: Device
    aligned: Device


@cuda.jit(device=True, forceinline=True)
def from_memory(source: Any, column: Any) -> Any:
    """Return the operand's value for a column; the source is an input array."""
    return load(source, column)


@cuda.jit(device=True, forceinline=True)
def from_bits(source: Any, column: Any) -> Any:
    """Return the bit of a column; each element of the source holds the bits of 32 columns."""
    column = np.uint32(column)
    return (source[column >> np.uint32(5)] >> (column & np.uint32(31))) & np.uint32(1)


@cuda.jit(device=True, forceinline=True)
def from_slice(source: Any, column: Any) -> Any:
    """Return the operand's value for a column; the source is shared memory."""
    return source[np.uint32(column)]


@cuda.jit(device=True, forceinline=True)
def from_front(source: Any, column: Any) -> Any:
    """Return the operand's value for a column: the first *staged* are in shared memory, the others in an input."""
    front, x, staged = source
    column = np.uint32(column)
    is_front = column < np.uint32(staged)
    far = load_if(not is_front, x, column)
    near = front[column if is_front else np.uint32(0)]
    return near if is_front else far


@cuda.jit(device=True, forceinline=True)
def _as_it_is(data: Any, total: Any) -> Any:
    return total


@cuda.jit(device=True, forceinline=True)
def _both(data: Any, indices: Any) -> Any:
    return is_aligned(data) and is_aligned(indices)


@cuda.jit(device=True, forceinline=True)
def _columns(data: Any, indices: Any) -> Any:
    return is_aligned(indices)


@cuda.jit(device=True, forceinline=True)
def _load_columns(data: Any, indices: Any, k: Any) -> Any:
    return load4(indices, k)


@cuda.jit(device=True, forceinline=True)
def _load_both(data: Any, indices: Any, k: Any) -> Any:
    return load4(indices, k), load4(data, k)


def products(operand: str, kind: type, fetch: Device, *, homogeneous: bool) -> Entries:
    """Return the functions for a matrix times an operand; each weight is read."""
    of, weight = term(operand, kind), weight_at(homogeneous=homogeneous)

    @cuda.jit(device=True, forceinline=True)
    def own_weights(raw: Any, data: Any, source: Any, k: Any) -> Any:
        c, w = raw
        return (
            of(w[0], fetch(source, c[0])),
            of(w[1], fetch(source, c[1])),
            of(w[2], fetch(source, c[2])),
            of(w[3], fetch(source, c[3])),
        )

    @cuda.jit(device=True, forceinline=True)
    def one_weight(raw: Any, data: Any, source: Any, k: Any) -> Any:
        w = load(data, 0)
        return (
            of(w, fetch(source, raw[0])),
            of(w, fetch(source, raw[1])),
            of(w, fetch(source, raw[2])),
            of(w, fetch(source, raw[3])),
        )

    @cuda.jit(device=True, forceinline=True)
    def one(data: Any, indices: Any, source: Any, k: Any) -> Any:
        return of(weight(data, k), fetch(source, load(indices, k)))

    if homogeneous:
        return Entries(kind, _load_columns, one_weight, one, _as_it_is, _columns)
    return Entries(kind, _load_both, own_weights, one, _as_it_is, _both)


def counted(kind: type, fetch: Device) -> Entries:
    """Return the functions for a matrix with one weight times events: entries at active events are counted."""

    @cuda.jit(device=True, forceinline=True)
    def terms(raw: Any, data: Any, source: Any, k: Any) -> Any:
        return (
            np.int32(fetch(source, raw[0])),
            np.int32(fetch(source, raw[1])),
            np.int32(fetch(source, raw[2])),
            np.int32(fetch(source, raw[3])),
        )

    @cuda.jit(device=True, forceinline=True)
    def one(data: Any, indices: Any, source: Any, k: Any) -> Any:
        return np.int32(fetch(source, load(indices, k)))

    @cuda.jit(device=True, forceinline=True)
    def value(data: Any, total: Any) -> Any:
        return kind(load(data, 0) * kind(total)) if total != 0 else kind(0)

    return Entries(np.int32, _load_columns, terms, one, value, _columns)


def looked_up(kind: type, fetch: Device) -> Entries:
    """Return the functions for a matrix times events; weights are read only if one of four events is active."""
    zero = kind(0)

    @cuda.jit(device=True, forceinline=True)
    def terms(raw: Any, data: Any, source: Any, k: Any) -> Any:
        a, b = fetch(source, raw[0]), fetch(source, raw[1])
        c, d = fetch(source, raw[2]), fetch(source, raw[3])
        w = load4_if((a | b | c | d) != 0, data, k)
        return (
            kind(w[0]) if a else zero,
            kind(w[1]) if b else zero,
            kind(w[2]) if c else zero,
            kind(w[3]) if d else zero,
        )

    @cuda.jit(device=True, forceinline=True)
    def one(data: Any, indices: Any, source: Any, k: Any) -> Any:
        return kind(load(data, k)) if fetch(source, load(indices, k)) else zero

    return Entries(kind, _load_columns, terms, one, _as_it_is, _both)
