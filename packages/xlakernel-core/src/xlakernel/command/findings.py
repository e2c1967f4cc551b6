"""Findings of the doctor, as data."""

from __future__ import annotations

import dataclasses
from typing import Literal


@dataclasses.dataclass(frozen=True)
class Finding:
    """The state of a library, or a conflict between some.

    Attributes:
      name: its subject; stable, for scripts.
      state: ``"ok"``; ``"note"``, which keeps nothing from working that is installed; or ``"problem"``.
      text: the finding and its consequence.
      fix: the command that fixes it.
      link: its documentation.
      stops: the backends and platforms that cannot be used as long as it holds.
    """

    name: str
    state: Literal["ok", "note", "problem"]
    text: str
    fix: str | None = None
    link: str | None = None
    stops: tuple[str, ...] = ()
