"""`NetworkState`: the state of a network between two steps, and its checks."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from xlakernel.core.errors import ArgumentError, DtypeError, ShapeError

from .layout import MOST_UNITS, Layout
from .plasticity import Past, Weights

#: The largest number of a step.
_LAST_STEP = 2**31 - 1
#: Pending sums of another network are converted to the units of this network. The rounding error is at most the
#: receptor's largest sum divided by this number.
_ACCURACY = 256
#: The sums of a state are below this number of units. A network can then add its own, which are below `MOST_UNITS`.
_MOST_PENDING = 3 * MOST_UNITS


class NetworkState(NamedTuple):
    """The state between two steps, a pytree of arrays.

    Attributes:
      neurons: the named tuple of the neurons' state, arrays ``(size,)``; with several populations, a dictionary.
      pending: the sums of weights that arrive in the next steps, in units of *scales*, int32 ``(depth * receptors,
        size)``; *depth* is the longest delay of the projections that are not plastic, or 1. Each step has a row for
        each receptor, in sorted order of the receptors' names.
      scales: the weight of one unit of each receptor, a dictionary of float32. If a network with other weights runs
        from this state, *pending* is rounded to that network's units. An `ArgumentError` is raised if this changes a
        sum by more than 1/256 of the receptor's largest sum, or if int32 may not hold these sums and those that the
        network adds. In a traced call, the unit and all arrivals of the receptor are NaN instead.
      step: the number of the next step, int32. A run beyond step 2147483647 is an error. In a traced call, the numbers
        of such steps wrap to negative ones, and the steps' spikes and traces may be lost.
      weights: a tuple with the weights of each projection up to the last plastic one, float32 ``(nnz,)``, in the order
        of the matrix's entries (``matrix.with_data(state.weights[0])``), and None for one that is not plastic. If no
        projection is plastic, None in place of the tuple.
      past: the spikes on their way to plastic synapses, and the traces of plastic projections; None without any.
    """

    neurons: Any
    pending: jax.Array
    scales: dict[str, jax.Array]
    step: jax.Array
    weights: Weights | None = None
    past: Past | None = None


def check_network_state(state: NetworkState, layout: Layout, steps: int) -> None:
    """Raise an error unless a network with this layout can run for some steps from *state*.

    Raises:
      ArgumentError: if the state has other receptors, or if there are too many steps and the state is not traced.
      ShapeError: if an array has another shape.
      DtypeError: if an array has another dtype.
    """
    receptors = layout.receptors
    if not isinstance(state.scales, Mapping) or set(state.scales) != set(receptors):
        names = sorted(state.scales) if isinstance(state.scales, Mapping) else state.scales
        raise ArgumentError(f"Network.run: the receptors of the state are {names}; allowed: {list(receptors)}.")
    for name, value, shape, dtype in (
        ("pending", state.pending, (layout.rows, layout.size), jnp.int32),
        *((f"scales[{name!r}]", state.scales[name], (), jnp.float32) for name in receptors),
        ("step", state.step, (), jnp.int32),
    ):
        if jnp.shape(value) != shape:
            raise ShapeError(
                f"Network.run: state.{name} has the shape {jnp.shape(value)}; allowed: {shape}, that of a state of "
                "this network."
            )
        if not hasattr(value, "dtype") or value.dtype != dtype:
            found = getattr(value, "dtype", type(value).__name__)
            raise DtypeError(f"Network.run: state.{name} is of {found}; allowed: an array of {dtype.__name__}.")
    first = 0 if isinstance(state.step, jax.core.Tracer) else int(state.step)
    if not 0 <= first <= _LAST_STEP - steps:
        raise ArgumentError(
            f"Network.run: {steps} steps from step {first}; allowed: steps from 0 to {_LAST_STEP}, which int32 holds."
        )


def convert_pending(state: NetworkState, new: jax.Array, layout: Layout) -> tuple[jax.Array, jax.Array]:
    """Return the pending sums in the units *new* of a network with this layout, and the units.

    The unit of a receptor is NaN if it cannot represent the receptor's sums, or if the sums are too large.

    Raises:
      ArgumentError: if one of both holds for a receptor, and neither the state nor *new* is traced.
    """
    receptors, depth = layout.receptors, layout.depth
    if not receptors:
        return state.pending, new
    old = jnp.stack([state.scales[name] for name in receptors])
    is_known = not any(isinstance(x, jax.core.Tracer) for x in (old, new, state.pending))
    within = _is_within(state.pending, len(receptors))
    if is_known and not np.all(within):
        raise ArgumentError(
            "Network.run: spikes of several networks are on their way in the state, and a sum that arrives in one step "
            f"at the receptors {_unfit(receptors, within)} is 3 * 2**29 units or more; allowed: less, as 32 bits hold "
            "it and what this network adds. Run each network until its spikes have arrived before the next one, or use "
            "weight_bits=16."
        )
    if is_known and np.array_equal(old, new):
        return state.pending, new
    sums = state.pending.reshape(depth, len(receptors), -1)
    exact = sums.astype(old.dtype) * (old / new)[:, None]
    rounded = jnp.rint(exact)
    largest, error = (jnp.max(jnp.abs(x), (0, 2), initial=0) for x in (exact, exact - rounded))
    fits = (old == new) | ((largest < 2 * MOST_UNITS) & (error <= largest / _ACCURACY))
    if is_known and not np.all(fits):
        raise ArgumentError(
            f"Network.run: the spikes on their way in the state are those of a network with other weights, and the "
            f"units of this one cannot represent their sums at the receptors {_unfit(receptors, fits)}. Continue with "
            "weights of the same size, or run the other network until the spikes have arrived."
        )
    converted = jnp.where((old == new)[:, None], sums, rounded.astype(jnp.int32))
    return converted.reshape(state.pending.shape), jnp.where(within & fits, new, jnp.nan)


@partial(jax.jit, static_argnums=1)
def _is_within(pending: jax.Array, receptors: int) -> jax.Array:
    """Return for each receptor whether a network's own sums can be added to the pending sums within int32."""
    sums = pending.reshape(-1, receptors, pending.shape[-1])
    return jnp.all((sums > -_MOST_PENDING) & (sums < _MOST_PENDING), (0, 2))


def _unfit(receptors: tuple[str, ...], fits: jax.Array) -> list[str]:
    return [name for name, good in zip(receptors, fits, strict=True) if not good]
