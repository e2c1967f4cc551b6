"""Delivery of events with delays into a ring: values, derivatives, transformations, and updates in place."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from xlakernel.core import use_backend
from xlakernel.core.errors import ArgumentError, DtypeError, InputError, ShapeError
from xlakernel.sparse import CSR, BinaryArray, CompactArray, WeightedArray, csr_delay_deliver

SLOTS = 6


@pytest.fixture
def arguments(csr):
    """Return the arguments, by name."""
    rng = np.random.default_rng(0)

    def make(dtype="float32", **changed):
        given = {
            "ring": jnp.asarray(rng.normal(size=(SLOTS, 7)), dtype),
            "events": jnp.asarray(np.where(np.arange(5) % 2 == 0, 0, rng.normal(size=5)), dtype),
            "data": jnp.asarray(rng.normal(size=12), dtype),
            "delays": jnp.asarray(rng.integers(1, SLOTS, 12)),
            "t": 4,
        }
        return {**given, **csr, **changed}

    return make


def expected(ring, events, data, indices, indptr, delays, t, shape, weighted=False):
    """The same as a scatter of all entries."""
    row = np.repeat(np.arange(shape[0]), np.diff(indptr))
    n = row.size
    value = events if weighted else events + jax.lax.stop_gradient((events != 0) - events)
    slot = (t + jnp.broadcast_to(delays, 12)[:n]) % ring.shape[0]
    return ring.at[slot, indices[:n]].add(jnp.broadcast_to(data, 12)[:n] * value[row])


def assert_close(found, other, tolerance=1e-5):
    assert found.shape == other.shape and found.dtype == other.dtype
    np.testing.assert_allclose(found, other, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("backend", ["jax", "numba"])
@pytest.mark.parametrize("weighted", [False, True])
def test_values(arguments, weighted, backend):
    with use_backend(cpu=backend):
        for change in ({}, {"data": jnp.array([2.0])}, {"delays": 3}, {"t": -5}):
            given = arguments(**change)
            assert_close(csr_delay_deliver(**given, weighted=weighted), expected(**given, weighted=weighted))


def test_scalar_weights_and_kinds_of_events(arguments, plain_jax):
    given = arguments(data=2.0)
    events = given.pop("events")
    by_value, by_flag = (expected(**given, events=events, weighted=flag) for flag in (True, False))
    assert_close(csr_delay_deliver(**given, events=WeightedArray(events)), by_value)
    for kind in (BinaryArray(events), CompactArray(events != 0), events != 0, events):
        assert_close(csr_delay_deliver(**given, events=kind), by_flag)


def test_a_method_of_matrices(arguments, plain_jax):
    given = arguments()
    A = CSR(tuple(given.pop(name) for name in ("data", "indices", "indptr")), shape=given.pop("shape"))
    for weighted in (None, True):
        found = A.delay_deliver(*(given[name] for name in ("ring", "events", "delays", "t")), weighted=weighted)
        assert_close(found, expected(**given, data=A.data, **arrays_of(A), weighted=bool(weighted)))


def arrays_of(A):
    return {"indices": A.indices, "indptr": A.indptr, "shape": A.shape}


@pytest.mark.parametrize("dtype", ["bfloat16", "float64", "int8", "complex64"])
def test_dtypes(arguments, plain_jax, x64, dtype):
    given = arguments("float64")
    given |= {name: (8 * given[name]).astype(dtype) for name in ("ring", "data")}
    found = csr_delay_deliver(**given)
    assert found.dtype == dtype
    wide = {name: given[name].astype("complex128") for name in ("ring", "data")}
    np.testing.assert_allclose(found.astype("complex128"), expected(**{**given, **wide}), rtol=0.02, atol=0.05)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("homogeneous", [False, True])
def test_gradients(arguments, smooth, plain_jax, x64, weighted, homogeneous):
    """By ring, weights and events; events that count as 1 are differentiated as weighted ones."""
    given = arguments("float64", **({"data": jnp.array([2.0])} if homogeneous else {}))
    names = ("ring", "data", "events")

    def loss(f):
        return lambda *x: jnp.sum(jnp.sin(f(**{**given, **dict(zip(names, x, strict=True))}, weighted=weighted)))

    start = tuple(given[name] for name in names)
    moved = tuple(jnp.cos(x) for x in start)

    def derivatives(f):
        return jax.jit(lambda *x: (jax.grad(loss(f), (0, 1, 2))(*x), jax.jvp(loss(f), x, moved)[1]))(*start)

    jax.tree.map(lambda one, other: assert_close(one, other, 1e-10), *map(derivatives, (csr_delay_deliver, expected)))
    if weighted:
        smooth(jax.jit(loss(csr_delay_deliver)), *start)


def test_inactive_rows_do_not_spread_what_is_not_finite(arguments, plain_jax):
    given = arguments()
    inactive = np.repeat(np.asarray(given["events"]) == 0, np.diff(given["indptr"]))
    bad = given["data"].at[:10].set(jnp.where(inactive, jnp.nan, given["data"][:10]))
    assert_close(csr_delay_deliver(**{**given, "data": bad}), expected(**given))
    _, pull = jax.vjp(lambda data: csr_delay_deliver(**{**given, "data": data}), given["data"])
    (of_data,) = pull(jnp.full((SLOTS, 7), jnp.inf))
    np.testing.assert_array_equal(of_data, [0 if off else np.inf for off in inactive] + [0, 0])


@pytest.mark.parametrize("backend", ["jax", "numba"])
def test_vmap(arguments, backend):
    given, other = arguments(t=jnp.array(4)), arguments(t=jnp.array(-2))
    names = ("ring", "events", "data", "delays", "t")
    with use_backend(cpu=backend):
        for mapped in (*((name,) for name in names), names):
            batch = {name: jnp.stack([given[name], other[name]]) for name in mapped}
            found = jax.vmap(lambda batch: csr_delay_deliver(**{**given, **batch}))(batch)
            each = [expected(**{**given, **{name: batch[name][i] for name in mapped}}) for i in range(2)]
            assert_close(found, jnp.stack(each))


@pytest.mark.parametrize("backend", ["jax", "numba"])
def test_a_scan_carries_the_ring_in_place(backend):
    """A spike arrives after its delay."""
    n, slots, steps = 100, 20, 30
    A = CSR.random(jax.random.key(0), (n, n), per_row=10)
    delays = jax.random.randint(jax.random.key(1), (A.nnz,), 1, slots)
    noise = jax.random.bernoulli(jax.random.key(2), 0.05, (steps, n))

    def step(state, now):
        ring, potential, arrived = state
        t, noise = now
        potential = 0.9 * potential + arrived
        spikes = noise | (potential > 2)
        ring = A.delay_deliver(ring, spikes, delays, t).at[t % slots].set(0)
        return (ring, jnp.where(spikes, 0, potential), ring[(t + 1) % slots]), (arrived, spikes)

    start = jnp.zeros((slots, n)), jnp.zeros(n), jnp.zeros(n)

    def run(ring, noise):
        return jax.lax.scan(step, (ring, *start[1:]), (jnp.arange(steps), noise))

    with use_backend(cpu=backend):
        compiled = jax.jit(run, donate_argnums=0).lower(start[0], noise).compile()
        _, (arrived, spikes) = compiled(start[0], noise)
    wanted = np.zeros((steps + slots, n))
    row, column = A.coordinates()
    for t in range(steps):
        np.add.at(wanted, (t + delays, column), A.data * spikes[t][row])
    np.testing.assert_allclose(arrived, wanted[:steps], rtol=1e-5, atol=1e-5)
    if backend == "numba":
        assert re.findall(rf"= f32\[{slots},{n}\]\S* copy\(.*", compiled.as_text()) == []


def test_traced_delays_wrap(arguments, plain_jax):
    given = arguments()
    delays = given.pop("delays")
    wild = delays + SLOTS * jnp.asarray(np.random.default_rng(1).integers(-9, 9, 12))
    run = jax.jit(lambda delays: csr_delay_deliver(**given, delays=delays))
    assert_close(run(wild), expected(**given, delays=delays))
    small = jax.jit(lambda delays: csr_delay_deliver(**{**given, "ring": jnp.zeros((300, 7))}, delays=delays))
    assert_close(small(delays.astype("int8")), small(delays))


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"delays": 0}, ArgumentError, "delays are from 0 to 0; a ring of 6 slots allows 1 to 5"),
        ({"delays": np.array([1] * 11 + [6])}, ArgumentError, "delays are from 1 to 6; a ring of 6 slots"),
        ({"delays": 1.0}, DtypeError, "delays is of dtype float32; expected integers"),
        ({"delays": jnp.ones(5, int)}, ShapeError, r"delays have the shape \(5,\); expected \(12,\)"),
        ({"t": 1.0}, DtypeError, "t is of dtype float32; expected integers"),
        ({"t": jnp.arange(2)}, ShapeError, r"t has the shape \(2,\); expected \(\)"),
        ({"ring": jnp.zeros(7)}, ShapeError, r"ring has the shape \(7,\); expected two dimensions"),
        ({"ring": jnp.zeros((6, 5))}, ShapeError, r"ring has the shape \(6, 5\); .* must be \(L, 7\)"),
        ({"ring": "ring"}, InputError, "ring is 'ring' of type str"),
        ({"ring": jnp.zeros((6, 7), int)}, DtypeError, "data is of dtype float32; a ring of dtype int32 cannot hold"),
        (
            {"ring": jnp.zeros((6, 7), int), "data": jnp.ones(12, int), "weighted": True},
            DtypeError,
            "events is of dtype float32; a ring of dtype int32 cannot hold",
        ),
        ({"events": WeightedArray(jnp.ones(5, complex))}, DtypeError, "events is of dtype complex64; a ring of dtype"),
        ({"data": jnp.ones(3)}, ShapeError, r"data has the shape \(3,\); expected \(12,\)"),
        ({"events": jnp.ones(7)}, ShapeError, r"events has the shape \(7,\); .* must be \(5,\)"),
    ],
)
def test_errors(arguments, plain_jax, change, error, message):
    with pytest.raises(error, match=f"csr_delay_deliver: {message}"):
        csr_delay_deliver(**arguments(**change))


def test_weighted_must_agree_with_the_events(arguments, plain_jax):
    with pytest.raises(ArgumentError, match="weighted is True, but events are a BinaryArray"):
        csr_delay_deliver(**arguments(events=BinaryArray(jnp.ones(5))), weighted=True)
