"""Checks of single calls, control flow, and threads."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
import warnings
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..measure.comparison import (
    EXACT,
    CheckFailure,
    compare,
    compare_structs,
    default_settings,
    describe,
    named_leaves,
)
from ._report import NotTried
from ._subject import Subject

THREADS, CALLS = 8, 20  # the number of threads, and of programs that each thread runs
_STEPS = 3  # iterations of a loop
_MANY, _SHORT, _SMALL = 500, 1e-4, 2000  # calls in a loop, if one takes less than _SHORT s on at most _SMALL elements
_HELD = "the smallest value", "the largest value", "NaN"  # the earlier contents of outputs
_LONGEST = 120  # seconds within which at least one thread must end a call


def check_eager(subject: Subject) -> None:
    """An eager call returns the values of the reference."""
    results = subject.function(*subject.arrays())
    for name, result in named_leaves(results):
        if not isinstance(result, jax.Array):
            raise CheckFailure(f"{name} is of type {type(result).__name__}, expected a jax.Array.")
    if subject.reference is None:
        raise NotTried("the right values are unknown; give reference=, a function that computes them")
    compare(results, subject.expected(), subject.tolerance)


def check_jit(subject: Subject) -> None:
    """A call under jit returns the same values, with the shapes and dtypes of ``jax.eval_shape``."""
    results = jax.jit(subject.function)(*subject.arrays())
    compare(results, subject.expected(), subject.tolerance)
    structs = jax.eval_shape(subject.function, *subject.arrays())
    compare_structs(structs, results, what="by jax.eval_shape ")


@contextlib.contextmanager
def _unused_donations() -> Iterator[None]:
    """Ignore JAX's warning about donated memory that the results do not need: these programs donate everything."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Some donated buffers were not usable")
        yield


def check_written(subject: Subject) -> None:
    """Every element of every output is written before it is read, so results do not depend on earlier values.

    Outputs hold the smallest and then the largest value, since a kernel that updates unwritten elements by a maximum, a
    minimum or an operation on bits keeps one of the two.
    """
    structs = jax.tree.leaves(jax.eval_shape(subject.function, *subject.arrays()))
    if not structs:
        raise NotTried("there are no outputs to write")
    # JAX gives a donated input's memory to an output of its shape and dtype.
    program = jax.jit(lambda _, *inputs: subject.function(*inputs), donate_argnums=0, keep_unused=True)
    results, kept = [], []
    for number, held in enumerate(_HELD):
        memory = [jnp.full(out.shape, _extremes(out.dtype)[number], out.dtype) for out in structs]
        with _unused_donations():
            results.append(jax.tree.map(np.asarray, program(memory, *subject.arrays())))
        kept += [describe(m) for m in memory if m.size and not m.is_deleted()]
        compare(results[number], results[0], EXACT, what=f"in memory that held {held} in place of {_HELD[0]}, ")
    if kept:
        raise NotTried(f"JAX did not use the filled memory for outputs: {', '.join(dict.fromkeys(kept))}")


def _extremes(dtype: Any) -> tuple[Any, Any, Any]:
    """Return the values of `_HELD` for a dtype; for a dtype without NaN, the largest value stands in for NaN."""
    if dtype == np.bool_:
        return False, True, True
    if jnp.issubdtype(dtype, jnp.integer):
        whole = jnp.iinfo(dtype)  # type: ignore[no-untyped-call]
        return whole.min, whole.max, whole.max
    limits = jnp.finfo(dtype)  # type: ignore[no-untyped-call]
    return limits.min, limits.max, np.nan


def check_inputs_kept(subject: Subject) -> None:
    """No input is changed, and the results are the same if all inputs are donated."""
    arrays, results = subject.arrays(), None
    for how, call in (("eager", subject.function), ("under jit", jax.jit(subject.function))):
        results = jax.block_until_ready(call(*arrays))
        for number, (array, before) in enumerate(zip(arrays, subject.inputs, strict=True)):
            compare(array, before, EXACT, what=f"{how}, an input was changed: ", noun=f"input {number}")
    donated = jax.jit(subject.function, donate_argnums=tuple(range(len(arrays))))
    with _unused_donations():
        compare(donated(*subject.arrays()), results, subject.tolerance, what="with all inputs donated: ")


