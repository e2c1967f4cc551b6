"""Functions that launch compiled kernels: a kernel runs with the values of the time when it was compiled."""

import numba
import pytest

from xlakernel.core.errors import ExportError
from xlakernel.core.ffi.callables import Callables

FACTOR = 2


@pytest.fixture
def kernel():
    return numba.njit(lambda x: FACTOR * x)


@pytest.fixture
def launching(kernel):
    return Callables(lambda x: kernel(x))


def test_a_kernel_that_is_compiled_by_the_function_can_be_compared(launching, kernel):
    before = launching.examine()
    kernel(1.0)
    assert launching.examine() == before and not before.unknown


def test_a_kernel_that_was_compiled_with_other_values_cannot_be_compared(launching, kernel, monkeypatch):
    launching.examine()
    kernel(1.0)
    monkeypatch.setitem(globals(), "FACTOR", 3)
    (first,), (again,) = (launching.examine().unknown for _ in range(2))
    assert first is again and launching.examine().digest == launching.examine().digest
    monkeypatch.undo()
    assert not launching.examine().unknown


def test_a_kernel_that_was_compiled_before_it_was_seen_cannot_be_compared(kernel):
    kernel(1.0)
    assert len(Callables(lambda x: kernel(x)).examine().unknown) == 1


def compiled_before(x):
    return older(x)


older = numba.njit(lambda x: FACTOR * x)


def test_it_is_not_exported():
    older(1.0)
    function = Callables(compiled_before)
    with pytest.raises(ExportError, match=r"compiled_before launches <lambda>, which was compiled before"):
        function.write(function.examine().digest)
