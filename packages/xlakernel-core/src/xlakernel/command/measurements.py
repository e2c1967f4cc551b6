"""``xlakernel bench`` and ``xlakernel auto``: measurements of operators, and choices of ``backend="auto"``."""

from __future__ import annotations

from collections.abc import Sequence

from .operators import UnknownOperatorError, choose, find, import_or_print
from .text import escape, print_error, print_line


def bench(operators: Sequence[str], *, modules: Sequence[str]) -> int:
    """Print the result of `XLACustomKernel.benchmark` for each operator.

    Returns:
      The exit status: 1 if a module cannot be imported, if an operator has no cases or no backend that can be used, if
      a benchmark fails, if results differ, or if a backend fails for a reason other than a missing library; else 0.

    Raises:
      UnknownOperatorError: if there is no such operator.
    """
    known, complete = find(modules)
    problems = [] if complete else ["a module cannot be imported"]
    for op in choose(operators, known):
        if op.benchmark_data is None:
            problems.append("no cases")
            print_error(f"{op.name} has no cases of its own (def_benchmark_data)")
            continue
        try:
            result = op.benchmark()
        except Exception as error:  # noqa: BLE001  # the other operators are measured all the same
            problems.append("no result")
            print_error(f"{op.name}: {type(error).__name__}: {error}")
            continue
        print_line(f"{result}\n")
        problems += [found.problem for found in result.measurements if found.problem is not None]
        if not any(found.seconds for found in result.measurements):
            problems.append("no times")
            print_error(f"{op.name}: no backend can be used here. `xlakernel backends {op.name}` says why.")
    return int(not all(problem.startswith("MissingDependencyError") for problem in problems))


def auto(name: str | None, *, reset: bool) -> int:
    """Print the choices of ``backend="auto"`` for an operator or, without a name, for all; with *reset*, forget them.

    Returns:
      The exit status: 0; 1 if `xlakernel.core` cannot be imported.

    Raises:
      UnknownOperatorError: if no choice is remembered for *name* and the installed packages have no such operator.
    """
    core = import_or_print("xlakernel.core")
    if core is None:
        return 1
    if name is not None and not core.auto_choices(name) and name not in find([])[0]:
        raise UnknownOperatorError(
            f"no choice is remembered for {name!r}, and the installed packages have no operator of this name. "
            "`xlakernel auto` lists all choices, `xlakernel backends` all operators."
        )
    if reset:
        print_line(f"Choices that were forgotten: {core.reset_auto_choices(name)}.")
    else:
        none = 'No choice is remembered. A call with backend="auto" measures the backends and makes one.'
        print_line("\n".join(escape(str(choice), keep="") for choice in core.auto_choices(name)) or none)
    return 0
