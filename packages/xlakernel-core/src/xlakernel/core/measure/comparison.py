"""Comparison of the results of several backends, and of a kernel and its reference (`xlakernel.core.testing`)."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Iterator, Sequence
from numbers import Real
from typing import Any

import jax
import numpy as np

from ..errors import ArgumentError

Array = np.ndarray[Any, Any]

#: Relative tolerance by dtype: several rounding errors, since sums accumulate them. Other dtypes are compared exactly.
RTOL = {
    "float16": 4e-3,
    "bfloat16": 3e-2,
    "float32": 2e-5,
    "float64": 1e-11,
    "complex64": 2e-5,
    "complex128": 1e-11,
}


class CheckFailure(Exception):
    """A check of results failed; the message names the fault."""


@contextlib.contextmanager
def default_settings() -> Iterator[None]:
    """Override settings of JAX that the user made for other calls.

    A transfer guard would forbid comparisons, and jax_debug_nans would turn a correct NaN into an error.
    """
    numbers = jax.debug_nans(False), jax.debug_infs(False), jax.numpy_rank_promotion("allow")
    with contextlib.ExitStack() as stack:
        for setting in (jax.disable_jit(False), jax.transfer_guard("allow"), *numbers):
            stack.enter_context(setting)
        yield


def is_inexact(dtype: Any) -> bool:
    """Return True for a floating-point or complex dtype, also of ``ml_dtypes``, where NumPy's ``kind`` is "V"."""
    return bool(jax.numpy.issubdtype(dtype, np.inexact))


def epsilon(dtype: Any) -> float:
    """Return the distance from 1 to the next number of an inexact dtype."""
    return float(jax.numpy.finfo(dtype).eps)  # type: ignore[no-untyped-call]  # JAX's finfo has no types


def tiny(dtype: Any) -> float:
    """Return the smallest normal number of an inexact dtype: XLA flushes smaller numbers to zero."""
    return float(jax.numpy.finfo(dtype).tiny)  # type: ignore[no-untyped-call]  # JAX's finfo has no types


def double(dtype: Any) -> Any:
    """Return the double precision of a real or complex dtype."""
    return np.complex128 if np.dtype(dtype).kind == "c" else np.float64


def largest(array: Array) -> float:
    """Return the largest magnitude of the finite elements."""
    return float(np.abs(array, where=np.isfinite(array), out=np.zeros(array.shape)).max(initial=0.0))


@dataclasses.dataclass(frozen=True)
class Tolerance:
    """Allowed errors, as in `numpy.isclose`; None stands for the dtype's default."""

    rtol: float | None = None
    atol: float | Array | None = None

    def of(self, expected: Array, dtype: Any) -> tuple[float, float | Array]:
        """Return the relative and the absolute tolerance for values of *dtype*.

        The default absolute tolerance allows several rounding errors of the largest value, since terms of a sum may
        cancel. The smallest normal number is added, since XLA flushes smaller numbers to zero.
        """
        rtol = RTOL.get(np.dtype(dtype).name, 4 * epsilon(dtype)) if self.rtol is None else self.rtol
        if self.atol is not None:
            return rtol, self.atol
        return rtol, 16 * epsilon(dtype) * largest(expected) + tiny(dtype)


@dataclasses.dataclass(frozen=True)
class Agreement(Tolerance):
    """Allowed errors relative to the largest value: *rtol*, or by default the square root of the dtype's `epsilon`."""

    def of(self, expected: Array, dtype: Any) -> tuple[float, float]:
        """Return a relative tolerance of 0, and the absolute tolerance for values of *dtype*."""
        return 0.0, (epsilon(dtype) ** 0.5 if self.rtol is None else self.rtol) * largest(expected)


def check_tolerances(what: str, **tolerances: Any) -> None:
    """Raise `ArgumentError` unless each of *tolerances* is None or a finite number of at least 0.

    An infinite tolerance would accept any result.

    Args:
      what: start of the error message.
      **tolerances: the values by the names of the arguments.
    """
    for name, value in tolerances.items():
        is_array = isinstance(value, np.ndarray | jax.Array) and value.shape == () and value.dtype.kind in "iuf"
        is_number = is_array or (isinstance(value, Real) and not isinstance(value, bool))
        if value is not None and not (is_number and 0 <= value < math.inf):
            raise ArgumentError(f"{what}: {name} is {value!r}; expected a finite number of at least 0, or None.")


#: Equal bits, for results of one program: -0.0 is not 0.0, and NaNs must have the same payload.
EXACT = Tolerance(0.0, 0.0)


