"""``xlakernel backends``: the kernels of each operator, and which of them can be used here."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from .doctor import examine
from .facts import Facts, collect, own_packages
from .findings import Finding
from .install import install_command
from .operators import choose, find
from .text import complain, say

if TYPE_CHECKING:
    from xlakernel.core import XLACustomKernel

#: The package of a backend's wrapper; other backends, such as plain JAX, need none of ours.
PACKAGES = {"numba": "xlakernel.numba", "numba_cuda": "xlakernel.cuda", "warp": "xlakernel.warp"}


@dataclasses.dataclass(frozen=True)
class Offer:
    """A kernel of an operator.

    Attributes:
      platform: ``"cpu"``, ``"gpu"`` or ``"tpu"``.
      backend: its name.
      default: whether calls use it that ask for none.
      stopped: why it cannot be used here; None if nothing is known to be against it.
      fix: the command that makes it usable.
    """

    platform: str
    backend: str
    default: bool
    stopped: str | None = None
    fix: str | None = None


def backends(operators: Sequence[str], *, modules: Sequence[str], as_json: bool, timeout: float) -> int:
    """Print the kernels of operators.

    Args:
      operators: names, patterns of names such as ``csr*``, or tags such as ``sparse``; none: all operators.
      modules: modules to import that register operators, beside the packages of the namespace.
      as_json: whether to print JSON.
      timeout: seconds that each library may take to answer.

    Returns:
      The exit status: 0; 1 if a package or module cannot be imported; 2 if there is no such operator.
    """
    known, failed = find(modules)
    try:
        chosen = choose(operators or list(known), known)
    except LookupError as error:
        complain(str(error))
        return 2
    facts = collect(timeout)
    findings = examine(facts)
    offers = {op.name: offers_of(op, findings, facts) for op in sorted(chosen, key=lambda op: op.name)}
    if as_json:
        found = {op: [dataclasses.asdict(offer) for offer in listed] for op, listed in offers.items()}
        say(json.dumps({"operators": found, "failed": failed}, indent=2))
    else:
        _show(offers)
    return int(bool(failed))


def offers_of(op: XLACustomKernel, findings: Sequence[Finding], facts: Facts) -> list[Offer]:
    """Return the kernels of an operator, the defaults of its platforms first."""
    offers = []
    for platform, default in op.defaults.items():
        for backend in sorted(op.available_backends(platform), key=lambda backend: backend != default):
            stopped, fix = _against(platform, backend, findings, facts)
            offers.append(Offer(platform, backend, backend == default, stopped, fix))
    return offers


def _against(platform: str, backend: str, findings: Sequence[Finding], facts: Facts) -> tuple[str | None, str | None]:
    package = PACKAGES.get(backend)
    if package is not None and package not in own_packages():
        name = package.removeprefix("xlakernel.")
        return f"needs {package.replace('.', '-')}", install_command(name, facts.cuda_extra)
    stopping = [finding for finding in findings if {platform, backend} & set(finding.stops)]
    # Known incompatibilities are the last findings, and name the versions.
    problems = [finding for finding in stopping if finding.state == "problem"] or stopping
    if problems:
        return problems[-1].text, problems[-1].fix
    return None if platform in facts.platforms else f"JAX has no {platform.upper()} here.", None


def _show(offers: Mapping[str, Sequence[Offer]]) -> None:
    if not offers:
        say("No package that is installed has operators. Your own are found with --import MODULE.")
        return
    reasons: dict[str, int] = {}
    longest = max(map(len, offers))
    for name, listed in offers.items():
        for row, platform in enumerate(dict.fromkeys(offer.platform for offer in listed)):
            cells = []
            for offer in (offer for offer in listed if offer.platform == platform):
                cell = f"{offer.backend}*" if offer.default else offer.backend
                if offer.stopped is not None:
                    reason = f"{offer.stopped}{f' ({offer.fix})' if offer.fix else ''}"
                    cell += f"[{reasons.setdefault(reason, len(reasons) + 1)}]"
                cells.append(cell)
            say(f"{'' if row else name:{longest}}  {platform}  {'  '.join(cells)}")
    say("\n* the default of its platform")
    for reason, number in reasons.items():
        say(f"[{number}] cannot be used here: {reason}")
