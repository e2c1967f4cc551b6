"""Outcomes of the checks of one kernel."""

from __future__ import annotations

import dataclasses


class NotTried(Exception):
    """A check could not be tried; the message has the reason and a remedy."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """Outcome of one check.

    Attributes:
      check: the check's name.
      outcome: ``"passed"``, ``"failed"`` or ``"not tried"``.
      detail: for a failed check, the fault and what to do next; for a check that was not tried, the reason and a
        remedy; for a passed check, a remark.
    """

    check: str
    outcome: str
    detail: str = ""


@dataclasses.dataclass(frozen=True)
class KernelReport:
    """Outcomes of all checks of one kernel; prints as a table.

    Attributes:
      kernel: the kernel's name.
      outcomes: one outcome for each check.
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
        """The checks that were not tried."""
        return self._of("not tried")

    def _of(self, kind: str) -> tuple[Outcome, ...]:
        return tuple(outcome for outcome in self.outcomes if outcome.outcome == kind)

    def __getitem__(self, check: str) -> Outcome:
        return next(outcome for outcome in self.outcomes if outcome.check == check)

    def __str__(self) -> str:
        counts = f"{len(self.passed)} passed, {len(self.failed)} failed, {len(self.not_tried)} not tried"
        rows = [("check", "outcome", "detail"), *map(dataclasses.astuple, self.outcomes)]
        width = max(len(check) for check, *_ in rows)
        lines = [f"{check:<{width}}  {outcome:<9}  {detail}".rstrip() for check, outcome, detail in rows]
        return "\n".join([f"{self.kernel}: of {len(self.outcomes)} checks {counts}.", *lines])
