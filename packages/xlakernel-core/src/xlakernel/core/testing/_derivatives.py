"""Checks of derivatives: against finite differences, in double precision where that can be had."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..errors import DifferentiationError
from ._compare import RTOL, Tolerance, compare, epsilon, is_inexact
from ._report import CheckFailure, NotTried
from ._subject import Array, NotWideError, Subject, evaluate_wide

_SMALL = 64  # inputs of up to this many elements are checked element by element
_DOUBLE = 1e-12  # dtypes that round by less are double precision
_DIRECTIONS = 3  # random ones, for larger inputs

Function = Callable[..., list[Any]]


@dataclasses.dataclass(frozen=True)
class _Problem:
    """A function of inexact inputs with inexact outputs, and the same function as precise as it can be had."""

    function: Function
    exact: Callable[[Sequence[Array]], list[Array]]
    inputs: list[Array]
    tolerance: Tolerance

    def difference(self, number: int, direction: Array) -> list[Array]:
        """Return the derivative along *direction* of input *number*, by central differences."""
        size = max(1.0, float(np.abs(self.inputs[number]).max(initial=0.0)))
        step = float(np.cbrt(self.epsilon)) * size / max(1e-30, float(np.abs(direction).max()))
        above, below = (self.exact(self._moved(number, sign * step * direction)) for sign in (1, -1))
        # What was added is not quite the step, once it is rounded.
        return [(a.astype(_wide(a)) - b.astype(_wide(b))) / (2 * step) for a, b in zip(above, below, strict=True)]

    def _moved(self, number: int, by: Array) -> list[Array]:
        moved = [np.asarray(x, _wide(x)) for x in self.inputs]
        moved[number] = moved[number] + by
        return moved

    @property
    def epsilon(self) -> float:
        """The rounding of `exact`."""
        return max((epsilon(y.dtype) for y in self.exact(self.inputs)), default=0.0)

    def allowed(self) -> float:
        """The relative error that the derivative may have, beside that of the differences."""
        rounding = max(RTOL.get(x.dtype.name, 4 * epsilon(x.dtype)) for x in self.inputs)
        own = self.tolerance.rtol if self.tolerance.rtol is not None else 10 * rounding
        return float(own + 200 * self.epsilon ** (2 / 3))


def check_forward(subject: Subject) -> str:
    """`jax.jvp` agrees with finite differences."""
    problem = _first_problem(subject)
    try:
        _check_forward(problem, "")
    except DifferentiationError as error:
        if _has_reverse(problem):
            raise NotTried(_first_sentence(error), "give the kernel jvp= or reference=") from error
        raise
    if subject.grad_order > 1:
        _check_forward(_derived(subject, problem, _pushed), "second order: ")
    return _precision(problem)


def check_reverse(subject: Subject) -> str:
    """`jax.vjp`, and with it `jax.grad`, agrees with finite differences."""
    problem = _first_problem(subject)
    _check_reverse(problem, "")
    if subject.grad_order > 1:
        _check_reverse(_derived(subject, problem, _pulled), "second order: ")
    return _precision(problem)


def _has_reverse(problem: _Problem) -> bool:
    """Whether there is a gradient at all; whether it is right is for `check_reverse`."""
    try:
        _pulled(problem.function, problem.exact(problem.inputs))(*map(jnp.array, problem.inputs))
    except Exception:  # noqa: BLE001 - forward mode has failed already, and that is told
        return False
    return True


def _first_sentence(error: Exception) -> str:
    return str(error).partition(". ")[0].rstrip(".")


def check_vmap_of_grad(subject: Subject) -> None:
    """Derivatives of a batch are those of a loop, for vmap of grad and for grad of vmap."""
    problem = _first_problem(subject)
    pulled = _pulled(problem.function, problem.exact(problem.inputs))
    numbers = range(min(3, len(subject.samples)))
    batch = [
        np.stack([subject.samples[k][i] for k in numbers]) for i in subject.inexact
    ]  # inputs without a derivative are shared
    singles = [pulled(*(jnp.array(x[k]) for x in batch)) for k in numbers]
    expected = [np.stack([np.asarray(one[i]) for one in singles]) for i in range(len(batch))]
    arrays = subject.arrays(batch)
    compare(jax.jit(jax.vmap(pulled))(*arrays), expected, subject.tolerance, batch=1, what="vmap of grad: ")
    weights = _cotangents(problem.exact(problem.inputs))

    def total(*xs: jax.Array) -> jax.Array:
        outs = jax.vmap(problem.function)(*xs)
        return sum(
            (jnp.real(jnp.sum(y * w.astype(y.dtype))) for y, w in zip(outs, weights, strict=True)), jnp.zeros(())
        )

    gradients = jax.jit(jax.grad(total, argnums=tuple(range(len(batch)))))(*arrays)
    compare(list(gradients), expected, subject.tolerance, batch=1, what="grad of vmap: ")


def _first_problem(subject: Subject) -> _Problem:
    if not subject.inexact:
        raise NotTried("no input is of a floating-point dtype")
    inputs = subject.inputs
    kept = [is_inexact(y.dtype) for y in jax.tree.leaves(jax.eval_shape(subject.function, *inputs))]
    if not any(kept):
        raise NotTried("no output is of a floating-point dtype")

    def restricted(function: Callable[..., Any]) -> Function:
        def of_inexact(*xs: Any) -> list[Any]:
            given = iter(xs)
            full = [next(given) if i in subject.inexact else x for i, x in enumerate(inputs)]
            leaves = jax.tree.leaves(function(*full))
            return [y for y, keep in zip(leaves, kept, strict=True) if keep]

        return of_inexact

    own = [inputs[i] for i in subject.inexact]
    return _Problem(
        restricted(subject.function),
        _exact(restricted(subject.function), restricted(subject.reference) if subject.reference else None, own),
        own,
        subject.tolerance,
    )


def _exact(function: Function, reference: Function | None, inputs: Sequence[Array]) -> Any:
    """Return the most precise of: the reference, the function in double precision, the function as it is."""

    def as_it_is(xs: Sequence[Array]) -> list[Array]:
        return [
            np.asarray(y) for y in function(*(jnp.array(x, like.dtype) for x, like in zip(xs, inputs, strict=True)))
        ]

    for candidate in (reference, function):
        if candidate is None:
            continue
        try:
            outs = evaluate_wide(candidate, inputs)
        except NotWideError:  # it takes its own dtypes only
            continue
        if all(is_inexact(y.dtype) and epsilon(y.dtype) < _DOUBLE for y in outs):
            return lambda xs, candidate=candidate: evaluate_wide(candidate, xs)
    return as_it_is


def _derived(subject: Subject, problem: _Problem, derive: Callable[..., Function]) -> _Problem:
    """Return the problem of the second derivative: of the function's own first one."""
    first = derive(problem.function, problem.exact(problem.inputs))
    return dataclasses.replace(problem, function=first, exact=_exact(first, None, problem.inputs))


