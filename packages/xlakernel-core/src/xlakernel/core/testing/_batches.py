"""Checks of `jax.vmap`: against a loop of single calls."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from ._calls import stack
from ._compare import compare, named_leaves
from ._report import CheckFailure, NotTried
from ._subject import Pick, Subject

OUTER, INNER = 2, 3


def check_first_axis(subject: Subject) -> None:
    """A batch along the first axis of all inputs."""
    picks = _whole_picks(subject, INNER)
    expected = _loop(subject, picks, (INNER,))
    _check_distinct(subject, expected)
    stacked = subject.arrays([stack(subject, picks, i) for i in range(len(subject.inputs))])
    for how, batched in (
        ("jit of vmap: ", jax.jit(jax.vmap(subject.function))),
        ("vmap of jit: ", jax.vmap(jax.jit(subject.function))),
    ):
        compare(batched(*stacked), expected, subject.tolerance, batch=1, what=how)


def check_last_axis(subject: Subject) -> None:
    """A batch along the last axis of all inputs and outputs."""
    picks = _whole_picks(subject, INNER)
    expected = _loop(subject, picks, (INNER,))
    _check_distinct(subject, expected)
    stacked = [np.moveaxis(stack(subject, picks, i), 0, -1) for i in range(len(subject.inputs))]
    results = jax.jit(jax.vmap(subject.function, in_axes=-1, out_axes=-1))(*subject.arrays(stacked))
    results = jax.tree.map(lambda y: np.moveaxis(np.asarray(y), -1, 0), results)
    compare(results, expected, subject.tolerance, batch=1)


def check_nested(subject: Subject) -> None:
    """Two levels, where in turn each input is unbatched in one of them and another input in the other."""
    count = len(subject.inputs)
    _check_distinct(subject, _loop(subject, _whole_picks(subject, INNER), (INNER,)))
    cells = list(itertools.product(range(OUTER), range(INNER)))
    for outer_only in range(count):
        inner_only = (outer_only + 1) % count  # with one input: that one, in both levels
        alone = {} if count == 1 else {outer_only: "outer", inner_only: "inner"}
        picks: list[Pick] = [
            tuple({"outer": i, "inner": j}.get(alone.get(number, ""), i * INNER + j) for number in range(count))
            for i, j in cells
        ]
        arrays = []
        for number in range(count):
            full = stack(subject, picks, number).reshape(OUTER, INNER, *subject.inputs[number].shape)
            arrays.append({"outer": full[:, 0], "inner": full[0]}.get(alone.get(number, ""), full))
        inner_axes = tuple(None if alone.get(number) == "outer" else 0 for number in range(count))
        outer_axes = tuple(None if alone.get(number) == "inner" else 0 for number in range(count))
        if all(axis is None for axis in inner_axes):
            continue
        batched = jax.jit(jax.vmap(jax.vmap(subject.function, inner_axes), outer_axes))
        what = f"in_axes {outer_axes} of {inner_axes}: "
        expected = _loop(subject, picks, (OUTER, INNER))
        compare(batched(*subject.arrays(arrays)), expected, subject.tolerance, batch=2, what=what)
    _check_unbatched(subject)


def _check_unbatched(subject: Subject) -> None:
    """One level, where in turn each input is shared by all slices."""
    count = len(subject.inputs)
    for shared in range(count if count > 1 else 0):
        axes = tuple(None if number == shared else 0 for number in range(count))
        picks = [tuple(0 if number == shared else k for number in range(count)) for k in range(INNER)]
        arrays = [
            subject.inputs[shared] if number == shared else stack(subject, picks, number) for number in range(count)
        ]
        results = jax.jit(jax.vmap(subject.function, axes))(*subject.arrays(arrays))
        compare(results, _loop(subject, picks, (INNER,)), subject.tolerance, batch=1, what=f"in_axes {axes}: ")


def check_sizes(subject: Subject) -> None:
    """A batch of one, and an empty batch."""
    picks = _whole_picks(subject, 1)
    one = subject.arrays([stack(subject, picks, i) for i in range(len(subject.inputs))])
    batched = jax.jit(jax.vmap(subject.function))
    compare(batched(*one), _loop(subject, picks, (1,)), subject.tolerance, batch=1, what="a batch of 1: ")
    results = batched(*(x[:0] for x in one))
    told = jax.eval_shape(subject.function, *subject.arrays())
    for (name, result), (_, single) in zip(named_leaves(results), named_leaves(told), strict=True):
        if (result.shape, result.dtype) != ((0, *single.shape), single.dtype):
            raise CheckFailure(
                f"a batch of 0: {name} is {result.dtype}{list(result.shape)}, expected "
                f"{single.dtype}{[0, *single.shape]}."
            )


def _whole_picks(subject: Subject, size: int) -> list[Pick]:
    if not subject.inputs:
        raise NotTried("there are no inputs to batch")
    return [subject.every(number) for number in range(size)]


def _loop(subject: Subject, picks: Sequence[Pick], shape: tuple[int, ...]) -> Any:
    singles = [subject.single(pick) for pick in picks]
    return jax.tree.map(lambda *ys: np.stack(ys).reshape(*shape, *np.shape(ys[0])), *singles)


def _check_distinct(subject: Subject, expected: Any) -> None:
    """A batch of equal slices would hide that they were mixed up."""
    leaves = [leaf for leaf in jax.tree.leaves(expected) if leaf.size]
    if leaves and all(np.array_equal(leaf, np.broadcast_to(leaf[:1], leaf.shape), equal_nan=leaf.dtype.kind in "fc")
                      for leaf in leaves):  # fmt: skip
        raise NotTried(
            "every slice of the batch has the same result, so that mixed-up slices would not show",
            "give further arguments of the same shapes and dtypes, samples=[(x2, y2), (x3, y3)]",
        )
