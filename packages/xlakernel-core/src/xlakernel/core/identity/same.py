"""Functions in the keys of caches, compared by identity."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any


class Same:
    """A function that is equal to itself alone, even if it is an object with an ``__eq__`` of its own.

    Two accesses of a method of one object are equal, although each access creates a new method.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function: Callable[..., Any] = function.function if isinstance(function, Same) else function

    @property
    def _key(self) -> Any:
        function = self.function
        # Equal methods have the same function, and the same object by identity.
        return function if isinstance(function, types.MethodType) else id(function)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __call__(self, /, *args: Any, **keywords: Any) -> Any:
        """Call the function."""
        return self.function(*args, **keywords)


def by_identity(value: Any) -> Any:
    """Return *value*, or `Same` of it if it is a function."""
    return Same(value) if callable(value) else value
