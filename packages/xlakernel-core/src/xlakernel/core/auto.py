"""``backend="auto"``: the backend that was measured to be the fastest for calls like this one.

A call with arrays, outside of any transformation, is measured if nothing is known of calls like it. Each backend is
compiled and called twice, and those whose results agree are timed (`auto_race`). Two backends that are about as fast
change places with every measurement; the default therefore gives way only to one that takes less than `_MARGIN` of its
time.

Inside a transformation of JAX there is nothing to measure with: a call that is traced takes what is remembered, or the
default, when it is lowered. Until then its backend stays ``"auto"``, because a program may be lowered for several
platforms, and because a rule of differentiation may pass it on to operators that have other backends.

JAX does not tell a call in a callback of a program, or inside ``jax.ensure_compile_time_eval``, from one outside: these
are measured too.
"""

from __future__ import annotations

import datetime
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import get_abstract_mesh

from ._compat import is_tracing
from .auto_calls import describe_call
from .auto_race import explain, race_of_sound
from .auto_records import (
    AutoChoice,
    Question,
    describe_device,
    give_up,
    installed_versions,
    is_hopeless,
    recall,
    remember,
    warn_once,
)
from .benchmark_program import BenchmarkCase, Program
from .config import AUTO, PLATFORMS, is_debugging, requested_backends, use_backend
from .difference import compare
from .errors import ArgumentError, KernelTypeError
from .specs import Mapped, Struct, check_inputs

if TYPE_CHECKING:
    from .operator.dispatch import Static

_MARGIN = 0.95

_measuring = threading.Lock()  # two measurements at once would time each other


class _Thread(threading.local):
    """What this thread is doing.

    Attributes:
      tuned: what `tune` measured so far; None outside of it.
      measures: whether it holds `_measuring`: a kernel that calls back into Python may come here again.
    """

    tuned: dict[Question, AutoChoice] | None = None
    measures = False


_thread = _Thread()


