"""Conformance tests of the kernels that update weights at active events; the tests of a backend subclass them."""

from __future__ import annotations

import itertools

import jax
import numpy as np
import pytest
from grids import LARGE, STRUCTURES, each_index, slow_but, struct
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from on_backend import OnBackend
from structures import BFLOAT16, draw, numbers, wide

from xlakernel.core import debug_mode

LAYOUTS = ("lines", "permuted")
DENSE = ("rows", "columns")
LIMITS = ("", "shared", "each")
each_layout = pytest.mark.parametrize("layout", LAYOUTS)
# Each layout with and without limits, where each compiles a kernel.
each_update = pytest.mark.parametrize(
    ("layout", "limits"),
    slow_but(
        [(layout, limits) for layout in (*LAYOUTS, *DENSE) for limits in LIMITS],
        (("lines", "shared"), ("lines", ""), ("permuted", "each"), ("rows", "shared"), ("columns", "")),
    ),
)
DTYPES = ("float64", "float16", "bfloat16", "int8", "int32", "uint16", "complex64")


def accumulated(dtype):
    """Return the dtype of the trace and the limits for weights of *dtype*."""
    return np.dtype("float32") if dtype in ("float16", "bfloat16") else np.dtype(dtype)


def expect(data, lines, targets, sources, trace, active, limits):
    """Return the updated weights, entry by entry: those at *targets* change by the trace of *sources*."""
    found = data.astype(wide(data.dtype))
    for line, target, source in zip(lines, targets, sources, strict=True):
        if active[line]:
            with np.errstate(all="ignore"):
                value = found[target] + trace[source].astype(found.dtype)
            for limit, is_beyond in zip(limits, (np.less, np.greater), strict=False):
                bound = limit.astype(found.dtype)[0 if limit.size == 1 else target]
                value = bound if is_beyond(value, bound) else value
            found[target] = value
    return found.astype(data.dtype)


