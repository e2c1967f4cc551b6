"""Positions of the active elements of an operand."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic


@intrinsic
def _word(typing: Any, flags: Any, start: Any) -> Any:
    """Return eight bools from *start* on as one 64-bit number; the address need not be aligned."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        address = builder.gep(array.data, [arguments[1]])
        word = builder.load(builder.bitcast(address, ir.IntType(64).as_pointer()))
        word.align = 1
        return word

    return types.uint64(flags, types.uint64), generate


@njit
def active_flags(flags, active):
    """Write the positions of True to *active*, and return their number; *active* is at least as long as *flags*.

    Blocks of 64 flags, then words of eight, are skipped if all are False. Within a word there are no branches, which
    would be mispredicted: each position is written, and the next position overwrites it if its flag is False.
    """
    count = np.uint64(0)
    whole = np.uint64(flags.size // 64 * 64)
    for begin in range(np.uint64(0), whole, np.uint64(64)):
        any_active = np.uint64(0)
        for start in range(begin, begin + np.uint64(64), np.uint64(8)):
            any_active |= _word(flags, start)
        if any_active != np.uint64(0):
            for start in range(begin, begin + np.uint64(64), np.uint64(8)):
                if _word(flags, start) != np.uint64(0):
                    for i in range(start, start + np.uint64(8)):
                        active[count] = i
                        count += np.uint64(flags[i])
    for i in range(whole, np.uint64(flags.size)):
        active[count] = i
        count += np.uint64(flags[i])
    return count


@njit
def pack_flags(flags, words):
    """Write the flags as bits: flag i is bit ``i % 32`` of ``words[i // 32]``."""
    words[:] = 0
    whole = np.uint64(flags.size // 8 * 8)
    for start in range(np.uint64(0), whole, np.uint64(8)):
        # The multiplication collects the lowest bits of the eight bytes in the highest byte, in their order.
        eight = (_word(flags, start) * np.uint64(0x0102040810204080)) >> np.uint64(56)
        words[start >> np.uint64(5)] |= np.uint32(eight << (start & np.uint64(31)))
    for i in range(whole, np.uint64(flags.size)):
        words[i >> np.uint64(5)] |= np.uint32(np.uint64(flags[i]) << (i & np.uint64(31)))


@njit
def active_values(values, active):
    """Write the positions of values other than 0 into *active*, like `active_flags`; return their number."""
    count = np.uint64(0)
    for i in range(np.uint64(values.size)):
        active[count] = i
        count += np.uint64(values[i] != 0)
    return count


@njit
def list_active(x, ones, active):
    """Write the positions of active elements; return their number and values; *ones* has shape (1, 1) for flags."""
    if ones.ndim == 2:
        return active_flags(x, active), ones
    return active_values(x, active), x


@njit
def entries_of(active, count, indptr):
    """Return the number of entries of the rows ``active[:count]``."""
    total = np.int64(0)
    for a in range(np.uint64(count)):
        i = np.uint64(active[a])
        total += np.int64(indptr[i + np.uint64(1)]) - np.int64(indptr[i])
    return total


@njit
def cut_active(active, count, indptr, entries, cuts):
    """Divide the rows ``active[:count]`` into parts with equal numbers of *entries*; write the boundaries to *cuts*."""
    parts = cuts.size - 1
    seen, part = np.int64(0), 1
    cuts[0] = 0
    for a in range(np.uint64(count)):
        while part < parts and seen >= entries // parts * part + entries % parts * part // parts:
            cuts[part] = a
            part += 1
        i = np.uint64(active[a])
        seen += np.int64(indptr[i + np.uint64(1)]) - np.int64(indptr[i])
    cuts[part:] = count
