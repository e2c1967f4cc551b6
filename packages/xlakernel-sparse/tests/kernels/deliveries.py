"""Conformance tests of the kernels that deliver events with delays; the tests of a backend subclass them."""

from __future__ import annotations

import itertools

import jax
import numpy as np
import pytest
from grids import LARGE, STRUCTURES, each_index, slow_but, struct
from on_backend import OnBackend
from structures import assert_sums, draw, equal_weight, numbers, operand_of, wide_of

from xlakernel.core import debug_mode

each_kind = pytest.mark.parametrize("operand", ["binary", "weighted"])
# Both kinds of weights with each operand and with each kind of delays, where each combination compiles a kernel.
each_delivery = pytest.mark.parametrize(
    ("operand", "delays", "homogeneous"),
    slow_but(
        list(itertools.product(("binary", "weighted"), ("one", "each"), (False, True))),
        (("binary", "one", True), ("binary", "each", False), ("weighted", "one", False), ("weighted", "each", True)),
    ),
)
SLOTS = 5


class DeliveryCases(OnBackend):
    """Subclass it as ``TestMyBackendDeliveries``."""

    def check(self, structure, operand, delays, homogeneous, dtype="float32", *, rate=0.4, t=3, span=(1, SLOTS)):
        rng = np.random.default_rng(0)
        (rows, columns), size = structure.shape, structure.indices.size
        ring = numbers(rng, (SLOTS, columns), dtype)
        data = equal_weight(rng, dtype) if homogeneous else numbers(rng, size, dtype)
        delay = rng.integers(*span, 1 if delays == "one" else size).astype(np.int32)
        x = operand_of(rng, operand, rows, None, dtype, rate)
        run = self.generator("delay_delivery", dtype)(
            [struct(ring.shape, dtype)], operand=operand, homogeneous=homogeneous
        )
        arrays = ring, data, structure.indices, structure.indptr, delay, np.array([t], np.int32), x
        found = jax.jit(run)(*arrays)
        assert found.dtype == ring.dtype
        kind = wide_of(ring, dtype)
        n = structure.entries
        values = np.ones(rows, kind) * (x != 0) if operand == "binary" else x.astype(kind)
        terms = np.broadcast_to(data, size)[:n].astype(kind) * values[structure.rows]
        slots = (t + np.broadcast_to(delay, size)[:n]) % SLOTS
        expected, magnitude = ring.astype(kind), abs(ring.astype(np.complex128))
        np.add.at(expected, (slots, structure.columns), terms)
        np.add.at(magnitude, (slots, structure.columns), abs(terms.astype(np.complex128)))
        assert_sums(found, expected, magnitude, n)

    @each_delivery
    @pytest.mark.parametrize("structure", slow_but(STRUCTURES, ("wide", "empty rows", "only padding", "heavy tail")))
    def test_delivery(self, structure, operand, delays, homogeneous):
        self.check(STRUCTURES[structure](), operand, delays, homogeneous)

    @each_kind
    @pytest.mark.parametrize("structure", LARGE)
    def test_delivery_in_parallel(self, structure, operand):
        self.check(LARGE[structure](), operand, "each", homogeneous=operand == "weighted", rate=0.7)

    @pytest.mark.parametrize("rate", [0, 0.001, 1])
    def test_events_at_any_rate(self, rate):
        self.check(LARGE["large, heavy tail"](), "binary", "each", homogeneous=False, rate=rate)

    @pytest.mark.parametrize("dtype", slow_but(("float64", "complex64", "int8", "int64"), ("complex64", "int8")))
    def test_delivery_of_dtype(self, dtype):
        self.check(STRUCTURES["wide"](), "weighted", "each", homogeneous=False, dtype=dtype)

    @each_index
    def test_index_dtypes(self, index, pointer):
        self.check(draw(30, (40, 50), padding=2, index=index, pointer=pointer), "binary", "each", homogeneous=False)

    @pytest.mark.parametrize("delays", ["one", "each"])
    def test_delays_out_of_range_wrap(self, delays):
        self.check(STRUCTURES["square"](), "binary", delays, homogeneous=delays == "one", span=(-40, 40))

    @pytest.mark.slow
    @each_kind
    def test_delivery_in_debug_mode(self, operand):
        with debug_mode():
            for name in ("wide", "empty rows", "no rows"):
                self.check(STRUCTURES[name](), operand, "each", homogeneous=False)
            self.check(LARGE["few columns"](), operand, "one", homogeneous=True)
