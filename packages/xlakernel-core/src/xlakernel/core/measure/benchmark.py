"""`XLACustomKernel.benchmark`: times of an operator's backends, in cases of several sizes."""

from __future__ import annotations

import dataclasses
import datetime
import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Integral
from typing import Any

import jax

from .._compat import is_tracing
from ..config import check_platform, use_backend
from ..errors import ArgumentError, BackendNotFoundError
from .comparison import check_tolerances
from .descriptions import installed_versions
from .race import Pace, race
from .result import BenchmarkResult


@dataclasses.dataclass(frozen=True)
class BenchmarkCase:
    """A call to time.

    Attributes:
      name: the case's name in tables and charts, such as ``"n=1000"``.
      args: the call's arguments. Arrays become arguments of the compiled program; all other values become constants.
      kwargs: the call's keywords, likewise.

    Raises:
      ArgumentError: if *args* is not a tuple or list.
    """

    name: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.args, (tuple, list)):
            got = f"{reprlib.repr(self.args)} of type {type(self.args).__name__}"
            raise ArgumentError(f"BenchmarkCase: args is {got}; expected a tuple of arguments, as (x,).")


def benchmark(
    op: Any,
    call: Callable[..., Any],
    cases: Iterable[BenchmarkCase] | None,
    *,
    platform: str | None,
    backends: Sequence[str] | None,
    rounds: int,
    seconds: float,
    rtol: float | None,
) -> BenchmarkResult:
    """Time *call* with each backend of *op*; the arguments are those of `XLACustomKernel.benchmark`."""
    platform = check_platform(platform or _default_platform(), op.name)
    if cases is None:
        if op.benchmark_data is None:
            raise ArgumentError(
                f"{op.name}: benchmark: there are no cases. Pass a list of BenchmarkCase(name, args, kwargs), or set a "
                "function that makes them with def_benchmark_data."
            )
        cases = op.benchmark_data(platform=platform)
    cases = _checked_cases(op, cases, needs_outs=call is op)
    if isinstance(rounds, bool) or not isinstance(rounds, Integral) or rounds < 1:
        raise ArgumentError(f"{op.name}: benchmark: rounds is {rounds!r}; expected an integer of at least 1.")
    check_tolerances(f"{op.name}: benchmark", rtol=rtol)
    if isinstance(backends, str):
        raise ArgumentError(f"{op.name}: benchmark: backends is {backends!r}; expected names, as [{backends!r}].")
    if is_tracing():
        raise ArgumentError(
            f"{op.name}: benchmark: called inside jax.jit or another transformation of JAX, where nothing can be "
            "timed. Call it outside."
        )
    chosen = list(dict.fromkeys(op.available_backends(platform) if backends is None else backends))
    for backend in chosen:
        op.entry(platform, backend)  # raises an error that lists the backends
    if not chosen:
        raise BackendNotFoundError(f"{op.name}: benchmark: there is no kernel for platform {platform!r}.")
    try:
        device = jax.local_devices(backend=platform)[0]
    except RuntimeError as error:
        raise ArgumentError(f"{op.name}: benchmark: JAX has no device of platform {platform!r} here.") from error
    # `race` compares the results of all backends with those of the first: plain JAX, or else the first chosen backend.
    calls = {name: _with_backend(call, platform, name) for name in sorted(chosen, key=lambda name: name != "jax")}
    measurements = []
    for case in cases:
        found = race(calls, case.args, case.kwargs, device, Pace(rounds, seconds), case=case.name, rtol=rtol)
        measurements += [found[backend] for backend in chosen]
    return BenchmarkResult(
        operator=op.name,
        platform=platform,
        device=device.device_kind,
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        versions=installed_versions(),
        measurements=tuple(measurements),
    )


def _default_platform() -> str:
    """Return the platform of JAX's default device."""
    return {"cpu": "cpu", "tpu": "tpu"}.get(jax.default_backend(), "gpu")


def _with_backend(call: Callable[..., Any], platform: str, backend: str) -> Callable[..., Any]:
    def function(*args: Any, **kwargs: Any) -> Any:
        with use_backend(**{platform: backend}):
            return call(*args, **kwargs)

    return function


def _checked_cases(op: Any, cases: Iterable[Any], *, needs_outs: bool) -> list[BenchmarkCase]:
    found = list(cases)
    for case in found:
        if not isinstance(case, BenchmarkCase):
            raise ArgumentError(
                f"{op.name}: benchmark: a case is {case!r}; expected BenchmarkCase(name, args, kwargs)."
            )
        if needs_outs and "outs" not in case.kwargs:
            raise ArgumentError(
                f"{op.name}: benchmark: the case {case.name!r} calls the operator, without outs. Add the "
                'keyword to the case, BenchmarkCase(name, args, {"outs": ...}), or set a function that calls the '
                "operator, with def_call."
            )
    names = [case.name for case in found]
    if not names or len(set(names)) < len(names):
        got = names or "no case"
        raise ArgumentError(f"{op.name}: benchmark: expected cases of different names; got {got}.")
    return found
