"""``xlakernel doctor``: what is installed, what it runs on, and what does not go together."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from typing import Any

from .ask import NO_ANSWER
from .facts import Facts, collect
from .findings import Finding
from .incompatibilities import known_incompatibilities
from .states import STATES
from .text import Printer, counted


def examine(facts: Facts) -> list[Finding]:
    """Return what is to be said: how each library is here, then what is known not to go together."""
    states = [_patient(finding) for state in STATES if (finding := state(facts)) is not None]
    return [*states, *known_incompatibilities(facts)]


def _patient(finding: Finding) -> Finding:
    """Return what to do about a library that was slow, as on a busy machine: ask again, before it is installed anew."""
    if NO_ANSWER not in finding.text:
        return finding
    return dataclasses.replace(finding, mend="xlakernel doctor --timeout 120")


def doctor(*, as_json: bool, timeout: float) -> int:
    """Examine this environment, and print what was found.

    Returns:
      The exit status: 0, or 1 if there is a problem.
    """
    facts = collect(timeout)
    findings = examine(facts)
    status = int(any(finding.state == "problem" for finding in findings))
    printer = Printer()
    if as_json:
        printer.line(json.dumps(_as_data(facts, findings, status == 0), indent=2))
    else:
        _show(printer, facts, findings)
    return status


def _as_data(facts: Facts, findings: list[Finding], well: bool) -> dict[str, Any]:
    return {
        "ok": well,
        "python": facts.python,
        "versions": dict(facts.versions),
        "variables": dict(facts.variables),
        "findings": [dataclasses.asdict(finding) for finding in findings],
        "answers": dict(facts.answers),
    }


def _show(printer: Printer, facts: Facts, findings: list[Finding]) -> None:
    printer.title("Versions")
    printer.pairs({"python": facts.python, **facts.versions})
    if facts.variables:
        printer.line()
        printer.title("Environment variables")
        printer.pairs(dict(facts.variables))
    printer.line()
    printer.title("Findings")
    printer.findings(findings)
    printer.line()
    count = Counter(finding.state for finding in findings)
    printer.line(f"{counted(count['problem'], 'problem')}, {counted(count['note'], 'note')}, {count['ok']} ok.")
