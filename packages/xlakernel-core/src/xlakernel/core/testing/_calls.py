"""Checks of single calls, of programs around them, and of threads."""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ._compare import compare, compare_bits, named_leaves
from ._report import CheckFailure, NotTried
from ._subject import Subject

THREADS = 8
CALLS = 20  # of each thread
_STEPS = 3  # of a loop


def check_eager(subject: Subject) -> None:
    """Outside any transformation the values are those of the reference."""
    results = subject.function(*subject.arrays())
    for name, result in named_leaves(results):
        if not isinstance(result, jax.Array):
            raise CheckFailure(f"{name} is of type {type(result).__name__}, expected a jax.Array.")
    if subject.reference is None:
        raise NotTried(
            "it runs, and nothing is known of its values: the other checks compare them with this call's",
            "give reference=, a function that computes what they should be",
        )
    compare(results, subject.single(), subject.tolerance)


def check_jit(subject: Subject) -> None:
    """Under jit, compiled ahead of time and by shapes alone, it is the same function."""
    inputs, expected = subject.arrays(), subject.single()
    jitted = jax.jit(subject.function)
    compare(jitted(*inputs), expected, subject.tolerance)
    structs = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in inputs]
    results = jitted.lower(*structs).compile()(*inputs)
    compare(results, expected, subject.tolerance, what="compiled ahead of time: ")
    _check_shapes(subject, structs, results)


def _check_shapes(subject: Subject, structs: Sequence[Any], results: Any) -> None:
    told = jax.eval_shape(subject.function, *structs)
    for (name, said), (_, result) in zip(named_leaves(told), named_leaves(results), strict=True):
        if (said.shape, said.dtype) != (result.shape, result.dtype):
            raise CheckFailure(
                f"jax.eval_shape says that {name} is {said.dtype}{list(said.shape)}; it is "
                f"{result.dtype}{list(result.shape)}."
            )


@contextlib.contextmanager
def _unused_donations() -> Iterator[None]:
    """Let JAX be quiet about donated memory that it does not need: all of it is offered, whatever the results are."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Some donated buffers were not usable")
        yield


def check_written(subject: Subject) -> None:
    """Every element of every output is written: results in memory that held zeros or sevens are the same bits."""
    if not jax.tree.leaves(jax.eval_shape(subject.function, *subject.arrays())):
        raise NotTried("there are no outputs to write")
    kept: list[str] = []
    for inputs in (subject.inputs, *subject.zero_size):
        arrays = subject.arrays(inputs)
        structs = jax.tree.leaves(jax.eval_shape(subject.function, *arrays))
        # JAX gives a donated input's memory to an output of its shape and dtype.
        program = jax.jit(lambda _, *inputs: subject.function(*inputs), donate_argnums=0, keep_unused=True)
        results = []
        for fill in (0, 7):  # false and true, for booleans
            memory = [jnp.full(out.shape, fill, out.dtype) for out in structs]
            with _unused_donations():
                results.append(jax.tree.map(np.asarray, program(memory, *arrays)))
            kept += [f"{m.dtype}{list(m.shape)}" for m in memory if m.size and not m.is_deleted()]
        why = "It is what was in memory before (the kernel does not write it), or the kernel is not deterministic."
        compare_bits(*results, what="two equal calls differ: ", why=why)
    if kept:
        raise NotTried(
            f"JAX gave outputs other memory than that which was filled before: {', '.join(dict.fromkeys(kept))}"
        )


def check_inputs_kept(subject: Subject) -> None:
    """The caller's arrays are as they were, also with donation of others of the same values."""
    if not subject.inputs:
        raise NotTried("there are no inputs to keep")
    arrays, results = subject.arrays(), None
    for how, call in (("eager", subject.function), ("under jit", jax.jit(subject.function))):
        results = jax.block_until_ready(call(*arrays))
        for number, (array, before) in enumerate(zip(arrays, subject.inputs, strict=True)):
            compare_bits(array, before, what=f"{how}, input {number} was changed: as an ")
    donated = jax.jit(subject.function, donate_argnums=tuple(range(len(arrays))))
    with _unused_donations():
        # Not with the reference: that is for others to see.
        compare(donated(*subject.arrays()), results, subject.tolerance, what="with all inputs donated: ")


