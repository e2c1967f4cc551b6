"""Debug mode: checks of all indices in kernels and their helpers, with the index in the message."""

import inspect
import types

import jax
import jax.numpy as jnp
import numba
import numpy as np
import pytest
from numba.core import cgutils, lowering
from numpy.testing import assert_array_equal

from xlakernel.core import debug_mode
from xlakernel.numba import numba_kernel

# JAX raises a ValueError where the program ran in the calling thread, and its own error where it did not.
RAISED = (jax.errors.JaxRuntimeError, ValueError)
X = np.arange(1, 5, dtype=np.float32)


@pytest.fixture(autouse=True)
def _debug():
    with debug_mode():
        yield


def message_of(kernel, *inputs):
    with pytest.raises(RAISED) as caught:
        run(kernel, *inputs)
    return str(caught.value)


def run(kernel, *inputs):
    return jax.block_until_ready(numba_kernel(kernel, outs=lambda x, *_: x)(*inputs))


def line_of(function, text="# here"):
    lines, first = inspect.getsourcelines(getattr(function, "py_func", function))
    return first + next(i for i, line in enumerate(lines) if text in line)


# The index is an input, so that each kernel also runs where nothing is wrong.


@numba.njit
def reads(x, index, out):
    out[:] = 0
    out[0] = x[index[()]]  # here


@numba.njit
def writes(x, index, out):
    out[:] = 0
    out[index[()]] = x[0]  # here


@numba.njit
def get(x, index):
    return x[index]  # here


@numba.njit
def put(x, index, value):
    x[index] = value  # here


@numba.njit
def get_deeply(x, index):
    return get(x, index) + 0


@numba.njit
def reads_in_a_helper(x, index, out):
    out[:] = 0
    out[0] = get(x, index[()])


@numba.njit
def writes_in_a_helper(x, index, out):
    out[:] = 0
    put(out, index[()], x[0])


@numba.njit
def reads_in_a_helpers_helper(x, index, out):
    out[:] = 0
    out[0] = get_deeply(x, index[()])


def closing_over(helper):
    @numba.njit
    def reads_in_a_closures_helper(x, index, out):
        out[:] = 0
        out[0] = helper(x, index[()])

    return reads_in_a_closures_helper


def closing_over_many(helpers):
    @numba.njit
    def reads_in_one_of_many_helpers(x, index, out):
        out[:] = 0
        out[0] = helpers[0](x, index[()])

    return reads_in_one_of_many_helpers


library = types.ModuleType("library")
library.get, library.inner = get, types.ModuleType("library.inner")
library.inner.get, library.inner.library = get, library


@numba.njit
def reads_in_a_modules_helper(x, index, out):
    out[:] = 0
    out[0] = library.get(x, index[()])


@numba.njit
def reads_in_an_inner_modules_helper(x, index, out):
    out[:] = 0
    out[0] = library.inner.get(x, index[()])


@numba.njit
def takes_a_function(function, x, index):
    return function(x, index)


@numba.njit
def reads_in_a_function_passed_on(x, index, out):
    out[:] = 0
    out[0] = takes_a_function(get, x, index[()])


@numba.njit
def descend(x, index, depth):
    if depth == 0:
        return x[index]  # here
    return ascend(x, index, depth - 1)


@numba.njit
def ascend(x, index, depth):
    if depth == 0:
        return x[0]
    return descend(x, index, depth - 1)


@numba.njit
def reads_in_functions_that_call_each_other(x, index, out):
    out[:] = 0
    out[0] = descend(x, index[()], 4)


@numba.njit(inline="always")
def inlined(x, index):
    return x[index]  # here


@numba.njit
def reads_where_a_helper_is_inlined(x, index, out):
    out[:] = 0
    out[0] = inlined(x, index[()])


@numba.njit(parallel=True)
def writes_in_a_loop(x, index, out):
    at = index[()]
    out[:] = 0
    for i in numba.prange(x.size):
        if i == 0:
            out[at] = x[i]  # here


@numba.njit(parallel=True)
def fill_in_parallel(x, at, out):
    for i in numba.prange(x.size):
        if i == 0:
            out[at] = x[i]  # here


@numba.njit
def writes_in_a_helpers_loop(x, index, out):
    out[:] = 0
    fill_in_parallel(x, index[()], out)


@numba.njit(parallel=True)
def calls_a_helper_in_a_loop(x, index, out):
    at = index[()]
    out[:] = 0
    for i in numba.prange(x.size):
        if i == 0:
            put(out, at, x[i])


@numba.njit(boundscheck=False, fastmath=True, error_model="numpy")
def reads_with_options(x, index, out):
    out[:] = 0
    out[0] = x[index[()]]  # here


