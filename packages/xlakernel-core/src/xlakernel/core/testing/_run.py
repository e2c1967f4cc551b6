"""`check_kernel`: one call that tries everything."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from ..errors import ArgumentError, KernelCheckError
from ._child import Child
from ._compare import Tolerance
from ._report import KernelReport, Outcome
from ._subject import Array, Subject, as_arrays, vary
from ._table import CHECKS, NAMES, run_check


def check_kernel(
    fn: Callable[..., Any],
    /,
    *args: Any,
    reference: Callable[..., Any] | None = None,
    static: Mapping[str, Any] | None = None,
    samples: Sequence[Sequence[Any]] = (),
    zero_size: Sequence[Sequence[Any]] = (),
    skip: Mapping[str, str] | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    grad_order: int = 1,
) -> KernelReport:
    """Check that a kernel is a good citizen of JAX: the same values whatever is done with it.

    It is called eagerly and under ``jit``, in batches (``vmap`` along the first and the last axis, nested with each
    input unbatched in turn, of 0 and of 1), in loops and branches, from eight threads at once, inside ``shard_map``,
    and in a new process that knows only its artifact; its derivatives of both modes are compared with finite
    differences; it must write all of its outputs and leave its inputs alone.

    Args:
      fn: a function of arrays that returns a pytree of arrays: a wrapped kernel, or an operator in a lambda.
      *args: arrays, or pytrees of them, to call it on. Small ones do; a few different values are better than zeros.
      reference: what *fn* should compute, in plain JAX or NumPy. It is given double precision where it takes it.
        Without it a call is compared with the same call done otherwise, and nobody knows whether both are wrong.
      static: keyword arguments for *fn* and *reference*.
      samples: further argument lists, of the shapes and dtypes of *args*; batches and threads use them. Batches mix
        them: each input of one must go with the others of another. Left out, they are made from *args* by scaling
        floats and rolling booleans; integers, which may be indices, stay.
      zero_size: argument lists with an extent of 0, to be tried as well.
      skip: check or family of checks (``"call"``, ``"vmap"``, ``"grad"``, ``"threads"``, ``"export"``,
        ``"sharding"``) → the reason why it is left out.
      rtol: relative tolerance, in place of the dtype's own; integers and booleans are compared exactly in any case.
      atol: absolute tolerance, in place of some roundings of the largest expected value.
      grad_order: 2: also the derivative of the derivative.

    Returns:
      What came of each check; it prints as a table.

    Raises:
      KernelCheckError: if any check failed; the message lists all of them, with what to try next.
      ArgumentError: if *skip* has a name that is no check, or an empty reason, or a sample does not fit *args*.

    Example:
      >>> import jax.numpy as jnp
      >>> from xlakernel.core.testing import check_kernel
      >>> report = check_kernel(
      ...     lambda x, y: jnp.sin(x) * y, jnp.arange(3.0), jnp.ones(3),
      ...     skip={"export": "no other process in an example", "sharding": "nor here"},
      ... )
      >>> print(report["vmap_nested"].outcome)
      passed
    """
    name = getattr(fn, "__name__", repr(fn))
    reasons = _reasons(skip or {}, name)
    if grad_order not in (1, 2):
        raise ArgumentError(f"check_kernel: grad_order is {grad_order!r}; allowed: 1 or 2.")
    keywords, tree = dict(static or {}), jax.tree.structure(list(args))

    def flat(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *leaves: function(*jax.tree.unflatten(tree, leaves), **keywords)

    inputs = as_arrays(args)
    with Child() as child:
        subject = Subject(
            name,
            flat(fn),
            None if reference is None else flat(reference),
            (inputs, *(_fitting(sample, inputs, "samples", k) for k, sample in enumerate(samples)))
            if samples
            else vary(inputs),
            tuple(_fitting(sample, inputs, "zero_size", k) for k, sample in enumerate(zero_size)),
            Tolerance(rtol, atol),
            grad_order,
            child,
        )
        report = KernelReport(
            name,
            tuple(
                Outcome(check.name, "skipped", reasons[check.name])
                if check.name in reasons
                else run_check(check, subject)
                for check in CHECKS.values()
            ),
        )
    if report.failed:
        raise KernelCheckError(report.explain(), report)
    return report


def _reasons(skip: Mapping[str, str], kernel: str) -> dict[str, str]:
    """Return the reason of each check that is to be skipped."""
    for name, reason in skip.items():
        if name not in NAMES:
            raise ArgumentError(f"check_kernel: skip has {name!r}; allowed: {', '.join(NAMES)}.")
        if not isinstance(reason, str) or not reason.strip():
            raise ArgumentError(
                f"check_kernel: skip[{name!r}] is {reason!r}; say in a sentence why {kernel} is not checked for that."
            )
    found = {check.name: skip[check.family] for check in CHECKS.values() if check.family in skip}
    return {**found, **{name: reason for name, reason in skip.items() if name in CHECKS}}


def _fitting(sample: Sequence[Any], inputs: Sequence[Array], what: str, number: int) -> tuple[Array, ...]:
    arrays = as_arrays(sample)
    exact = what == "samples"
    same = len(arrays) == len(inputs) and all(
        a.dtype == b.dtype and (a.shape == b.shape if exact else a.ndim == b.ndim)
        for a, b in zip(arrays, inputs, strict=True)
    )
    if not same:
        raise ArgumentError(
            f"check_kernel: {what}[{number}] is {_shapes(arrays)}; expected the {'shapes' if exact else 'ranks'} and "
            f"dtypes of the arguments, {_shapes(inputs)}."
        )
    return arrays


def _shapes(arrays: Sequence[Array]) -> str:
    return ", ".join(f"{x.dtype.name}{list(x.shape)}" for x in arrays) or "no arrays"