def _pulled(function: Function, outs: Sequence[Array]) -> Function:
    weights = _cotangents(outs)

    def pulled(*xs: Any) -> list[Any]:
        ys, pull = jax.vjp(function, *xs)
        return list(pull([jnp.asarray(w, y.dtype) for w, y in zip(weights, ys, strict=True)]))

    return pulled


def _pushed(function: Function, outs: Sequence[Array]) -> Function:
    def pushed(*xs: Any) -> list[Any]:
        tangents = [jnp.asarray(_random(x, number), x.dtype) for number, x in enumerate(xs)]
        return list(jax.jvp(function, xs, tuple(tangents))[1])

    return pushed


def _check_forward(problem: _Problem, what: str) -> None:
    primals = tuple(jnp.array(x) for x in problem.inputs)
    push = jax.jit(lambda tangents: jax.jvp(problem.function, primals, tangents)[1])
    for number in range(len(primals)):
        for label, direction in _directions(problem.inputs[number]):
            tangents = tuple(
                jnp.array(direction, x.dtype) if i == number else jnp.zeros_like(x) for i, x in enumerate(primals)
            )
            expected = problem.difference(number, direction)
            size = max((float(np.abs(y).max(initial=0.0)) for y in expected), default=0.0)
            tolerance = Tolerance(problem.allowed(), problem.allowed() * max(size, problem.epsilon ** (1 / 3)))
            message = f"{what}derivative along {label} of differentiable input {number}, by jvp: "
            compare(push(tangents), expected, tolerance, what=message)


