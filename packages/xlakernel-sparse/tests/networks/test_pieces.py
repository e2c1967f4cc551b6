"""Long runs in pieces: the same results, progress, and interruptions."""

from __future__ import annotations

import functools
import signal
import threading
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numba
import numpy as np
import pytest
from models import PARAMETERS, State, balanced, noisy, noisy_arrays, random_matrix, start

from xlakernel.core.errors import ArgumentError, InputError, ShapeError
from xlakernel.sparse.networks import Network, Population, Projection, Record, Trace, pieces, run_in_pieces

KEY = jax.random.key(1)


@pytest.fixture(scope="module")
def network():
    return balanced(function=noisy, arrays=noisy_arrays)


def assert_equal(found, expected):
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(one, other)
        assert one.dtype == other.dtype


@pytest.mark.parametrize(
    ("piece", "record"),
    [
        (25, Record(counts=True, spikes=3000, trace=Trace("v", [1, 7], 1))),
        (25, Record(counts=np.arange(60) % 3 - 1, spikes=40)),
        (30, Record(trace=Trace(("v", "wait"), [3], 11))),
        (1, Record(spikes=200)),
        (10_000, Record(counts=True, spikes=3000)),
        (np.int64(40), None),
    ],
    ids=["shorter last piece", "little room", "every 11 steps", "steps", "one piece", "no record"],
)
def test_pieces_are_one_run(network, piece, record):
    state = network.initial(start(60))
    expected = network.run(state, PARAMETERS, KEY, steps=110, record=record)
    found = run_in_pieces(network, state, PARAMETERS, KEY, steps=110, piece=piece, record=record, progress=False)
    assert_equal(found, expected)
    assert all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(found[1]))


def test_a_piece_with_more_spikes_than_expected_is_run_again(network, monkeypatch):
    monkeypatch.setattr(pieces, "_LEAST_ROOM", 8)
    state, loud = network.initial(start(60)), PARAMETERS._replace(drive=jnp.float32(9))
    for spikes in (120, 1500):  # full after the first piece, and after several
        record = Record(spikes=spikes)
        expected = network.run(state, loud, KEY, steps=90, record=record)
        found = run_in_pieces(network, state, loud, KEY, steps=90, piece=10, record=record, progress=False)
        assert_equal(found, expected)


class Drive(NamedTuple):
    """Input for all neurons, and for each of them."""

    common: jax.Array
    own: jax.Array


@numba.njit
def driven(state, arrived, p, rng, inputs):
    v = state.v * np.float32(0.9) + arrived.excitatory + inputs.common + inputs.own
    fired = v >= np.float32(1)
    return State(np.float32(0) if fired else v, state.current, state.wait), fired


def test_inputs_are_cut_along_the_steps():
    rng = np.random.default_rng(0)
    populations = {"left": Population(driven, 20), "right": Population(driven, 10)}
    network = Network(populations, [Projection(random_matrix(rng, 20, 10, 0.5), 3, "excitatory", "left", "right")])
    state = network.initial({"left": start(20), "right": start(10)})
    inputs = {
        "left": Drive(rng.uniform(0, 0.1, 50), rng.uniform(0, 0.2, (50, 20))),
        "right": Drive(jnp.zeros(50), jnp.asarray(rng.uniform(0, 0.2, (50, 10)), jnp.float32)),
    }
    record = Record(counts=True, spikes=400, trace={"left": Trace("v", [1], 2), "right": Trace("v", [2], 5)})
    expected = network.run(state, steps=50, inputs=inputs, record=record)
    found = run_in_pieces(network, state, steps=50, piece=15, inputs=inputs, record=record, progress=False)
    assert_equal(found, expected)
    longer = jax.tree.map(lambda x: np.concatenate([x, x[:1]]), inputs)
    with pytest.raises(ShapeError, match=r"inputs of 'left'.common: shape \(51,\); allowed: \(50,\)"):
        run_in_pieces(network, state, steps=50, piece=15, inputs=longer)


