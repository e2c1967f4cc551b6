"""Checks of `jax.vmap` against a loop of single calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from ..measure.comparison import EXACT, compare, compare_structs
from ._report import NotTried
from ._subject import Axes, Subject

_OUTER, _INNER = 2, 3


def check_first_axis(subject: Subject) -> str:
    """A batch along the first axis of all inputs."""
    stacked, expected = subject.batch((_INNER,))
    mapped = jax.vmap(subject.function)
    for how, batched in (("eager: ", mapped), ("under jit: ", jax.jit(mapped))):
        arrays = subject.arrays(stacked)
        compare(batched(*arrays), expected, subject.tolerance, batch=1, what=how)
        compare(arrays, stacked, EXACT, what=f"{how}the call changed an input: ", noun="inputs")
    return _distinctness(subject, expected)


def check_last_axis(subject: Subject) -> str:
    """A batch along the last axis of all inputs and outputs."""
    stacked, expected = subject.batch((_INNER,))
    moved = subject.arrays([np.moveaxis(x, 0, -1) for x in stacked])
    results = jax.jit(jax.vmap(subject.function, in_axes=-1, out_axes=-1))(*moved)
    results = jax.tree.map(lambda y: np.moveaxis(np.asarray(y), -1, 0), results)
    compare(results, expected, subject.tolerance, batch=1)
    return _distinctness(subject, expected)


def check_nested(subject: Subject) -> str:
    """Nested batches with unbatched inputs; a single input is batched at both levels.

    Each input in turn is unbatched at the inner level, and the next input at the outer level. The inner level is also
    tried alone; likewise a single level at which only one of three or more inputs is batched.
    """
    count = len(subject.inputs)
    if count == 1:
        _check_axes(subject, [(0,), (0,)])
    else:
        unbatched = [tuple(None if i == number else 0 for i in range(count)) for number in range(count)]
        for outer, inner in zip([*unbatched[1:], unbatched[0]], unbatched, strict=True):
            _check_axes(subject, [outer, inner])
            _check_axes(subject, [inner])
        if count > 2:  # with two inputs, only one is batched at each level above
            for number in range(count):
                _check_axes(subject, [tuple(0 if i == number else None for i in range(count))])
    return _distinctness(subject, subject.batch((_INNER,))[1])


def _check_axes(subject: Subject, axes: Sequence[Axes]) -> None:
    """Compare nested vmap with single calls; *axes* has the levels, outermost first."""
    batched = subject.function
    for level in reversed(axes):
        batched = jax.vmap(batched, tuple(level))
    stacked, expected = subject.batch((_OUTER, _INNER)[-len(axes) :], axes)
    what = f"in_axes {' of '.join(map(str, axes))}: "
    compare(jax.jit(batched)(*subject.arrays(stacked)), expected, subject.tolerance, batch=len(axes), what=what)


def check_sizes(subject: Subject) -> None:
    """A batch of one slice, and an empty batch."""
    one, expected = subject.batch((1,))
    batched = jax.jit(jax.vmap(subject.function))
    compare(batched(*subject.arrays(one)), expected, subject.tolerance, batch=1, what="a batch of 1: ")
    structs = jax.eval_shape(subject.function, *subject.arrays())
    empty = jax.tree.map(lambda y: jax.ShapeDtypeStruct((0, *y.shape), y.dtype), structs)
    compare_structs(batched(*subject.arrays([x[:0] for x in one])), empty, what="a batch of 0: ")


def _distinctness(subject: Subject, expected: Any) -> str:
    """Return a remark on inputs that are equal in all slices; raise `NotTried` if each result is.

    Equal slices would hide a batching rule that mixes up slices.
    """

    def is_constant(leaf: Any) -> bool:
        return np.array_equal(leaf, np.broadcast_to(leaf[:1], leaf.shape), equal_nan=leaf.dtype.kind in "fc")

    leaves = [leaf for leaf in jax.tree.leaves(expected) if leaf.size]
    if leaves and all(map(is_constant, leaves)):
        raise NotTried(
            "every slice of the batch has the same result, which hides mixed-up slices; give further arguments of the "
            "same shapes and dtypes, samples=[(x2, y2), (x3, y3)]"
        )
    same = [
        str(number)
        for number, x in enumerate(subject.inputs)
        if x.size and all(np.array_equal(sample[number], x) for sample in subject.samples)
    ]
    if not same:
        return ""
    what = "input {} is" if len(same) == 1 else "inputs {} are"
    return f"{what.format(', '.join(same))} the same in all slices; samples=[(x2, y2), (x3, y3)] makes them differ"
