"""Functions that draw the random inputs of neurons: the numbers of `normal` and `poisson` with draws of their own.

On a GPU, each thread draws the random inputs of its neurons. If the neurons' states are in registers, it draws those of
four steps at once. On the CPU, a loop over the neurons of a block draws one field; its arithmetic is vectorised.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numba import njit

from ...random.philox import normals, philox
from ..model.fields import KEPT, Field, Fields, generate, getter, is_random, parameters_of
from ..model.noise import FIRST_DRAW
from .generator import (
    Generator,
    first_count,
    normal,
    normals_of,
    poisson,
    poissons_of,
    quantiles_of,
    words_of_four,
)
from .streams import FIRST_TERMS, NORMAL, POISSON, SHARE


def _sources(inputs: Fields, noise: Fields) -> Iterator[tuple[Field, list[Any]]]:
    """Yield each random input with the functions that return its parameters."""
    for field in inputs.fields:
        if is_random(field):
            yield field, list(map(getter, parameters_of(field.name, noise)))


@functools.lru_cache(KEPT)
def preparing(inputs: Fields, noise: Fields) -> Any:
    """Return a function ``prepare(words, shared, i)`` that computes what all draws of neuron *i* have in common.

    Its result has, for each random input, the mean and the deviation or quantiles. *words* and *shared* are those of
    the parameters.
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
    """Return a function ``draw(prepared, rng)`` that draws a neuron's random inputs; see `preparing` for *prepared*."""
    return _of_inputs(
        "draw(prepared, rng)",
        "float32({mean} + {second} * normal(rng, {draw}))",
        "poisson(rng, {draw}, float32({mean}))",
        inputs,
        noise,
    )


class FourSteps(NamedTuple):
    """Functions that draw the random inputs of four steps.

    Attributes:
      words: ``words(rng)`` returns for each random input the numbers that four neurons share: words of 32 bits, or
        standard normal numbers.
      draw: ``draw(prepared, words, rng)`` returns for each random input the values of four steps. *rng* is that of the
        first step, *words* are the numbers of this neuron in these steps, and *prepared* is from `preparing`.
      zero: ``zero()`` returns zeros of the types of *draw*.
      choose: ``choose(values, t)`` returns the random inputs in step *t* from the values of four steps.
      inputs: the number of random inputs.
    """

    words: Any
    draw: Any
    zero: Any
    choose: Any
    inputs: int


@functools.lru_cache(KEPT)
def drawing_four(inputs: Fields, noise: Fields) -> FourSteps:
    """Return the functions by which four threads of a GPU together draw the random inputs of four steps."""
    of_inputs = functools.partial(_of_inputs, inputs=inputs, noise=noise)
    words = of_inputs(
        "words(rng)",
        f"normals_of(words_of_four(rng, {{draw}}, {NORMAL}))",
        f"_signed(words_of_four(rng, {{draw}}, {POISSON}))",
    )
    draw = of_inputs(
        "draw(prepared, words, rng)",
        "_shifted(float32({mean}), float32({second}), words[{number}])",
        "poissons_of(rng, {draw}, float32({mean}), {second}, words[{number}])",
    )
    zero = of_inputs("zero()", "_no_numbers", "_no_words")
    choose = of_inputs("choose(values, t)", "_choose(values[{number}], t)", "int64(_choose(values[{number}], t))")
    return FourSteps(words, draw, zero, choose, inputs.random)


def _of_inputs(signature: str, normals: str, counts: str, inputs: Fields, noise: Fields) -> Any:
    """Return a function with this signature that returns a tuple, for each random input the value of an expression."""
    values = ""
    for number, (field, own) in enumerate(_sources(inputs, noise)):
        given: dict[str, Any] = {"number": number, "draw": FIRST_DRAW + field.word}
        given |= {"mean": f"prepared[{number}][0]", "second": f"prepared[{number}][1]"}
        values += (normals if len(own) == 2 else counts).format(**given) + ", "
    return generate(signature, [f"return ({values})"], _NAMES)


@njit(forceinline=True)
def _signed(words):
    # Shuffles between the lanes of a GPU's warp take signed integers, and no unsigned ones.
    return np.int32(words[0]), np.int32(words[1]), np.int32(words[2]), np.int32(words[3])


@njit(forceinline=True)
def _shifted(mean, deviation, numbers):
    a, b, c, d = numbers
    return (
        np.float32(mean + deviation * a),
        np.float32(mean + deviation * b),
        np.float32(mean + deviation * c),
        np.float32(mean + deviation * d),
    )


@njit(forceinline=True)
def _choose(values, t):
    low, high = (values[1], values[3]) if t & 1 else (values[0], values[2])
    return high if t & 2 else low


_NAMES = {
    "normal": normal,
    "normals_of": normals_of,
    "words_of_four": words_of_four,
    "poisson": poisson,
    "poissons_of": poissons_of,
    "float32": np.float32,
    "int64": np.int64,
    "_signed": _signed,
    "_shifted": _shifted,
    "_choose": _choose,
    "_no_numbers": (np.float32(0),) * 4,
    "_no_words": (np.int32(0),) * 4,
}


@functools.lru_cache(KEPT)
def reading(inputs: Fields) -> Any:
    """Return a function ``read(drawn, at)`` that returns a neuron's random inputs; see `filling` for *drawn*."""
    get = {"normal": "np.int32(drawn[{0}, at]).view(np.float32), ", "poisson": "np.int64(drawn[{0}, at]), "}
    values = "".join(get[field.dtype].format(field.word) for field in inputs.fields if field.dtype in get)
    return generate("read(drawn, at)", [f"return ({values})"], {"np": np})


@functools.lru_cache(KEPT)
def filling(inputs: Fields, noise: Fields) -> Any:
    """Return a function ``fill(words, shared, first, stop, key, step, drawn)`` that draws random inputs.

    It writes those of the neurons ``first <= i < stop`` to ``drawn[:, i - first // 4 * 4]``, as words of 32 bits.
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


# `poisson`, but not inlined: it is called for few neurons, and the loop around the call compiles faster.
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