def tune(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> list[AutoChoice]:
    """Call a function once, and measure which backend is the fastest for each operator that it calls.

    It is for programs that are traced: a call of an operator inside ``jax.jit`` is never measured, but it finds what
    was measured before. So tune first, with arrays like those of the program, then compile. The function runs inside
    ``use_backend("auto")`` and ``jax.disable_jit()``, a line after the other and each step of a loop, so let it be a
    short one. What is remembered of the calls already is measured anew.

    A call inside ``jax.vmap``, ``jax.grad`` or another transformation is not measured; tune what is inside of it. Nor
    is one in debug mode, of an array on several devices, or in a program of several processes. An operator that has
    side effects is measured here, and here alone: that runs its kernels many times.

    Args:
      function: what to call, such as a function of a package, ``op.call``, or an operator itself.
      *args: its arguments.
      **kwargs: its keywords.

    Returns:
      The choices, in the order of the first calls. Operators with one kernel for the platform have none to make.

    Raises:
      ArgumentError: if it is called inside a transformation of JAX.
      KernelTypeError: if *function* cannot be called.

    Example:
      >>> import jax, numpy as np
      >>> from xlakernel.core import XLACustomKernel, tune, use_backend
      >>> op = XLACustomKernel("tuned", replace=True)
      >>> _ = op.def_kernel("multiplied", "cpu", lambda outs: lambda x: 2 * x)
      >>> _ = op.def_kernel("added", "cpu", lambda outs: lambda x: x + x)
      >>> double = jax.jit(lambda x: op(x, outs=x))
      >>> x = np.ones(1000, np.float32)
      >>> [choice] = tune(double, x)
      >>> choice.call
      'float32[1024] -> float32[1024]'
      >>> with use_backend("auto"):
      ...     y = double(x)  # compiled with what was found
    """
    if not callable(function):
        raise KernelTypeError(f"tune: expected a function and its arguments; got {function!r}. Write tune(f, *args).")
    if is_tracing() or _any_traced(jax.tree.leaves((args, kwargs))):
        raise ArgumentError(
            f"tune: {function!r} was to be measured inside jax.jit or another transformation of JAX, where arrays have "
            "no values. Call tune before, with arrays like those of the program."
        )
    before, _thread.tuned = _thread.tuned, {}
    try:
        with use_backend(AUTO), jax.disable_jit():
            jax.block_until_ready(function(*args, **kwargs))
        return list(_thread.tuned.values())
    finally:
        _thread.tuned = before


# A call with arrays.


def backend_of_call(
    op: Any, ins: Sequence[Any], outs: Sequence[Struct], backend: str | None, static: Static
) -> str | None:
    """Return the backend for a call of *op* that asks for *backend*, and may get ``"auto"``.

    Args:
      op: the operator.
      ins: the inputs, as the user gave them.
      outs: the results.
      backend: what the call asks for.
      static: the static keywords.

    Returns:
      The one that was measured to be the fastest, measured now if need be; or *backend*, if that cannot be said here.
    """
    # Without jit a program that its user jitted is called line by line.
    is_line_by_line = jax.config.jax_disable_jit and _thread.tuned is None  # type: ignore[attr-defined]  # made as JAX goes
    inside = is_tracing() or is_line_by_line
    if inside or _any_traced(ins) or _are_several_processes():
        return backend
    check_inputs(ins, op.name)
    device = _device_of(ins)
    if device is None or device.platform not in PLATFORMS:
        return backend
    platform = device.platform
    backends = tuple(op.available_backends(platform))
    asked = backend or requested_backends().get(platform) or op.get_default(platform)
    if len(backends) < 2 or asked != AUTO:
        return backend
    inputs = tuple((x.shape, x.dtype) if isinstance(x, jax.Array) else (np.shape(x), jnp.result_type(x)) for x in ins)
    call = describe_call(inputs, tuple((out.shape, out.dtype) for out in outs), static)
    question = Question(op.name, platform, describe_device(device), call, backends)
    choice = recall(question)
    if choice is not None and _thread.tuned is None:
        return choice.backend
    if _is_to_be_measured(op, question, ins):
        with _alone() as alone:
            if not alone:
                return _default_beside_auto(op, platform)
            if _is_to_be_measured(op, question, ins):  # another thread may just have done it
                _measure(op, question, ins, outs, static, device)
        choice = recall(question)
    if choice is not None:
        return choice.backend
    if is_hopeless(question):
        return _default_beside_auto(op, platform)  # which says why
    give_up(question)
    return backend  # of what is unknown the lowering tells the user


def _default_beside_auto(op: Any, platform: str) -> str | None:
    """Return what runs on *platform* where ``"auto"`` knows nothing; None if there is no kernel."""
    default: str | None = op.get_default(platform)
    return op.first_backend(platform) if default == AUTO else default


def _any_traced(values: Sequence[Any]) -> bool:
    return any(isinstance(value, jax.core.Tracer) for value in values)


@functools.cache
def _are_several_processes() -> bool:
    """Whether this process is one of several that run one program, and must compile the same."""
    return bool(jax.process_count() > 1)


def _device_of(ins: Sequence[Any]) -> jax.Device | None:
    """Return the device that a call runs on; None if it is not one alone."""
    arrays = [x for x in ins if isinstance(x, jax.Array)]
    # An array that is committed to no device follows the others, or goes to the default device.
    bound = [x for x in arrays if getattr(x, "committed", True)]
    devices = {device for x in bound for device in x.devices()}
    if len(devices) > 1:
        return None
    if devices:
        return devices.pop()
    if not get_abstract_mesh().empty:  # what has no device of its own goes to all of the mesh
        return None
    # JAX makes its settings as it goes.
    default: jax.Device | str | None = jax.config.jax_default_device  # type: ignore[attr-defined]
    if default is None or isinstance(default, str):
        return jax.local_devices(backend=default)[0]
    return default


def _is_to_be_measured(op: Any, question: Question, ins: Sequence[Any]) -> bool:
    if is_debugging() or any(isinstance(x, jax.Array) and x.is_deleted() for x in ins):
        return False
    if _thread.tuned is not None:
        return question not in _thread.tuned
    return not (op.has_side_effect or recall(question) or is_hopeless(question))


@contextmanager
def _alone() -> Iterator[bool]:
    """Let one thread measure at a time; False in another one.

    That one does not wait, unless its user asked for the measurement: it may be a callback of what is measured.
    """
    if _thread.measures or not _measuring.acquire(blocking=_thread.tuned is not None):
        yield False
        return
    _thread.measures = True
    try:
        yield True
    finally:
        _thread.measures = False
        _measuring.release()


def _measure(
    op: Any,
    question: Question,
    ins: Sequence[Any],
    outs: Sequence[Struct],
    static: Static,
    device: jax.Device,
) -> None:
    default = _default_beside_auto(op, question.platform)
    programs: dict[str, Program] = {}
    problems: dict[str, str] = {}
    expected: tuple[str, Any] | None = None
    # A transfer guard of the user's is about the user's transfers, not about the comparison. A NaN is an error of the
    # call itself, where the user asked for that, and says nothing about the backends.
    with jax.disable_jit(False), jax.transfer_guard("allow"), jax.debug_nans(False), jax.debug_infs(False):
        jax.block_until_ready(ins)
        # What the others are compared with comes first: plain JAX, else what runs without a choice.
        for backend in sorted(question.backends, key=lambda name: (name != "jax", name != default)):
            call = functools.partial(op, outs=list(outs), backend=backend, **dict(static.items))
            program = Program(call, BenchmarkCase("", tuple(ins)), device)
            try:
                results = program.run(1)
                expected = (backend, results) if expected is None else expected
                compare(results, *expected, None)
            except Exception as error:  # noqa: BLE001  # whatever it is, this backend is not to be chosen
                problems[backend] = explain(error)
            else:
                programs[backend] = program
        results = expected = None  # their memory is for what is timed
        seconds = race_of_sound(programs, problems)
    choice = None
    if seconds:
        fastest = min(seconds, key=seconds.__getitem__)
        keeps = default in seconds and seconds[fastest] > _MARGIN * seconds[default]
        choice = AutoChoice(
            question.operator,
            question.platform,
            question.device,
            question.call,
            backend=str(default) if keeps else fastest,
            seconds=seconds,
            problems=problems,
            date=datetime.datetime.now(datetime.UTC).date().isoformat(),
            versions=installed_versions(),
        )
        if _thread.tuned is not None:
            _thread.tuned[question] = choice
    try:
        remember(question, choice)
    finally:  # also where a warning is an error
        op.primitive.forget()


# A call that is traced.


def backend_of_lowering(
    op: Any,
    platform: str,
    ins: Sequence[Any],
    outs: Sequence[Struct],
    static: Static,
    mapped: Sequence[Mapped],
) -> str | None:
    """Return the backend for a traced call of *op* that asks for ``"auto"``; None if *op* has no kernel.

    Args:
      op: the operator.
      platform: what the program is lowered for.
      ins: the types of the inputs.
      outs: the results of the operator itself.
      static: the static keywords.
      mapped: the levels of ``jax.vmap`` around the kernel; what is known of one slice counts for all.
    """
    default = _default_beside_auto(op, platform)
    backends = tuple(op.available_backends(platform))
    if len(backends) < 2:
        return default
    devices = _local_devices(platform)
    inputs = tuple((_slice_shape(x.shape, i, mapped), x.dtype) for i, x in enumerate(ins))
    call = describe_call(inputs, tuple((out.shape, out.dtype) for out in outs), static)
    device = describe_device(devices[0]) if devices else "none here"
    if not _are_several_processes() and devices:
        question = Question(op.name, platform, device, call, backends)
        choice = recall(question)
        if choice is not None:
            return choice.backend
    warn_once(
        (op.name, platform),
        f'{op.name}: backend="auto" found no measurement for {call} on {platform} ({device}), and takes the default, '
        f"{default!r}. Calls inside jax.jit or another transformation are never measured, nor are those in debug mode, "
        "on several devices, in several processes, or with side effects. Measure before the program is compiled: call "
        'the operator with backend="auto" on arrays, or xlakernel.core.tune(function, *arrays). Said once for each '
        "operator.",
    )
    return default


def _local_devices(platform: str) -> Sequence[jax.Device]:
    try:
        return tuple(jax.local_devices(backend=platform))
    except RuntimeError:  # the program is for another machine
        return ()


def _slice_shape(shape: Sequence[Any], index: int, mapped: Sequence[Mapped]) -> tuple[Any, ...]:
    """Return the shape of an input without the axes that ``jax.vmap`` maps; the outermost level is the last."""
    extents = list(shape)
    for level in reversed(mapped):
        axis = level.axes[index]
        if axis is not None:
            del extents[axis]
    return tuple(extents)