class UpdateCases(OnBackend):
    """Subclass it as ``TestMyBackendUpdates``."""

    def inputs(self, structure, layout, limits, dtype="float32", rate=0.3, seed=0):
        """Return the operator's inputs for a structure, or for a dense matrix of its shape, and its entries."""
        rng = np.random.default_rng(seed)
        (lines, places), size = structure.shape, structure.indices.size
        dtype = BFLOAT16 if dtype == "bfloat16" else np.dtype(dtype)
        arrays = []
        if layout in DENSE:
            row, column = np.divmod(np.arange(lines * places), max(places, 1))
            line, source = (row, column) if layout == "rows" else (column, row)
            lines, places = (lines, places) if layout == "rows" else (places, lines)
            target, shape = np.arange(row.size), structure.shape
        else:
            arrays = [structure.indices, structure.indptr]
            line, target, source, shape = structure.rows, np.arange(structure.entries), structure.columns, (size,)
        if layout == "permuted":
            permutation = rng.permutation(size).astype(structure.indptr.dtype)
            arrays.append(permutation)
            target = permutation[target]
        wide_dtype = accumulated(dtype.name)
        bounds = {"": [], "shared": [(1,)] * 2, "each": [shape] * 2}[limits]
        drawn = [np.round(numbers(rng, bound, wide_dtype) * 4) / 4 for bound in bounds]
        limited = [limit.astype(wide_dtype) for limit in (np.minimum(*drawn), np.maximum(*drawn))] if drawn else []
        data = numbers(rng, shape, dtype)
        return [data, *arrays, numbers(rng, places, wide_dtype), rng.random(lines) < rate, *limited], (
            line,
            target,
            source,
        )

    def check(self, structure, layout, limits, dtype="float32", **options):
        inputs, entries = self.inputs(structure, layout, limits, dtype, **options)
        self.compare(inputs, entries, layout, dtype)

    def run(self, inputs, layout, dtype):
        data, *_ = inputs
        return jax.jit(self.generator("trace_update", dtype)([struct(data.shape, data.dtype)], layout=layout))(*inputs)

    def compare(self, inputs, entries, layout, dtype="float32"):
        data, *_ = inputs
        start = {"lines": 3, "permuted": 4}.get(layout, 1)
        trace, active, *limits = inputs[start:]
        expected = expect(data.ravel(), *entries, trace, active, [limit.ravel() for limit in limits])
        found = self.run(inputs, layout, dtype)
        assert (found.dtype, found.shape) == (data.dtype, data.shape)
        kind = wide(data.dtype)
        found, expected = np.asarray(found).ravel().astype(kind), expected.astype(kind)
        if kind.kind in "iu":
            np.testing.assert_array_equal(found, expected)
        else:
            eps = float(jax.numpy.finfo(data.dtype).eps)
            np.testing.assert_allclose(found, expected, rtol=eps, atol=4 * eps)

    @each_update
    @pytest.mark.parametrize("structure", STRUCTURES)
    def test_update(self, structure, layout, limits):
        self.check(STRUCTURES[structure](), layout, limits)

    @each_layout
    @pytest.mark.parametrize("structure", LARGE)
    def test_update_in_parallel(self, structure, layout):
        self.check(LARGE[structure](), layout, "shared", rate=0.6)

    @pytest.mark.parametrize("layout", DENSE)
    def test_dense_update_in_parallel(self, layout):
        self.check(draw(0, (310, 900)), layout, "shared", rate=0.5)

    @each_layout
    @pytest.mark.parametrize("rate", [0, 0.001, 0.02, 1])
    def test_events_at_any_rate(self, rate, layout):
        self.check(LARGE["large, heavy tail"](), layout, "shared", rate=rate)

    # The layouts and the dtypes in turn: each compiles a kernel.
    @pytest.mark.parametrize(
        ("dtype", "layout"),
        slow_but(
            list(itertools.product(DTYPES, (*LAYOUTS, *DENSE))),
            (("bfloat16", "lines"), ("int8", "permuted"), ("complex64", "rows"), ("bfloat16", "columns")),
        ),
    )
    def test_update_of_dtype(self, dtype, layout):
        limits = "" if dtype.startswith("complex") else "shared"
        self.check(STRUCTURES["wide"](), layout, limits, dtype, rate=0.7)

    @each_layout
    @each_index
    def test_index_dtypes(self, index, pointer, layout):
        self.check(draw(30, (40, 50), padding=2, index=index, pointer=pointer), layout, "shared")

    @pytest.mark.parametrize("layout", [*LAYOUTS, *DENSE])
    @pytest.mark.parametrize("bad", [np.inf, np.nan])
    def test_weights_that_are_not_at_active_events_stay(self, bad, layout):
        """Bit by bit, also if the trace is not finite; and active ones follow the arithmetic of floats."""
        inputs, entries = self.inputs(STRUCTURES["square"](), layout, "shared", rate=0.4)
        data, trace = inputs[0], inputs[-4]
        data.ravel()[::5] = -0.0
        data.ravel()[::7] = np.nan
        trace[::2] = bad
        self.compare(inputs, entries, layout)
        inputs[-3][:] = False
        found = self.run(inputs, layout, "float32")
        np.testing.assert_array_equal(np.asarray(found).view(np.uint32), data.view(np.uint32))

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
        heavy=st.booleans(),
        layout=st.sampled_from((*LAYOUTS, *DENSE)),
        rate=st.sampled_from([0, 0.3, 1]),
        seed=st.integers(0, 99),
    )
    def test_any_update(self, shape, per_row, padding, heavy, layout, rate, seed):
        structure = draw(seed, shape, per_row, padding=padding, heavy=heavy)
        self.check(structure, layout, "shared", rate=rate, seed=seed)

    @pytest.mark.slow
    @pytest.mark.parametrize("layout", [*LAYOUTS, *DENSE])
    def test_update_in_debug_mode(self, layout):
        with debug_mode():
            for name in ("wide", "empty rows", "no rows"):
                self.check(STRUCTURES[name](), layout, "each")
            self.check(LARGE["large"](), layout, "shared") if layout in LAYOUTS else None
