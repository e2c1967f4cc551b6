"""The operator that runs a network."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from xlakernel.core import XLACustomKernel

from .layout import Layout
from .model.plastic_projections import Plastic
from .model.populations import Part
from .model.recording import Plan

#: Inputs and results are those of the kernel in `kernels.numba.simulation`. Static keywords: ``parts``, ``plastic``,
#: ``layout``, ``every``, ``is_random``. `run_together` computes a batch, as many runs at once as fit on a GPU.
run_network = XLACustomKernel("network_run", "The operator behind `xlakernel.sparse.networks.Network.run`.")
#: The same operator for a batch that fits on a GPU: its blocks wait for each other, so all must be resident.
run_together = XLACustomKernel("network_run_together", "The operator behind `Network.run` under `jax.vmap`.")
for _op in (run_network, run_together):
    _op.def_tags("sparse", "network")
run_together.def_default_of(run_network)

#: The number of multiprocessors of an H100, used on machines without a GPU.
_USUAL_MULTIPROCESSORS = 132


def simulate(
    entries: tuple[jax.Array, jax.Array, jax.Array],
    state: tuple[jax.Array, jax.Array, jax.Array],
    parameters: tuple[jax.Array, jax.Array],
    inputs: tuple[jax.Array, jax.Array],
    plastic_arrays: tuple[jax.Array, ...],
    key: jax.Array | None,
    *,
    parts: tuple[Part, ...],
    plastic: tuple[Plastic, ...],
    layout: Layout,
    plan: Plan,
    steps: int,
    backend: str | None,
) -> Sequence[jax.Array]:
    """Return the results of the kernel of a run.

    They are pending sums, words of the state, counts, steps, neurons and number of spikes, and recorded states. Those
    of plastic projections follow: weights, traces of spikes, steps of last spikes, and spikes on their way.

    Args:
      entries: starts, entries and scales of a network.
      state: pending sums, the words of the neurons' state, and the number of the first step.
      parameters: words, and shared words.
      inputs: words, and shared words, for each step.
      plastic_arrays: the arrays of plastic projections, those of `run_inputs`.
      key: a key of `jax.random`, or None.
      parts: the populations.
      plastic: the plastic projections.
      layout: that of the network.
      plan: the checked `Record`.
      steps: the number of steps.
      backend: the requested backend.
    """
    pending, words, first_step = state
    recorded = [np.zeros(0, np.int32), *(np.repeat(probe.words, len(probe.neurons)) for probe in plan.probes)]
    probes = [np.zeros(0, np.int32), *(np.tile(probe.neurons, len(probe.words)) for probe in plan.probes)]
    rows = steps // plan.every if plan.every else 0
    shapes = [
        pending.shape,
        words.shape,
        (steps, plan.group_count),
        (plan.room,),
        (plan.room,),
        (1,),
        (rows, sum(map(len, probes))),
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
        jnp.asarray(np.concatenate(probes)),
        jnp.asarray(np.concatenate(recorded)),
        *plastic_arrays,
        outs=[
            *(jax.ShapeDtypeStruct(shape, jnp.int32) for shape in shapes),
            *(jax.ShapeDtypeStruct(array.shape, array.dtype) for array in plastic_arrays[-4:]),
        ],
        backend=backend,
        parts=parts,
        plastic=plastic,
        layout=layout,
        every=plan.every,
        is_random=key is not None,
    )
    return found


def _numba(outs: Sequence[Any], **static: Any) -> Any:
    from .kernels.numba import run

    return run(outs, **static)


def _jax(outs: Sequence[Any], **static: Any) -> Any:
    from .kernels.reference import run

    return run(outs, **static)


def _numba_cuda(outs: Sequence[Any], **static: Any) -> Any:
    from .kernels.cuda import run

    return run(outs, **static)


def multiprocessors() -> int:
    """Return the number of blocks that JAX's default device runs at once, its multiprocessors."""
    is_gpu = jax.default_backend() == "gpu"
    return getattr(jax.devices()[0], "core_count", _USUAL_MULTIPROCESSORS) if is_gpu else _USUAL_MULTIPROCESSORS


def _run_batch(ins: Sequence[Any], axes: Sequence[int | None], *, outs: Any, dispatch: Any, **static: Any) -> Any:
    """The batching rule of `run_network`."""
    is_mapped = [axis is not None for axis in axes]
    arrays = [x if axis is None else jnp.moveaxis(x, axis, 0) for x, axis in zip(ins, axes, strict=True)]
    size = next(x.shape[0] for x, mapped in zip(arrays, is_mapped, strict=True) if mapped)

    def bind(*own: jax.Array) -> tuple[jax.Array, ...]:
        return tuple(run_together.primitive.bind(*own, outs=outs, dispatch=dispatch, **static))

    @jax.custom_batching.custom_vmap
    def run(*own: jax.Array) -> tuple[jax.Array, ...]:
        return jax.vmap(bind, [0 if mapped else None for mapped in is_mapped])(*own)  # type: ignore[no-any-return]

    @run.def_vmap
    def run_in_turn(_: int, is_batched: Sequence[bool], *own: jax.Array) -> Any:
        # Under another `jax.vmap` one launch follows the other.
        found = _map_some(run, own, is_batched)
        return found, tuple(True for _ in found)

    if not isinstance(size, int):  # a symbolic size, only on the CPU: networks run one after the other there
        return run(*arrays), [0] * len(outs)
    together = max(1, min(size, multiprocessors() // static["layout"].blocks))
    rounds, rest = divmod(size, together)
    # `jax.lax.map` with a batch size fails for arrays without elements.
    chunks = [
        x[: size - rest].reshape(rounds, together, *x.shape[1:]) if mapped else x
        for x, mapped in zip(arrays, is_mapped, strict=True)
    ]
    found = [x.reshape(size - rest, *x.shape[2:]) for x in _map_some(run, chunks, is_mapped)]
    if rest:
        last = run(*(x[size - rest :] if mapped else x for x, mapped in zip(arrays, is_mapped, strict=True)))
        found = [jnp.concatenate(pair) for pair in zip(found, last, strict=True)]
    return found, [0] * len(found)


def _map_some(f: Callable[..., Any], arrays: Sequence[jax.Array], is_mapped: Sequence[bool]) -> Any:
    """Return the results of *f* for each slice of the mapped arrays, one after the other."""

    def of_slice(slices: Sequence[jax.Array]) -> Any:
        rest = iter(slices)
        return f(*(next(rest) if mapped else x for x, mapped in zip(arrays, is_mapped, strict=True)))

    return jax.lax.map(of_slice, [x for x, mapped in zip(arrays, is_mapped, strict=True) if mapped])


run_network.def_batching_rule(_run_batch)
for _op, _batched in ((run_network, False), (run_together, True)):
    _op.def_kernel("numba", "cpu", _numba, asdefault=True)
    _op.def_kernel("numba_cuda", "gpu", functools.partial(_numba_cuda, batched=_batched), asdefault=True)
    _op.def_jax_kernel(_jax)
