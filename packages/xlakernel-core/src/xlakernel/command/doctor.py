"""``xlakernel doctor``: installed versions, devices, and known incompatibilities."""

from __future__ import annotations

import dataclasses
import json
import shutil
import textwrap
from collections import Counter
from collections.abc import Mapping

from .facts import Facts, collect
from .findings import Finding
from .incompatibilities import RULES
from .libraries import states
from .text import print_line

_WIDEST = 100  # characters of a line


def examine(facts: Facts) -> list[Finding]:
    """Return the state of each library, then the known incompatibilities."""
    return [*states(facts), *(finding for rule in RULES for finding in rule(facts))]


def doctor(*, as_json: bool, timeout: float) -> int:
    """Examine this environment, and print the findings.

    Returns:
      The exit status: 0, or 1 if there is a problem.
    """
    facts = collect(timeout)
    findings = examine(facts)
    count = Counter(finding.state for finding in findings)
    if as_json:
        found = {"findings": [dataclasses.asdict(finding) for finding in findings]}
        written = json.dumps({"ok": not count["problem"], **dataclasses.asdict(facts), **found}, indent=2)
        print_line(written.replace("\x7f", r"\u007f"))  # the one control character that json does not escape
    else:
        _show_table("Versions", {"python": facts.python, **facts.versions})
        if facts.variables:
            _show_table("Environment variables", facts.variables)
        print_line("Findings")
        _show_findings(findings)
        print_line(f"\nproblems: {count['problem']}, notes: {count['note']}, ok: {count['ok']}")
    return int(bool(count["problem"]))


def _show_table(title: str, rows: Mapping[str, str]) -> None:
    longest = max(map(len, rows))
    print_line("\n".join([title, *(f"  {name:{longest}}  {value}" for name, value in rows.items()), ""]))


def _show_findings(findings: list[Finding]) -> None:
    """Print the findings. Each fix is on its own line, which is not wrapped, so that it can be copied."""
    width = min(shutil.get_terminal_size((_WIDEST, 24)).columns, _WIDEST)
    states, names = (max(len(getattr(finding, key)) for finding in findings) for key in ("state", "name"))
    for finding in findings:
        head = f"  {finding.state:{states}}  {finding.name:{names}}  "
        indent = " " * len(head)
        lines = textwrap.wrap(finding.text, max(width - len(head), 40), break_long_words=False, break_on_hyphens=False)
        lines += [f"fix: {finding.fix}"] * bool(finding.fix)
        lines += [f"see {finding.link}"] * (finding.link is not None and finding.state == "problem")
        print_line(head + f"\n{indent}".join(lines))
