"""What came of the checks."""

from __future__ import annotations

import dataclasses


class CheckFailure(Exception):
    """A check found something wrong; the message says what."""


class NotTried(Exception):
    """A check could not try what it is about.

    Attributes:
      advice: what would try it; empty if nothing does.
    """

    def __init__(self, reason: str, advice: str = "") -> None:
        super().__init__(reason)
        self.advice = advice


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What came of one check.

    Attributes:
      check: its name.
      outcome: ``"passed"``, ``"failed"`` or ``"not tried"``.
      detail: what is wrong, why it was not tried, or what was tried.
      advice: what to do next if it failed, empty if the kernel raised an exception, which says more; what would try it
        if it was not tried.
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
    def passed(self) -> tuple[Outcome, ...]:
        """The checks that passed."""
        return self._of("passed")

    @property
    def failed(self) -> tuple[Outcome, ...]:
        """The checks that failed."""
        return self._of("failed")

    @property
    def not_tried(self) -> tuple[Outcome, ...]:
        """The checks of which nothing is known."""
        return self._of("not tried")

    def _of(self, kind: str) -> tuple[Outcome, ...]:
        return tuple(outcome for outcome in self.outcomes if outcome.outcome == kind)

    def __getitem__(self, check: str) -> Outcome:
        return next(outcome for outcome in self.outcomes if outcome.check == check)

    @property
    def summary(self) -> str:
        """How many checks have which outcome."""
        counts = f"{len(self.passed)} passed, {len(self.failed)} failed, {len(self.not_tried)} not tried"
        return f"{self.kernel}: of {len(self.outcomes)} checks {counts}."

    def __str__(self) -> str:
        details = [o.detail if o.outcome != "not tried" else _why(o) for o in self.outcomes]
        shown = zip(self.outcomes, details, strict=True)
        rows = [("check", "outcome", "detail"), *((o.check, o.outcome, detail) for o, detail in shown)]
        first, second = (max(len(row[i]) for row in rows) + 2 for i in (0, 1))
        return "\n".join([*(f"{a:<{first}}{b:<{second}}{c}".rstrip() for a, b, c in rows), self.summary])

    def explain(self) -> str:
        """Return the summary, every failed check with what to do next, and those that were not tried."""
        lines = [self.summary]
        for outcome in self.failed:
            lines.append(f"  {outcome.check}: {outcome.detail}")
            if outcome.advice:
                lines.append(f"    next: {outcome.advice}")
        reasons: dict[str, list[str]] = {}
        for outcome in self.not_tried:
            reasons.setdefault(_why(outcome), []).append(outcome.check)
        lines += [f"  not tried: {', '.join(checks)}: {why}" for why, checks in reasons.items()]
        return "\n".join(lines)


def _why(outcome: Outcome) -> str:
    return f"{outcome.detail}; to try it, {outcome.advice}" if outcome.advice else outcome.detail
