"""Runs of plastic networks: in pieces, by several threads and blocks, in batches, with several projections; errors."""

from __future__ import annotations

import math
import pickle

import jax
import jax.numpy as jnp
import numba
import numpy as np
import pytest
from models import NATIVE, PARAMETERS, full_matrix, integrate, integrate_arrays, random_matrix, start
from rules import PAIR, REWARD, RULES, Fires, Pair, Sum, collect, collect_arrays, depress, potentiate, prescribed, rule

from xlakernel.core.errors import ArgumentError, CompileError, DtypeError, InputError, KernelTypeError, ShapeError
from xlakernel.sparse import CSR
from xlakernel.sparse.networks import History, Network, Population, Projection, Record, run_in_pieces
from xlakernel.sparse.networks.kernels.numba import simulation

on_cpu = pytest.mark.skipif(NATIVE != "numba", reason="a kernel on the GPU raises no exceptions")


def assert_equal(found, expected):
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(one, other)


def recurrent(n=60, *, blocks=None, shortest=1):
    """Return a network whose excitation is plastic in two projections, and static in one; *shortest* is a delay."""
    rng = np.random.default_rng(5)
    first, second = (random_matrix(rng, n // 2, n, 0.3) for _ in range(2))
    projections = [
        Projection(random_matrix(rng, n, n // 3, 0.1), shortest + 1, "inhibitory", target=slice(0, n // 3)),
        Projection(first, shortest + 2, "excitatory", source=slice(0, n // 2), plasticity=RULES["pair"][0]),
        Projection(random_matrix(rng, n, n, 0.02), shortest, "excitatory"),
        Projection(second, shortest, "excitatory", source=slice(n // 2, n), plasticity=RULES["three factors"][0]),
    ]
    return Network(Population(integrate, n, integrate_arrays), projections, blocks=blocks)


def of_steps(first, stop):
    return {1: PAIR, 3: REWARD._replace(reward=REWARD.reward[first:stop])}


def run(network, state, first=0, stop=200, **options):
    options = {"record": Record(spikes=4000), **options}
    return network.run(state, PARAMETERS, steps=stop - first, plasticity=of_steps(first, stop), **options)


@pytest.fixture(scope="module")
def network():
    return recurrent()


@pytest.mark.parametrize("backend", [NATIVE, "jax"])
def test_two_pieces_are_one_run(network, backend):
    whole, recording = run(network, network.initial(start(60)), backend=backend)
    half, _ = run(network, network.initial(start(60)), 0, 67, backend=backend)
    half = pickle.loads(pickle.dumps(jax.device_get(half)))
    both, _ = run(network, half, 67, 200, backend=backend)
    assert_equal(both, whole)
    assert int(recording.spikes.total) > 100
    assert all(float(jnp.std(whole.weights[k] - network.initial(start(60)).weights[k])) > 0 for k in (1, 3))


def test_any_number_of_blocks_gives_the_same_bits(network):
    expected = run(network, network.initial(start(60)))
    for blocks in (2, 7, 60):
        other = recurrent(blocks=blocks)
        assert_equal(run(other, other.initial(start(60))), expected)


@on_cpu
def test_several_threads_give_the_same_bits(monkeypatch):
    monkeypatch.setattr(simulation, "_NEURONS_OF_A_THREAD", 10)
    simulation.simulation.cache_clear()
    other = recurrent(blocks=6)
    several = run(other, other.initial(start(60)))
    monkeypatch.undo()
    simulation.simulation.cache_clear()
    assert_equal(several, run(other, other.initial(start(60))))


@pytest.mark.parametrize("shortest", [1, 2, 5, 20])
def test_several_projections_agree_with_jax(shortest):
    """Blocks on a GPU may be ahead of others by the shortest delay, also in a run of fewer steps."""
    network = recurrent(blocks=7, shortest=shortest)
    found, expected, total = network.initial(start(60)), network.initial(start(60)), 0
    for first, stop in ((0, 1), (1, 4), (4, 80)):
        few = Record(spikes=20)
        found, recording = run(network, found, first, stop, record=few, backend=NATIVE)
        expected, wanted = run(network, expected, first, stop, record=few, backend="jax")
        assert_equal(recording, wanted)
        assert_equal((found.past.fired, found.past.last), (expected.past.fired, expected.past.last))
        np.testing.assert_array_equal(found.pending, expected.pending)
        total += int(recording.spikes.total)
    assert total > 50
    for k in (1, 3):
        np.testing.assert_allclose(found.weights[k], expected.weights[k], atol=1e-5)


def test_batches_are_runs_of_their_own(network):
    state = network.initial(start(60))

    def with_rate(rate):
        plasticity = {1: PAIR._replace(depression=rate), 3: REWARD._replace(reward=rate * REWARD.reward[:40])}
        return network.run(state, PARAMETERS, steps=40, plasticity=plasticity)[0].weights

    rates = jnp.float32([0.0, 0.01, 0.1])
    found = jax.jit(jax.vmap(with_rate))(rates)
    assert float(jnp.ptp(found[1], axis=0).max()) > 0
    for k in range(3):
        assert_equal(jax.tree.map(lambda x, k=k: x[k], found), with_rate(rates[k]))


def test_run_in_pieces(network):
    state = network.initial(start(60))
    expected = run(network, state)
    found = run_in_pieces(
        network, state, PARAMETERS, steps=200, piece=64, plasticity=of_steps(0, 200), record=Record(spikes=4000),
        progress=False,
    )  # fmt: skip
    assert_equal(found, expected)


AMOUNT = np.float32(0.125)


@numba.njit
def add_amount(weight, pre, post, p):
    return weight + AMOUNT


def add_amount_arrays(weight, pre, post, p):
    return weight + AMOUNT


@pytest.mark.parametrize("backend", [NATIVE, "jax"])
def test_rules_have_the_present_globals(backend, monkeypatch):
    matrix = CSR.from_dense(jnp.ones((1, 1)))
    reference = add_amount_arrays, add_amount_arrays
    network = prescribed(matrix, 1, rule(add_amount, add_amount, reference=reference, maximum=8))
    for amount, is_pickled in ((0.25, [False]), (0.5, [False, True])):
        monkeypatch.setitem(globals(), "AMOUNT", np.float32(amount))
        for some in (pickle.loads(pickle.dumps(network)) if pickled else network for pickled in is_pickled):
            state = some.initial(Sum(0.0))
            end, _ = some.run(state, steps=2, inputs=Fires(jnp.array([[True], [False]])), backend=backend)
            assert end.weights[0].tolist() == [1 + 2 * amount]


def test_the_longest_delay_may_be_that_of_a_plastic_projection():
    network = prescribed(CSR.from_dense(jnp.ones((2, 2), jnp.float32)), 7, rule(depress, potentiate, tau_pre=1.0))
    assert "longest delay=7" in repr(network)


def test_weights_are_data_of_the_matrix():
    # Columns in no order, entries at one place, and padding behind the entries.
    matrix = CSR(
        (jnp.float32([0.1, 0.2, 0.3, 0.4, 0.9]), jnp.array([1, 0, 1, 1, 0]), jnp.array([0, 3, 4])), shape=(2, 2),
        check=False,
    )  # fmt: skip
    network = prescribed(matrix, 1, rule(depress, potentiate, tau_pre=1.0))
    fires = np.zeros((2, 2), bool)
    fires[0, 0], fires[1, 1] = True, True
    state, _ = network.run(
        network.initial(Sum(jnp.float32(0))), steps=2, inputs=Fires(jnp.asarray(fires)), plasticity=PAIR
    )
    # The target of the second entry has fired a step before the arrival, that of the others fires in its step.
    expected = [0.12, 0.2 - 0.01 * np.exp(-1 / 30), 0.32, 0.4, 0.9]
    np.testing.assert_allclose(state.weights[0], expected, rtol=1e-6)
    assert matrix.with_data(state.weights[0]).shape == (2, 2)


def test_a_state_of_rules_with_other_time_constants():
    matrix = CSR.from_dense(jnp.ones((2, 2)))
    first, second = (prescribed(matrix, 1, rule(depress, potentiate, tau_pre=tau)) for tau in (20.0, 30.0))
    fires = Fires(jnp.ones((3, 2), bool))
    state, _ = first.run(first.initial(Sum(0.0)), steps=3, inputs=fires, plasticity=PAIR)
    with pytest.raises(ArgumentError, match=r"time constants \[\[20.0, 30.0\]\]; allowed: .*\[\[30.0, 30.0\]\]"):
        second.run(state, steps=3, inputs=fires, plasticity=PAIR)
    traced = jax.jit(lambda state: second.run(state, steps=3, inputs=fires, plasticity=PAIR, backend="jax")[0].past)
    assert np.isnan(traced(state).traces).all()


def test_limits_that_leave_too_few_units_are_refused():
    matrix = CSR.from_dense(jnp.ones((200, 1)))
    with pytest.raises(ArgumentError, match=r"largest weight is 1.0; allowed: at least 256 units. Lower the limits"):
        Network(
            Population(collect, 200, collect_arrays),
            [
                Projection(
                    matrix, 1, "excitatory", target=slice(0, 1), plasticity=rule(depress, potentiate, maximum=1e8)
                )
            ],
        )


def test_weights_stay_within_their_limits():
    matrix = CSR.from_dense(np.full((4, 4), 0.5, np.float32))
    network = prescribed(matrix, 1, rule(depress, potentiate, minimum=0.25, maximum=0.75))
    fires = Fires(jnp.ones((50, 4), bool))
    for potentiation, limit in ((1.0, 0.75), (-1.0, 0.25)):
        state, _ = network.run(
            network.initial(Sum(jnp.float32(0))), steps=50, inputs=fires, plasticity=Pair(potentiation, 0.0)
        )
        np.testing.assert_array_equal(state.weights[0], limit)


def test_derivatives_are_refused(network):
    state = network.initial(start(60))

    def loss(rate):
        plasticity = {1: PAIR._replace(potentiation=rate), 3: REWARD._replace(reward=rate)}
        return jnp.sum(network.run(state, PARAMETERS, steps=3, plasticity=plasticity)[0].weights[1])

    with pytest.raises(TypeError, match="no derivative: spikes are events"):
        jax.grad(loss)(jnp.float32(0.1))


MATRIX = full_matrix(np.full((4, 4), 0.5, np.float32))


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"plasticity": depress}, InputError, "projection 0: plasticity is a CPUDispatcher; allowed: a Rule"),
        ({"plasticity": rule(depress, potentiate)._replace(on_pre=abs)}, KernelTypeError, "projection 0: on_pre is"),
        ({"plasticity": rule(depress, potentiate, tau_pre=0)}, ArgumentError, "tau_pre is 0; allowed: .* above 0"),
        ({"plasticity": rule(depress, potentiate, maximum=np.inf)}, ArgumentError, "maximum is inf; allowed: a finite"),
        ({"plasticity": rule(depress, potentiate, minimum=1)}, ArgumentError, "a minimum below the maximum"),
        ({"plasticity": rule(depress, potentiate, maximum=0.4)}, ArgumentError, "weights are from .* to 0.5; allowed"),
        ({"delay": np.full(16, 2)}, ShapeError, r"a plastic projection has the shape \(16,\); allowed: \(\)"),
    ],
)
def test_wrong_rules(changed, error, message):
    given = Projection(MATRIX, 1, "excitatory", plasticity=rule(depress, potentiate))._replace(**changed)
    with pytest.raises(error, match=message):
        Network(Population(integrate, 4), [given])


@numba.njit
def returns_a_pair(weight, pre, post, p):
    return weight, weight


@numba.njit
def has_an_error(weight, pre, post, p):
    return weight + pre.potential


@numba.njit
def draws(weight, pre, post, p):
    return weight * np.random.random()  # noqa: NPY002  # what the error is about


@numba.njit
def divides(weight, pre, post, p):
    return weight / p.potentiation * p.potentiation


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (returns_a_pair, r"projection 0: on_post, returns_a_pair returns .*; allowed: the new weight, a real number"),
        (draws, "projection 0: on_post, draws draws random numbers from np.random or random"),
        (has_an_error, r"projection 0: on_post, has_an_error: Numba cannot compile it(.|\n)*potential"),
    ],
)
def test_rules_that_do_not_compile(function, message):
    network = prescribed(MATRIX, 1, rule(depress, function))
    with pytest.raises(CompileError, match=message):
        network.run(
            network.initial(Sum(jnp.float32(0))), steps=3, inputs=Fires(jnp.ones((3, 4), bool)), plasticity=PAIR
        )


@numba.njit
def see(weight, pre, post, p):
    return pre.age if math.isfinite(post.age) else weight


def see_arrays(weight, pre, post, p):
    # A rule gets its histories as `History`.
    assert isinstance(pre, History) and isinstance(post, History)
    return jnp.where(jnp.isfinite(post.age), pre.age, weight)


@pytest.mark.parametrize("backend", [NATIVE, "jax"])
def test_ages_are_steps_since_the_last_spike(backend):
    matrix = CSR((jnp.array([0.5]), jnp.array([1]), jnp.array([0, 1, 1])), shape=(2, 2))
    network = prescribed(matrix, 1, rule(see, see, maximum=100.0, reference=(see_arrays, see_arrays)))
    # Of the target's spikes in steps 3 and 9, the second has a history, and the source's spike arrived in step 2.
    fires = np.zeros((10, 2), bool)
    fires[1, 0] = fires[3, 1] = fires[9, 1] = True
    state, _ = network.run(
        network.initial(Sum(jnp.float32(0))),
        steps=10,
        inputs=Fires(jnp.asarray(fires)),
        plasticity=PAIR,
        backend=backend,
    )
    assert float(state.weights[0][0]) == 7


def run_of_three_steps(network, plasticity):
    return network.run(
        network.initial(Sum(jnp.float32(0))), steps=3, inputs=Fires(jnp.ones((3, 4), bool)), plasticity=plasticity
    )


@on_cpu
def test_nan_is_an_error():
    network = prescribed(MATRIX, 1, rule(depress, divides))
    with pytest.raises(Exception, match="the rule of projection 0 returned NaN"):
        jax.block_until_ready(run_of_three_steps(network, Pair(0.0, 0.0)))


@pytest.mark.parametrize(
    ("plasticity", "error", "message"),
    [
        (None, CompileError, "projection 0: on_pre, depress: .* reads 'depression' of parameters .* not given"),
        ({1: PAIR}, ArgumentError, r"plasticity is of projections \[1\]; allowed: .*, \[0\]"),
        (Pair(jnp.ones(2), 0.0), ShapeError, r"projection 0.potentiation: shape \(2,\); allowed: \(\) or \(3,\)"),
        (Pair("0", 0.0), DtypeError, "projection 0.potentiation: a str"),
    ],
)
def test_wrong_parameters(plasticity, error, message):
    with pytest.raises(error, match=message):
        run_of_three_steps(prescribed(MATRIX, 1, rule(depress, potentiate)), plasticity)


def test_states_of_other_networks(network):
    state = network.initial(start(60))
    with pytest.raises(ArgumentError, match=r"weights of projections None; allowed: \[1, 3\], and the past"):
        run(network, state._replace(weights=None))
    with pytest.raises(ShapeError, match=r"state.weights\[1\] has the shape \(3,\)"):
        run(network, state._replace(weights=(None, jnp.zeros(3), *state.weights[2:])))
    projections = [Projection(MATRIX, 1, name) for name in ("excitatory", "inhibitory")]
    static = Network(Population(integrate, 4), projections)
    state = static.initial(start(4))
    with pytest.raises(ArgumentError, match="plasticity is given; allowed: None"):
        static.run(state, PARAMETERS, steps=1, plasticity=PAIR)
