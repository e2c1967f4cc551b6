"""Conformance tests of the sparse kernels; the tests of a backend subclass `KernelCases`."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from grids import (
    COLUMNS,
    DTYPES,
    FIRST_STRUCTURES,
    KINDS,
    LARGE,
    NARROW,
    OPERANDS,
    STRUCTURES,
    each_index,
    each_operand,
    each_product,
    each_rank,
    each_side,
    slow_but,
    struct,
    weight_in_turn,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from structure_cases import StructureCases
from structures import BFLOAT16, assert_sums, draw, equal_weight, numbers, operand_of, sum_entries, wide_of

from xlakernel.core import debug_mode


class KernelCases(StructureCases):
    """Subclass it as ``TestMyBackend``; the attributes are those of `StructureCases`."""

    # Products

    def check_product(
        self, structure, operand, transpose, columns, homogeneous, *, dtype="float32", data_dtype=None, seed=0, rate=0.3
    ):
        rng = np.random.default_rng(seed)
        data_dtype = np.dtype(BFLOAT16 if data_dtype == "bfloat16" else data_dtype or dtype)
        product = self.generator("product", dtype if data_dtype == dtype else data_dtype.name)
        results, contracted = structure.shape[::-1] if transpose else structure.shape
        x = operand_of(rng, operand, contracted, columns, dtype, rate)
        size = structure.indices.size
        data = equal_weight(rng, data_dtype) if homogeneous else numbers(rng, size, data_dtype)
        self.compare_product(product, structure, data, x, operand, transpose, homogeneous, results, dtype)

    def compare_product(self, product, structure, data, x, operand, transpose, homogeneous, results, dtype="float32"):
        out = struct((results, *x.shape[1:]), dtype)
        options = {"operand": operand, "shape": structure.shape, "transpose": transpose, "homogeneous": homogeneous}
        found = product([out], **options)(data, structure.indices, structure.indptr, x)
        assert found.dtype == out.dtype
        weights = np.broadcast_to(data, structure.indices.shape)[: structure.entries].astype(wide_of(data, dtype))
        target, source = structure.rows, structure.columns
        if transpose:
            target, source = source, target
        expected, magnitude = sum_entries(target, source, weights, x, results, operand)
        assert_sums(found, expected, magnitude, structure.entries)

    @each_product(*OPERANDS)
    @pytest.mark.parametrize("structure", slow_but(STRUCTURES, FIRST_STRUCTURES))
    def test_product(self, structure, operand, transpose, columns, homogeneous):
        self.check_product(STRUCTURES[structure](), operand, transpose, columns, homogeneous)

    @each_product(*OPERANDS)
    @pytest.mark.parametrize("structure", LARGE)
    def test_product_in_parallel(self, structure, operand, transpose, columns, homogeneous):
        self.check_product(LARGE[structure](), operand, transpose, columns, homogeneous, rate=0.6)

    @each_product("binary", "weighted")
    def test_events_at_any_rate(self, operand, transpose, columns, homogeneous):
        for rate in (0, 0.001, 0.02, 1):
            self.check_product(LARGE["large"](), operand, transpose, columns, homogeneous, rate=rate)

    @each_product(*OPERANDS, columns=COLUMNS)
    def test_any_number_of_columns(self, operand, transpose, columns, homogeneous):
        self.check_product(STRUCTURES["square"](), operand, transpose, columns, homogeneous)

    @each_product("dense", columns=(20, 65, 200))
    def test_many_columns_in_parallel(self, operand, transpose, columns, homogeneous):
        self.check_product(draw(20, (600, 500), 50), operand, transpose, columns, homogeneous)

    # Complex numbers and integers with vectors and matrices, and each kernel with one of the dtypes: each compiles one.
    @pytest.mark.parametrize(
        ("transpose", "columns", "dtype"),
        slow_but(
            list(itertools.product([False, True], [None, 6], KINDS)),
            (
                (False, None, "complex64"),
                (False, 6, "complex64"),
                (False, 6, "int32"),
                (True, None, "int32"),
                (True, 6, "float64"),
            ),
        ),
    )
    def test_product_of_dtype(self, dtype, transpose, columns):
        self.check_product(STRUCTURES["wide"](), "dense", transpose, columns, homogeneous=False, dtype=dtype)

    @pytest.mark.slow
    @each_product(*OPERANDS)
    @pytest.mark.parametrize("dtype", DTYPES[1:])
    def test_every_product_of_dtype(self, dtype, operand, transpose, columns, homogeneous):
        for name in ("heavy tail", "empty rows"):
            self.check_product(STRUCTURES[name](), operand, transpose, columns, homogeneous, dtype=dtype)

    # One conversion for sums of rows, and one for rows that are scattered.
    @pytest.mark.parametrize(
        ("operand", "transpose", "columns", "narrow"),
        slow_but(
            list(itertools.product(OPERANDS, [False, True], [None, 17], NARROW)),
            (("dense", False, None, "bfloat16"), ("binary", True, None, "bfloat16")),
        ),
    )
    def test_narrow_data(self, narrow, operand, transpose, columns):
        self.check_product(STRUCTURES["wide"](), operand, transpose, columns, False, data_dtype=narrow)

    @each_side
    @each_rank
    @each_index
    def test_index_dtypes(self, index, pointer, transpose, columns):
        structure = draw(30, (40, 50), padding=2, index=index, pointer=pointer)
        operand = "binary" if columns is None else "dense"  # each compiles a kernel
        self.check_product(structure, operand, transpose, columns, homogeneous=False)

    @each_product("binary", "weighted")
    @pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
    def test_a_weight_under_an_inactive_event_does_not_matter(self, bad, operand, transpose, columns, homogeneous):
        structure = STRUCTURES["square"]()
        rng = np.random.default_rng(1)
        x = operand_of(rng, operand, 30, columns, "float32", 0.1)
        data = numbers(rng, 1 if homogeneous else structure.indices.size, "float32")
        data[:: 1 if homogeneous else 2] = bad
        product = self.generator("product")
        self.compare_product(product, structure, data, x, operand, transpose, homogeneous, 30)

    @each_product("dense", "weighted")
    def test_nan_and_inf_in_the_operand(self, operand, transpose, columns, homogeneous):
        structure = STRUCTURES["square"]()
        rng = np.random.default_rng(1)
        x = operand_of(rng, operand, 30, columns, "float32")
        x[3], x[7], x[9] = np.nan, np.inf, -np.inf
        data = numbers(rng, 1 if homogeneous else structure.indices.size, "float32")
        self.compare_product(self.generator("product"), structure, data, x, operand, transpose, homogeneous, 30)

    @pytest.mark.parametrize("other_weights", slow_but((False, True), (False,)))
    @settings(
        max_examples=40,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=[HealthCheck.differing_executors, HealthCheck.function_scoped_fixture],
    )
    @given(
        shape=st.tuples(st.integers(0, 40), st.integers(0, 40)),
        per_row=st.sampled_from([0.2, 3, 30]),
        padding=st.integers(0, 4),
        operand=st.sampled_from(OPERANDS),
        flags=st.tuples(st.booleans(), st.booleans()),
        columns=st.none() | st.integers(0, 70),
        seed=st.integers(0, 99),
    )
    def test_any_product(self, other_weights, shape, per_row, padding, operand, flags, columns, seed):
        heavy, transpose = flags
        homogeneous = weight_in_turn(operand, transpose, columns) != other_weights
        structure = draw(seed, shape, per_row, padding=padding, heavy=heavy)
        self.check_product(structure, operand, transpose, columns, homogeneous, seed=seed)

    # Active rows as a list

    # One dtype with each kind of weights: each compiles a kernel.
    @pytest.mark.parametrize(("dtype", "homogeneous"), [("int32", False), ("int64", True)])
    @pytest.mark.parametrize("name", [*STRUCTURES, *LARGE])
    def test_compact_product(self, name, dtype, homogeneous):
        structure = {**STRUCTURES, **LARGE}[name]()
        rng = np.random.default_rng(2)
        rows, results = structure.shape
        compact = self.generator("compact_product")
        run = compact([struct((results,), "float32")], shape=structure.shape, homogeneous=homogeneous)
        data = numbers(rng, 1 if homogeneous else structure.indices.size, "float32")
        weights = np.broadcast_to(data, structure.indices.shape)[: structure.entries]
        for rate in (0, 0.5, 1):
            x = rng.random(rows) < rate
            # Values behind the count are arbitrary.
            active = np.full(rows + 3, 2**31 - 1, dtype)
            active[: x.sum()] = rng.permutation(np.flatnonzero(x))
            found = run(data, structure.indices, structure.indptr, active, np.int32(x.sum()))
            expected = sum_entries(structure.columns, structure.rows, weights, x, results, "binary")
            assert_sums(found, *expected, structure.entries)

    def test_compact_product_without_room(self):
        structure = STRUCTURES["square"]()
        run = self.generator("compact_product")([struct((30,), "float32")], shape=(30, 30), homogeneous=True)
        found = run(np.ones(1, "float32"), structure.indices, structure.indptr, np.zeros(0, "int64"), np.int32(0))
        np.testing.assert_array_equal(found, np.zeros(30))

    # Products of dense matrices at the entries

    def check_sampled(self, structure, columns, dtype):
        rng = np.random.default_rng(3)
        u, v = (operand_of(rng, "dense", size, columns, dtype) for size in structure.shape)
        out = struct(structure.indices.shape, dtype)
        sampled = self.generator("sampled_product", dtype)
        found = sampled([out], shape=structure.shape)(structure.indices, structure.indptr, u, v)
        terms = wide_of(u, dtype)
        u, v = u.astype(terms)[structure.rows], v.astype(terms)[structure.columns]
        products = (u * v).reshape(structure.entries, 1 if columns is None else columns)
        expected, magnitude = np.zeros(out.shape, terms), np.zeros(out.shape)
        expected[: structure.entries] = products.sum(axis=1, dtype=terms)
        magnitude[: structure.entries] = abs(products.astype(np.complex128)).sum(axis=1)
        assert_sums(found, expected, magnitude, columns or 1)

    @pytest.mark.parametrize("columns", [None, 0, 1, 7, 40])
    @pytest.mark.parametrize("name", [*STRUCTURES, *LARGE])
    def test_sampled_product(self, name, columns):
        self.check_sampled({**STRUCTURES, **LARGE}[name](), columns, "float32")

    # Vectors and matrices, each with one of the factors: each compiles a kernel.
    @pytest.mark.parametrize(
        ("events", "columns"),
        slow_but(list(itertools.product("uv", (None, 1, 7, 40))), (("u", None), ("v", 1), ("v", 7), ("v", 40))),
    )
    def test_sampled_product_with_inactive_events(self, columns, events):
        """Terms at inactive events add nothing, even if the other factor is NaN."""
        for structure in (STRUCTURES["square"](), LARGE["large"]()):
            rng = np.random.default_rng(3)
            factors = {
                name: operand_of(rng, "dense", size, columns, "float32")
                for name, size in zip("uv", structure.shape, strict=True)
            }
            active = rng.random(factors[events].shape) < 0.3
            factors[events] *= active
            other = "v" if events == "u" else "u"
            bad = rng.random(len(factors[other])) < 0.1
            factors[other][bad] = np.nan
            out = struct(structure.indices.shape, "float32")
            sampled = self.generator("sampled_product")([out], shape=structure.shape, events=events)
            found = sampled(structure.indices, structure.indptr, factors["u"], factors["v"])
            lines = {"u": structure.rows, "v": structure.columns}
            wide = {name: factors[name].astype("float64")[lines[name]] for name in "uv"}
            terms = np.where(active[lines[events]], wide["u"] * wide["v"], 0).reshape(structure.entries, -1)
            expected = np.zeros(out.shape)
            expected[: structure.entries] = terms.sum(axis=1)
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)

    @pytest.mark.parametrize(
        ("dtype", "columns"),
        slow_but(
            list(itertools.product(("float64", "complex64", "int32", "uint8"), (None, 6))),
            (("complex64", 6), ("int32", None)),
        ),
    )
    def test_sampled_product_of_dtype(self, dtype, columns):
        self.check_sampled(STRUCTURES["wide"](), columns, dtype)

    # Transposed structures

    def check_transpose(self, structure, dtype=None):
        indices, indptr = structure.indices, structure.indptr
        size = indices.size
        order = np.argsort(structure.columns, kind="stable")
        counts = np.bincount(structure.columns, minlength=structure.shape[1])
        expected = [
            np.concatenate([structure.rows[order], np.zeros(size - order.size, int)]),
            np.concatenate([[0], np.cumsum(counts)]),
        ]
        outs = [struct(indices.shape, indices.dtype), struct((structure.shape[1] + 1,), indptr.dtype)]
        if dtype is None:
            expected.append(np.concatenate([order, np.arange(order.size, size)]))
            outs.append(struct((size,), indptr.dtype))
            found = self.generator("transpose")(outs, shape=structure.shape)(indices, indptr)
        else:
            dtype = BFLOAT16 if dtype == "bfloat16" else np.dtype(dtype)
            data = numbers(np.random.default_rng(4), size, dtype)
            expected.insert(0, np.concatenate([data[order], np.zeros(size - order.size, dtype)]))
            outs.insert(0, struct((size,), dtype))
            found = self.generator("transpose_with_data", dtype)(outs, shape=structure.shape)(data, indices, indptr)
        for result, value, out in zip(found, expected, outs, strict=True):
            assert (result.dtype, result.shape) == (out.dtype, out.shape)
            np.testing.assert_array_equal(result, value.astype(out.dtype))

    @pytest.mark.parametrize("name", [*STRUCTURES, *LARGE])
    def test_transpose(self, name):
        structure = {**STRUCTURES, **LARGE}[name]()
        self.check_transpose(structure)
        self.check_transpose(structure, "float32")

    @pytest.mark.parametrize(
        "dtype", slow_but(("bool", "int8", "float16", "bfloat16", "float64", "complex128"), ("bool",))
    )
    def test_transpose_with_data_of_dtype(self, dtype):
        self.check_transpose(STRUCTURES["wide"](), dtype)

    @each_index
    def test_transpose_index_dtypes(self, index, pointer):
        structure = draw(31, (60, 700), padding=2, index=index, pointer=pointer)
        self.check_transpose(structure)
        self.check_transpose(structure, "float32")

    # With the bounds of all indices checked, and every element of an output written

    @pytest.mark.slow
    @each_operand
    @each_side
    def test_product_in_debug_mode(self, operand, transpose):
        with debug_mode():
            for name in ("wide", "empty rows", "no rows"):
                self.check_product(STRUCTURES[name](), operand, transpose, None, homogeneous=False)

    @pytest.mark.slow
    @each_operand
    @each_side
    def test_matrix_product_in_debug_mode(self, operand, transpose):
        with debug_mode():
            for columns in (0, 3, 40):
                self.check_product(STRUCTURES["wide"](), operand, transpose, columns, homogeneous=True)

    @pytest.mark.slow
    def test_others_in_debug_mode(self):
        with debug_mode():
            for name in ("tall", "only padding"):
                self.check_transpose(STRUCTURES[name]())
                self.check_transpose(STRUCTURES[name](), "float32")
                self.check_sampled(STRUCTURES[name](), 3, "float32")
                self.check_places(STRUCTURES[name]())
                self.check_lines(STRUCTURES[name](), homogeneous=False)
                self.check_reductions(STRUCTURES[name]())
            self.test_active_indices(7)
            self.test_compact_product("tall", "int32", False)

    @pytest.mark.slow
    @each_side
    def test_in_parallel_in_debug_mode(self, transpose):
        with debug_mode():
            self.check_product(LARGE["large"](), "dense", transpose, None, homogeneous=False)
            self.check_product(LARGE["large"](), "dense", transpose, 40, homogeneous=True)
