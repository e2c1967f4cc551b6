"""Functions that draw the random inputs of neurons, equal to `normal` and `poisson` with draws of their own.

On a GPU each thread draws those of its neuron. On the CPU a loop over the neurons of a block draws one field, and its
arithmetic is vectorised.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numba import njit

from .fields import KEPT, Field, Fields, generate, getter, is_random, parameters_of
from .noise import FIRST_DRAW
from .random import Generator, first_count, normal, normals, philox, poisson, poisson_of, quantiles_of
from .random_streams import FIRST_TERMS, NORMAL, POISSON, SHARE


def _sources(inputs: Fields, noise: Fields) -> Iterator[tuple[Field, list[Any]]]:
    """Yield each random input with the functions that return its parameters."""
    for field in inputs.fields:
        if is_random(field):
            yield field, list(map(getter, parameters_of(field.name, noise)))


@functools.lru_cache(KEPT)
def preparing(inputs: Fields, noise: Fields) -> Any:
    """Return ``prepare(words, shared, i)``, what all draws of neuron *i* have in common: a tuple for each random input.

    *words* and *shared* are those of the parameters.
    """
    names: dict[str, Any] = {"quantiles_of": quantiles_of, "float32": np.float32}
    values = ""
    for number, (_, own) in enumerate(_sources(inputs, noise)):
        names |= {f"get_{number}_{k}": get for k, get in enumerate(own)}
        mean, *deviation = (f"get_{number}_{k}(words, shared, i)" for k in range(len(own)))
        second = deviation[0] if deviation else f"quantiles_of(float32({mean}))"
        values += f"({mean}, {second}), "
    return generate("prepare(words, shared, i)", [f"return ({values})"], names)


@functools.lru_cache(KEPT)
def drawing(inputs: Fields, noise: Fields) -> Any:
    """Return ``draw(prepared, rng)``, the tuple of the random inputs of a neuron; *prepared* is that of `preparing`."""
    names: dict[str, Any] = {"normal": normal, "poisson_of": poisson_of, "float32": np.float32}
    values = ""
    for number, (field, own) in enumerate(_sources(inputs, noise)):
        draw, mean, second = FIRST_DRAW + field.word, f"prepared[{number}][0]", f"prepared[{number}][1]"
        if len(own) == 2:
            values += f"float32({mean} + {second} * normal(rng, {draw})), "
        else:
            values += f"poisson_of(rng, {draw}, float32({mean}), {second}), "
    return generate("draw(prepared, rng)", [f"return ({values})"], names)


@functools.lru_cache(KEPT)
def reading(inputs: Fields) -> Any:
    """Return ``read(drawn, at)``, the random inputs of a neuron as they were written by `filling`."""
    get = {"normal": "np.int32(drawn[{0}, at]).view(np.float32), ", "poisson": "np.int64(drawn[{0}, at]), "}
    values = "".join(get[field.dtype].format(field.word) for field in inputs.fields if field.dtype in get)
    return generate("read(drawn, at)", [f"return ({values})"], {"np": np})


@functools.lru_cache(KEPT)
def filling(inputs: Fields, noise: Fields) -> Any:
    """Return ``fill(words, shared, first, stop, key, step, drawn)``, which draws the random inputs of some neurons.

    Those of neuron ``i`` are written to ``drawn[:, i - first // 4 * 4]``, as words of 32 bits.
    """
    return _in_turn(
        [
            (_poisson if field.dtype == "poisson" else _normal)(field.word, *own)
            for field, own in _sources(inputs, noise)
        ]
    )


def _in_turn(fills: Sequence[Any]) -> Any:
    """Return a function that calls all of *fills*."""
    if not fills:
        return generate("fill(words, shared, first, stop, key, step, drawn)", [], {})
    head, rest = fills[0], _in_turn(fills[1:])

    @njit
    def fill(words, shared, first, stop, key, step, drawn):
        head(words, shared, first, stop, key, step, drawn)
        rest(words, shared, first, stop, key, step, drawn)

    return fill


# It is called for few neurons: not inlined, which makes the loop around it shorter to compile.
_draw_again = njit(poisson.py_func)


def _poisson(number: int, mean_of: Any) -> Any:
    draw = np.uint32(FIRST_DRAW + number)

    @njit
    def fill(words, shared, first, stop, key, step, drawn):
        own, base = drawn[number], first >> 2
        for quad in range(base, (stop + 3) >> 2):
            bits = philox(key[0], key[1], np.uint32(quad), step, draw, np.uint32(POISSON))
            at = np.uint64(4 * (quad - base))
            own[at] = bits[0]
            own[at + np.uint64(1)] = bits[1]
            own[at + np.uint64(2)] = bits[2]
            own[at + np.uint64(3)] = bits[3]
        has_more = False
        for i in range(first, stop):
            mean = np.float32(mean_of(words, shared, i))
            at = np.uint64(i - 4 * base)
            share = min(mean, np.float32(SHARE)) if mean > np.float32(0) else np.float32(0)
            count = first_count(np.uint32(own[at]), share)
            own[at] = count
            has_more |= (count == FIRST_TERMS) | (mean > np.float32(SHARE))
        if has_more:
            for i in range(first, stop):
                mean = np.float32(mean_of(words, shared, i))
                at = np.uint64(i - 4 * base)
                if own[at] == FIRST_TERMS or mean > np.float32(SHARE):
                    own[at] = _draw_again(Generator(key[0], key[1], np.uint32(i), step), draw, mean)

    return fill


def _normal(number: int, mean_of: Any, deviation_of: Any) -> Any:
    draw = np.uint32(FIRST_DRAW + number)

    @njit
    def fill(words, shared, first, stop, key, step, drawn):
        own, base = drawn[number].view(np.float32), first >> 2
        for quad in range(base, (stop + 3) >> 2):
            bits = philox(key[0], key[1], np.uint32(quad), step, draw, np.uint32(NORMAL))
            at = np.uint64(4 * (quad - base))
            own[at], own[at + np.uint64(1)] = normals(bits[0], bits[1])
            own[at + np.uint64(2)], own[at + np.uint64(3)] = normals(bits[2], bits[3])
        for i in range(first, stop):
            at = np.uint64(i - 4 * base)
            own[at] = mean_of(words, shared, i) + deviation_of(words, shared, i) * own[at]

    return fill
