"""``xlakernel bench``: the backends of operators compared on this machine, with the cases that the operators have."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence

from .installed import choose, find
from .text import Printer, complain


def bench(operators: Sequence[str], *, modules: Sequence[str]) -> int:
    """Print what `XLACustomKernel.benchmark` returns for each operator.

    Args:
      operators: names, patterns of names such as ``csr*``, or tags such as ``sparse``.
      modules: modules to import that register operators, beside the packages of the namespace.

    Returns:
      The exit status: 0; 1 if results differ or a backend failed, other than for want of its library; 2 if there is no
      such operator or module, or no case.
    """
    with contextlib.redirect_stdout(sys.stderr):  # where libraries say what they load
        known, failed = find(modules)
    if any(module in failed for module in modules):
        return 2
    try:
        chosen = choose(operators, known)
    except LookupError as error:
        complain(str(error))
        return 2
    printer, problems, measured = Printer(), 0, 0
    for op in chosen:
        if op.benchmark_data is None:
            complain(f"{op.name} has no cases of its own (def_benchmark_data)")
            continue
        try:
            with contextlib.redirect_stdout(sys.stderr):
                result = op.benchmark()
        except Exception as error:  # noqa: BLE001  # one that is broken must not hide the others
            complain(f"{op.name}: {type(error).__name__}: {error}")
            problems += 1
            continue
        printer.line(f"{result}\n")
        printer.out.flush()
        measured += 1
        found = [one.problem for one in result.measurements if one.problem is not None]
        problems += sum(not problem.startswith("MissingDependencyError") for problem in found)
    return 1 if problems else 0 if measured else 2
