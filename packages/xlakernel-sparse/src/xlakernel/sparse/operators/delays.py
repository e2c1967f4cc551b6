"""Delivery of events with delays into a ring buffer: `csr_delay_deliver`.

A delivery is linear in the ring and the weights together, and in the ring and the values of weighted events together.
Weights of inactive events add nothing, neither to the ring nor to derivatives with respect to the weights. With respect
to the events, it is differentiated as if they were dense; see `derivatives`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters import ad

from xlakernel.core import XLACustomKernel
from xlakernel.core.backend import jit_when_eager
from xlakernel.core.errors import ArgumentError, DtypeError, ShapeError

from .arguments import as_array, check_compressed, check_operand, is_known, known_numbers
from .backends import register
from .derivatives import active_product
from .dtypes import accumulator, check_convertible, check_dtype
from .entries import rows_of_entries
from .operand import BINARY, WEIGHTED, Operand
from .slots import slots_of
from .units import in_unit, joined, split

_Struct = jax.ShapeDtypeStruct


def _operator(operand: Operand) -> XLACustomKernel:
    """Make the operator for one kind of events.

    Its inputs are ``ring, data, indices, indptr, delays, t, x``. The ring has one dtype with *data*, *delays* are of
    shape ``(nnz,)`` or ``(1,)``, and *t* is a slot of the ring, of shape ``(1,)``. Static keyword: ``homogeneous``.
    """
    op = XLACustomKernel(f"{operand.prefix}csr_delay_deliver", "The operator behind `csr_delay_deliver`.")
    register(op, "delay_delivery", without=("warp",), operand=operand)
    op.def_tags("sparse", "csr", "delay", operand.name)
    return op


DELIVERIES = {operand: _operator(operand) for operand in (BINARY, WEIGHTED)}


def csr_delay_deliver(
    ring: Any,
    events: Any,
    data: Any,
    indices: Any,
    indptr: Any,
    delays: Any,
    t: Any,
    *,
    shape: Any,
    weighted: bool | None = None,
    backend: str | None = None,
) -> jax.Array:
    """Add the weights of active rows to a ring buffer, ``ring[(t + delays[k]) % L, indices[k]] += data[k] x[i]``.

    Here ``i`` is the row of entry ``k``, and ``L`` the number of slots of the ring. Only active rows are visited. If
    *ring* is donated to a jitted function, or carried by ``jax.lax.scan``, it is updated in place.

    In step *t*, deliver the spikes of the step, set the slot ``t % L`` of the result to zero, and then read the slot
    ``(t + 1) % L``, which arrives in the next step. In another order, XLA may copy the ring.

    Args:
      ring: sums that arrive in later steps, ``(L, columns)``; integers, real or complex numbers.
      events: bool, integers or real numbers, ``(rows,)``, or an event array. Elements that are not zero are active.
      data: weights, ``(nnz,)``, or ``(1,)`` or ``()`` if all are equal; converted to the dtype of *ring*.
      indices: columns of the entries, ``(nnz,)``, int32 or int64; not checked, see `csrmv`.
      indptr: the first entry of each row, ``(rows + 1,)``, int32 or int64.
      delays: delays in steps, from 1 to L - 1, ``(nnz,)``, or ``()`` if all are equal; integers. Traced delays are not
        checked: all integers are taken modulo L.
      t: the step, an integer, ``()``; taken modulo L.
      shape: the matrix's shape, (rows, columns).
      weighted: True: an active row adds its weights times the value of its event; False: the event counts as 1. None:
        True for event arrays with values, such as `WeightedArray`.
      backend: the backend; None: that of the `use_backend` context, or else the default.

    Returns:
      The ring, ``(L, columns)``, of the dtype of *ring*. float16 and bfloat16 are added in float32, which copies the
      ring. It is differentiable with respect to *ring*, *data* and *events*; events that count as 1 are differentiated
      as weighted ones, for surrogate gradients.

    Raises:
      InputError: if an argument is not an array.
      ShapeError: if lengths do not fit.
      DtypeError: if a dtype is not supported, *delays* or *t* are not integers, or the ring's dtype cannot hold *data*.
      ArgumentError: if a known delay is not from 1 to L - 1, or *weighted* contradicts the kind of *events*.

    Example:
      >>> import jax.numpy as jnp
      >>> from xlakernel.sparse import csr_delay_deliver
      >>> indptr, indices, data = jnp.array([0, 1, 3]), jnp.array([2, 0, 1]), jnp.array([1.0, 2.0, 3.0])
      >>> delays, spikes = jnp.array([1, 1, 2]), jnp.array([False, True])
      >>> print(csr_delay_deliver(jnp.zeros((3, 3)), spikes, data, indices, indptr, delays, 1, shape=(2, 3)))
      [[0. 3. 0.]
       [0. 0. 0.]
       [2. 0. 0.]]
    """
    return deliver("csr_delay_deliver", ring, events, data, indices, indptr, delays, t, shape, weighted, backend)


def deliver(
    caller: str,
    ring: Any,
    events: Any,
    data: Any,
    indices: Any,
    indptr: Any,
    delays: Any,
    t: Any,
    shape: Any,
    weighted: bool | None,
    backend: str | None,
) -> jax.Array:
    """Check the arguments of the function *caller*, and deliver; `csr_delay_deliver` lists the arguments."""
    kind: Operand | None = getattr(events, "operand", None)  # of an event array
    if kind is not None and weighted is not None and weighted != (kind is WEIGHTED):
        raise ArgumentError(
            f"{caller}: weighted is {weighted}, but events are a {type(events).__name__}; leave weighted out."
        )
    operand = WEIGHTED if weighted or kind is WEIGHTED else BINARY
    x = events if kind is None else events.operand_array()
    (ring, unit), (x, of_events), (data, of_data) = split(ring), split(x), split(data)
    if of_events is not None or of_data is not None:
        data = joined(as_array(caller, "data", data), of_data, of_events)
    data = in_unit(caller, "data * events", data, unit)
    ring = as_array(caller, "ring", ring)
    delays = check_delays(caller, delays, ring)
    arrays = ring, x, data, indices, indptr, delays, t
    delivered: jax.Array = joined(_compiled(caller, operand, *arrays, shape=shape, backend=backend), unit)
    return delivered


def check_delays(caller: str, delays: Any, ring: jax.Array) -> jax.Array:
    """Return *delays* as an array.

    Raises:
      ShapeError: if *ring* does not have two dimensions.
      DtypeError: if delays are not integers.
      ArgumentError: if known delays are not those of a slot of the ring.
    """
    if ring.ndim != 2:
        raise ShapeError(f"{caller}: ring has the shape {ring.shape}; expected two dimensions, (slots, columns).")
    slots = ring.shape[0]
    known = delays if is_known(delays) else None
    if isinstance(delays, (list, tuple, int)):
        known = delays = known_numbers(delays)
    if known is not None and np.size(known) and np.issubdtype(known.dtype, np.integer):
        with jax.ensure_compile_time_eval():
            low, high = int(known.min()), int(known.max())  # before a conversion, which would wrap 64 bits
        if low < 1 or high >= slots:
            raise ArgumentError(
                f"{caller}: delays are from {low} to {high}; a ring of {slots} slots allows 1 to {slots - 1}. Make the "
                "ring longer than the longest delay."
            )
    with jax.ensure_compile_time_eval():
        array = as_array(caller, "delays", delays)
        _check_integers(caller, "delays", array)
    return array.astype(jnp.int32) if array.dtype.itemsize < 4 else array  # sums of slots need more than 8 bits


def _check_integers(caller: str, what: str, array: jax.Array) -> None:
    if not jnp.issubdtype(array.dtype, jnp.integer):
        raise DtypeError(f"{caller}: {what} is of dtype {array.dtype}; expected integers.")


def _deliver(
    caller: str,
    operand: Operand,
    ring: jax.Array,
    x: Any,
    data: Any,
    indices: Any,
    indptr: Any,
    delays: jax.Array,
    t: Any,
    *,
    shape: Any,
    backend: str | None,
) -> jax.Array:
    """Check the other arguments, and deliver."""
    check_dtype(caller, "ring", ring.dtype)
    data = as_array(caller, "data", data)
    data = data.reshape(1) if data.ndim == 0 else data
    data, indices, indptr, shape = check_compressed(caller, data, indices, indptr, shape)
    check_convertible(caller, "data", data.dtype, ring.dtype, "a ring")
    x = check_operand(caller, operand, x, (1,), shape[0], shape)
    if operand is WEIGHTED and x.dtype != bool:
        check_convertible(caller, "events", x.dtype, ring.dtype, "a ring")
    if ring.shape[1] != shape[1]:
        raise ShapeError(
            f"{caller}: ring has the shape {ring.shape}; with a matrix of shape {shape} it must be (L, {shape[1]})."
        )
    if delays.shape not in ((), (1,), indices.shape):
        raise ShapeError(
            f"{caller}: delays have the shape {delays.shape}; expected {indices.shape}, one for each entry, or ()."
        )
    t = as_array(caller, "t", t)
    _check_integers(caller, "t", t)
    if t.shape != ():
        raise ShapeError(f"{caller}: t has the shape {t.shape}; expected (), one step.")
    if not ring.size or not shape[0]:
        return ring
    t = t.astype(jnp.int32) if t.dtype.itemsize < 4 else t  # a narrow integer may not hold the number of slots
    dtype = accumulator(ring.dtype)
    (delivered,) = DELIVERIES[operand](
        ring.astype(dtype),
        data.astype(dtype),
        indices,
        indptr,
        delays.reshape(-1),
        jnp.remainder(t, ring.shape[0]).astype(jnp.int32).reshape(1),
        x if operand is BINARY else x.astype(dtype),
        outs=[_Struct(ring.shape, dtype)],
        backend=backend,
        homogeneous=data.shape == (1,),
    )
    result: jax.Array = delivered.astype(ring.dtype)
    return result


_compiled = jit_when_eager(_deliver, static_argnums=(0, 1), static_argnames=("shape", "backend"))


def _define(operand: Operand) -> None:
    op, weighted = DELIVERIES[operand], DELIVERIES[WEIGHTED]

    def jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> Any:
        ring, data, *structure, x = primals
        of_ring, of_data, *_, of_x = tangents
        (found,) = op.primitive.bind(*primals, **params)
        if not jnp.issubdtype(ring.dtype, jnp.inexact):
            return [found], [ad.Zero(jax.typeof(found).to_tangent_aval())]
        tangent = ad.instantiate_zeros(of_ring)
        if not isinstance(of_data, ad.Zero):
            (tangent,) = op.primitive.bind(tangent, of_data, *structure, x, **params)
        if not isinstance(of_x, ad.Zero):
            (tangent,) = weighted.primitive.bind(tangent, data, *structure, of_x.astype(ring.dtype), **params)
        return [found], [tangent]

    def transpose(cotangents: Sequence[Any], ring: Any, data: Any, *others: Any, homogeneous: bool, **_: Any) -> Any:
        indices, indptr, delays, t, x = others
        (cotangent,) = cotangents
        found: list[Any] = [None] * 7
        if isinstance(cotangent, ad.Zero):
            return found
        if ad.is_undefined_primal(ring):
            found[0] = cotangent
        at_entries = cotangent.at[slots_of(delays, t, cotangent.shape[0]), indices].get(mode="fill", fill_value=0)
        row = rows_of_entries(indptr, indices.shape[0])
        if ad.is_undefined_primal(data):
            values = operand.values(x, cotangent.dtype).at[row].get(mode="fill", fill_value=0)
            terms = active_product(at_entries, values, values != 0)
            found[1] = terms.sum(keepdims=True) if homogeneous else terms
        if ad.is_undefined_primal(x):
            # Events, too, are transposed as if they were dense.
            sums = jnp.zeros(x.aval.shape, cotangent.dtype).at[row].add(data * at_entries, mode="drop")
            found[6] = sums.astype(x.aval.dtype)
        return found

    op.def_jvp_rule(jvp)
    op.def_transpose_rule(transpose)


for _operand in DELIVERIES:
    _define(_operand)
