"""``xlakernel bench`` and ``xlakernel auto``: measurements of operators, and the choices that were made of them."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence

from .operators import choose, find, unknown
from .text import complain, counted, say


def bench(operators: Sequence[str], *, modules: Sequence[str]) -> int:
    """Print the result of `XLACustomKernel.benchmark` for each operator.

    Args:
      operators: names, patterns of names such as ``csr*``, or tags such as ``sparse``.
      modules: modules to import that register operators, beside the packages of the namespace.

    Returns:
      The exit status: 0; 1 if results differ or a backend failed, other than for want of its library; 2 if there is no
      such operator or module, or no case.
    """
    known, failed = find(modules)
    try:
        chosen = [] if set(failed) & {"xlakernel.core", *modules} else choose(operators, known)
    except LookupError as error:
        complain(str(error))
        return 2
    problems, measured = 0, 0
    for op in chosen:
        if op.benchmark_data is None:
            complain(f"{op.name} has no cases of its own (def_benchmark_data)")
            continue
        try:
            with contextlib.redirect_stdout(sys.stderr):  # for messages of libraries
                result = op.benchmark()
        except Exception as error:  # noqa: BLE001  # one that is broken must not hide the others
            complain(f"{op.name}: {type(error).__name__}: {error}")
            problems += 1
            continue
        say(f"{result}\n")
        measured += 1
        found = [one.problem for one in result.measurements if one.problem is not None]
        problems += sum(not problem.startswith("MissingDependencyError") for problem in found)
    return 1 if problems else 0 if measured else 2


def auto(name: str | None, *, reset: bool) -> int:
    """Print the choices of ``backend="auto"``, or forget them.

    Args:
      name: one operator; None: all.
      reset: whether to forget them.

    Returns:
      The exit status: 0; 1 if xlakernel.core cannot be imported, or a file cannot be removed; 2 if there is neither a
      choice nor an operator of this name.
    """
    known, failed = find(())
    if "xlakernel.core" in failed:
        return 1
    from xlakernel.core import auto_choices, reset_auto_choices

    names = {*known, *(choice.operator for choice in auto_choices())}
    if name is not None and name not in names:
        complain(unknown(name, names))
        return 2
    if reset:
        try:
            say(f"Forgot {counted(reset_auto_choices(name), 'choice')}.")
        except OSError as error:
            complain(f"a choice cannot be forgotten: {error}")
            return 1
    else:
        none = 'No choice is remembered. A call with backend="auto" measures the backends and makes one.'
        say("\n".join(map(str, auto_choices(name))) or none)
    return 0
