"""What the doctor says of one thing, as data."""

from __future__ import annotations

import dataclasses
from typing import Literal

State = Literal["ok", "note", "problem"]


@dataclasses.dataclass(frozen=True)
class Finding:
    """What was found, and what to do about it.

    Attributes:
      name: what it is about; stable, for scripts.
      state: ``"ok"``; ``"note"``, which is good to know and keeps nothing from working that is installed; or
        ``"problem"``.
      text: what was found and what it means.
      mend: the command that mends it.
      link: where it is written down.
      stops: the backends and the platforms that cannot be used as long as it holds.
    """

    name: str
    state: State
    text: str
    mend: str | None = None
    link: str | None = None
    stops: tuple[str, ...] = ()
