"""``backend="auto"``: the backend that was measured to be the fastest for similar calls.

A call with arrays, outside of any transformation, is measured unless a choice for similar calls is known. Times vary by
a few percent between measurements; another backend therefore replaces the default only if it takes at most `_MARGIN`
of the default's time.

A call inside a transformation of JAX has no arrays to measure with. When its program is lowered, the call takes a known
choice, or else the default. Until then the call's backend stays ``"auto"``: a program may be lowered for several
platforms, and a differentiation rule passes ``"auto"`` on to other operators, which may have other backends.

To JAX, calls in a callback of a program and calls inside ``jax.ensure_compile_time_eval`` are like calls outside of a
transformation. Such calls are measured too.

An argument ``op`` is an `XLACustomKernel` or its `Backends`; its type is Any, because their modules import this one.
"""

from __future__ import annotations

import datetime
import functools
import threading
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import get_abstract_mesh

from .._compat import is_tracing
from ..call.levels import Level, slice_shape
from ..config import AUTO, PLATFORMS, is_debugging, requested_backends
from ..structs import Struct, check_inputs
from .choices import AutoChoice, Question, recall, remember, warn_once
from .descriptions import describe_call, describe_device, installed_versions
from .race import Pace, race

_MARGIN = 0.95
_PACE = Pace(rounds=7, seconds=0.01, limit=1.0, handicap=10.0)

_measuring = threading.Lock()  # simultaneous measurements would slow each other down


class _Thread(threading.local):
    """State of a thread.

    Attributes:
      tuned: the choices that `tune` has made so far; None outside of `tune`.
      measures: True during a measurement.
    """

    tuned: dict[Question, AutoChoice] | None = None
    measures = False


state = _Thread()


def backend_of_call(
    op: Any, ins: Sequence[Any], outs: Sequence[Struct], backend: str | None, static: Any
) -> str | None:
    """Return the backend for a call of *op* with the argument *backend*; measure first, if necessary and possible.

    Args:
      op: the operator.
      ins: the inputs, as the user gave them.
      outs: the structs of the results.
      backend: the argument of the call.
      static: the static keywords, as `operator.dispatch.Static`.

    Returns:
      The backend that is known or now measured to be the fastest; the default, while another call is measured; or
      *backend*, if ``"auto"`` was not requested or the call cannot be measured here.
    """
    # Under jax.disable_jit, a jitted program runs line by line; its calls of operators are not measured either.
    is_line_by_line = jax.config.jax_disable_jit and state.tuned is None  # type: ignore[attr-defined]  # set at run time
    if is_tracing() or is_line_by_line or any_traced(ins) or _are_several_processes():
        return backend
    check_inputs(ins, op.name)
    device = _device_of(ins)
    if device is None or device.platform not in PLATFORMS:
        return backend
    platform = device.platform
    asked = backend or requested_backends().get(platform) or op.get_default(platform)
    backends = tuple(sorted(op.available_backends(platform)))
    if len(backends) < 2 or asked != AUTO:
        return backend
    inputs = tuple((x.shape, x.dtype) if isinstance(x, jax.Array) else (np.shape(x), jnp.result_type(x)) for x in ins)
    call = describe_call(inputs, tuple((out.shape, out.dtype) for out in outs), static)
    question = Question(op.name, platform, describe_device(device), call, backends)
    if _needs_measurement(op, question, ins):
        # The call may come from a callback of the kernel that is being measured. It must not start a measurement in
        # this thread, and must not wait in another thread: the measurement may wait for the callback.
        if state.measures or not _measuring.acquire(blocking=state.tuned is not None):
            return default_of(op, platform)
        state.measures = True
        try:
            if _needs_measurement(op, question, ins):  # another thread may just have done it
                _measure(op, question, ins, outs, static, device)
        finally:
            state.measures = False
            _measuring.release()
    choice = recall(question)
    return backend if choice is None else choice.backend  # the lowering warns if there is no choice


def any_traced(values: Sequence[Any]) -> bool:
    """Return True if one of the values is traced."""
    return any(isinstance(value, jax.core.Tracer) for value in values)


def default_of(op: Any, platform: str) -> str | None:
    """Return the default backend, or the first backend if the default is ``"auto"``; None if *op* has no kernel."""
    default: str | None = op.get_default(platform)
    return op.first_backend(platform) if default == AUTO else default


