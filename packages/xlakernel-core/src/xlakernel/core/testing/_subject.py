"""The kernel that is checked, its arguments, and its expected results."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from .._compat import context_of_jax
from ..measure.comparison import Array, CheckFailure, Tolerance, double, is_inexact

Axes = Sequence[int | None]  # the batch axis of each input, at one level of vmap

# Samples are scaled, since scaling keeps signs, zeros, order and definiteness, which a kernel may need.
_FACTORS = (1.0, 0.75, 0.5, 0.625)


@dataclasses.dataclass(frozen=True)
class Subject:
    """A kernel with its arguments.

    Attributes:
      name: the kernel's name, for messages.
      function: the kernel, a function of arrays.
      reference: a function that computes the right results, in NumPy or JAX. None: results are compared with those of a
        single eager call.
      samples: argument lists of the same shapes and dtypes, the user's arguments first.
      tolerance: allowed errors of results.
      grad_order: the highest order of derivatives.
    """

    name: str
    function: Callable[..., Any]
    reference: Callable[..., Any] | None
    samples: tuple[tuple[Array, ...], ...]
    tolerance: Tolerance
    grad_order: int
    _known: dict[Any, Any] = dataclasses.field(default_factory=dict)

    @property
    def inputs(self) -> tuple[Array, ...]:
        """The user's arguments."""
        return self.samples[0]

    @property
    def inexact(self) -> tuple[int, ...]:
        """The numbers of the inputs that can have a derivative."""
        return tuple(i for i, x in enumerate(self.inputs) if is_inexact(x.dtype))

    def arrays(self, inputs: Sequence[Array] | None = None) -> list[jax.Array]:
        """Return new JAX arrays of *inputs*, or of the user's arguments."""
        return [jax.numpy.array(x) for x in (self.inputs if inputs is None else inputs)]

    def expected(self, inputs: Sequence[Array] | None = None) -> Any:
        """Return the results for *inputs*, or for the user's arguments, as NumPy arrays."""
        inputs = self.inputs if inputs is None else inputs
        key = tuple((x.shape, x.tobytes()) for x in inputs)
        if key not in self._known:
            if self.reference is None:
                self._known[key] = jax.tree.map(np.asarray, self.function(*self.arrays(inputs)))
            else:
                self._known[key] = _expected_by(self.reference, inputs)
        return self._known[key]

    def batch(self, sizes: Sequence[int], axes: Sequence[Axes] | None = None) -> tuple[list[Array], Any]:
        """Return inputs for nested levels of ``jax.vmap`` along the first axes, and their results (None for no slices).

        Args:
          sizes: the batch size of each level, outermost first.
          axes: for each level and input, 0, or None if all slices share the input; by default 0 for all.
        """
        axes = axes or [(0,) * len(self.inputs) for _ in sizes]
        own = [[k for k, level in enumerate(axes) if level[i] is not None] for i in range(len(self.inputs))]
        stacked = []
        for i, (x, levels) in enumerate(zip(self.inputs, own, strict=True)):
            shape = [sizes[k] for k in levels]
            slices = [sample[i] for sample in itertools.islice(itertools.cycle(self.samples), math.prod(shape))]
            stacked.append(np.asarray(slices, x.dtype).reshape((*shape, *x.shape)))
        singles = [
            self.expected([x[tuple(cell[k] for k in levels)] for x, levels in zip(stacked, own, strict=True)])
            for cell in np.ndindex(*sizes)
        ]
        if not singles:
            return stacked, None
        return stacked, jax.tree.map(lambda *ys: np.stack(ys).reshape((*sizes, *np.shape(ys[0]))), *singles)


def _expected_by(reference: Callable[..., Any], inputs: Sequence[Array]) -> Any:
    try:
        return evaluate(reference, inputs)
    except Exception as error:
        raise CheckFailure(
            f"the reference raised {type(error).__name__}: {error}. It gets the arguments of the kernel as NumPy "
            "arrays and, if it raises, as JAX arrays."
        ) from error


def evaluate(function: Callable[..., Any], inputs: Sequence[Array], dtypes: Sequence[Any] | None = None) -> Any:
    """Call *function* in double precision or, if it raises, in *dtypes*, and return NumPy arrays.

    By default, *dtypes* are those of *inputs*. Either precision is tried with NumPy arrays and then with JAX arrays,
    which have other methods and accept traced indices.
    """
    wide = [x.astype(double(x.dtype)) if is_inexact(x.dtype) else x for x in inputs]
    own = inputs if dtypes is None else [x.astype(dtype) for x, dtype in zip(inputs, dtypes, strict=True)]
    kinds = (np.array, jax.numpy.asarray)  # np.array copies: the function may work in place
    *attempts, last = itertools.product((wide, own), kinds)
    with enable_x64():
        for xs, kind in attempts:
            with contextlib.suppress(Exception):
                return jax.tree.map(np.asarray, function(*map(kind, xs)))
        xs, kind = last
        return jax.tree.map(np.asarray, function(*map(kind, xs)))


@contextlib.contextmanager
def enable_x64() -> Iterator[None]:
    """Turn on JAX's 64-bit types in this thread."""
    with context_of_jax("enable_x64")(True):
        yield


def as_arrays(arguments: Any) -> tuple[Array, ...]:
    """Return the leaves of *arguments* as NumPy arrays of the dtypes that JAX gives them."""
    return tuple(np.array(jax.numpy.asarray(leaf)) for leaf in jax.tree.leaves(arguments))


def vary(inputs: Sequence[Array]) -> tuple[tuple[Array, ...], ...]:
    """Return samples made from *inputs*: floats are scaled, booleans rolled; integers, maybe indices, are kept."""
    return tuple(tuple(_varied(x, number) for x in inputs) for number in range(len(_FACTORS)))


def _varied(x: Array, number: int) -> Array:
    if x.dtype == bool:
        return np.roll(x, number)
    return (x * x.dtype.type(_FACTORS[number])).astype(x.dtype) if is_inexact(x.dtype) else x
