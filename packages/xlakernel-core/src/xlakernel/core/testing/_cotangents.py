"""Checks that gradients are linear in the cotangents, and leave their arguments unchanged."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from ..measure.comparison import EXACT, Array, Tolerance, compare, double, largest, tiny


def check_kept(arrays: Sequence[jax.Array], before: Sequence[Array], what: str) -> None:
    for number, (array, expected) in enumerate(zip(arrays, before, strict=True)):
        compare(array, expected, EXACT, what=f"{what} changed an argument: ", noun=f"argument {number}")


def check_linear(
    pull: Callable[[Sequence[jax.Array]], list[Array]],
    weights: Sequence[jax.Array],
    gradients: Sequence[Array],
    allowed: float,
    what: str,
) -> None:
    """Check that gradients are linear in the cotangents, for zeros, the other sign, and other magnitudes."""

    def check(got: Sequence[Array], expected: Sequence[Array], how: str, sizes: Sequence[Array]) -> None:
        for number, (g, e, size) in enumerate(zip(got, expected, sizes, strict=True)):
            tolerance = Tolerance(allowed, allowed * largest(size) + len(weights) * tiny(g.dtype))
            compare(g, e, tolerance, what=f"{what}for {how}, ", noun=f"the gradient of differentiable input {number}")

    limits = [float(jnp.finfo(g.dtype).max) for g in gradients]  # type: ignore[no-untyped-call]  # JAX has no types there
    most = max((largest(g) / limit for g, limit in zip(gradients, limits, strict=True) if g.size), default=0.0)
    # In float16, 2^-8 times a value of 0.01 has a rounding error of 0.1 %.
    dtypes = [*(w.dtype for w in weights), *(g.dtype for g in gradients)]
    smaller = 2.0**-8 if all(tiny(dtype) < 1e-30 for dtype in dtypes) else 2.0**-2
    for factor, how in (
        *((-1.0, "cotangents of the other sign"), (0.0, "cotangents of zeros")),
        *((smaller, "smaller cotangents"), (2.0**4 if most < 2.0**-6 else 1.0, "larger cotangents")),
    ):
        expected = [g * g.dtype.type(factor) for g in gradients]
        check(pull([w * jnp.asarray(factor, w.dtype) for w in weights]), expected, how, expected)
    # The gradients for parts of the cotangents, with zeros elsewhere, add up to the gradient for all cotangents.
    parts = []
    for number, w in enumerate(weights):
        places = jnp.arange(w.size).reshape(w.shape) % 2
        for half in (0, 1)[: max(w.size, 1)]:
            one = jnp.where(places == half, w, jnp.zeros((), w.dtype))
            parts.append(pull([one if k == number else jnp.zeros_like(w) for k, w in enumerate(weights)]))
    columns = [np.stack([x.astype(double(x.dtype)) for x in column]) for column in zip(*parts, strict=True)]
    sums = [column.sum(0).astype(g.dtype) for column, g in zip(columns, gradients, strict=True)]
    check(sums, gradients, "cotangents with zeros, added up", columns)