@functools.cache
def _are_several_processes() -> bool:
    """Return True if several processes run one program: all of them must compile the same code."""
    return bool(jax.process_count() > 1)


def _device_of(ins: Sequence[Any]) -> jax.Device | None:
    """Return the device that a call runs on; None if there are several."""
    # An array that is committed to no device follows the committed arrays, or goes to the default device.
    bound = [x for x in ins if isinstance(x, jax.Array) and getattr(x, "committed", True)]
    devices = {device for x in bound for device in x.devices()}
    if len(devices) > 1:
        return None
    if devices:
        return devices.pop()
    if not get_abstract_mesh().empty:  # uncommitted arrays go to all devices of the mesh
        return None
    default: jax.Device | str | None = jax.config.jax_default_device  # type: ignore[attr-defined]  # set at run time
    if default is None or isinstance(default, str):
        return jax.local_devices(backend=default)[0]
    return default


def _needs_measurement(op: Any, question: Question, ins: Sequence[Any]) -> bool:
    if is_debugging() or any(isinstance(x, jax.Array) and x.is_deleted() for x in ins):
        return False
    if state.tuned is not None:
        return question not in state.tuned
    return not op.has_side_effect and recall(question) is None


def _measure(
    op: Any, question: Question, ins: Sequence[Any], outs: Sequence[Struct], static: Any, device: jax.Device
) -> None:
    """Compare the backends, and remember the fastest."""
    default = str(default_of(op, question.platform))
    # `race` compares the results of all backends with those of the first: plain JAX, or else the default.
    order = sorted(op.available_backends(question.platform), key=lambda name: (name != "jax", name != default))
    keywords = {"outs": list(outs), **dict(static.items)}
    calls = {name: functools.partial(op, backend=name, **keywords) for name in order}
    found = race(calls, jax.block_until_ready(ins), {}, device, _PACE)
    seconds = {name: one.median for name, one in found.items() if one.problem is None}
    fastest = min(seconds, key=seconds.__getitem__, default=default)
    keeps_default = default in seconds and seconds[fastest] > _MARGIN * seconds[default]
    choice = AutoChoice(
        question.operator,
        question.platform,
        question.device,
        question.call,
        backend=default if keeps_default else fastest,
        seconds=seconds,
        problems={name: one.problem for name, one in found.items() if one.problem is not None},
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        versions=installed_versions(),
    )
    if state.tuned is not None and seconds:
        state.tuned[question] = choice
    try:
        remember(question, choice)
    finally:  # even if a warning is an error
        op.primitive.measured()


def known_choice(
    op: Any,
    platform: str,
    ins: Sequence[Any],
    outs: Sequence[Struct],
    static: Any,
    mapped: Sequence[Level],
) -> str | None:
    """Return the backend for a traced call of *op* that requests ``"auto"``; None if none is known.

    Warns if there are several backends and none is known to be the fastest.

    Args:
      op: the operator, or its backends.
      platform: the platform that the program is lowered for.
      ins: the types of the inputs.
      outs: the structs of the results, without batch dimensions.
      static: the static keywords, as for `backend_of_call`.
      mapped: the levels of ``jax.vmap`` around the kernel. The choice for one slice of the batch applies to all.
    """
    backends = tuple(sorted(op.available_backends(platform)))
    if len(backends) < 2:
        return None
    devices = _local_devices(platform)
    inputs = tuple((slice_shape(x.shape, i, mapped), x.dtype) for i, x in enumerate(ins))
    call = describe_call(inputs, tuple((out.shape, out.dtype) for out in outs), static)
    device = describe_device(devices[0]) if devices else "none here"
    if devices and not _are_several_processes():
        choice = recall(Question(op.name, platform, device, call, backends))
        if choice is not None:
            return choice.backend
    warn_once(
        (op.name, platform),
        f'{op.name}: backend="auto" found no measurement for {call} on {platform} ({device}), and takes the default, '
        f"{default_of(op, platform)!r}. Calls inside jax.jit or another transformation are never measured, nor are "
        "those in debug mode, on several devices, in several processes, or with side effects. Measure before the "
        'program is compiled: call the operator with backend="auto" on arrays, or xlakernel.core.tune(function, '
        "*arrays). This warning comes once for each operator.",
    )
    return None


def _local_devices(platform: str) -> Sequence[jax.Device]:
    """Return the devices of a platform; none if the program is for another machine."""
    try:
        return tuple(jax.local_devices(backend=platform))
    except RuntimeError:
        return ()
