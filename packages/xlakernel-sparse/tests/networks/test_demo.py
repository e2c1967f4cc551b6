"""The network of ``xlakernel demo``, and the picture of its spikes."""

import re

import jax
import numpy as np
from numpy.testing import assert_array_equal

from xlakernel.command import main
from xlakernel.sparse.networks import Projection, Record, demo


def test_the_command(capsys):
    assert main(["demo", "--neurons", "300", "--seconds", "0.05", "--seed", "3"]) == 0
    first, *speed, rates, title, picture = capsys.readouterr().out.split("\n", 5)
    assert "neurons=300, entries=1800," in first and "500 steps of 0.1 ms" in first
    assert re.fullmatch(r"compiled in [0-9.]+ s, run in [0-9.e-]+ s by one native call:", speed[0])
    assert re.fullmatch(r"[0-9.]+ µs a step, [0-9.e-]+ of real time", speed[1])
    found = re.fullmatch(r"excitatory (.*) spikes/s, inhibitory (.*) spikes/s", rates)
    assert all(5 < float(rate) < 200 for rate in found.groups())
    assert title == "spikes of 72 neurons, from 0 to 50 ms:"
    assert [len(line) for line in picture.splitlines()] == [demo._COLUMNS] * demo._ROWS
    assert len(set(picture)) > 5


def test_the_first_spikes_are_those_of_double_precision(monkeypatch):
    def keep(matrix, **arguments):
        source, target = arguments["source"], arguments["target"]
        dense[np.ix_(kind == source, kind == target)] = matrix.todense()
        return Projection(matrix, **arguments)

    neurons, steps = 400, 50
    dense, kind = np.zeros((neurons, neurons)), np.repeat(["excitatory", "inhibitory"], [320, 80])
    monkeypatch.setattr(demo, "Projection", keep)
    network, begin = demo.build(neurons, jax.random.key(0))
    fields = zip(begin["excitatory"], begin["inhibitory"], strict=True)
    v, excitatory, inhibitory, left = (np.concatenate(both).astype(np.float64) for both in fields)
    arrived, counts = (0, 0), []
    for _ in range(steps):
        excitatory = np.exp(-0.1 / 5) * excitatory + arrived[0]
        inhibitory = np.exp(-0.1 / 10) * inhibitory + arrived[1]
        v = (v + 0.005 * (20 + 60 * excitatory - 20 * inhibitory)) / (1 + 0.005 * (1 + excitatory + inhibitory))
        v[left > 0] = 0
        fired = v >= 10
        v, left = np.where(fired, 0, v), np.where(fired, 50, np.maximum(left - 1, 0))
        spikes = [fired & (kind == name) for name in begin]
        arrived = [of_kind @ dense for of_kind in spikes]
        counts.append([of_kind.sum() for of_kind in spikes])
    _, recording = network.run(network.initial(begin), steps=steps, record=Record(counts=True))
    assert_array_equal(recording.counts, counts)
    assert np.sum(counts) > 100


def test_a_neuron_is_silent_in_its_refractory_period():
    state, arrived = demo.Neuron(np.float32(0), np.float32(0), np.float32(0), np.int32(0)), demo.Neuron(0, 1000, 0, 0)
    spikes = []
    for _ in range(3 * (demo.REFRACTORY + 1)):
        state, fired = demo.integrate.py_func(state, arrived, None, None)
        spikes.append(bool(fired))
    assert_array_equal(np.flatnonzero(spikes), np.arange(3) * (demo.REFRACTORY + 1))


def test_the_picture_of_points():
    columns = 2 * demo._COLUMNS
    x, y = np.array([0, 0, 1]) / columns, np.array([0, 1, 70]) / (4 * demo._ROWS)
    lines = demo.raster(x, y, "utf-8").splitlines()
    # Dots 7 and 3 of the lowest character on the left; dot 5 of the highest one.
    assert lines[-1][0] == "\N{BRAILLE PATTERN DOTS-37}" and lines[0][0] == "\N{BRAILLE PATTERN DOTS-5}"
    blank = "\N{BRAILLE PATTERN BLANK}"
    assert {*"".join(lines[1:-1]), *lines[0][1:], *lines[-1][1:]} == {blank}
    assert demo.raster(x, y, "latin-1") == "\n".join(
        [f".{' ' * 75}", *[" " * demo._COLUMNS] * (demo._ROWS - 2), f".{' ' * 75}"]
    )
