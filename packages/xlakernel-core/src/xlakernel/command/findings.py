"""Findings of the doctor, as data."""

from __future__ import annotations

import dataclasses
from typing import Literal


@dataclasses.dataclass(frozen=True)
class Finding:
    """The state of a library, or an incompatibility between libraries.

    Attributes:
      name: the library or the conflict; the same in all releases, for use in scripts.
      state: ``"ok"``; ``"note"``, if everything that is installed works nevertheless; or ``"problem"``.
      text: the finding and its consequence.
      fix: the command that fixes the problem.
      link: the documentation of the problem.
      stops: the backends and platforms that cannot be used because of the problem.
    """

    name: str
    state: Literal["ok", "note", "problem"]
    text: str
    fix: str | None = None
    link: str | None = None
    stops: tuple[str, ...] = ()
