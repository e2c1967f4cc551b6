"""`check_kernel`: one call that tries everything."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax

from ..errors import KernelCheckError
from ._arguments import check_functions, check_tolerances, expect, reasons_of, samples_of, static_of
from ._compare import Tolerance
from ._report import KernelReport
from ._subject import Subject, as_arrays, vary
from ._table import run_all


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
    with each input split along each of its dimensions (on one device: part by part, as its sharding rule says; on the
    CPU, ``jax.config.update("jax_num_cpu_devices", 4)`` before JAX starts makes several), and in a new process that
    knows only its artifact; its derivatives of both modes are compared with finite differences; it must write all of
    its outputs and leave its inputs alone.

    Args:
      fn: a function of arrays that returns a pytree of arrays: a wrapped kernel, or an operator in a lambda.
      *args: arrays, or pytrees of them, to call it on. Small ones do; a few different values are better than zeros.
      reference: what *fn* should compute, in plain JAX or NumPy. It is given double precision where it takes it.
        Without it ``"eager"`` is not tried, and a call is compared with the same call done otherwise.
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
      What came of each check, ``"passed"``, ``"failed"`` or ``"not tried"``; it prints as a table whose last line
      counts the three. If a single call is wrong, writes too little or changes its inputs, only that is reported, and
      all other checks are not tried; nor does a check that raises what a single call raises report it again.

    Raises:
      KernelCheckError: if any check failed; the message lists all of them, with what to try next.
      ArgumentError: if an argument is none of the above: *skip* has a name that is no check, or an empty reason, a
        sample does not fit *args*, a tolerance is negative, ...

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
    keywords = static_of(static)
    check_functions(fn, reference, len(args), keywords)
    check_tolerances(rtol=rtol, atol=atol)
    name = getattr(fn, "__name__", repr(fn))
    reasons = reasons_of(skip, name)
    expect(grad_order in (1, 2), "grad_order", grad_order, "1 or 2.")
    tree = jax.tree.structure(list(args))

    def flat(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *leaves: function(*jax.tree.unflatten(tree, leaves), **keywords)

    inputs = as_arrays(args)
    further = samples_of(samples, inputs, "samples")
    empty = samples_of(zero_size, inputs, "zero_size")
    subject = Subject(
        name,
        flat(fn),
        None if reference is None else flat(reference),
        (inputs, *further) if further else vary(inputs),
        empty,
        Tolerance(rtol, atol),
        grad_order,
    )
    with _full_precision(), subject.child:
        report = KernelReport(name, run_all(subject, reasons))
    if report.failed:
        raise KernelCheckError(report.explain(), report)
    return report


@contextlib.contextmanager
def _full_precision() -> Iterator[None]:
    """Have products of float32 matrices computed in float32, in every thread: GPUs round them to fewer bits."""
    before = jax.config.jax_default_matmul_precision  # type: ignore[attr-defined]
    jax.config.update("jax_default_matmul_precision", "highest")
    try:
        yield
    finally:
        jax.config.update("jax_default_matmul_precision", before)