def _check_reverse(problem: _Problem, what: str) -> None:
    weights = _cotangents(problem.exact(problem.inputs))
    gradients = [np.asarray(g) for g in jax.jit(_pulled(problem.function, weights))(*map(jnp.array, problem.inputs))]
    for number, gradient in enumerate(gradients):
        x = problem.inputs[number]
        if (gradient.shape, gradient.dtype) != (x.shape, x.dtype):
            raise CheckFailure(
                f"{what}the gradient of differentiable input {number} is {gradient.dtype}{list(gradient.shape)}, "
                f"expected {x.dtype}{list(x.shape)}."
            )
        for label, direction in _directions(x):
            if problem_found := _disagreement(problem, number, gradient, weights, direction):
                # A random direction says that something is wrong; the single elements say what.
                for place, single in [] if x.size <= _SMALL else _basis(x, limit=256):
                    if found := _disagreement(problem, number, gradient, weights, single):
                        label, problem_found = place, found
                        break
                raise CheckFailure(f"{what}the gradient of differentiable input {number} along {label} {problem_found}")


def _disagreement(
    problem: _Problem, number: int, gradient: Array, weights: Sequence[Array], direction: Array
) -> str | None:
    """Return how the gradient along a direction differs from the differences, if it does."""
    wide = gradient.astype(_wide(gradient))
    got = float(np.real(np.sum(wide * direction)))
    terms = [np.real(w * y) for w, y in zip(weights, problem.difference(number, direction), strict=True)]
    expected = float(sum(term.sum() for term in terms))
    # Rounding errors of many terms cancel as random numbers do; their sum would hide one wrong element among many.
    size = float(np.sqrt(sum(np.square(term).sum() for term in terms))) + float(np.linalg.norm(wide * direction))
    allowed = problem.allowed() * max(size, problem.epsilon ** (1 / 3))
    if abs(got - expected) <= allowed:
        return None
    return f"is {got:.6g}, finite differences give {expected:.6g} (allowed error {allowed:.2g})."


def _directions(x: Array) -> Iterator[tuple[str, Array]]:
    if x.size <= _SMALL:
        yield from _basis(x)
    else:
        for seed in range(_DIRECTIONS):
            yield "a random direction", _random(x, seed)


def _basis(x: Array, limit: int | None = None) -> Iterator[tuple[str, Array]]:
    for flat in range(x.size if limit is None else min(limit, x.size)):
        index = tuple(int(i) for i in np.unravel_index(flat, x.shape))
        for unit in (1.0, 1j) if x.dtype.kind == "c" else (1.0,):
            direction = np.zeros(x.shape, _wide(x))
            direction[index] = unit
            yield f"element {index}{' (imaginary)' * (unit == 1j)}", direction


def _cotangents(outs: Sequence[Any]) -> list[Array]:
    return [_random(y, 100 + number) for number, y in enumerate(outs)]


def _random(like: Any, seed: int) -> Array:
    """Return numbers of both signs and none near 0, where a wrong element would not show."""
    rng = np.random.default_rng(seed)

    def real() -> Array:
        return np.asarray(rng.choice([-1.0, 1.0], like.shape) * rng.uniform(0.5, 1.5, like.shape))

    return real() + 1j * real() if np.dtype(like.dtype).kind == "c" else real()


def _wide(x: Any) -> Any:
    return np.complex128 if np.dtype(x.dtype).kind == "c" else np.float64


def _precision(problem: _Problem) -> str:
    precision = "double" if problem.epsilon < _DOUBLE else "the kernel's own"
    return f"compared with finite differences in {precision} precision, relative error at most {problem.allowed():.1g}"
