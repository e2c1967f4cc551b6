"""``xlakernel backends``: the kernels that each operator of the installed packages has, and which can be used here."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Container, Mapping, Sequence
from typing import TYPE_CHECKING

from .doctor import examine
from .facts import collect, own_packages
from .findings import Finding
from .install import install_command
from .installed import choose, find
from .text import Printer, complain

if TYPE_CHECKING:
    from xlakernel.core import XLACustomKernel

#: The package that has a backend's wrapper; other backends, such as plain JAX, need none of ours.
PACKAGES = {"numba": "xlakernel.numba", "numba_cuda": "xlakernel.cuda", "warp": "xlakernel.warp"}


@dataclasses.dataclass(frozen=True)
class Offer:
    """A kernel that an operator has.

    Attributes:
      platform: ``"cpu"``, ``"gpu"`` or ``"tpu"``.
      backend: its name.
      default: whether calls use it that ask for none.
      stopped: why it cannot be used here; None if nothing is known to be against it.
      mend: the command that mends it.
    """

    platform: str
    backend: str
    default: bool
    stopped: str | None = None
    mend: str | None = None


def backends(operators: Sequence[str], *, modules: Sequence[str], as_json: bool, timeout: float) -> int:
    """Print what the operators offer.

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
        chosen = choose(operators, known) if operators else known.values()
    except LookupError as error:
        complain(str(error))
        return 2
    facts = collect(timeout)
    findings = examine(facts)
    ordered = sorted(chosen, key=lambda op: op.name)
    offers = {op.name: offers_of(op, findings, facts.platforms, facts.cuda_extra) for op in ordered}
    printer = Printer()
    if as_json:
        found = {op: [dataclasses.asdict(offer) for offer in listed] for op, listed in offers.items()}
        printer.line(json.dumps({"operators": found, "failed": failed}, indent=2))
    else:
        _show(printer, offers)
    return int(bool(failed))


def offers_of(
    op: XLACustomKernel, findings: Sequence[Finding], platforms: Container[str], cuda_extra: str = "cuda13"
) -> list[Offer]:
    """Return what an operator offers, the defaults of its platforms first.

    Args:
      op: the operator.
      findings: the doctor's.
      platforms: those that JAX has devices of.
      cuda_extra: the extra of our packages that suits the driver.
    """
    offers = []
    for platform, default in op.defaults.items():
        for backend in sorted(op.available_backends(platform), key=lambda backend: backend != default):
            stopped, mend = _against(platform, backend, findings, cuda_extra)
            if stopped is None and platform not in platforms:
                stopped = f"JAX has no {platform.upper()} here."
            offers.append(Offer(platform, backend, backend == default, stopped, mend))
    return offers


def _against(
    platform: str, backend: str, findings: Sequence[Finding], cuda_extra: str
) -> tuple[str | None, str | None]:
    package = PACKAGES.get(backend)
    if package is not None and package not in own_packages():
        return f"needs {package.replace('.', '-')}", install_command(package.removeprefix("xlakernel."), cuda_extra)
    stopping = [finding for finding in findings if {platform, backend} & set(finding.stops)]
    # Of several, the one that says most about this backend: a known incompatibility names the versions.
    problems = [finding for finding in stopping if finding.state == "problem"] or stopping
    return (problems[-1].text, problems[-1].mend) if problems else (None, None)


def _show(printer: Printer, offers: Mapping[str, Sequence[Offer]]) -> None:
    if not offers:
        printer.line("No package that is installed has operators. Your own are found with --import MODULE.")
        return
    reasons: dict[tuple[str, str | None], int] = {}
    longest = max(map(len, offers))
    for name, listed in offers.items():
        for row, platform in enumerate(dict.fromkeys(offer.platform for offer in listed)):
            names = []
            for offer in (offer for offer in listed if offer.platform == platform):
                text = f"{offer.backend}*" if offer.default else offer.backend
                if offer.stopped is not None:
                    number = reasons.setdefault((offer.stopped, offer.mend), len(reasons) + 1)
                    text = printer.paint(f"{text}[{number}]", "weak")
                names.append(text)
            printer.line(f"{'' if row else name:{longest}}  {platform}  {'  '.join(names)}")
    printer.line()
    printer.line("* the default of its platform")
    for (text, mend), number in reasons.items():
        printer.line(f"[{number}] cannot be used here: {text}{f' ({mend})' if mend else ''}")