def check_control_flow(subject: Subject) -> None:
    """Calls inside scan, cond and checkpoint return the same values."""
    function = subject.function
    stacked, expected = subject.batch((_STEPS,))

    def scan(*xs: Any) -> Any:
        return jax.lax.scan(lambda carry, one: (carry + 1, function(*one)), 0, xs, length=_STEPS)[1]

    def branch(taken: Any, *xs: Any) -> Any:
        structs = jax.eval_shape(function, *xs)
        return jax.lax.cond(taken, function, lambda *_: jax.tree.map(jnp.zeros_like, structs), *xs)

    looped = jax.jit(scan)(*subject.arrays(stacked))
    compare(looped, expected, subject.tolerance, batch=1, what="inside lax.scan: ")
    once = jax.jit(branch)(True, *subject.arrays())
    compare(once, subject.expected(), subject.tolerance, what="inside lax.cond: ")
    once = jax.jit(jax.checkpoint(function))(*subject.arrays())
    compare(once, subject.expected(), subject.tolerance, what="under jax.checkpoint: ")


def _calls_in_a_loop(subject: Subject) -> int:
    """Return the number of calls in a program of `check_threads`: many if they are short, so that calls overlap."""
    inputs = subject.arrays()
    program = jax.jit(subject.function).lower(*inputs).compile()
    times = []
    for _ in range(3):
        start = time.perf_counter()
        jax.block_until_ready(program(*inputs))
        times.append(time.perf_counter() - start)
    size = sum(x.size for x in (*inputs, *jax.tree.leaves(jax.eval_shape(subject.function, *inputs))))
    is_short = min(times) < _SHORT and size <= _SMALL
    return _MANY if is_short else len(subject.samples)


def check_threads(subject: Subject) -> str:
    """Simultaneous calls from many threads, each with its own inputs, return the same values as single calls."""
    stacked, expected = subject.batch((steps := _calls_in_a_loop(subject),))
    # Threads are at different samples at the same time.
    inputs = [subject.arrays([np.roll(x, -first, 0) for x in stacked]) for first in range(len(subject.samples))]
    # The program is compiled here: contexts such as `use_backend` or `jax.enable_x64` do not apply to the new threads.
    loop = jax.jit(lambda *xs: jax.lax.scan(lambda _, one: (_, subject.function(*one)), None, xs, length=steps)[1])
    program = loop.lower(*inputs[0]).compile()
    alone = [jax.tree.map(np.asarray, program(*one)) for one in inputs]
    compare(alone[0], expected, subject.tolerance, batch=1, what="in a loop: ")
    failures: list[str] = []
    ended: queue.SimpleQueue[bool] = queue.SimpleQueue()  # False when a call ends, True when a thread ends
    barrier = threading.Barrier(THREADS)  # otherwise a thread may end before the next one begins

    def work(number: int) -> None:
        try:
            barrier.wait(timeout=60)
            with default_settings():  # the context of the caller applies to its own thread only
                for call in range(number, number + CALLS):
                    which = call % len(inputs)
                    what = f"in thread {number}, unlike in one thread alone: "
                    compare(program(*inputs[which]), alone[which], EXACT, batch=1, what=what)
                    ended.put(False)
        except Exception as error:  # noqa: BLE001 - reported in the caller's thread
            failures.append(str(error) if isinstance(error, CheckFailure) else f"{type(error).__name__}: {error}")
        finally:
            ended.put(True)

    threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    left = THREADS
    while left:
        try:
            left -= ended.get(timeout=_LONGEST)
        except queue.Empty:
            stuck = f"{left} of {THREADS} threads"
            raise CheckFailure(f"{stuck} ended no call within {_LONGEST} s, perhaps in a deadlock.") from None
    if failures:
        raise CheckFailure(f"{len(failures)} of {THREADS} threads failed; the first: {failures[0]}")
    return f"{THREADS} threads, {CALLS * steps} calls each"
