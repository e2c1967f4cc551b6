"""The Numba CUDA kernels of the sparse operators."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("numba_cuda")

from conformance import KernelCases
from deliveries import DeliveryCases
from grids import each_weight, struct
from structures import Structure, assert_sums, draw, numbers, operand_of, sum_entries
from updates import UpdateCases

from xlakernel.cuda._kernels.recipe import COMPILER
from xlakernel.sparse.kernels import cuda as generators
from xlakernel.sparse.kernels.cuda import (
    blocked,
    blocked_product,
    delays,
    dense,
    gather,
    gather_matrix,
    launches,
    plasticity,
    sampled,
    scatter,
    scatter_matrix,
    tally,
)
from xlakernel.sparse.kernels.cuda.device.memory import add4_to
from xlakernel.sparse.kernels.cuda.device.tiles import LIST_BYTES
from xlakernel.sparse.operators.products.blocks import SHARED_BYTES, block_count, block_width, bytes_of, make_blocks

# So many columns that a vector of float32 takes two blocks, and of complex128 more.
WIDE = {
    "few columns": lambda: draw(40, (70, 50), 6, padding=3),
    "two blocks": lambda: draw(41, (200, 70_001), 90, padding=1),
    "heavy tail": lambda: draw(42, (400, 60_000), 80, heavy=True),
    "empty rows": lambda: draw(43, (3000, 100_000), 0.3),
    "no entries": lambda: draw(44, (4, 6), 0, padding=2),
    "no rows": lambda: draw(45, (0, 6), padding=2),
    "no columns": lambda: draw(46, (6, 0)),
}


def but_for_the_last(row, columns):
    columns = np.sort(columns)
    columns[-1:] = 0
    return columns


def with_one_twice(row, columns):
    columns = np.sort(columns)
    at = 31 * (row % 5 + 1)
    if at < len(columns):
        columns[at] = columns[at - 1]
    return columns


# A row's columns, made from distinct ones in any order.
ROWS = {
    "sorted": lambda row, columns: np.sort(columns),
    "in any order": lambda row, columns: columns,
    "falling": lambda row, columns: np.sort(columns)[::-1],
    "sorted but for one": but_for_the_last,
    "with a column twice": with_one_twice,
    "of one column": lambda row, columns: np.full_like(columns, row % 7 * 400),
    "of one half, then the other": lambda row, columns: np.roll(np.sort(columns), len(columns) // 2 + row % 100),
}


@pytest.mark.gpu
class TestCuda(KernelCases):
    generators = generators
    platform = "cuda"

    def check_blocked(self, structure, homogeneous, dtype="float32", data_dtype=None):
        rng = np.random.default_rng(0)
        data = numbers(rng, 1 if homogeneous else structure.indices.size, data_dtype or dtype)
        x = operand_of(rng, "dense", structure.shape[1], None, dtype)
        out = struct(structure.shape[:1], dtype)

        indices, indptr = structure.indices, structure.indptr
        local, begins, permutation = make_blocks(indices, indptr, shape=structure.shape, dtype=dtype)
        moved = data if homogeneous else data[permutation]
        run = blocked_product([out], shape=structure.shape, homogeneous=homogeneous)
        found = jax.jit(run)(moved, local, begins, x)
        assert found.dtype == out.dtype
        weights = np.broadcast_to(data, structure.indices.shape)[: structure.entries].astype(
            np.complex128 if np.dtype(dtype).kind == "c" else np.float64
        )
        expected = sum_entries(structure.rows, structure.columns, weights, x, structure.shape[0], "dense")
        assert_sums(found, *expected, structure.entries)

    @each_weight
    @pytest.mark.parametrize("name", WIDE)
    def test_blocked_product(self, name, homogeneous):
        self.check_blocked(WIDE[name](), homogeneous)

    @pytest.mark.parametrize("dtype", ["float64", "complex64", "complex128"])
    def test_blocked_product_of_dtype(self, dtype):
        self.check_blocked(WIDE["two blocks"](), False, dtype)

    @pytest.mark.parametrize("narrow", ["float16"])
    def test_blocked_product_of_narrow_data(self, narrow):
        self.check_blocked(WIDE["two blocks"](), False, data_dtype=narrow)

    @each_weight
    @pytest.mark.parametrize("operand", ["dense", "weighted"])
    @pytest.mark.parametrize("dtype", ["float32", "complex128", "int32"])
    def test_a_vector_is_staged_where_there_are_many_entries_for_each_column(self, dtype, operand, homogeneous):
        self.check_product(draw(53, (200, 50), 150), operand, False, None, homogeneous, dtype=dtype)

    @each_weight
    @pytest.mark.parametrize("operand", ["binary", "weighted"])
    @pytest.mark.parametrize("rate", [0, 0.005, 0.02, 0.3, 1])
    def test_many_events_are_added_up_in_shared_memory(self, rate, operand, homogeneous):
        self.check_product(draw(50, (2000, 300), 150), operand, True, None, homogeneous, rate=rate)

    @each_weight
    @pytest.mark.parametrize("data_dtype", ["float16", "bfloat16"])
    @pytest.mark.parametrize("operand", ["dense", "binary"])
    def test_narrow_weights_are_added_up_in_shared_memory(self, operand, data_dtype, homogeneous):
        self.check_product(draw(50, (2000, 300), 150), operand, True, None, homogeneous, data_dtype=data_dtype)

    @pytest.fixture
    def with_slices(self, monkeypatch):
        """Make a block's shared memory so small that sums are in one slice, or in two, and check that they were."""
        asked, wanted, kernel = [], [], tally._kernel

        def recorded(*args, sliced):
            asked.append(sliced)
            return kernel(*args, sliced=sliced)

        def make(slices, columns, counting):
            room = -(-columns // slices) * (2 if counting else 4)
            monkeypatch.setattr(tally, "shared_bytes", lambda: room + LIST_BYTES)
            wanted.append(slices == 2)

        monkeypatch.setattr(tally, "_kernel", recorded)
        yield make
        assert set(asked) == set(wanted)

    @each_weight
    @pytest.mark.parametrize("slices", [1, 2])
    @pytest.mark.parametrize(("operand", "rate"), [("binary", 0.55), ("binary", 1), ("weighted", 0.55), ("dense", 1)])
    @pytest.mark.parametrize("rows_are", ROWS)
    def test_rows_are_added_up_in_shared_memory_whatever_their_order(
        self, rows_are, operand, rate, slices, homogeneous, with_slices
    ):
        # Rows of many tiles, which are cut where there are two slices, and ones too short for that.
        rng = np.random.default_rng(55)
        width = 2503
        lengths = np.concatenate([rng.integers(0, 2500, 150), rng.integers(0, 300, 100)])
        rows = [ROWS[rows_are](i, rng.choice(width, n, replace=False)) for i, n in enumerate(lengths)]
        indptr = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        structure = Structure(indptr, np.concatenate(rows).astype(np.int32), (250, width))
        assert 0.8 * rate * structure.entries > max(tally.MANY.values()) * width, "or events are not added up"
        with_slices(slices, width, operand == "binary" and homogeneous)
        self.check_product(structure, operand, True, None, homogeneous, rate=rate)

    @each_weight
    @pytest.mark.parametrize("slices", [1, 2])
    @pytest.mark.parametrize("operand", ["binary", "weighted", "dense"])
    @pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
    def test_weights_that_are_not_finite_are_added_up_where_they_are(
        self, bad, operand, slices, homogeneous, with_slices
    ):
        drawn = draw(57, (2000, 303), 150)
        structure = Structure(drawn.indptr, drawn.indices // 2 * 2, drawn.shape)  # half of the columns have no entry
        rng = np.random.default_rng(2)
        x = operand_of(rng, operand, 2000, None, "float32", 0.6)
        data = numbers(rng, 1 if homogeneous else structure.indices.size, "float32")
        data[::50_000] = bad
        with_slices(slices, 303, operand == "binary" and homogeneous)
        self.compare_product(self.generator("product"), structure, data, x, operand, True, homogeneous, 303)

    @each_weight
    @pytest.mark.parametrize("operand", ["weighted", "dense"])
    def test_operands_that_are_not_finite_are_added_up_where_they_are(self, operand, homogeneous):
        structure = draw(59, (2000, 303), 40)
        rng = np.random.default_rng(3)
        x = operand_of(rng, operand, 2000, None, "float32", 0.8)
        x[3], x[7], x[9], x[11] = np.nan, np.inf, -np.inf, 0
        data = numbers(rng, 1 if homogeneous else structure.indices.size, "float32")
        self.compare_product(self.generator("product"), structure, data, x, operand, True, homogeneous, 303)

    @each_weight
    @pytest.mark.parametrize("operand", ["binary", "dense"])
    def test_sums_of_as_many_columns_as_there_is_room_for(self, operand, homogeneous):
        columns = (launches.shared_bytes() - LIST_BYTES) // 2
        self.check_product(draw(58, (1000, columns), 2000), operand, True, None, homogeneous, rate=1)

    @pytest.mark.parametrize("operand", ["dense", "binary"])
    def test_rows_longer_than_the_list_of_a_block(self, operand):
        self.check_product(draw(56, (4, 600), 400_000), operand, True, None, False, rate=0.6)

    def test_a_counter_that_is_full_is_emptied(self):
        structure = draw(51, (1000, 3), 3000)
        self.check_product(structure, "binary", True, None, homogeneous=True, rate=1)

    def check_batch(self, operand, transpose, homogeneous):
        structure = draw(52, (300, 250), 67)
        rng = np.random.default_rng(1)
        size, results = structure.shape if transpose else structure.shape[::-1]
        columns = np.stack([np.roll(structure.columns, i) for i in range(3)])
        assert columns.shape[1] % 4, "or every slice is aligned"
        data = numbers(rng, (3, 1) if homogeneous else columns.shape, "float32")
        x = operand_of(rng, operand, size, 3, "float32").T
        run = generators.product(
            [struct((results,), "float32")],
            operand=operand,
            shape=structure.shape,
            transpose=transpose,
            homogeneous=homogeneous,
        )
        found = jax.vmap(run, in_axes=(0, 0, None, 0))(data, columns, structure.indptr, jnp.asarray(x))
        for i in range(3):
            rows, to = structure.rows, columns[i]
            target, source = (to, rows) if transpose else (rows, to)
            weights = np.broadcast_to(data[i], to.shape).astype(np.float64)
            assert_sums(found[i], *sum_entries(target, source, weights, x[i], results, operand), structure.entries)

    @pytest.mark.parametrize("transpose", [False, True])
    @pytest.mark.parametrize("operand", ["dense", "binary"])
    def test_slices_of_a_batch_need_not_be_aligned(self, operand, transpose):
        self.check_batch(operand, transpose, homogeneous=False)

    @each_weight
    @pytest.mark.parametrize("slices", [1, 2])
    @pytest.mark.parametrize("operand", ["dense", "binary"])
    def test_results_of_a_batch_need_not_be_aligned_for_sums(self, operand, slices, homogeneous, with_slices):
        with_slices(slices, 250, operand == "binary" and homogeneous)
        self.check_batch(operand, transpose=True, homogeneous=homogeneous)


@pytest.mark.gpu
class TestCudaUpdates(UpdateCases):
    generators = generators
    platform = "cuda"


@pytest.mark.gpu
class TestCudaDeliveries(DeliveryCases):
    generators = generators
    platform = "cuda"


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128", "int8", "int32"])
@pytest.mark.parametrize("columns", [0, 1, 5, 50_000, 65_537, 1_000_000])
def test_a_block_of_columns_fits_into_shared_memory_and_into_16_bits(columns, dtype):
    from xlakernel.sparse.kernels.cuda.device.numbers import kind_of

    blocks = block_count(columns, dtype)
    width = block_width(columns, blocks)
    assert bytes_of(dtype) == np.dtype(kind_of(dtype)).itemsize
    assert width % 4 == 0 and width <= 2**16 and width * bytes_of(dtype) <= SHARED_BYTES
    assert (blocks - 1) * width < max(columns, 1) <= blocks * width


def test_kernels_ask_for_no_more_shared_memory_than_a_gpu_has(monkeypatch):
    """One of 99 KiB has none for the column blocks of a wide matrix, and adds up the events of fewer columns."""
    entries, columns = 10**8, 60_000
    out = struct((columns,), "float32")
    assert launches.shared_bytes() >= SHARED_BYTES or jax.default_backend() == "gpu"
    assert tally.tally_launch(out, "binary", entries, homogeneous=True) is not None
    for module in (tally, gather, generators):
        monkeypatch.setattr(module, "shared_bytes", lambda: 98 * 1024)
    assert tally.tally_launch(struct((200_000,), "float32"), "binary", entries, homogeneous=False) is None
    launch = gather._launch_of("dense", jnp.float32, columns, entries, False)
    assert launch.static["staged"] * 4 <= launch.shared_mem <= 98 * 1024
    from xlakernel.sparse.operators.products.prepared import _of_blocks

    indptr = struct((2 * 10 + 1,), "int32")
    assert _of_blocks([struct((10,), "float32")], indptr, shape=(10, columns), homogeneous=False) is None


@each_weight
def test_older_gpus_add_up_where_there_are_twice_as_many_entries(homogeneous, monkeypatch):
    out, entries = struct((1000,), "float32"), 20_000
    assert tally.tally_launch(out, "binary", entries, homogeneous) is not None
    monkeypatch.setattr(tally, "capability", lambda: 8)
    assert tally.tally_launch(out, "binary", entries, homogeneous) is None
    assert tally.tally_launch(out, "binary", 2 * entries, homogeneous) is not None


@pytest.mark.gpu  # what compiles PTX comes with the GPU's libraries
@pytest.mark.parametrize("capability", [(8, 0), (9, 0)])
def test_four_floats_are_added_at_once_where_the_gpu_can(capability):
    from numba import cuda, types

    def add(y):
        add4_to(y, 0, (np.float32(1), np.float32(2), np.float32(3), np.float32(4)))

    ptx, _ = cuda.compile_ptx(add, types.void(types.float32[::1]), cc=capability)
    assert ptx.count("red.global.add.f32") == (0 if capability >= (9, 0) else 4)
    assert ptx.count("red.global.add.v4.f32") == (1 if capability >= (9, 0) else 0)


@pytest.mark.parametrize("name", WIDE)
def test_the_layout_has_every_entry_once_in_its_block_and_row(name):
    """It is plain JAX, and runs anywhere."""
    structure = WIDE[name]()
    (rows, columns), size = structure.shape, structure.indices.size
    blocks = block_count(columns, "float32")
    width = block_width(columns, blocks)
    layout = jax.jit(lambda i, p: make_blocks(i, p, shape=structure.shape, dtype="float32"))(
        structure.indices, structure.indptr
    )
    local, indptr, permutation = map(np.asarray, layout)
    assert sorted(permutation) == list(range(size))
    assert indptr.shape == (blocks * rows + 1,) and indptr[0] == 0 and indptr[-1] == structure.entries
    segment = np.repeat(np.arange(blocks * rows), np.diff(indptr))
    found = segment // max(rows, 1) * width + local[: structure.entries]
    moved = permutation[: structure.entries]
    np.testing.assert_array_equal(found, structure.columns[moved])
    np.testing.assert_array_equal(segment % max(rows, 1), structure.rows[moved])
    same_segment = np.diff(segment) == 0
    assert np.all(np.diff(moved)[same_segment] > 0)  # in the order that they had


@pytest.mark.parametrize(
    ("entries", "warps", "most"), [(1, 1, 10**9), (10**8, 4224, 10**9), (10**8, 100, 4096), (513, 1, 512)]
)
def test_a_share_is_of_whole_tiles(entries, warps, most):
    share = launches.share_of(entries, warps, most=most)
    assert share % 512 == 0 and 0 < share <= max(512, most)
    assert share * warps >= entries or share + 512 > most


@pytest.fixture
def long_lines():
    """Lines of which some are longer than a part, and which of them are active."""
    lengths = np.array([0, 1, 1024, 1025, 5000, 0, 7, 4096, 3, 0] * 130)
    return np.append(0, np.cumsum(lengths)).astype(np.int32), np.random.default_rng(0).random(lengths.size) < 0.5


def test_parts_cover_the_active_lines(long_lines):
    """It is plain JAX, and runs anywhere."""
    indptr, active = long_lines
    firsts, lasts, (count,) = map(np.asarray, plasticity.parts_of(*map(jnp.asarray, long_lines), indptr[-1]))
    assert np.all(lasts[:count] - firsts[:count] <= 1024) and np.all(firsts[:count] < lasts[:count])
    listed = [np.arange(first, last) for first, last in zip(firsts[:count], lasts[:count], strict=True)]
    np.testing.assert_array_equal(np.concatenate(listed), np.flatnonzero(np.repeat(active, np.diff(indptr))))


@pytest.mark.gpu
def test_the_kernel_lists_the_same_parts(long_lines):
    arrays = list(map(jnp.asarray, long_lines))
    entries = int(arrays[0][-1])
    *listed, (count,) = jax.jit(lambda *arrays: plasticity._list(*arrays, entries))(*arrays)
    *expected, (number,) = plasticity.parts_of(*arrays, entries)
    assert count == number
    for found, wanted in zip(listed, expected, strict=True):
        np.testing.assert_array_equal(np.sort(found[:count]), np.sort(wanted[:count]))


@pytest.mark.parametrize("homogeneous", [False, True])
def test_kernels_can_be_exported(homogeneous):
    """Their content hashes are the same in every process."""
    kind = np.float32
    kernels = [
        blocked._kernel(kind, homogeneous),
        delays._kernel("binary", kind, homogeneous, one_delay=False),
        dense._columns_kernel("weighted", kind),
        dense._rows_kernel("binary", kind, 32),
        gather._events_kernel(kind, homogeneous),
        gather._kernel("dense", kind, homogeneous),
        gather._staged_kernel("dense", kind, homogeneous),
        gather_matrix._kernel("dense", kind, homogeneous, 8, True),
        plasticity._dense_kernel(np.dtype(kind), "", False),
        plasticity._list_parts,
        plasticity._parts_kernel(np.dtype(kind), "each", homogeneous),
        sampled._kernel(kind, 4, "u"),
        scatter._kernel("binary", kind, homogeneous),
        scatter_matrix._kernel("binary", kind, homogeneous, 8, True),
        tally._kernel("binary", homogeneous, sliced=False),
        tally._kernel("dense", homogeneous, sliced=True),
    ]
    for kernel in kernels:
        assert COMPILER.examine(COMPILER.fresh(kernel)).unknown == []
