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
      outcome: ``"passed"``, ``"failed"``, ``"skipped"`` (the user's wish) or ``"not applicable"``.
      detail: what is wrong, or the reason.
      advice: what to try next, if it failed.
    """

    check: str
    outcome: str
    detail: str = ""
    advice: str = ""


@dataclasses.dataclass(frozen=True)
class KernelReport:
    """What came of all checks of one kernel; prints as a table."""

    kernel: str
    outcomes: tuple[Outcome, ...]

    @property
    def failed(self) -> tuple[Outcome, ...]:
        """The checks that failed."""
        return tuple(outcome for outcome in self.outcomes if outcome.outcome == "failed")

    def __getitem__(self, check: str) -> Outcome:
        return next(outcome for outcome in self.outcomes if outcome.check == check)

    def __str__(self) -> str:
        rows = [("check", "outcome", "detail"), *((o.check, o.outcome, o.detail) for o in self.outcomes)]
        first, second = (max(len(row[i]) for row in rows) + 2 for i in (0, 1))
        return "\n".join(f"{a:<{first}}{b:<{second}}{c}".rstrip() for a, b, c in rows)

    def explain(self) -> str:
        """Return every failed check with its detail and what to try next."""
        lines = [f"{self.kernel}: {len(self.failed)} of {len(self.outcomes)} checks failed."]
        for outcome in self.failed:
            lines += [f"  {outcome.check}: {outcome.detail}", f"    next: {outcome.advice}"]
        return "\n".join(lines)
