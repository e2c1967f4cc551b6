"""The kernel that is being checked, with what it is called on and what it should return."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from ._child import Child
from ._compare import Tolerance, is_inexact
from ._report import CheckFailure

Array = np.ndarray[Any, Any]
Pick = tuple[int, ...]  # the number of the sample of each input
Axes = Sequence[int | None]  # of each input, at one level of vmap

# Scaling keeps signs, zeros, order and definiteness, so that a kernel which needs those can take the result.
_FACTORS = (1.0, 0.75, 0.5, 0.625)


@dataclasses.dataclass(frozen=True)
class Subject:
    """A kernel with its arguments.

    Attributes:
      name: for messages.
      function: what is checked, a function of arrays.
      reference: what it should compute, a function of NumPy's or JAX's arrays; None: each result is compared with what
        *function* returns for a single eager call.
      samples: argument lists of the same shapes and dtypes; the first is the user's.
      zero_size: argument lists with an extent of 0.
      tolerance: how close results must be.
      grad_order: up to which order derivatives are checked.
      child: another process, to load an artifact in.
    """

    name: str
    function: Callable[..., Any]
    reference: Callable[..., Any] | None
    samples: tuple[tuple[Array, ...], ...]
    zero_size: tuple[tuple[Array, ...], ...]
    tolerance: Tolerance
    grad_order: int
    child: Child = dataclasses.field(default_factory=Child)
    _known: dict[Pick, Any] = dataclasses.field(default_factory=dict)

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

    def single(self, pick: Pick | None = None) -> Any:
        """Return the result that one call should have, on the user's arguments or those of *pick*, as NumPy arrays."""
        key = tuple(number % len(self.samples) for number in pick or (0,) * len(self.inputs))
        if key not in self._known:
            self._known[key] = self.expected([self.samples[number][i] for i, number in enumerate(key)])
        return self._known[key]

    def batch(self, sizes: Sequence[int], axes: Sequence[Axes] | None = None) -> tuple[list[Array], Any]:
        """Return inputs for nested levels of ``jax.vmap`` along the first axes, and the results that they should have.

        If a size is 0, the results are None.

        Args:
          sizes: of each level, from the outermost.
          axes: of each level, for each input, 0 or, where all slices share it, None; left out, 0 for all.
        """
        count = len(self.inputs)
        axes = axes or [(0,) * count for _ in sizes]
        own = [[k for k, level in enumerate(axes) if level[i] is not None] for i in range(count)]
        stacked = []
        for i, levels in enumerate(own):
            shape = tuple(sizes[k] for k in levels)
            slices = [self.samples[n % len(self.samples)][i] for n in range(math.prod(shape))]
            stacked.append(np.asarray(slices, self.inputs[i].dtype).reshape((*shape, *self.inputs[i].shape)))
        singles = []
        for cell in np.ndindex(*sizes):
            numbers = [functools.reduce(lambda n, k: n * sizes[k] + cell[k], levels, 0) for levels in own]
            singles.append(self.single(tuple(numbers)))
        if not singles:
            return stacked, None
        return stacked, jax.tree.map(lambda *ys: np.stack(ys).reshape((*sizes, *np.shape(ys[0]))), *singles)

    def expected(self, inputs: Sequence[Array]) -> Any:
        """Return what *function* should return for *inputs*: by the reference, or by a single eager call."""
        if self.reference is None:
            return jax.tree.map(np.asarray, self.function(*self.arrays(inputs)))
        try:
            return evaluate_wide(self.reference, inputs)
        except NotWideError:  # it may insist on its dtypes
            try:
                return jax.tree.map(np.asarray, call_on_either(self.reference, inputs))
            except Exception as error:
                raise CheckFailure(
                    f"the reference raised {type(error).__name__}: {error}. It is called as the kernel is, with NumPy "
                    "arrays, and if it raises with JAX's."
                ) from error


def devices_of(subject: Subject) -> list[jax.Device]:
    """Return the devices of the platform that arrays are put on."""
    device = next(iter(subject.arrays()[0].devices()))
    devices: list[jax.Device] = jax.local_devices(backend=device.platform)
    return devices


class NotWideError(Exception):
    """A function raised when it was given double precision."""


def call_on_either(function: Callable[..., Any], inputs: Sequence[Array]) -> Any:
    """Call *function* on NumPy arrays; if it raises, on JAX's, which have more methods and take traced indices.

    Those of NumPy are copies: what one that raises has done to them in place is not done twice.
    """
    try:
        return function(*(x.copy() for x in inputs))
    except Exception:  # noqa: BLE001 - what it raises on JAX's arrays is raised
        return function(*map(jax.numpy.asarray, inputs))


def evaluate_wide(function: Callable[..., Any], inputs: Sequence[Array]) -> Any:
    """Call *function* on *inputs* in double precision, and return NumPy arrays.

    Raises:
      NotWideError: if it raises. Nothing else is taken for that: it would make every comparison a rough one.
    """
    with enable_x64():
        wide = [widen(x) for x in inputs]
        try:
            results = call_on_either(function, wide)
        except Exception as error:
            raise NotWideError from error
        return jax.tree.map(np.asarray, results)


def widen(x: Array) -> Array:
    """Return *x* in double precision, if it rounds at all."""
    if not is_inexact(x.dtype):
        return x
    return x.astype(np.complex128 if x.dtype.kind == "c" else np.float64)


@contextlib.contextmanager
def enable_x64() -> Iterator[None]:
    """Turn JAX's 64-bit types on, in this thread; JAX 0.8 gave it a new name."""
    switch: Any = getattr(jax, "enable_x64", None)
    with switch(True) if switch is not None else jax.experimental.enable_x64():  # type: ignore[attr-defined]
        yield


def as_arrays(arguments: Sequence[Any]) -> tuple[Array, ...]:
    """Return the leaves of *arguments* as NumPy arrays of the dtypes that JAX gives them."""
    return tuple(np.array(jax.numpy.asarray(leaf)) for leaf in jax.tree.leaves(list(arguments)))


def vary(inputs: Sequence[Array]) -> tuple[tuple[Array, ...], ...]:
    """Return samples made from one: floats scaled, booleans rolled, integers (which may be indices) as they are."""
    return tuple(tuple(_varied(x, number) for x in inputs) for number in range(len(_FACTORS)))


def _varied(x: Array, number: int) -> Array:
    if x.dtype == bool:
        return np.roll(x, number)
    return (x * x.dtype.type(_FACTORS[number])).astype(x.dtype) if is_inexact(x.dtype) else x
