"""The order of entries, which is the same on each platform, and the limits of their number."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from models import Total, fire_at_zero, random_matrix

from xlakernel.core import use_backend
from xlakernel.core.errors import ArgumentError
from xlakernel.sparse import CSR
from xlakernel.sparse.networks import Network, Population, Projection, entries
from xlakernel.sparse.networks.entries import choose_scales, order_entries
from xlakernel.sparse.networks.layout import MOST_UNITS, choose_layout
from xlakernel.sparse.networks.model import projections
from xlakernel.sparse.networks.model.projections import check_projections


def projections_of(n, rng, dtype):
    """Return projections with rows of several lengths; the first has padding, and indices of a dtype."""
    excitation, inhibition = random_matrix(rng, n, n, 0.3), random_matrix(rng, n // 3 + 1, n // 2 + 1, 0.9)
    indices = jnp.concatenate([excitation.indices, jnp.zeros(40, jnp.int32)]).astype(dtype)
    data = jnp.concatenate([excitation.data, jnp.full(40, 9.0, jnp.float32)])
    padded = CSR((data, indices, excitation.indptr), shape=excitation.shape)
    return [
        Projection(padded, rng.integers(1, 6, padded.nnz), "excitatory"),
        Projection(inhibition, 2, "inhibitory", source=slice(0, n // 3 + 1), target=slice(n - n // 2 - 1, n)),
        Projection(CSR.from_dense(np.zeros((n, n), np.float32)), 1, "inhibitory"),
    ]


@pytest.mark.parametrize("weight_bits", [16, 32])
@pytest.mark.parametrize(
    ("n", "blocks", "dtype"), [(1, 1, "int32"), (90, 7, "int8"), (700, 33, "int64"), (300, 300, "uint16")]
)
def test_the_order_is_that_of_plain_jax(n, blocks, dtype, weight_bits):
    enable_x64 = jax.enable_x64 if hasattr(jax, "enable_x64") else jax.experimental.enable_x64
    with enable_x64(dtype == "int64"):
        receptors, synapses = check_projections(projections_of(n, np.random.default_rng(n), dtype), {}, n)
        layout = choose_layout([n], receptors, 5, blocks=blocks, weight_bits=weight_bits)
        scales = choose_scales(len(receptors), synapses, n, weight_bits)
        starts, found = order_entries(layout, synapses, scales)
        with use_backend("jax"):
            expected_starts, expected = order_entries(layout, synapses, scales)
    np.testing.assert_array_equal(starts, expected_starts)
    # Behind the entries is padding.
    stop = int(starts[-1]) * (2 if layout.wide else 1)
    np.testing.assert_array_equal(found[:stop], expected[:stop])


def test_too_many_synapses_are_refused(monkeypatch):
    matrix = CSR.from_dense(np.ones((3, 3), np.float32))
    network = [Projection(matrix, 1, "excitatory")] * 2
    monkeypatch.setattr(CSR, "nnz", 2**31)
    with pytest.raises(ArgumentError, match="4294967296 synapses; allowed: fewer than"):
        Network(Population(fire_at_zero, 3), network)


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_sums_of_all_synapses_leave_room_for_those_of_other_networks(count):
    rng = np.random.default_rng(count)
    for largest in rng.uniform(0.01, 100, 30):
        weights = np.zeros((count + 1, count + 1), np.float32)
        weights[:count, 0] = largest
        weights[count, 1] = largest / 1000  # weights that are all equal have one unit each
        matrix = CSR.from_dense(weights)
        _, synapses = check_projections([Projection(matrix, 1, "excitatory")], {}, count + 1)
        layout = choose_layout([count + 1], ("excitatory",), 1, blocks=1, weight_bits=32)
        _, entries = order_entries(layout, synapses, choose_scales(1, synapses, count + 1, 32))
        units = np.asarray(entries[1 : 2 * count : 2], np.int64)
        assert 0.99 * MOST_UNITS < units.sum() < MOST_UNITS


def test_too_many_synapses_of_a_neuron_are_refused(monkeypatch):
    monkeypatch.setattr(entries, "_degrees", lambda *_, size: jnp.full(size, 2**30, jnp.uint32))
    projection = Projection(CSR.from_dense(np.ones((3, 3), np.float32)), 1, "excitatory")
    with pytest.raises(ArgumentError, match=r"a neuron has 1073741824 synapses .*; allowed: up to 2\*\*28 - 2\*\*8"):
        Network(Population(fire_at_zero, 3), [projection])


def test_few_bytes_a_synapse_are_stored_before_the_sort():
    number = 10**6
    matrix = CSR(
        (np.ones(number, np.float32), np.zeros(number, np.int32), np.array([0, number], np.int32)), shape=(1, 1)
    )
    delay = jnp.ones(number, jnp.uint8)
    layout = choose_layout([1], ("excitatory",), 1, blocks=1, weight_bits=16)
    programs = {
        "survey": projections._survey.lower(matrix.data, delay, matrix.indices, matrix.indptr),
        "degrees": entries._degrees.lower(matrix, 0, size=1),
        "words": entries._words.lower(matrix.data, delay, 0.1, 0, layout=layout, shape=(number,)),
    }
    stored = {name: program.compile().memory_analysis().temp_size_in_bytes for name, program in programs.items()}
    assert max(stored.values()) <= 9 * number, stored


@pytest.mark.gpu
def test_synapses_behind_the_first_two_to_the_31():
    """The third projection has the entries behind 2**31; its sources fire, and the last one of the second."""
    if jax.devices()[0].memory_stats()["bytes_limit"] < 45 * 2**30:
        pytest.skip("2**31 synapses take 12 bytes each while they are sorted, and some buffers of 4 bytes each")
    rows, columns, few = 2**14, 2**16, 2**6

    @jax.jit
    def indices_of(first):
        number = jax.lax.iota(jnp.uint32, rows * columns)
        return (number * jnp.uint32(2654435761) + first >> 16).astype(jnp.int32)

    indptr = jnp.arange(rows + 1, dtype=jnp.int32)
    first, second = (
        CSR((jnp.ones(1, jnp.float32), indices_of(jnp.uint32(k)), indptr * columns), shape=(rows, columns), check=False)
        for k in (1, 2)
    )
    targets = np.random.default_rng(0).integers(0, columns, (rows, few)).astype(np.int32)
    third = CSR((jnp.ones(1, jnp.float32), jnp.asarray(targets.ravel()), indptr * few), shape=(rows, columns))
    sources = {0: first, rows: second, 3 * rows: third}
    network = Network(
        Population(fire_at_zero, columns),
        [Projection(matrix, 1, "excitatory", source=slice(k, k + rows)) for k, matrix in sources.items()],
    )
    assert network.entries.size == 2**31 + few * rows
    fires = np.zeros(columns, bool)
    fires[3 * rows :: 5] = fires[2 * rows - 1] = True
    before = np.where(fires, 0, -4096).astype(np.float32)
    state, _ = network.run(network.initial(Total(jnp.asarray(before))), steps=2)
    reached = np.concatenate([targets[::5].ravel(), second.indices[-columns:]])
    np.testing.assert_array_equal(state.neurons.excitatory - before, np.bincount(reached, minlength=columns))
