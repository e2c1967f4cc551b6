"""The products that are measured, with our matrices and with those of brainevent."""

from __future__ import annotations

from typing import Any

from xlakernel.sparse import BinaryArray


def left(matrix: Any, x: Any) -> Any:
    """Multiply from the left."""
    return matrix @ x


def right(matrix: Any, x: Any) -> Any:
    """Multiply from the right."""
    return x @ matrix


def left_events(matrix: Any, x: Any) -> Any:
    """Multiply by events from the left."""
    return matrix @ BinaryArray(x)


def right_events(matrix: Any, x: Any) -> Any:
    """Multiply by events from the right."""
    return BinaryArray(x) @ matrix


def left_brainevent(matrix: Any, x: Any) -> Any:
    """Multiply brainevent's matrix by events from the left."""
    import brainevent

    return matrix @ brainevent.BinaryArray(x)


def right_brainevent(matrix: Any, x: Any) -> Any:
    """Multiply brainevent's matrix by events from the right."""
    import brainevent

    return brainevent.BinaryArray(x) @ matrix
