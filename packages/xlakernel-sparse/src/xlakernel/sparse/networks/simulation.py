"""The operator that runs a network."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from xlakernel.core import XLACustomKernel

from .layout import Layout
from .populations import Part
from .recording import Plan

#: Inputs and results: those of the kernel in `kernels.numba.simulation`. Static keywords: ``parts``, ``layout``,
#: ``every``, ``is_random``. A batch of runs is computed by `run_together`, as many at once as a GPU has room for.
run_network = XLACustomKernel("network_run", "The operator behind `xlakernel.sparse.networks.Network.run`.")
#: The same operator for batches that a GPU has room for: all of their blocks wait for each other.
run_together = XLACustomKernel("network_run_together", "The operator behind `Network.run` under `jax.vmap`.")
for _op in (run_network, run_together):
    _op.def_tags("sparse", "network")
run_together.def_default_of(run_network)

#: Blocks that any supported GPU has room for at once: its multiprocessors.
_BLOCKS_AT_ONCE = 132


def simulate(
    entries: tuple[jax.Array, jax.Array, jax.Array],
    state: tuple[jax.Array, jax.Array, jax.Array],
    parameters: tuple[jax.Array, jax.Array],
    inputs: tuple[jax.Array, jax.Array],
    key: jax.Array | None,
    *,
    parts: tuple[Part, ...],
    layout: Layout,
    plan: Plan,
    steps: int,
    backend: str | None,
) -> Sequence[jax.Array]:
    """Return the results of the kernel: pending sums, words of the state, counts, spikes with their number, and traces.

    Args:
      entries: starts, entries and scales of a network.
      state: pending sums, the words of the neurons' state, and the number of the first step.
      parameters: words, and shared words.
      inputs: likewise, for each step.
      key: of `jax.random`, or None.
      parts: the populations.
      layout: that of the network.
      plan: the record.
      steps: the number of steps.
      backend: the requested backend.
    """
    probes = plan.probes
    pending, words, first_step = state
    recorded = _recorded_words(parts, plan)
    rows = steps // probes.every if probes.every else 0
    shapes = [
        pending.shape,
        words.shape,
        (steps, plan.group_count),
        (plan.room,),
        (plan.room,),
        (1,),
        (rows, len(recorded), len(probes.neurons)),
    ]
    seed = jnp.zeros(2, jnp.uint32) if key is None else jax.random.bits(key, (2,), jnp.uint32)
    starts, synapses, scales = entries
    found: Sequence[jax.Array] = run_network(
        starts,
        synapses,
        jnp.asarray(layout.edges, jnp.int32),
        jnp.asarray(layout.owners, jnp.int32),
        scales,
        pending,
        words,
        *parameters,
        *inputs,
        seed,
        first_step[None],
        jnp.asarray(plan.groups),
        jnp.asarray(probes.neurons, jnp.int32),
        jnp.asarray(recorded, jnp.int32),
        outs=[jax.ShapeDtypeStruct(shape, jnp.int32) for shape in shapes],
        backend=backend,
        parts=parts,
        layout=layout,
        every=probes.every,
        is_random=key is not None,
    )
    return found


def _recorded_words(parts: Sequence[Part], plan: Plan) -> np.ndarray:
    """Return the words of the traced state: all of the population's, of which the variables are a part."""
    if not plan.probes.variables:
        return np.zeros(0, np.int32)
    return np.arange(parts[plan.probes.part].state.words, dtype=np.int32)


def _numba(outs: Sequence[Any], **static: Any) -> Any:
    from .kernels.numba import run

    return run(outs, **static)


def _jax(outs: Sequence[Any], **static: Any) -> Any:
    from .kernels.reference import run

    return run(outs, **static)


def _numba_cuda(outs: Sequence[Any], **static: Any) -> Any:
    from .kernels.cuda import run

    return run(outs, **static)


def _run_batch(ins: Sequence[Any], axes: Sequence[int | None], *, outs: Any, dispatch: Any, **static: Any) -> Any:
    """The batching rule of `run_network`."""
    mapped = [jnp.moveaxis(x, axis, 0) for x, axis in zip(ins, axes, strict=True) if axis is not None]

    def run(own: Sequence[jax.Array]) -> tuple[jax.Array, ...]:
        rest = iter(own)
        arrays = [x if axis is None else next(rest) for x, axis in zip(ins, axes, strict=True)]
        return tuple(run_together.primitive.bind(*arrays, outs=outs, dispatch=dispatch, **static))

    size = mapped[0].shape[0]
    together = min(size, max(1, _BLOCKS_AT_ONCE // static["layout"].blocks))
    rounds, rest = divmod(size, together)
    run_all = jax.vmap(run)
    # `jax.lax.map` with a batch size fails for arrays without elements.
    chunks = [x[: size - rest].reshape(rounds, together, *x.shape[1:]) for x in mapped]
    found = [x.reshape(size - rest, *x.shape[2:]) for x in jax.lax.map(run_all, chunks)]
    if rest:
        last = run_all([x[size - rest :] for x in mapped])
        found = [jnp.concatenate(pair) for pair in zip(found, last, strict=True)]
    return found, [0] * len(found)


run_network.def_batching_rule(_run_batch)
for _op, _batched in ((run_network, False), (run_together, True)):
    _op.def_kernel("numba", "cpu", _numba, asdefault=True)
    _op.def_kernel("numba_cuda", "gpu", functools.partial(_numba_cuda, batched=_batched), asdefault=True)
    _op.def_jax_kernel(_jax)
