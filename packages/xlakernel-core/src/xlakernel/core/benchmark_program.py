"""A call that is timed, and the program that it is compiled to for a backend."""

from __future__ import annotations

import dataclasses
import reprlib
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import jax
import numpy as np

from .errors import ArgumentError


@dataclasses.dataclass(frozen=True)
class BenchmarkCase:
    """A call that is timed.

    Attributes:
      name: what it is called in tables and charts, such as ``"n=1000"``.
      args: its arguments. Arrays in them are arguments of the compiled program, anything else is part of it.
      kwargs: its keywords, likewise.

    Raises:
      ArgumentError: if *name* is no text, *args* no tuple or list, or *kwargs* no dict.
    """

    name: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        for what, kinds, expected in (
            ("name", str, "a text"),
            ("args", (tuple, list), "a tuple of arguments, as (x,)"),
            ("kwargs", Mapping, "a dict of keywords"),
        ):
            value = getattr(self, what)
            if not isinstance(value, kinds):
                got = f"{reprlib.repr(value)} of type {type(value).__name__}"
                raise ArgumentError(f"BenchmarkCase: {what} is {got}; expected {expected}.")


class Program:
    """A case compiled for a backend.

    Args:
      call: what is called with the case's arguments; its own compiled program, which takes nobody's arrays away.
      case: the arguments.
      device: where it runs.
      chosen: makes the context that it is called in, where that chooses the backend.
    """

    def __init__(
        self,
        call: Callable[..., Any],
        case: BenchmarkCase,
        device: jax.Device,
        chosen: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        leaves, tree = jax.tree.flatten((case.args, dict(case.kwargs)))
        places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, (np.ndarray, jax.Array))]

        @jax.jit
        def program(arrays: list[Any]) -> Any:
            filled = list(leaves)
            for i, array in zip(places, arrays, strict=True):
                filled[i] = array
            args, kwargs = jax.tree.unflatten(tree, filled)
            return call(*args, **kwargs)

        self._program = program
        self._arrays = jax.device_put([leaves[i] for i in places], device)
        self._chosen = chosen
        self._device = device

    def run(self, calls: int) -> Any:
        """Call it so often, wait, and return the last results."""
        with self._chosen(), jax.default_device(self._device):
            for _ in range(calls):
                results = self._program(self._arrays)
            return jax.block_until_ready(results)

    def time(self, calls: int) -> float:
        """Return the seconds of a call, from so many of them."""
        start = time.perf_counter()
        self.run(calls)
        return (time.perf_counter() - start) / calls