def test_a_function_is_called_after_each_piece(network):
    seen = []

    def progress(state, recording):
        seen.append((int(state.step), recording.counts.shape, recording.spikes.step.size, int(recording.spikes.total)))

    state, _ = network.run(network.initial(start(60)), PARAMETERS, KEY, steps=5)
    record = Record(counts=True, spikes=500)
    _, recording = run_in_pieces(network, state, PARAMETERS, KEY, steps=25, piece=10, record=record, progress=progress)
    assert [(step, shape) for step, shape, *_ in seen] == [(15, (10, 1)), (25, (10, 1)), (30, (5, 1))]
    assert sum(total for *_, total in seen) == recording.spikes.total
    assert all(size == total for *_, size, total in seen)


def test_progress_is_a_line(network, capsys):
    run_in_pieces(network, network.initial(start(60)), PARAMETERS, KEY, steps=50, piece=20)
    written = capsys.readouterr().out
    assert written.endswith("\n")
    assert written.count("\n") == 1
    assert "\r20 of 50 steps " in written
    assert "\r50 of 50 steps, " in written
    assert " µs a step " in written


@pytest.fixture
def interruptible():
    """Handle interrupts as Python does; in a shell's background job they are ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_ends_the_run_after_the_piece(network):
    state, record = network.initial(start(60)), Record(counts=True, spikes=2000, trace=Trace("v", [1], 4))

    def progress(state, _):
        if int(state.step) == 40:
            signal.raise_signal(signal.SIGINT)

    with pytest.warns(UserWarning, match="interrupted after 40 of 100 steps"):
        half, first = run_in_pieces(
            network, state, PARAMETERS, KEY, steps=100, piece=20, record=record, progress=progress
        )
    assert_equal((half, first), network.run(state, PARAMETERS, KEY, steps=40, record=record))
    whole, _ = run_in_pieces(network, half, PARAMETERS, KEY, steps=60, piece=20, progress=False)
    assert_equal(whole, network.run(state, PARAMETERS, KEY, steps=100)[0])


@pytest.mark.usefixtures("interruptible")
def test_a_second_interrupt_is_raised(network):
    def progress(state, _):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        run_in_pieces(network, network.initial(start(60)), PARAMETERS, KEY, steps=20, piece=10, progress=progress)


def test_runs_in_another_thread(network):
    state, found = network.initial(start(60)), []

    def run():
        found.append(run_in_pieces(network, state, PARAMETERS, KEY, steps=20, piece=10, progress=False))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert_equal(found[0], network.run(state, PARAMETERS, KEY, steps=20))


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"piece": 0}, "piece is 0"),
        ({"piece": 1.5}, "piece is 1.5"),
        ({"progress": "yes"}, "progress is 'yes'"),
        ({"steps": 0}, "steps is 0"),
        ({"record": Record(spikes=-1)}, "record.spikes is -1"),
        ({"record": Record(trace=Trace("v", [1], 0))}, "a trace every 0 steps"),
        ({"record": True}, "record is a bool"),
    ],
)
def test_invalid_arguments_are_refused(network, keywords, message):
    with pytest.raises(ArgumentError, match=message):
        run_in_pieces(network, network.initial(start(60)), PARAMETERS, KEY, **{"steps": 10, **keywords})


def test_steps_beyond_int32_are_refused(network):
    state = network.initial(start(60))._replace(step=jnp.int32(2**31 - 11))
    after, _ = run_in_pieces(network, state, PARAMETERS, KEY, steps=10, progress=False)
    assert after.step == 2**31 - 1
    for run in (network.run, functools.partial(run_in_pieces, network, progress=False)):
        with pytest.raises(ArgumentError, match="11 steps from step 2147483637; allowed: steps from 0 to 2147483647"):
            run(state, PARAMETERS, KEY, steps=11)
        with pytest.raises(ArgumentError, match="11 steps from step -1; allowed"):
            run(state._replace(step=jnp.int32(-1)), PARAMETERS, KEY, steps=11)


def test_other_types_and_traced_arguments_are_refused(network):
    state = network.initial(start(60))
    with pytest.raises(InputError, match="the network is a NetworkState; allowed: a Network"):
        run_in_pieces(state, state, steps=10)
    with pytest.raises(ArgumentError, match=r"an argument is traced; .* Use Network\.run inside of jax\.jit"):
        jax.jit(lambda state: run_in_pieces(network, state, PARAMETERS, KEY, steps=10))(state)
