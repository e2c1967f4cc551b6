"""Huge pages for large results."""

import mmap
from pathlib import Path

import numpy as np
import pytest
from numba import njit

from xlakernel.sparse.kernels.numba.helpers.pages import use_huge_pages

MEBIBYTE = 1 << 20

pytestmark = pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="this Linux has no huge pages"
)


@njit
def advise(y):
    use_huge_pages(y)


def flags_of(address):
    """Return the flags that Linux has for the memory at *address*."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name, *words = line.split()
        if "-" in name:
            begin, end = (int(number, 16) for number in name.split("-"))
            inside = begin <= address < end
        elif inside and name == "VmFlags:":
            return words
    raise AssertionError(f"no memory at {address}")


@pytest.mark.parametrize(("size", "is_large"), [(8, True), (1, False)])
@pytest.mark.parametrize("offset", [0, 4])
def test_only_large_arrays_get_huge_pages(size, is_large, offset):
    memory = np.frombuffer(mmap.mmap(-1, size * MEBIBYTE), np.float32)
    advise(memory[offset:].reshape(-1, 4))
    assert ("hg" in flags_of(memory.ctypes.data + size * MEBIBYTE // 2)) == is_large
    assert not memory.any()
