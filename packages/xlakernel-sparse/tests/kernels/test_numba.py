"""The Numba kernels of the sparse operators, and those in plain JAX for structures."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conformance import KernelCases
from deliveries import DeliveryCases
from numba.core.registry import CPUDispatcher
from structure_cases import StructureCases
from updates import UpdateCases

from xlakernel.core import debug_mode
from xlakernel.numba._recipe import COMPILER
from xlakernel.sparse import CSR, BinaryArray, WeightedArray
from xlakernel.sparse.kernels import numba as generators
from xlakernel.sparse.kernels import reference
from xlakernel.sparse.kernels.numba import (
    conversion,
    delays,
    events,
    gather,
    lines,
    matrix,
    merging,
    multiplication,
    places,
    plasticity,
    prepared,
    procedural,
    reductions,
    sampled,
    scatter,
)

ROOMS = (
    *(conversion, delays, events, gather, lines, matrix, merging, multiplication, places),
    *(plasticity, prepared, procedural, reductions, sampled, scatter),
)
# Functions that kernels of several rooms call.
SHARED = {"add_private", "clear", "gather_row", "gather_rows", "no_order", "scatter_active", "scatter_rows"}
KERNELS = {
    name: value
    for room in ROOMS
    for name, value in vars(room).items()
    if isinstance(value, CPUDispatcher) and value.__module__ == room.__name__ and not name.startswith("_")
}


class TestNumba(KernelCases):
    generators = generators


class TestPlainJax(StructureCases):
    generators = reference
    test_places_in_parallel = test_lines_in_parallel = test_reductions_in_parallel = None  # XLA divides the work


class TestNumbaUpdates(UpdateCases):
    generators = generators


class TestNumbaDeliveries(DeliveryCases):
    generators = generators


OPERANDS = {"dense": jnp.asarray, "binary": lambda x: BinaryArray(x > 0), "weighted": WeightedArray}
SHAPES = {"A @ x": lambda n: (n,), "A @ X": lambda n: (n, 5), "x @ A": lambda n: (n,), "X @ A": lambda n: (5, n)}


# The two kinds of weights in turn: each with every side and every operand, where the same function indexes for both.
# Matrices of bools and of numbers have one kernel, and are compiled for numbers.
@pytest.mark.parametrize(
    ("operand", "side", "kind"),
    [
        pytest.param(
            x,
            side,
            ["weights", "equal"][(i + j) % 2],
            marks=[pytest.mark.slow] * (x == "weighted" or (x == "binary" and "X" in side)),
        )
        for i, x in enumerate(OPERANDS)
        for j, side in enumerate(SHAPES)
    ],
)
def test_debug_mode_finds_what_is_read_or_written_elsewhere(operand, side, kind):
    n, beyond = 40, 2000  # flags are gathered as bits, in words of 32
    indices = np.arange(n, dtype=np.int32)
    indices[n // 2] = beyond
    data = np.ones(1 if kind == "equal" else n, np.float32)
    A = CSR((data, indices, np.arange(n + 1, dtype=np.int32)), shape=(n, n), check=False)
    x = OPERANDS[operand](jnp.ones(SHAPES[side](n)))
    with debug_mode(), pytest.raises(jax.errors.JaxRuntimeError, match=r"index \d+ is out of bounds .* with size \d"):
        jax.block_until_ready(A @ x if side.startswith("A") else x @ A)


@pytest.mark.parametrize("name", sorted(KERNELS.keys() - SHARED))
def test_a_kernel_can_be_kept_on_disk_and_exported(name):
    """Its content hash is the same in every process."""
    kernel = KERNELS[name]
    assert COMPILER.examine(COMPILER.fresh(kernel)).unknown == []
    assert kernel.stats.cache_path is not None
