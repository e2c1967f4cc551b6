"""``xlakernel backends``: the kernels of each operator, and the reason if a kernel cannot be used here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .doctor import examine
from .facts import Facts, collect, own_packages
from .findings import Finding
from .install import install_command
from .operators import choose, find
from .text import print_line

#: Backend → our package with the backend's wrapper. Other backends, such as plain JAX, need no package of ours.
PACKAGES = {"numba": "xlakernel.numba", "numba_cuda": "xlakernel.cuda", "warp": "xlakernel.warp"}


def backends(operators: Sequence[str], *, modules: Sequence[str], timeout: float) -> int:
    """Print the kernels of operators, the default of each platform first.

    Args:
      operators: names, or tags such as ``sparse``; empty: all operators.
      modules: modules to import that register operators, besides the packages of the namespace.
      timeout: seconds that each library may take to answer.

    Returns:
      The exit status: 0; 1 if a package or module cannot be imported.

    Raises:
      UnknownOperatorError: if there is no such operator.
    """
    known, is_complete = find(modules)
    chosen = choose(operators or list(known), known)
    facts = collect(timeout)
    findings = examine(facts)
    reasons: dict[str, int] = {}
    longest = max((len(op.name) for op in chosen), default=0)
    for op in sorted(chosen, key=lambda op: op.name):
        name = op.name
        for platform, default in op.defaults.items():
            cells = []
            for backend in sorted(op.available_backends(platform), key=lambda backend: backend != default):
                reason = why_unusable(platform, backend, findings, facts)
                number = f"[{reasons.setdefault(reason, len(reasons) + 1)}]" if reason else ""
                cells.append(f"{backend}{'*' * (backend == default)}{number}")
            print_line(f"{name:{longest}}  {platform}  {'  '.join(cells)}")
            name = ""
    if chosen or is_complete:
        _explain(reasons if chosen else None)
    return int(not is_complete)


def why_unusable(platform: str, backend: str, findings: Sequence[Finding], facts: Facts) -> str | None:
    """Return the reason why a kernel cannot be used here, with the command that fixes it; None if it can be used."""
    package = PACKAGES.get(backend)
    if package is not None and package not in own_packages():
        fix = install_command(name := package.removeprefix("xlakernel."), facts.cuda_extra if name == "cuda" else "")
        return f"needs {package.replace('.', '-')} ({fix})"
    stopping = [finding for finding in findings if {platform, backend} & set(finding.stops)]
    # Known incompatibilities come last among the findings. They are the most specific, and name versions.
    problems = [finding for finding in stopping if finding.state == "problem"] or stopping
    if problems:
        return f"{problems[-1].text}{f' ({problems[-1].fix})' if problems[-1].fix else ''}"
    return None if platform in facts.platforms else f"JAX has no {platform.upper()} here."


def _explain(reasons: Mapping[str, int] | None) -> None:
    if reasons is None:
        print_line("No installed package has operators. To list operators of your own, add --import MODULE.")
        return
    print_line("\n* the default of its platform")
    for reason, number in reasons.items():
        print_line(f"[{number}] cannot be used here: {reason}")