def compare(
    got: Any, expected: Any, tolerance: Tolerance, *, batch: int = 0, what: str = "", noun: str = "output"
) -> None:
    """Raise `CheckFailure` unless *got* has the values of *expected*.

    Args:
      got: pytree of arrays.
      expected: pytree with as many leaves; its dtypes may be wider.
      tolerance: allowed errors.
      batch: number of leading batch dimensions, for the error message.
      what: start of the error message.
      noun: name of *got* in the error message.
    """
    found, wanted = named_leaves(got, noun), named_leaves(expected, noun)
    if len(found) != len(wanted):
        raise CheckFailure(f"{what}{len(found)} {noun}s, expected {len(wanted)}.")
    for keys, others in zip(_keys(got), _keys(expected), strict=True):
        if keys and others and keys != others:
            raise CheckFailure(f"{what}an {noun} is named {_joined(keys)}, expected {_joined(others)}.")
    for (name, one), (_, other) in zip(found, wanted, strict=True):
        if problem := _difference(np.asarray(one), np.asarray(other), tolerance, batch):
            raise CheckFailure(f"{what}{name} {problem}")


def compare_structs(got: Any, expected: Any, *, what: str) -> None:
    """Raise `CheckFailure` unless *got* has the shapes and dtypes of *expected*."""
    for (name, one), (_, other) in zip(named_leaves(got), named_leaves(expected), strict=True):
        if (one.shape, one.dtype) != (other.shape, other.dtype):
            raise CheckFailure(f"{what}{name} is {describe(one)}, expected {describe(other)}.")


def describe(array: Any) -> str:
    """Return dtype and shape for a message."""
    return f"{array.dtype.name}{list(array.shape)}"


def _keys(tree: Any) -> list[tuple[Any, ...]]:
    """Return the dictionary keys that lead to each leaf, from the outermost dictionary inwards."""
    paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(tree)]
    return [tuple(step.key for step in path if isinstance(step, jax.tree_util.DictKey)) for path in paths]


def _joined(keys: Sequence[Any]) -> str:
    return "".join(f"[{key!r}]" for key in keys)


def named_leaves(tree: Any, noun: str = "output") -> list[tuple[str, Any]]:
    """Return the leaves with names for messages: ``output``, ``output[0]``, ``output['y']``."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return [(f"{noun}{jax.tree_util.keystr(path)}", leaf) for path, leaf in leaves]


def _bytes_of(array: Array) -> Array:
    """Return the bytes of each element, along one more axis."""
    return np.ascontiguousarray(array).reshape((*array.shape, 1)).view(np.uint8)


def _lost(expected: Array, rounded: Array) -> Array:
    """Return True for each element that *rounded* cannot represent because of the kind of its dtype.

    Examples are a fraction in an integer dtype, and a complex number in a real dtype. Integer overflow does not count:
    the results of a kernel wrap around as well.
    """
    of, to = expected.dtype, rounded.dtype
    if np.iscomplexobj(expected) and not np.iscomplexobj(rounded):
        return np.asarray(expected.imag != 0)
    if (is_inexact(of) and not is_inexact(to)) or (to.kind == "b" != of.kind):
        return np.asarray(rounded.astype(of) != expected)
    return np.zeros(expected.shape, bool)


def _difference(got: Array, expected: Array, tolerance: Tolerance, batch: int) -> str | None:
    """Return a description of the first wrong element; None if there is none."""
    if got.shape != expected.shape:
        return f"has the shape {got.shape}, expected {expected.shape}."
    allowed = ""
    with np.errstate(all="ignore"):
        real = expected.real if not np.iscomplexobj(got) else expected
        rounded = real.astype(got.dtype)  # values beyond the dtype's range become infinite, or wrap
        wrong = got != rounded
        if tolerance is EXACT:
            wrong = (_bytes_of(got) != _bytes_of(rounded)).any(axis=-1)
        elif is_inexact(got.dtype):
            one, other = got.astype(double(got.dtype)), rounded.astype(double(got.dtype))
            rtol, atol = tolerance.of(other, got.dtype)
            wrong = ~np.isclose(one, other, rtol, atol, equal_nan=True)
            allowed = f" (rtol={rtol:.3g}, atol={np.max(atol, initial=0):.3g})"
        lost = _lost(expected, rounded)
        wrong = wrong | lost
    if not wrong.any():
        return None
    index = tuple(map(int, np.argwhere(wrong)[0]))
    place = f"element {index}"
    if batch:
        place = f"slice {index[0] if batch == 1 else index[:batch]} of the batch, element {index[batch:]}"
    return (
        f"({describe(got)}): {place} is {got[index]}, expected {(expected if lost[index] else rounded)[index]}; "
        f"{int(wrong.sum())} of {got.size} are wrong{allowed}."
    )
