"""Checks of derivatives against finite differences, in double precision where possible."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..errors import DifferentiationError
from ..measure.comparison import (
    RTOL,
    Array,
    CheckFailure,
    Tolerance,
    compare,
    describe,
    double,
    epsilon,
    is_inexact,
    largest,
    tiny,
)
from ._cotangents import check_kept, check_linear
from ._differences import Estimate, difference, refined_difference
from ._report import NotTried
from ._subject import Axes, Subject, evaluate

_SMALL = 64  # inputs of up to this many elements are checked element by element
_DIRECTIONS = 3  # random directions, for larger inputs

Function = Callable[..., list[Any]]


class _InaccurateError(CheckFailure):
    """Finite differences are not accurate enough."""


class _Problem:
    """A function of inexact inputs with inexact outputs, and the same function in the highest precision.

    Attributes:
      function: the function whose derivative is checked.
      exact: a function of a list of NumPy arrays that returns the same values, in double precision if possible.
      inputs: the point at which the derivative is taken.
      scales: factors that give the outputs magnitudes of about 1.
      weights: cotangents of the outputs, such that outputs of different magnitudes contribute alike.
      epsilon: the relative rounding error of *exact*.
      allowed: the allowed relative error of the derivative and the differences.
      has_differences: False if an output is NaN, or infinite while an input is not finite.
    """

    def __init__(self, function: Function, reference: Function | None, inputs: list[Array], rtol: float | None) -> None:
        self.function, self.inputs, self._rtol = function, inputs, rtol
        for candidate in filter(None, (reference, function)):
            self.exact = functools.partial(evaluate, candidate, dtypes=[x.dtype for x in inputs])
            outs = self.exact(inputs)
            self.epsilon = max((epsilon(y.dtype) if is_inexact(y.dtype) else 1.0 for y in outs), default=0.0)
            if self.is_double:
                break
        is_finite = all(map(_is_finite, inputs))
        self.has_differences = all(_is_finite(y) or (is_finite and not np.isnan(y).any()) for y in outs)
        structs = jax.eval_shape(function, *inputs)
        self.scales = [_scale(y, struct.dtype) for y, struct in zip(outs, structs, strict=True)]
        self.weights = [
            _random(y, 100 + number) * scale for number, (y, scale) in enumerate(zip(outs, self.scales, strict=True))
        ]
        rounding = max(RTOL.get(x.dtype.name, 4 * epsilon(x.dtype)) for x in inputs)
        self.allowed = float((10 * rounding if rtol is None else rtol) + 200 * self.epsilon ** (2 / 3))

    @property
    def is_double(self) -> bool:
        """True if the finite differences are in double precision."""
        return self.epsilon <= epsilon(np.float64)

    @property
    def remark(self) -> str:
        """The method and the accuracy of the check, for the report."""
        precision = "double" if self.is_double else "the kernel's own"
        unresolved = 4 * self.epsilon ** (2 / 3)
        return (
            f"compared with finite differences in {precision} precision, relative error at most {self.allowed:.1g}; "
            f"derivatives below {unresolved:.0e} of the results are not resolved"
        )

    def difference(self, number: int, direction: Array, *, refined: bool) -> list[Estimate]:
        """Return the derivative of each output along *direction* of input *number*, by central differences."""
        method = refined_difference if refined else difference
        return method(self.exact, self.inputs, number, direction, self.epsilon)

    def check_accuracy(self, size: float, error: float, scale: float = 1.0) -> None:
        """Raise an error if the differences are too inaccurate to check a derivative.

        For a derivative much smaller than the results, a large relative error is accepted: the check then verifies only
        that the derivative is small.

        Args:
          size: the magnitude of the derivative by finite differences.
          error: the error of the differences with the best of all steps.
          scale: the factor that gives the function a magnitude of about 1.

        Raises:
          _InaccurateError: if *error* exceeds ``allowed * (size + 1 / scale)``.
        """
        if not error <= self.allowed * (size + 1 / scale):
            raise _InaccurateError(
                f"The error of the differences is {error:.2g}, whatever the step"
                + ("." if self.is_double else "; give reference=, for differences in double precision.")
            )

    def pulled(self, *xs: Any, weights: Sequence[Any] | None = None) -> list[Any]:
        """Return the gradient of the weighted outputs."""
        ys, pull = jax.vjp(self.function, *xs)
        return list(pull([jnp.asarray(w, y.dtype) for w, y in zip(weights or self.weights, ys, strict=True)]))

    def pushed(self, *xs: Any) -> list[Any]:
        """Return the derivative along a random direction of all inputs."""
        tangents = [jnp.asarray(_random(x, number), x.dtype) for number, x in enumerate(xs)]
        return list(jax.jvp(self.function, xs, tuple(tangents))[1])

    def derived(self, first: Function) -> _Problem:
        """Return the second-order problem: *first*, a derivative of the function, is differentiated once more."""
        return _Problem(first, None, self.inputs, self._rtol)


def check_forward(subject: Subject) -> str:
    """`jax.jvp` agrees with finite differences."""
    problem = _first_problem(subject)
    try:
        _check_forward(problem, "")
    except (DifferentiationError, TypeError) as error:
        # JAX raises a TypeError with this word if the function is a jax.custom_vjp, which has no jvp.
        is_reverse_only = isinstance(error, DifferentiationError) or "forward-mode" in str(error)
        # If the reverse mode works, the check is not tried. If it is not defined either, the error is raised below.
        with contextlib.suppress(DifferentiationError):
            if not is_reverse_only:
                raise
            problem.pulled(*map(jnp.array, problem.inputs))
            reason = str(error).partition(". ")[0].rstrip(".")
            raise NotTried(f"{reason}; give the kernel jvp= or reference=") from error
        raise
    if subject.grad_order > 1:
        _check_forward(problem.derived(problem.pushed), "second order: ")
    return problem.remark


def check_reverse(subject: Subject) -> str:
    """`jax.vjp`, and with it `jax.grad`, agrees with finite differences."""
    problem = _first_problem(subject)
    _check_reverse(problem, "")
    if subject.grad_order > 1:
        _check_reverse(problem.derived(problem.pulled), "second order: ")
    return problem.remark


def check_vmap_of_grad(subject: Subject) -> None:
    """Derivatives of a batch equal those of single calls, for vmap of grad and for grad of vmap."""
    problem = _first_problem(subject)
    samples = subject.samples[:3]
    batch = [np.stack([sample[i] for sample in samples]) for i in subject.inexact]  # the other inputs are shared
    singles = [problem.pulled(*(jnp.array(x[k]) for x in batch)) for k in range(len(samples))]
    expected = [np.stack([np.asarray(one[i]) for one in singles]) for i in range(len(batch))]
    arrays = subject.arrays(batch)
    compare(jax.jit(jax.vmap(problem.pulled))(*arrays), expected, subject.tolerance, batch=1, what="vmap of grad: ")

    def total(*xs: jax.Array) -> jax.Array:
        outs = zip(jax.vmap(problem.function)(*xs), problem.weights, strict=True)
        return sum((jnp.real(jnp.sum(y * w.astype(y.dtype))) for y, w in outs), jnp.zeros(()))

    gradients = jax.jit(jax.grad(total, argnums=tuple(range(len(batch)))))(*arrays)
    compare(list(gradients), expected, subject.tolerance, batch=1, what="grad of vmap: ")
    _check_directions_of_slices(problem, [[x[k] for x in batch] for k in range(len(samples))], subject.tolerance)


def _check_directions_of_slices(problem: _Problem, points: Sequence[Sequence[Array]], tolerance: Tolerance) -> None:
    """Compare derivatives of a batch with those of single calls; each slice has its own cotangents or tangents."""

    def pull(weights: Any, *xs: Any) -> list[Any]:
        return problem.pulled(*xs, weights=weights)

    def push(tangents: Any, *xs: Any) -> list[Any]:
        return list(jax.jvp(problem.function, xs, tuple(tangents))[1])

    structs = jax.eval_shape(problem.function, *points[0])
    for what, derive, like, scales in (
        ("cotangents", pull, structs, problem.scales),
        ("tangents", push, points[0], [1.0] * len(points[0])),
    ):
        rows = [
            [
                jnp.asarray(_random(x, 200 + 10 * k + n) * s, x.dtype)
                for n, (x, s) in enumerate(zip(like, scales, strict=True))
            ]
            for k in range(len(points))
        ]
        try:
            derive(rows[0], *map(jnp.array, points[0]))
        except (DifferentiationError, TypeError):  # a kernel with vjp= alone has no forward mode
            continue
        directions = jax.tree.map(lambda *slices: jnp.stack(slices), *rows)
        for axes in _axes_of_inputs(len(points[0])):
            at = [
                [x if axis == 0 else first for x, first, axis in zip(xs, points[0], axes, strict=True)] for xs in points
            ]
            singles = [derive(row, *map(jnp.array, xs)) for row, xs in zip(rows, at, strict=True)]
            expected = [np.stack(slices) for slices in zip(*singles, strict=True)]
            columns = zip(*at, strict=True)
            arrays = [jnp.array(x[0] if axis is None else np.stack(x)) for x, axis in zip(columns, axes, strict=True)]
            mapped = jax.jit(jax.vmap(derive, in_axes=(0, *axes)))
            what_differs = f"{what} of each slice, in_axes of the inputs {axes}"
            compare(mapped(directions, *arrays), expected, tolerance, batch=1, what=f"vmap with {what_differs}: ")


def _axes_of_inputs(count: int) -> list[Axes]:
    """Return axes for ``jax.vmap``: all inputs mapped, none mapped, only one mapped, and only one unmapped."""
    alone = [tuple(0 if i == number else None for i in range(count)) for number in range(count)]
    others = [tuple(None if i == number else 0 for i in range(count)) for number in range(count)]
    return list(dict.fromkeys([(0,) * count, (None,) * count, *alone, *others]))


def _first_problem(subject: Subject) -> _Problem:
    if not subject.inexact:
        raise NotTried("no input is of a floating-point dtype")
    inputs = subject.inputs
    is_compared = [is_inexact(y.dtype) for y in jax.tree.leaves(jax.eval_shape(subject.function, *inputs))]
    if not any(is_compared):
        raise NotTried("no output is of a floating-point dtype")

    def restricted(function: Callable[..., Any]) -> Function:
        def of_inexact(*xs: Any) -> list[Any]:
            given = iter(xs)
            full = [next(given) if i in subject.inexact else x for i, x in enumerate(inputs)]
            leaves = jax.tree.leaves(function(*full))
            return [y for y, compared in zip(leaves, is_compared, strict=True) if compared]

        return of_inexact

    own = [inputs[i] for i in subject.inexact]
    reference = restricted(subject.reference) if subject.reference else None
    problem = _Problem(restricted(subject.function), reference, own, subject.tolerance.rtol)
    if not problem.has_differences:
        raise NotTried(
            "a result is NaN, or is infinite while an argument is not finite; finite differences are then meaningless: "
            "give other arguments"
        )
    return problem


def _check_forward(problem: _Problem, what: str) -> None:
    primals = tuple(jnp.array(x) for x in problem.inputs)
    push = jax.jit(lambda tangents, primals: jax.jvp(problem.function, primals, tangents)[1])

    def check(directions: Mapping[int, Array], label: str, *, refined: bool) -> None:
        tangents = tuple(jnp.asarray(directions.get(i, np.zeros(x.shape)), x.dtype) for i, x in enumerate(primals))
        found = [problem.difference(number, direction, refined=refined) for number, direction in directions.items()]
        outs = [np.asarray(y) for y in push(tangents, primals)]
        check_kept(primals, problem.inputs, f"{what}the derivative by jvp")
        for k, (got, estimates) in enumerate(zip(outs, zip(*found, strict=True), strict=True)):
            expected = np.asarray(sum(one.values for one in estimates))
            size = max(float(np.abs(one.values).max(initial=0.0)) for one in estimates)
            errors = np.asarray(sum(one.errors for one in estimates))
            if refined:
                problem.check_accuracy(size, float(errors.max(initial=0.0)), problem.scales[k])
            tolerance = Tolerance(problem.allowed, problem.allowed * size + errors + tiny(got.dtype))
            compare({k: got}, {k: expected}, tolerance, what=f"{what}derivative along {label}, by jvp: ")

    for number, x in enumerate(problem.inputs):
        for label, direction in _directions(x):
            _with_either_step(check, {number: direction}, f"{label} of differentiable input {number}")
    # A derivative is linear: along a direction of all inputs, it is the sum of the derivatives along its parts.
    every = {number: _random(x, number) for number, x in enumerate(problem.inputs)}
    _with_either_step(check, every, "a random direction of all differentiable inputs")


def _with_either_step(check: Callable[..., None], *arguments: Any) -> None:
    """Check a derivative with the usual step; if the check fails, repeat it with refined steps, which take longer.

    The usual step is too large for an input with elements of very different sizes, or a function of large curvature.
    """
    try:
        check(*arguments, refined=False)
    except CheckFailure as failure:
        try:
            check(*arguments, refined=True)
        except _InaccurateError as inaccurate:
            raise CheckFailure(f"{failure} {inaccurate}") from None
        except CheckFailure:
            raise failure from None


def _check_reverse(problem: _Problem, what: str) -> None:
    arrays = list(map(jnp.array, problem.inputs))
    structs = jax.eval_shape(problem.function, *arrays)
    weights = [jnp.asarray(w, y.dtype) for w, y in zip(problem.weights, structs, strict=True)]
    program = jax.jit(lambda weights, *xs: problem.pulled(*xs, weights=weights))

    def pull(weights: Sequence[jax.Array]) -> list[Array]:
        before = [np.array(w) for w in weights]
        gradients = [np.asarray(g) for g in program(weights, *arrays)]
        check_kept([*arrays, *weights], [*problem.inputs, *before], f"{what}the gradient")
        return gradients

    gradients = pull(weights)
    for number, (gradient, x) in enumerate(zip(gradients, problem.inputs, strict=True)):
        name = f"{what}the gradient of differentiable input {number}"
        if (gradient.shape, gradient.dtype) != (x.shape, x.dtype):
            raise CheckFailure(f"{name} is {describe(gradient)}, expected {describe(x)}.")
        for label, direction in _directions(x):
            _with_either_step(_check_gradient, problem, number, gradient, direction, f"{name} along {label}")
    check_linear(pull, weights, gradients, problem.allowed, what)


def _check_gradient(
    problem: _Problem, number: int, gradient: Array, direction: Array, what: str, *, refined: bool
) -> None:
    products = gradient.astype(double(gradient.dtype)) * direction
    found = problem.difference(number, direction, refined=refined)
    terms = [np.real(w * one.values) for w, one in zip(problem.weights, found, strict=True)]
    errors = [np.abs(w) * one.errors for w, one in zip(problem.weights, found, strict=True)]
    of_moving = _norm([np.where(one.moves, error, 0) for error, one in zip(errors, found, strict=True)])
    if refined:
        problem.check_accuracy(_norm(terms), of_moving)
    got, expected = float(np.real(products.sum())), float(sum(term.sum() for term in terms))
    # Rounding errors of many terms partly cancel, so the bound is their root sum of squares: a bound by their sum would
    # hide one wrong element.
    flushed = tiny(gradient.dtype) * max(1.0, *problem.scales) * _norm([direction])
    allowed = problem.allowed * (_norm(terms) + _norm([products])) + of_moving + flushed
    if not (got == expected or abs(got - expected) <= allowed < math.inf):
        # Output elements that the step leaves unchanged may have derivatives too small for finite differences: repeat
        # the comparison without these elements.
        if abs(got - expected) <= allowed + _norm(errors) and not all(one.moves.all() for one in found):
            weights = [w * one.moves for w, one in zip(problem.weights, found, strict=True)]
            gradients = problem.pulled(*map(jnp.array, problem.inputs), weights=weights)
            got = float(np.real((np.asarray(gradients[number]).astype(direction.dtype) * direction).sum()))
            if abs(got - expected) <= allowed:
                return
        raise CheckFailure(
            f"{what} is {got:.6g}, finite differences give {expected:.6g} (allowed error {allowed:.2g})."
        )


def _is_finite(array: Array) -> bool:
    return bool(np.isfinite(array.astype(double(array.dtype))).all())


def _norm(arrays: Sequence[Array]) -> float:
    """Return the root of the sum of the squares of all elements."""
    return float(np.sqrt(sum(np.square(np.abs(array)).sum() for array in arrays)))


def _scale(y: Array, dtype: Any) -> float:
    """Return the power of 2 that gives *y* a magnitude of about 1, or 1 for zeros.

    The square of this power is in the range of *dtype*.
    """
    most = int(jnp.finfo(dtype).maxexp) // 2  # type: ignore[no-untyped-call]  # JAX's finfo has no types
    exponent = int(np.frexp(largest(y))[1]) if y.size else 0
    return float(2.0 ** -min(max(exponent, -most), most))


def _directions(x: Array) -> Iterator[tuple[str, Array]]:
    """Yield each element of a small input, or random directions of a large one, with names for messages."""
    if x.size > _SMALL:
        yield from (("a random direction", _random(x, seed)) for seed in range(_DIRECTIONS))
        return
    for index in np.ndindex(x.shape):
        for unit in (1.0, 1j) if x.dtype.kind == "c" else (1.0,):
            direction = np.zeros(x.shape, double(x.dtype))
            direction[index] = unit
            yield f"element {index}{' (imaginary)' * (unit == 1j)}", direction


def _random(like: Any, seed: int) -> Array:
    """Return random numbers of both signs. None is near 0: a factor near 0 would hide a wrong element."""
    rng = np.random.default_rng(seed)
    shape = (2, *like.shape)
    real, imaginary = rng.choice([-1.0, 1.0], shape) * rng.uniform(0.5, 1.5, shape)
    return np.asarray(real + 1j * imaginary if np.dtype(like.dtype).kind == "c" else real)