def check_zero_size(subject: Subject) -> None:
    """Arguments with an extent of 0 work, eager, under jit and in a batch."""
    if not subject.zero_size:
        raise NotTried("there are no arguments with an extent of 0", "give some, such as zero_size=[(jnp.zeros(0),)]")
    for inputs in subject.zero_size:
        what = f"inputs {', '.join(str(list(x.shape)) for x in inputs)}: "
        expected = subject.expected(inputs)
        compare(subject.function(*subject.arrays(inputs)), expected, subject.tolerance, what=what)
        compare(jax.jit(subject.function)(*subject.arrays(inputs)), expected, subject.tolerance, what=what)
        if inputs:
            pairs = [np.stack([x, x]) for x in inputs]
            twice = jax.tree.map(lambda y: np.stack([y, y]), expected)
            results = jax.vmap(subject.function)(*subject.arrays(pairs))
            compare(results, twice, subject.tolerance, batch=1, what=f"in a batch of 2, {what}")


def check_control_flow(subject: Subject) -> None:
    """Inside scan, fori_loop, cond and checkpoint the values are the same."""
    function = subject.function
    stacked, expected = subject.batch((_STEPS,))
    structs = jax.eval_shape(function, *subject.arrays())

    def scan(*xs: Any) -> Any:
        return jax.lax.scan(lambda carry, one: (carry + 1, function(*one)), 0, xs, length=_STEPS)[1]

    def loop(*xs: Any) -> Any:
        def step(k: Any, out: Any) -> Any:
            return jax.tree.map(lambda o, y: o.at[k].set(y), out, function(*(x[k] for x in xs)))

        empty = jax.tree.map(lambda y: jnp.zeros((_STEPS, *y.shape), y.dtype), structs)
        return jax.lax.fori_loop(0, _STEPS, step, empty)

    def branch(taken: Any, *xs: Any) -> Any:
        return jax.lax.cond(taken, function, lambda *_: jax.tree.map(jnp.zeros_like, structs), *xs)

    for what, looped in (("inside lax.scan: ", scan), ("inside lax.fori_loop: ", loop)):
        compare(jax.jit(looped)(*subject.arrays(stacked)), expected, subject.tolerance, batch=1, what=what)
    once = jax.jit(branch)(True, *subject.arrays())
    compare(once, subject.single(), subject.tolerance, what="inside lax.cond: ")
    once = jax.jit(jax.checkpoint(function))(*subject.arrays())
    compare(once, subject.single(), subject.tolerance, what="under jax.checkpoint: ")


def check_threads(subject: Subject) -> str:
    """Calls from many threads at once, each with its own inputs, return the same bits as alone."""
    jitted = jax.jit(subject.function)
    inputs = [subject.arrays(sample) for sample in subject.samples]
    alone = [jax.tree.map(np.asarray, jitted(*one)) for one in inputs]

    def work(number: int) -> None:
        for call in range(CALLS):
            which = (number + call) % len(inputs)
            results = jax.tree.map(np.asarray, jitted(*inputs[which]))
            compare_bits(alone[which], results, what=f"alone and in thread {number}: ")

    in_threads(THREADS, work)
    return f"{THREADS} threads, {CALLS} calls each"


def in_threads(count: int, work: Callable[[int], None]) -> None:
    """Run ``work(number)`` in *count* threads at once; raise what the first to fail raised, and say how many did."""
    failures: dict[int, Exception] = {}
    barrier = threading.Barrier(count)

    def guarded(number: int) -> None:
        try:
            barrier.wait(timeout=60)
            work(number)
        except Exception as error:  # noqa: BLE001 - raised again in the caller's thread
            failures[number] = error

    threads = [threading.Thread(target=guarded, args=(number,), daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    if stuck := sum(thread.is_alive() for thread in threads):
        raise CheckFailure(f"{stuck} of {count} threads did not end within 120 s: a deadlock?")
    if failures:
        first = failures[min(failures)]
        text = str(first) if isinstance(first, CheckFailure) else f"{type(first).__name__}: {first}"
        raise CheckFailure(f"{len(failures)} of {count} threads failed; the first: {text}") from first
