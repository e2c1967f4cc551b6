"""Matrices spread over devices by rows or columns: values, gradients, and communication."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from numpy.testing import assert_allclose, assert_array_equal

from xlakernel.core.errors import ArgumentError, DtypeError, InputError, ShapeError, StructureError
from xlakernel.sparse import CSC, CSR, BinaryArray, BitPackedArray, CompactArray, WeightedArray

RANDOM = np.random.default_rng(0)
DEVICES = 4


def draw(shape):
    dense = RANDOM.integers(1, 9, shape) * (RANDOM.random(shape) < 0.4)
    dense[:, 1] = 0
    return dense.astype(np.float32)


def make_mesh(kind):
    return jax.make_mesh((DEVICES,), ("x",), (getattr(AxisType, kind),), devices=jax.devices("cpu")[:DEVICES])


@pytest.fixture(scope="module", params=["Auto", "Explicit"])
def mesh(request):
    return make_mesh(request.param)


# Extents that the number of devices divides or not, rows and columns, each kind of mesh.
CASES = {
    "rows": ("Auto", (8, 12), CSR, False),
    "columns, prepared": ("Auto", (8, 12), CSC, True),
    "odd rows, prepared": ("Auto", (7, 5), CSR, True),
    "odd columns": ("Auto", (7, 5), CSC, False),
    "fewer rows than devices": ("Auto", (3, 9), CSR, False),
    "rows, explicit": ("Explicit", (8, 12), CSR, True),
    "odd columns, explicit": ("Explicit", (7, 5), CSC, False),
}


@pytest.fixture(params=CASES.values(), ids=CASES)
def sharded(request):
    """Return a spread matrix and the dense one."""
    axes, shape, kind, prepared = request.param
    dense = draw(shape)
    matrix = kind.from_dense(dense).shard(make_mesh(axes), "x")
    return (matrix.prepare() if prepared else matrix), dense


def test_products(sharded):
    matrix, dense = sharded
    rows, columns = dense.shape
    x, u = np.arange(columns, dtype=np.float32) % 3, np.arange(rows, dtype=np.float32) % 3
    many = np.stack([x, x + 1], axis=1)
    assert_allclose(matrix @ x, dense @ x)
    assert_allclose(u @ matrix, u @ dense)
    assert_allclose(jax.jit(lambda m, x: m @ x)(matrix, many), dense @ many)
    assert_allclose(jax.jit(lambda m, x: x @ m)(matrix, np.stack([u, u])), np.stack([u @ dense] * 2))
    assert_allclose(matrix.T @ u, u @ dense)
    assert_allclose(matrix.todense(), dense)


# The kinds of events in turn: each compiles programs.
@pytest.mark.parametrize(
    ("sharded", "kind"),
    [
        pytest.param(case, kind, id=f"{name}-{kind.__name__}", marks=[pytest.mark.slow] * ((i + j) % 2))
        for i, (name, case) in enumerate(CASES.items())
        for j, kind in enumerate((BinaryArray, WeightedArray))
    ],
    indirect=["sharded"],
)
def test_events(sharded, kind):
    check_events(*sharded, kind)


@pytest.mark.parametrize("kind", [BitPackedArray, CompactArray])
def test_packed_and_compact_events_are_unpacked(mesh, kind):
    dense = draw((7, 5))
    check_events(CSR.from_dense(dense).shard(mesh, "x"), dense, kind)


def check_events(matrix, dense, kind):
    x, u = (np.arange(n, dtype=np.float32) % 3 == 1 for n in dense.shape[::-1])
    x, u = x.astype(np.float32), u.astype(np.float32)
    assert_allclose(matrix @ kind(x), dense @ x)
    assert_allclose(kind(u) @ matrix, u @ dense)


def test_gradients(sharded):
    matrix, dense = sharded
    rows, columns = dense.shape
    x, u = np.arange(columns, dtype=np.float32) % 3, np.arange(rows, dtype=np.float32) % 2

    def loss(weights, x, u):
        product = matrix.with_data(weights)
        return ((product @ x) ** 2).sum() + ((BinaryArray(u) @ product) ** 3).sum()

    def of_dense(dense, x, u):
        return ((dense @ x) ** 2).sum() + ((u @ dense) ** 3).sum()

    of_weights, *of_operands = jax.jit(jax.grad(loss, (0, 1, 2)))(matrix.data, x, u)
    expected, *of_dense_operands = jax.jit(jax.grad(of_dense, (0, 1, 2)))(dense, x, u)
    assert_allclose(matrix.with_data(of_weights).todense(), np.where(dense, expected, 0), rtol=1e-5)
    for found, known in zip(of_operands, of_dense_operands, strict=True):
        assert_allclose(found, known, rtol=1e-5)


def test_weights_of_one_device(sharded):
    """In a mesh with explicit axes JAX does not spread them itself."""
    matrix, dense = sharded
    x = np.arange(dense.shape[1], dtype=np.float32) % 3
    known = np.asarray(matrix.data)
    for weights, factor in ((known, 1), (jnp.asarray(2 * known), 2)):
        assert_allclose(matrix.with_data(weights) @ x, factor * (dense @ x), rtol=1e-6)
    loss = jax.jit(jax.grad(lambda scale: ((matrix.with_data(scale * known) @ x) ** 2).sum()))
    assert_allclose(loss(1.0), 2 * ((dense @ x) ** 2).sum(), rtol=1e-6)


def test_a_dense_one_of_weights_that_are_no_numbers(mesh):
    dense = np.array([[0, np.inf], [1, np.nan]], np.float32)
    assert_array_equal(CSR.from_dense(dense).shard(mesh, "x").todense(), dense)


def test_equal_weights_stay_one_number(mesh):
    dense = (draw((8, 12)) != 0).astype(np.float32)
    matrix = CSR.from_dense(dense).with_data(jnp.full(1, 0.5)).shard(mesh, "x").prepare()
    x = np.arange(12, dtype=np.float32)
    assert matrix.data.shape == (1,)
    assert_allclose(matrix @ x, 0.5 * dense @ x)
    found = jax.jit(jax.grad(lambda w: ((matrix.with_data(w) @ x) ** 2).sum()))(matrix.data)
    assert_allclose(found, [jax.grad(lambda w: ((w * dense @ x) ** 2).sum())(0.5)], rtol=1e-5)


def collectives(program, *args):
    kinds = "all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter|collective-broadcast"
    return re.findall(rf" ({kinds})(?:-start)?\(", jax.jit(program).lower(*args).compile().as_text())


@pytest.mark.parametrize("prepared", [False, True])
def test_devices_exchange_only_sums(mesh, prepared):
    dense = draw((8, 12))
    rows = CSR.from_dense(dense).shard(mesh, "x")
    rows = rows.prepare() if prepared else rows
    x, u = jnp.ones(12), jax.device_put(jnp.ones(8), NamedSharding(mesh, P("x")))
    assert collectives(lambda m, x: m @ x, rows, x) == []
    assert collectives(lambda m, u: u @ m, rows, u) == ["all-reduce"]
    assert collectives(lambda m, x: x @ m, rows.T, x) == []
    assert collectives(lambda m, u: m @ u, rows.T, u) == ["all-reduce"]
    assert (rows @ x).sharding.spec == P("x")
    assert [shard.data.shape for shard in rows.blocks.indices.addressable_shards] == [(1, rows.data.shape[1])] * DEVICES


def test_a_matrix_passes_through_jit_and_scan(mesh):
    dense = draw((8, 8))
    matrix = CSR.from_dense(dense).shard(mesh, "x")
    same = jax.jit(lambda m: jax.tree.map(lambda leaf: leaf, m))(matrix)
    x = jnp.arange(8.0)
    assert_allclose(same @ x, dense @ x)

    @jax.jit
    def run(matrix, x):
        return jax.lax.scan(lambda total, x: (total + (x @ matrix).sum(), None), 0.0, jnp.stack([x, x]))[0]

    # The arguments of a scan are on all devices.
    x = jax.device_put(x, NamedSharding(mesh, P()))
    assert_allclose(run(matrix, x), 2 * (x @ dense).sum())


def test_a_second_call_compiles_nothing(mesh, compilations):
    matrix, x = CSR.from_dense(draw((8, 12))).shard(mesh, "x"), jnp.ones(12)
    matrix @ x
    assert compilations(lambda: matrix @ x) == 0


def test_repr_and_attributes(mesh):
    matrix = CSC.from_dense(draw((7, 5))).shard(mesh, "x")
    assert repr(matrix) == "ShardedMatrix(float32[7,5], columns over 'x')"
    assert (matrix.shape, matrix.dtype, matrix.ndim, matrix.axis) == ((7, 5), np.float32, 2, 1)
    assert matrix.T.shape == (5, 7)
    with pytest.raises(AttributeError, match="immutable"):
        matrix.shape = (1, 1)


def test_it_is_immutable_and_not_made_dense(mesh):
    spread = CSR.from_dense(draw((8, 12))).shard(mesh, "x")
    with pytest.raises(AttributeError, match="shape cannot be deleted"):
        del spread.shape
    with pytest.raises(InputError, match=r"is not converted to a dense array implicitly.*A\.todense\(\)"):
        np.asarray(spread)


@pytest.mark.parametrize("dtype", ["int16", "int32", "uint32"])
def test_known_numbers_stay_known_on_each_device(mesh, dtype):
    numbers, indptr = np.array([0, 3], dtype), np.array([0, 1, 2], dtype)

    def on_each(x):
        events = CompactArray.from_indices(numbers, 8)
        matrix = CSR((jnp.ones(2), numbers, indptr), shape=(2, 8))
        return x + events.value[3] + matrix.todense()[1, 3]

    x = jax.device_put(jnp.arange(8.0), NamedSharding(mesh, P("x")))
    with jax.set_mesh(mesh):
        found = jax.jit(jax.shard_map(on_each, in_specs=P("x"), out_specs=P("x")))(x)
    assert_array_equal(found, np.arange(8.0) + 2)


def test_errors(mesh):
    matrix = CSR.from_dense(draw((8, 12)))
    with pytest.raises(InputError, match=r"mesh is 4; expected a jax\.sharding\.Mesh"):
        matrix.shard(4, "x")
    with pytest.raises(ArgumentError, match=r"no axis 'y'; it has \['x'\]"):
        matrix.shard(mesh, "y")
    with pytest.raises(StructureError, match="Shard it outside of jit"):
        jax.jit(lambda m: m.shard(mesh, "x").data)(matrix)
    with pytest.raises(StructureError, match=r"weights are traced.*sharded\.with_data"):
        jax.grad(lambda w: matrix.with_data(w).shard(mesh, "x").data.sum())(matrix.data)
    spread = matrix.shard(mesh, "x")
    with pytest.raises(ShapeError, match=r"x has the shape \(8,\).*must be \(12,\) or \(12, k\)"):
        spread @ jnp.ones(8)
    with pytest.raises(ShapeError, match=r"must be \(8,\) or \(k, 8\)"):
        jnp.ones((8, 2)) @ spread
    with pytest.raises(ShapeError, match="expected"):
        spread.with_data(jnp.ones(3))
    with pytest.raises(DtypeError, match="with_data: data is of dtype bool"):
        spread.with_data(jnp.ones(spread.data.shape, bool))
