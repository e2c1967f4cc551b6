"""Conformance tests of the kernels for structures: places of entries, dense lines, and active elements."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from grids import DTYPES, KINDS, LARGE, NARROW, STRUCTURES, each_index, slow_but, struct
from on_backend import OnBackend
from structures import draw, equal_weight, numbers, wide_of


def compressed(places, shape):
    """Return the index arrays of a matrix with entries at *places*, ascending numbers ``row * columns + column``."""
    row, column = np.divmod(places.astype(np.int64), max(1, shape[1]))
    indptr = np.concatenate([[0], np.cumsum(np.bincount(row, minlength=shape[0])[: shape[0]])])
    return column.astype(np.int32), indptr.astype(np.int32)


class StructureCases(OnBackend):
    """Tests of structures, lines and active elements. Subclass it as ``TestMyBackend``."""

    def test_unsupported_cases_have_names_and_reasons(self):
        generators = (
            *("product", "compact_product", "sampled_product", "transpose", "transpose_with_data"),
            *("entry_rows", "first_of_places", "descents", "slice_rows", "gather_rows", "diagonal", "active_indices"),
            *("reduce_rows", "merge_rows", "merge_entries", "product_rows", "product_entries", "product_weights"),
        )
        for name, reason in self.unsupported.items():
            generator, _, dtype = name.rpartition("/")
            assert dtype in (*DTYPES, *NARROW, *(() if generator else generators)), name
            assert generator in ("", *generators) and reason.strip(), name

    def check_places(self, structure):
        indices, indptr, size = structure.indices, structure.indptr, structure.indices.size
        rows = np.concatenate([structure.rows, np.full(size - structure.entries, structure.shape[0])])
        found = self.generator("entry_rows")([struct((size,), indptr.dtype)])(indptr)
        np.testing.assert_array_equal(found, rows)
        seen, first = {}, np.arange(size)
        for k in range(structure.entries):
            first[k] = seen.setdefault((rows[k], indices[k]), k)
        outs = [struct((size,), indptr.dtype), struct((), indptr.dtype)]
        found, repeated = self.generator("first_of_places")(outs, shape=structure.shape)(indices, indptr)
        np.testing.assert_array_equal(found, first)
        assert repeated == (first != np.arange(size)).sum()
        falls = (np.diff(indices[: structure.entries]) <= 0) & (np.diff(structure.rows) == 0)
        assert self.generator("descents")(outs[1:])(indices, indptr) == falls.sum()

    def check_lines(self, structure, homogeneous, dtype="float32"):
        rng = np.random.default_rng(5)
        rows, columns = structure.shape
        data = equal_weight(rng, dtype) if homogeneous else numbers(rng, structure.indices.size, dtype)
        dense = np.zeros(structure.shape, wide_of(data, dtype))
        weights = np.broadcast_to(data, structure.indices.shape)[: structure.entries]
        np.add.at(dense, (structure.rows, structure.columns), weights)
        arrays = structure.indices, structure.indptr
        numbered = np.array([0, 2, -1, rows, 2, rows - 1, 0], np.int32)
        inside = (numbered >= 0) & (numbered < rows)
        expected = np.zeros((numbered.size, columns), dense.dtype)
        expected[inside] = dense[numbered[inside]]
        out = struct(expected.shape, dtype)
        slices = self.generator("slice_rows", dtype)([out], shape=structure.shape, homogeneous=homogeneous)
        np.testing.assert_allclose(slices(data, *arrays, numbered), expected, rtol=1e-5, atol=1e-5)
        cotangent = numbers(rng, out.shape, dtype)
        of_entries = np.zeros(structure.indices.shape, dense.dtype)
        for r in np.flatnonzero(inside):
            begin, end = structure.indptr[numbered[r]], structure.indptr[numbered[r] + 1]
            of_entries[begin:end] += cotangent[r, structure.indices[begin:end]]
        gather = self.generator("gather_rows", dtype)([struct(of_entries.shape, dtype)], shape=structure.shape)
        found = gather(*arrays, numbered, cotangent)
        np.testing.assert_allclose(found, of_entries, rtol=1e-5, atol=1e-5)
        for offset in (0, 1, -1, 3, -2, columns, -rows):
            diagonal = np.diagonal(dense, offset) if -rows < offset < columns else np.zeros(0)
            make = self.generator("diagonal", dtype)
            found = make([struct(diagonal.shape, dtype)], offset=offset, homogeneous=homogeneous)(data, *arrays)
            np.testing.assert_allclose(found, diagonal, rtol=1e-5, atol=1e-5)

    def check_reductions(self, structure, dtype="float32"):
        rows, indptr = structure.shape[0], structure.indptr
        rng = np.random.default_rng(7)
        data = numbers(rng, structure.indices.size, dtype) * (rng.random(structure.indices.size) < 0.5)
        ends = list(itertools.pairwise(indptr))
        methods = {"sum": np.sum, "count": np.count_nonzero, "max": np.max, "min": np.min}
        for method, function in methods.items():
            if data.dtype.kind != "c" or method in ("sum", "count"):
                expected = np.array([function(data[first:last]) if first < last else 0 for first, last in ends])
                out = struct((rows,), "int32" if method == "count" else dtype)
                found = self.generator("reduce_rows", dtype)([out], method=method)(data, indptr)
                np.testing.assert_allclose(found, expected.reshape(rows).astype(out.dtype), rtol=1e-4, atol=1e-4)
        if data.dtype.kind == "f" and structure.entries:
            data[structure.entries // 2] = np.nan
            found = self.generator("reduce_rows")([struct((rows,), dtype)], method="max")(data, indptr)
            assert np.flatnonzero(np.isnan(found)).tolist() == [structure.rows[structure.entries // 2]]

    def check_merging(self, name, common):
        """Compare with sets; the second structure has every other entry of the first, and some of its own."""
        structure = STRUCTURES[name]()
        places = np.unique(structure.rows * structure.shape[1] + structure.columns)
        others = np.union1d(places[::2], places[1::3] + (places[1::3] % structure.shape[1] > 0) * -1)
        (a, b), expected = (
            (compressed(places, structure.shape), compressed(others, structure.shape)),
            (np.intersect1d if common else np.union1d)(places, others),
        )
        outs = [struct((size,), "int32") for size in (structure.shape[0] + 1, *[expected.size] * 3)]
        indptr = self.generator("merge_rows")(outs[:1], common=common)(*a, *b)
        merged = self.generator("merge_entries")(outs[1:], common=common)(*a, *b, indptr)
        for found, known in zip((merged[0], indptr), compressed(expected, structure.shape), strict=True):
            np.testing.assert_array_equal(found, known)
        for keys, entries in ((places, merged[1]), (others, merged[2])):
            known = np.where(np.isin(expected, keys), np.searchsorted(keys, expected), keys.size)
            np.testing.assert_array_equal(entries, known)

    def check_multiplication(self, name, columns, dtype="float32"):
        """Multiply the structure by one of *columns* columns, a few of which are used in each row."""
        structure, rng = STRUCTURES[name](), np.random.default_rng(8)
        rows, inner = structure.shape
        wide = np.flatnonzero(rng.random((inner, columns)) < min(1, 3 / max(1, columns)))
        a, b = (structure.indices[: structure.entries], structure.indptr), compressed(wide, (inner, columns))
        weights = [numbers(rng, of[0].size, dtype) for of in (a, b)]
        dense = [
            np.zeros(shape, wide_of(of, dtype))
            for shape, of in zip(((rows, inner), (inner, columns)), weights, strict=True)
        ]
        np.add.at(dense[0], (structure.rows, a[0]), weights[0])
        np.add.at(dense[1].reshape(-1), wide, weights[1])
        reached = (dense[0] != 0).astype(int) @ (dense[1] != 0) > 0
        indices, indptr = compressed(np.flatnonzero(reached), (rows, columns))
        static = {"columns": columns, "pairs": int(np.diff(b[1])[a[0]].sum())}
        found = self.generator("product_rows")([struct((rows + 1,), "int32")], **static)(*a, *b)
        np.testing.assert_array_equal(found, indptr)
        found = self.generator("product_entries")([struct(indices.shape, "int32")], **static)(*a, *b, indptr)
        np.testing.assert_array_equal(found, indices)
        run = self.generator("product_weights", dtype)([struct(indices.shape, dtype)], **static)
        found = run(weights[0], *a, weights[1], *b, indices, indptr)
        np.testing.assert_allclose(found, (dense[0] @ dense[1])[reached], rtol=1e-4, atol=1e-4)

    @pytest.mark.parametrize("common", [False, True])
    @pytest.mark.parametrize("name", slow_but(STRUCTURES, ("wide", "no columns", "heavy tail")))
    def test_merging(self, name, common):
        self.check_merging(name, common)

    @pytest.mark.parametrize("name", slow_but(STRUCTURES, ("wide", "only padding", "heavy tail")))
    def test_multiplication(self, name):
        for columns in (7, 5000):
            self.check_multiplication(name, columns)

    @pytest.mark.parametrize("dtype", slow_but(KINDS, ("complex64",)))
    def test_multiplication_of_dtype(self, dtype):
        self.check_multiplication("wide", 40, dtype)

    @pytest.mark.parametrize("name", STRUCTURES)
    def test_places(self, name):
        self.check_places(STRUCTURES[name]())

    @pytest.mark.parametrize("name", LARGE)
    def test_places_in_parallel(self, name):
        self.check_places(LARGE[name]())

    @pytest.mark.parametrize("name", STRUCTURES)
    def test_reductions(self, name):
        self.check_reductions(STRUCTURES[name]())

    @pytest.mark.parametrize("name", LARGE)
    def test_reductions_in_parallel(self, name):
        self.check_reductions(LARGE[name]())

    @pytest.mark.parametrize("dtype", slow_but(KINDS, ("complex64", "int32")))
    def test_reductions_of_dtype(self, dtype):
        self.check_reductions(STRUCTURES["wide"](), dtype)

    @each_index
    def test_places_of_index_dtypes(self, index, pointer):
        self.check_places(draw(32, (60, 7), padding=2, index=index, pointer=pointer))

    @pytest.mark.parametrize("homogeneous", [False, True])
    @pytest.mark.parametrize("name", STRUCTURES)
    def test_lines(self, name, homogeneous):
        self.check_lines(STRUCTURES[name](), homogeneous)

    @pytest.mark.parametrize("homogeneous", [False, True])
    @pytest.mark.parametrize("name", LARGE)
    def test_lines_in_parallel(self, name, homogeneous):
        self.check_lines(LARGE[name](), homogeneous)

    @pytest.mark.parametrize("dtype", slow_but(KINDS, ("complex64", "int32")))
    def test_lines_of_dtype(self, dtype):
        self.check_lines(STRUCTURES["wide"](), homogeneous=False, dtype=dtype)

    @pytest.mark.parametrize("size", [0, 1, 7, 64, 1000, 70_000])
    def test_active_indices(self, size):
        run = self.generator("active_indices")([struct((size,), "int32"), struct((), "int32")])
        for rate in (0, 0.01, 0.5, 1):
            flags = np.random.default_rng(6).random(size) < rate
            found, count = run(flags)
            expected = np.flatnonzero(flags)
            assert count == expected.size
            np.testing.assert_array_equal(found, np.pad(expected, (0, size - expected.size)))