# Each kernel, and the function that uses the index.
KERNELS = [
    *((reads, reads), (writes, writes), (reads_with_options, reads_with_options)),
    *((reads_in_a_helper, get), (writes_in_a_helper, put), (reads_in_a_helpers_helper, get)),
    *((closing_over(get), get), (closing_over(get_deeply), get), (closing_over_many((get,)), get)),
    *((reads_in_a_modules_helper, get), (reads_in_an_inner_modules_helper, get), (reads_in_a_function_passed_on, get)),
    *((reads_in_functions_that_call_each_other, descend), (reads_where_a_helper_is_inlined, inlined)),
    *((writes_in_a_loop, writes_in_a_loop), (writes_in_a_helpers_loop, fill_in_parallel)),
    (calls_a_helper_in_a_loop, put),
]


@pytest.mark.filterwarnings("ignore::numba.NumbaExperimentalFeatureWarning")  # functions in a tuple
@pytest.mark.parametrize(("kernel", "user"), KERNELS, ids=lambda function: function.__name__)
def test_an_index_out_of_bounds(kernel, user):
    for index in (4, 7, 2**31 - 1, -5, -(2**31)):
        message = message_of(kernel, X, np.int32(index))
        assert f"IndexError: index {index} is out of bounds for axis 0 with size 4" in message
        assert f"raised by kernel '{kernel.__name__}', {__file__}:{line_of(user)} in " in message
    for index in (0, 3, -1, -4):
        found = run(kernel, X, np.int32(index))
        expected = np.zeros(4, np.float32)
        if "writes" in kernel.__name__ or "calls" in kernel.__name__:
            expected[index] = X[0]
        else:
            expected[0] = X[index]
        assert_array_equal(found, expected)


@numba.njit
def reads_unsigned(x, out):
    out[:] = x[np.uint64(x.size) - np.uint64(5)]


def test_an_unsigned_index_below_zero():
    assert "index -1 is out of bounds for axis 0 with size 4" in message_of(reads_unsigned, X)


@numba.njit
def reads_matrix(x, row, column, out):
    out[:] = x[row[()], column[()]]


@numba.njit
def reads_row(x, row, column, out):
    out[:] = x[row[()]][column[()]]


@numba.njit
def reads_column(x, row, column, out):
    out[:] = x[:, column[()]][row[()]]


@pytest.mark.parametrize("kernel", [reads_matrix, reads_row, reads_column], ids=lambda kernel: kernel.__name__)
def test_matrices(kernel):
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert_array_equal(run(kernel, x, -1, -3), np.full((2, 3), 3))
    assert "index 2 is out of bounds for axis 0 with size 2" in message_of(kernel, x, 2, 0)
    message = message_of(kernel, x, 0, -4)
    axis = 0 if kernel is reads_row else 1
    assert f"index -4 is out of bounds for axis {axis} with size 3" in message


@numba.njit
def reads_many(x, indices, out):
    out[:] = x[indices]


def test_an_array_of_indices():
    assert_array_equal(run(reads_many, X, np.array([3, 2, 1, -4])), X[[3, 2, 1, 0]])
    message = message_of(reads_many, X, np.array([0, 1, 4, 2]))
    assert "IndexError: index 4 is out of bounds for " in message
    assert "size 4" in message


@numba.njit
def reads_slice(x, out):
    out[:] = 0
    out[: x[2:99].size] = x[2:99]


def test_a_slice_is_cut_as_in_python():
    assert_array_equal(run(reads_slice, X), [3, 4, 0, 0])


@numba.njit
def catches(x, out):
    out[:] = 0
    try:
        out[0] = get(x, x.size)
    except Exception:  # noqa: BLE001  # Numba supports no other
        out[1] = 1
    try:
        out[x.size] = 1
    except Exception:  # noqa: BLE001  # Numba supports no other
        out[2] = 1


def test_a_kernel_may_catch_the_exception():
    assert_array_equal(run(catches, X), [0, 1, 1, 0])


def test_a_later_slice_of_a_batch():
    mapped = jax.vmap(numba_kernel(reads, outs=lambda x, _: x), in_axes=(None, 0))
    with pytest.raises(RAISED, match="index 4 is out of bounds for axis 0 with size 4"):
        jax.block_until_ready(mapped(X, jnp.array([0, 1, 4])))
    assert_array_equal(mapped(X, jnp.array([0, 1]))[:, 0], X[:2])


def test_the_users_functions_and_settings_stay_unchanged():
    @numba.njit
    def helper(x, index):
        return x[index]

    @numba.njit
    def kernel(x, out):
        for i in range(x.size):
            out[i] = helper(x, i)

    check, lower = cgutils.do_boundscheck, lowering.Lower.lower_inst
    assert_array_equal(run(kernel, X), X)
    for dispatcher in (kernel, helper):
        assert dispatcher.overloads == {}
        assert not dispatcher.targetoptions.get("boundscheck")
    assert cgutils.do_boundscheck is check
    assert lowering.Lower.lower_inst is lower


def test_numbas_own_switch_does_not_turn_the_check_off(monkeypatch):
    @numba.njit
    def kernel(x, out):
        out[:] = x[x.size]

    monkeypatch.setattr(numba.config, "BOUNDSCHECK", 0)
    assert "index 4 is out of bounds" in message_of(kernel, X)
    assert numba.config.BOUNDSCHECK == 0
