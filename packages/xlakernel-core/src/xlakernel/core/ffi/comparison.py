"""Whether what an exported program calls is still what was exported."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

from ..errors import ExportError

#: The version of Python that bytecode depends on.
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


def check_same(
    what: str,
    checks: Mapping[str, Any],
    found: Mapping[str, Callable[[], str | None]],
    unknown: Callable[[], str | None],
    changed: str,
) -> None:
    """Raise `ExportError` unless what is here has the fingerprints of what was exported.

    Args:
      what: what is compared, for messages.
      checks: the fingerprints that were written: ``bytecode``, ``source`` (None: there was none), and of which
        ``python`` they are.
      found: returns those of what is here now, by the same names.
      unknown: says what it refers to that cannot be compared; None: nothing.
      changed: says what may have changed, for messages.
    """
    kind = "bytecode" if checks["python"] == PYTHON else "source"
    here = found[kind]()
    if here is not None and here == checks[kind]:
        return
    if reason := unknown():
        raise ExportError(f"{what} cannot be compared with the one that was exported: it {reason}")
    if kind == "source" and None in (here, checks["source"]):
        raise ExportError(
            f"{what} was exported by Python {checks['python']} and this is Python {PYTHON}: it can only be compared "
            "by its source, which is missing for it or for something it refers to. Export it again with this Python."
        )
    raise ExportError(
        f"{what} is not the one that was exported: {changed}. Bring back the source that was exported, or export the "
        "program again."
    )
