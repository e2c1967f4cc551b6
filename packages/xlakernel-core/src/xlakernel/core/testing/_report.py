"""What came of the checks."""

from __future__ import annotations

import dataclasses


class CheckFailure(Exception):
    """A check found something wrong; the message says what."""


class NotApplicable(Exception):
    """A check has nothing to try on this kernel; the message says why."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What came of one check.

    Attributes:
      check: its name.
      outcome: ``"passed"``, ``"failed"``, ``"skipped"`` (the user's wish), ``"not applicable"``, or ``"not run"``
        (another check found the cause already).
      detail: what is wrong, or the reason.
      advice: what to try next, if it failed; empty if the kernel raised an exception, which says more.
    """

    check: str
    outcome: str
    detail: str = ""
    advice: str = ""


@dataclasses.dataclass(frozen=True)
class KernelReport:
    """What came of all checks of one kernel; prints as a table.

    Attributes:
      kernel: its name.
      outcomes: one for each check, in the order in which `check_kernel` lists them.
    """

    kernel: str
    outcomes: tuple[Outcome, ...]

    @property
    def failed(self) -> tuple[Outcome, ...]:
        """The checks that failed."""
        return tuple(outcome for outcome in self.outcomes if outcome.outcome == "failed")

    def __getitem__(self, check: str) -> Outcome:
        return next(outcome for outcome in self.outcomes if outcome.check == check)

    @property
    def ran(self) -> int:
        """How many checks passed or failed."""
        return sum(outcome.outcome in ("passed", "failed") for outcome in self.outcomes)

    def __str__(self) -> str:
        rows = [("check", "outcome", "detail"), *((o.check, o.outcome, o.detail) for o in self.outcomes)]
        first, second = (max(len(row[i]) for row in rows) + 2 for i in (0, 1))
        lines = [f"{a:<{first}}{b:<{second}}{c}".rstrip() for a, b, c in rows]
        if not self.ran:
            lines.append(f"0 of {len(self.outcomes)} checks ran")
        return "\n".join(lines)

    def explain(self) -> str:
        """Return every failed check with its detail and what to try next."""
        lines = [f"{self.kernel}: {len(self.failed)} of {len(self.outcomes)} checks failed."]
        for outcome in self.failed:
            lines.append(f"  {outcome.check}: {outcome.detail}")
            if outcome.advice:
                lines.append(f"    next: {outcome.advice}")
        if others := [outcome.check for outcome in self.outcomes if outcome.outcome == "not run"]:
            lines.append(f"  not run, or failed by the same: {', '.join(others)}")
        return "\n".join(lines)
