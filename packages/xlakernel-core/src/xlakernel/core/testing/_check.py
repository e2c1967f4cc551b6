"""`check_kernel`: all checks of one kernel in one call."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax

from ..errors import ArgumentError, KernelCheckError
from ..measure.comparison import Array, Tolerance, check_tolerances, default_settings, describe
from ._report import KernelReport
from ._subject import Subject, as_arrays, vary
from ._table import NAMES, run_all


def check_kernel(
    fn: Callable[..., Any],
    /,
    *args: Any,
    reference: Callable[..., Any] | None = None,
    samples: Sequence[Sequence[Any]] = (),
    skip: Mapping[str, str] | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    grad_order: int = 1,
) -> KernelReport:
    """Check that a kernel returns the same values under every transformation of JAX.

    The kernel is called eagerly, under ``jit``, in a loop and a branch, and from eight threads at once. Batches
    (``vmap``) lie along the first or the last axis, are nested with each input unbatched in turn, or have 0 or 1
    slices. On several devices, the kernel runs inside ``shard_map`` and with each input split along each of its
    dimensions. A new process runs its exported artifact. Derivatives of both modes are compared with finite
    differences. The kernel must write all of its outputs and leave its inputs unchanged.

    Args:
      fn: a function of arrays that returns a pytree of arrays: a wrapped kernel, or a lambda that calls an operator
        or passes scalars to a kernel.
      *args: arrays, or pytrees of arrays, to call *fn* on. Small arrays with different values are best; an extent may
        be 0.
      reference: a function that computes the right results, in plain JAX or NumPy. It gets arrays of double precision
        or, if it then raises an error, of the dtypes of *args*. Without *reference*, ``"eager"`` is not tried, and the
        other checks compare with a single eager call.
      samples: further argument lists, of the shapes and dtypes of *args*, for batches and threads. A batch may combine
        inputs of different samples, so every combination must be valid. By default, samples are made from *args* by
        scaling floats and rolling booleans; integers, which may be indices, stay.
      skip: check or family of checks (``"call"``, ``"vmap"``, ``"grad"``, ``"threads"``, ``"export"``,
        ``"sharding"``) → the reason why it is left out.
      rtol: relative tolerance, in place of the dtype's own; integers and booleans are always compared exactly.
      atol: absolute tolerance, in place of a few rounding errors of the largest expected value.
      grad_order: 1, or 2 to check second derivatives as well.

    Returns:
      A report of the outcome of each check, ``"passed"``, ``"failed"`` or ``"not tried"``. It prints as a table; the
      first line counts the outcomes. If a single call is wrong, the other checks are not tried.

    Raises:
      KernelCheckError: if any check failed; the message is the table.
      ArgumentError: if *fn* or *reference* cannot be called, *skip* has an unknown name or an empty reason, a sample
        does not fit *args*, *rtol* or *atol* is not a finite number of at least 0, or *grad_order* is neither 1 nor 2.

    Example:
      >>> import jax.numpy as jnp
      >>> from xlakernel.core.testing import check_kernel
      >>> report = check_kernel(
      ...     lambda x, y: jnp.sin(x) * y, jnp.arange(3.0), jnp.ones(3), skip={"export": "not in an example"}
      ... )
      >>> print(report["vmap_nested"].outcome)
      passed
    """
    for name, function in (("fn", fn), ("reference", fn if reference is None else reference)):
        if not callable(function):
            raise ArgumentError(f"check_kernel: {name} is {function!r}; expected a function of arrays.")
    skip = {} if skip is None else skip
    _check_skip(skip)
    check_tolerances("check_kernel", rtol=rtol, atol=atol)
    if grad_order not in (1, 2):
        raise ArgumentError(f"check_kernel: grad_order is {grad_order!r}; allowed: 1 or 2.")
    tree = jax.tree.structure(list(args))

    def flat(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *leaves: function(*jax.tree.unflatten(tree, leaves))

    with default_settings(), jax.default_matmul_precision("highest"):  # by default GPUs round float32 to fewer bits
        inputs = as_arrays(args)
        subject = Subject(
            getattr(fn, "__name__", repr(fn)),
            flat(fn),
            None if reference is None else flat(reference),
            (inputs, *_fitting(samples, inputs)) if len(samples) else vary(inputs),
            Tolerance(rtol, atol),
            grad_order,
        )
        report = KernelReport(subject.name, run_all(subject, skip))
    if report.failed:
        raise KernelCheckError(str(report), report)
    return report


def _check_skip(skip: Any) -> None:
    if not isinstance(skip, Mapping):
        raise ArgumentError(
            f'check_kernel: skip is {skip!r}; expected a mapping, such as skip={{"grad": "the reason"}}.'
        )
    for name, reason in skip.items():
        if name not in NAMES:
            raise ArgumentError(f"check_kernel: skip has {name!r}; allowed: {', '.join(NAMES)}.")
        if not isinstance(reason, str) or not reason.strip():
            raise ArgumentError(f"check_kernel: skip[{name!r}] is {reason!r}; expected the reason, a sentence.")


def _fitting(samples: Sequence[Any], inputs: Sequence[Array]) -> Iterator[tuple[Array, ...]]:
    """Yield *samples* as arrays, which must have the shapes and dtypes of *inputs*."""
    expected = ", ".join(map(describe, inputs))
    for number, sample in enumerate(samples):
        arrays = as_arrays(sample)
        if (given := ", ".join(map(describe, arrays))) != expected:
            raise ArgumentError(
                f"check_kernel: samples[{number}] is {given}; expected the shapes and dtypes of the arguments, "
                f"{expected}. Write samples=[(x2, y2)]."
            )
        yield arrays
