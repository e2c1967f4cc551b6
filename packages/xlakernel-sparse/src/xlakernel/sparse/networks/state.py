"""`NetworkState`: the state of a network between two steps."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax

from .plasticity import Past, Weights


class NetworkState(NamedTuple):
    """The state between two steps, a pytree of arrays.

    Attributes:
      neurons: the named tuple of the neurons' state, arrays ``(size,)``; with several populations, a dictionary.
      pending: sums that arrive in the next steps, in units of *scales*, int32 ``(longest delay * receptors, n)``, those
        of all receptors, in the order of their names, for each step.
      scales: the weight of one unit of each receptor, a dictionary of float32. A run with other weights converts the
        sums, within 1/256 of the largest one of a receptor. If its units cannot represent them, it raises an
        `ArgumentError`; in a traced call, the unit and all arrivals of the receptor are NaN.
      step: the number of the next step, int32. Recorded steps and traces are right up to 2147483647 steps.
      weights: those of the projections up to the last plastic one, a tuple of float32 ``(nnz,)`` in the order of the
        matrix's entries, ``matrix.with_data(state.weights[0])``, or None for a projection that is not plastic; None if
        no projection is plastic.
      past: the spikes on their way to plastic synapses, and the traces of these; None if no projection is plastic.
    """

    neurons: Any
    pending: jax.Array
    scales: dict[str, jax.Array]
    step: jax.Array
    weights: Weights | None = None
    past: Past | None = None
