"""The Numba kernels of the sparse operators."""

import pytest
from conformance import KernelCases
from numba.core.registry import CPUDispatcher

from xlakernel.core.ffi.fingerprint import unknown_objects
from xlakernel.numba._recipe import COMPILER
from xlakernel.sparse.kernels import numba as generators
from xlakernel.sparse.kernels.numba import conversion, coo, events, gather, matrix, sampled, scatter

ROOMS = (conversion, coo, events, gather, matrix, sampled, scatter)
KERNELS = {
    name: value
    for room in ROOMS
    for name, value in vars(room).items()
    if isinstance(value, CPUDispatcher) and value.__module__ == room.__name__ and not name.startswith("_")
}


class TestNumba(KernelCases):
    generators = generators


@pytest.mark.parametrize("name", sorted(KERNELS.keys() - {"clear", "add_private"}))
def test_a_kernel_can_be_kept_on_disk_and_exported(name):
    """Its content hash is the same in every process."""
    kernel = KERNELS[name]
    assert unknown_objects(COMPILER.fresh(kernel), COMPILER.implementations()) == []
    assert kernel.stats.cache_path is not None
