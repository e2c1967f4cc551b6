"""Statistics of spike trains: rate, irregularity and correlation of the populations of a network."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

_BIN = 2.0  # ms
_CORRELATED = 200
_INTERVALS = 2


class Trains(NamedTuple):
    """Spikes of a population: the time in ms and the neuron of each, the number of neurons and the duration in ms."""

    time: np.ndarray
    neuron: np.ndarray
    size: int
    duration: float


class Statistics(NamedTuple):
    """Rate in Hz, irregularity and correlation of a population; NaN where too few neurons fired."""

    rate: float
    irregularity: float
    correlation: float


def statistics_of(trains: Trains) -> Statistics:
    """Return the statistics of a population.

    Rate and irregularity are those of Potjans and Diesmann, "The cell-type specific cortical microcircuit", Cerebral
    Cortex 24 (2014): the mean rate of all neurons in Hz, and the mean over neurons of the coefficient of variation of
    interspike intervals, here of neurons with at least two intervals. The correlation is that of van Albada et al.,
    "Performance comparison of the digital neuromorphic hardware SpiNNaker and the neural network simulation software
    NEST for a full-scale cortical microcircuit model", Frontiers in Neuroscience 12 (2018): the mean of Pearson's
    coefficients of all pairs of 200 neurons, of their spike counts in bins of 2 ms; here those of the first 200 neurons
    that fired.
    """
    rate = trains.time.size / trains.size / (trains.duration * 1e-3)
    return Statistics(rate, irregularity(trains), correlation(trains))


def irregularity(trains: Trains) -> float:
    """Return the mean of the coefficients of variation of interspike intervals."""
    order = np.lexsort((trains.time, trains.neuron))
    time, neuron = trains.time[order], trains.neuron[order]
    is_own = np.diff(neuron) == 0
    intervals, neuron = np.diff(time)[is_own], neuron[1:][is_own]
    counts = np.bincount(neuron, minlength=trains.size)
    enough = counts >= _INTERVALS
    if not enough.any():
        return float("nan")
    sums = (np.bincount(neuron, intervals**power, minlength=trains.size)[enough] for power in (1, 2))
    mean, square = (total / counts[enough] for total in sums)
    return float(np.mean(np.sqrt(np.maximum(square - mean**2, 0)) / mean))


def correlation(trains: Trains) -> float:
    """Return the mean of the correlation coefficients of spike counts."""
    fired = np.unique(trains.neuron)[:_CORRELATED]
    if fired.size < 2:
        return float("nan")
    bins = int(trains.duration / _BIN)
    own = np.isin(trains.neuron, fired)
    row, column = np.searchsorted(fired, trains.neuron[own]), (trains.time[own] / _BIN).astype(int)
    inside = column < bins
    counts = np.zeros((fired.size, bins), np.float32)
    np.add.at(counts, (row[inside], column[inside]), 1)
    coefficients = np.corrcoef(counts)
    return float(np.mean(coefficients[np.triu_indices(fired.size, 1)]))
