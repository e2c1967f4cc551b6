"""The networks that the benchmarks measure, and how they are run."""

import sys
from pathlib import Path

import jax
import numpy as np
import pytest
import scipy.linalg
from numpy.testing import assert_allclose, assert_array_equal

from xlakernel.sparse.networks import Record, Trace

# There are no benchmarks in a source archive.
_brette_models, _fly_model = pytest.importorskip("_brette_models"), pytest.importorskip("_fly_model")
_network_runs = pytest.importorskip("_network_runs")
SCRIPT = Path(_network_runs.__file__).with_name("networks.py")


def test_the_network_with_currents_has_the_published_synapses_and_stays_active():
    model = _brette_models.cuba(400)
    assert _network_runs.synapses_of(model.network) == 80 * 400
    receptors = dict(zip(model.network.layout.receptors, np.asarray(model.network.scales), strict=True))
    assert receptors == {"excitation": np.float32(16.2), "inhibition": np.float32(139.5)}
    state = model.network.initial(model.neurons)
    _, recording = model.network.run(state, model.parameters, steps=4000, record=Record(counts=model.groups))
    rates = np.asarray(recording.counts)[2000:].sum(0) / np.bincount(model.groups) / 0.2
    assert np.all((rates > 1) & (rates < 30))


def test_a_neuron_with_currents_is_integrated_exactly():
    model = _brette_models.cuba(100)
    parameters = model.parameters
    rates = np.array([[-1 / 5, 0, 0], [0, -1 / 10, 0], [1 / 200, 1 / 200, -1 / 20]])
    step = scipy.linalg.expm(0.1 * rates)
    found = [parameters.decay_excitation, parameters.decay_inhibition]
    assert_allclose(found, np.diag(step)[:2], rtol=1e-6)
    found = [parameters.gain_excitation, parameters.gain_inhibition, parameters.leak]
    assert_allclose(found, step[2], rtol=1e-6)
    arrived = _Arrived(2.0, -3.0)
    state = _brette_models.TwoCurrentsState(np.float32(-5), np.float32(100), np.float32(-50), 0)
    integrate = _brette_models.integrate_two_currents.py_func
    after, fired = integrate(state, arrived, parameters, None)
    assert_allclose(after[:3], step[[2, 0, 1]] @ [100, -50, -5] + [0, 2, -3], rtol=1e-5)
    assert not fired
    after, fired = integrate(state._replace(v=np.float32(-0.5)), arrived, parameters, None)
    assert fired and (after.v, after.wait) == (-11, 50)


class _Arrived:
    def __init__(self, excitation, inhibition):
        self.excitation, self.inhibition = excitation, inhibition


def test_drawn_degrees_and_weights_have_heavy_tails():
    n, connections = 20_000, 2_000_000
    edges = _fly_model.draw_edges(3, n, connections)
    assert edges.neurons == n and edges.source.size == edges.target.size == edges.synapses.size == connections
    degrees = [np.bincount(ends, minlength=n) for ends in (edges.source, edges.target)]
    assert np.corrcoef(degrees)[0, 1] == pytest.approx(0.76, abs=0.06)
    for degree in degrees:
        low, median, high = np.percentile(degree, [2.5, 50, 97.5])
        assert high / median == pytest.approx(np.exp(1.96), rel=0.15)
        assert median / low == pytest.approx(np.exp(1.96), rel=0.25)
    counts = np.abs(edges.synapses)
    assert counts.mean() == pytest.approx(3.6, abs=0.1)
    for k in (2, 5, 20):
        assert (counts >= k).mean() == pytest.approx((1 + (k - 1) / 3.06) ** -2, rel=0.03)
    inhibits = np.zeros(n, bool)
    inhibits[edges.source[edges.synapses < 0]] = True
    assert not np.any(inhibits[edges.source[edges.synapses > 0]])
    assert inhibits.mean() == pytest.approx(0.4, abs=0.02)


