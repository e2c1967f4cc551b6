"""The benchmark's networks in other simulators, and the statistics of their spikes."""

from pathlib import Path

import jax
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

# There are no benchmarks in a source archive.
_brette_models, _network_models = pytest.importorskip("_brette_models"), pytest.importorskip("_network_models")
_brainevent_network, _nest_network = pytest.importorskip("_brainevent_network"), pytest.importorskip("_nest_network")
_spike_statistics = pytest.importorskip("_spike_statistics")
SCRIPT = Path(_nest_network.__file__).with_name("network_statistics.py")


@pytest.mark.parametrize("name", ["coba", "cuba"])
def test_the_neurons_of_the_loop_over_steps_are_ours(name):
    model = getattr(_brette_models, name)(400)
    integrate = {"coba": _brainevent_network.step_conductances, "cuba": _brainevent_network.step_currents}[name]
    state = model.network.initial(model.neurons)
    expected, recording = model.network.run(state, model.parameters, steps=1)
    nothing = np.zeros(400, np.float32)
    found, fired = jax.jit(integrate)(state.neurons, nothing, nothing, model.parameters)
    for one, other in zip(found, expected.neurons, strict=True):
        assert_allclose(one, other, rtol=1e-5, atol=1e-5)
    assert int(fired.sum()) == int(recording.spikes.total)


def test_nest_gets_our_synapses_in_its_units():
    model = _brette_models.coba(200, keep=True)
    excitation, inhibition = (
        _nest_network._synapses(projection, _nest_network.COBA.weight[projection.receptor])
        for projection in model.projections
    )
    assert (excitation["source"].min(), excitation["source"].max()) == (1, 160)
    assert (inhibition["source"].min(), inhibition["source"].max()) == (161, 200)
    assert excitation["target"].size + inhibition["target"].size == 80 * 200
    assert_allclose(excitation["weight"], 6, rtol=1e-6)
    assert_allclose(inhibition["weight"], -67, rtol=1e-6)
    assert_array_equal(excitation["delay"], 0.1)
    dense = np.zeros((200, 200))
    for found in (excitation, inhibition):
        np.add.at(dense, (found["source"] - 1, found["target"] - 1), found["weight"])
    units = zip(model.projections, (10, -10), strict=True)
    expected = np.concatenate([np.asarray(projection.matrix.todense()) * unit for projection, unit in units])
    assert_allclose(dense, expected, rtol=1e-5)
    state = _nest_network._initial(model, _nest_network.COBA)
    assert_allclose(state["V_m"], np.asarray(model.neurons.v) - 60)
    assert_allclose(state["g_in"], 10 * np.asarray(model.neurons.inhibition))


def test_nest_gets_the_input_of_the_microcircuit():
    """A tenth of 1600 sources at 8 Hz reach layer 23E, through weights that are larger by the root of ten."""
    model = _network_models.microcircuit(scale=0.1, keep=True)
    drives = _nest_network._drives(model)
    assert [drive["first"] for drive in drives] == np.cumsum([0, *np.bincount(model.groups)])[:8].tolist()
    assert drives[0]["rate"] == pytest.approx(1600 * 8 / 10, rel=1e-5)
    assert drives[7]["rate"] == pytest.approx(2100 * 8 / 10, rel=1e-5)
    assert drives[0]["weight"] == pytest.approx(87.8 * 10**0.5)
    state = _nest_network._initial(model, _nest_network.MICROCIRCUIT)
    # 0.1 ms of the current through 250 pF, of which the leak takes 1/200.
    assert_allclose(state["I_e"] * 0.1 / 250 * (1 - 1 / 200), np.asarray(model.parameters.drive), rtol=1e-4)


@pytest.mark.process
def test_nest_fires_at_our_rate():
    if not _nest_network.is_installed():
        pytest.skip("NEST is not installed")
    model = _brette_models.cuba(1000, keep=True)
    _, recording = model.network.run(model.network.initial(model.neurons), model.parameters, steps=5000)
    with _nest_network.NestNetwork(model, _nest_network.CUBA, threads=1, record=True) as nest:
        _, count = nest.run(5000)
        step, neuron = nest.spikes()
    assert neuron.min() >= 0 and neuron.max() < 1000 and step.max() <= 5000
    assert step.size == pytest.approx(count, rel=0.01) == pytest.approx(int(recording.spikes.total), rel=0.1)


@pytest.mark.process
def test_a_process_that_ends_is_reported(monkeypatch):
    monkeypatch.setattr(_nest_network.sys, "executable", "/bin/false")
    with pytest.raises(RuntimeError, match="ended with the status 1"):
        _nest_network.NestNetwork(_brette_models.cuba(100, keep=True), _nest_network.CUBA, threads=1)


def trains(spikes, size, duration):
    time, neuron = np.array([(time, neuron) for neuron, times in enumerate(spikes) for time in times]).T
    return _spike_statistics.Trains(time, neuron.astype(int), size, duration)


def test_statistics_of_known_trains():
    regular, irregular = [10, 20, 30, 40], [10, 20, 40]
    found = _spike_statistics.statistics_of(trains([regular, irregular, [50]], 4, 100.0))
    assert found.rate == pytest.approx(8 / 4 / 0.1)
    assert found.irregularity == pytest.approx(np.mean([0, 5 / 15]))
    # Of 50 bins, the first two have 4 and 3, of which 3 are common, and the third has one of its own.
    counts = np.zeros((3, 50))
    for row, bins in enumerate(([5, 10, 15, 20], [5, 10, 20], [25])):
        counts[row, bins] = 1
    coefficients = np.corrcoef(counts)
    assert found.correlation == pytest.approx(np.mean(coefficients[np.triu_indices(3, 1)]), rel=1e-5)


def test_poisson_trains_are_irregular_and_uncorrelated():
    rng = np.random.default_rng(0)
    found = _spike_statistics.statistics_of(
        trains([np.sort(rng.uniform(0, 20_000, rng.poisson(200))) for _ in range(100)], 100, 20_000.0)
    )
    assert found.irregularity == pytest.approx(1, abs=0.03)
    assert abs(found.correlation) < 0.002


def test_silent_populations_have_no_statistics():
    nothing = _spike_statistics.Trains(np.zeros(0), np.zeros(0, int), 10, 100.0)
    rate, *others = _spike_statistics.statistics_of(nothing)
    assert rate == 0 and np.all(np.isnan(others))


@pytest.mark.parametrize("shift", [0.0, 0.1])
def test_a_difference_is_found(script, shift):
    rng = np.random.default_rng(1)
    ours = rng.normal(5, 0.1, (10, 8, 3))
    theirs = ours + rng.normal(0, 0.05, ours.shape)
    theirs[:, 4, 0] += shift
    described, marks = script.compare(ours, theirs)
    assert [mark.holds for mark in marks] == [shift == 0, True, True]
    assert described["rate"]["5E"]["ours"]["mean"] == pytest.approx(ours[:, 4, 0].mean())
    tables = script.tables_of(described)
    assert set(tables["rate, Hz"]["5E"]) == {"ours", "NEST", "difference, standard errors"}


def test_without_nest_the_marks_do_not_hold(script):
    described, marks = script.compare(np.ones((10, 8, 3)), None)
    assert [mark.value for mark in marks] == [None] * 3
    assert set(described["rate"]["5E"]) == {"ours"}
    assert script.compare(np.ones((3, 8, 3)), None)[1] == []
