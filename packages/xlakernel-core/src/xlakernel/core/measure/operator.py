"""Operators as measurements see them: protocols that `XLACustomKernel` satisfies."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Protocol


class Keywords(Hashable, Protocol):
    """The static keywords of a call; unequal where their values differ in type."""

    @property
    def items(self) -> tuple[tuple[str, Any], ...]:
        """Names and values, sorted by name."""


class Compiled(Protocol):
    """The programs that were compiled for calls outside of `jax.jit`."""

    def forget(self) -> None:
        """Compile them anew, with the backends that are chosen by then."""


class Backends(Protocol):
    """The backends of an operator, and the default among them."""

    @property
    def name(self) -> str:
        """The operator's name."""

    def available_backends(self, platform: str) -> list[str]:
        """Return the backends of a platform."""

    def first_backend(self, platform: str) -> str | None:
        """Return the backend that was registered first."""

    def get_default(self, platform: str) -> str | None:
        """Return the default backend, or ``"auto"``."""


class Operator(Backends, Protocol):
    """An operator with several backends."""

    has_side_effect: bool

    @property
    def primitive(self) -> Compiled:
        """The owner of what was compiled."""

    @property
    def benchmark_data(self) -> Callable[..., Any] | None:
        """The function that makes the operator's own benchmark cases."""

    def __call__(self, /, *ins: Any, outs: Any, backend: str | None = None, **static: Any) -> Any:
        """Apply the operator."""

    def entry(self, platform: str, backend: str) -> object:
        """Raise `BackendNotFoundError` if the backend is not registered."""