def test_sensory_neurons_of_the_fly_fire_at_the_rate_of_their_input():
    model = _fly_model.fly(n=2_000, connections=100_000, driven=50)
    assert model.names == ("sensory", "others") and "150 Hz to 50 sensory" in model.drive
    record = Record(counts=True, spikes=10_000)
    state = model.network.initial(model.neurons)
    _, recording = model.network.run(
        state, model.parameters, jax.random.key(0), steps=5000, inputs=model.inputs, record=record
    )
    total = int(recording.spikes.total)
    sensory, others = np.asarray(recording.counts).sum(0)
    assert sensory / 50 / 0.5 == pytest.approx(150, rel=0.1)
    assert others > 0 and total <= 10_000
    step, neuron = np.asarray(recording.spikes.step)[:total], np.asarray(recording.spikes.neuron)[:total]
    intervals = [np.diff(step[neuron == one]) for one in range(50, 2000)]
    assert min(interval.min() for interval in intervals if interval.size) > 22


def test_a_connection_of_the_fly_has_the_published_time_course(tmp_path):
    """A sensory neuron with 100 synapses on another: its spike raises the current by 27.5 mV after 18 steps."""
    path = tmp_path / "edges.csv"
    path.write_text("Presynaptic_Index,Postsynaptic_Index,Excitatory x Connectivity\n4,9,100\n", "utf-8")
    model = _fly_model.fly(edges=path, driven=1, rate=20.0)
    assert (model.network.size, model.groups.tolist()) == (2, [0, 1])
    record = Record(spikes=100, trace={"others": Trace(("v", "current"), [0])})
    _, recording = model.network.run(
        model.network.initial(model.neurons),
        model.parameters,
        jax.random.key(1),
        steps=2000,
        inputs=model.inputs,
        record=record,
    )
    first = int(recording.spikes.step[0])
    assert recording.spikes.neuron[0] == 0
    v, current = (recording.trace["others"][name][:, 0] for name in ("v", "current"))
    assert current[first + 17] == 0
    assert current[first + 18] == pytest.approx(27.5)
    time = 3.0
    expected = 27.5 * 5 / (20 - 5) * (np.exp(-time / 20) - np.exp(-time / 5))
    assert v[first + 48] == pytest.approx(expected, rel=1e-4)


def test_networks_of_a_batch_are_those_that_run_alone():
    batch = _network_runs.Run(lambda seed: _brette_models.coba(200, seed), steps=300, batch=3)
    alone = _network_runs.Run(lambda: _brette_models.coba(200, 3), steps=300)
    assert len(batch.time(3)) == len(alone.time(3)) == 3
    for found, expected in zip(jax.tree.leaves(batch.state), jax.tree.leaves(alone.state), strict=True):
        assert_array_equal(found[2], expected)
    described = batch.described()
    assert (described["networks"], described["neurons"], described["synapses"]) == (3, 200, 16_000)
    assert described["megabytes"]["network"] == pytest.approx(3 * alone.described()["megabytes"]["network"])
    assert set(batch.rates()) == {"excitatory", "inhibitory"}


def test_every_target_is_that_of_a_model(script):
    names = [name for name, _ in script.cases([4_000, 400_000], None, "cpu")]
    assert len(set(names)) == len(names) and set(script.TARGETS) <= set(names)
    assert {*script.RATIOS, *(other for other, _ in script.RATIOS.values())} <= set(names)
    assert [name for name, _ in script.cases([4_000_000], None, "cuda")][:2] == [
        "COBA, 4 000 000 neurons",
        "CUBA, 4 000 000 neurons",
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only", "COBRA"], "no model's name begins with it"),
        (["--sizes", "10"], "at least 100"),
        (["--edges", "missing.csv"], "there is no such file"),
    ],
)
def test_options_that_name_nothing_are_refused(script, monkeypatch, capsys, arguments, message):
    monkeypatch.setattr(sys, "argv", ["networks.py", "--platform", "cpu", *arguments])
    with pytest.raises(SystemExit):
        script.main()
    assert message in capsys.readouterr().err


def test_a_small_network_is_measured(script, monkeypatch, capsys):
    arguments = ["networks.py", "--platform", "cpu", "--quick", "--sizes", "1000", "--only", "CUBA"]
    monkeypatch.setattr(sys, "argv", arguments)
    assert script.main() == 0
    shown = capsys.readouterr().out
    assert "CUBA, 1 000 neurons (cpu)" in shown and "µs a step" in shown and "excitatory" in shown
