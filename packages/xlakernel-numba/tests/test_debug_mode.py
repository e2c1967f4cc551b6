"""Debug mode: unwritten outputs, changed inputs, and writes out of bounds."""

from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numba
import numpy as np
import pytest
from numba import objmode
from numba.extending import register_jitable
from numpy.testing import assert_array_equal

from xlakernel.core import debug_mode
from xlakernel.core.ffi import abi
from xlakernel.core.native.debugging.copies import POISONS, poison
from xlakernel.numba import numba_kernel

pytestmark = pytest.mark.slow

# JAX raises a ValueError where the program ran in the calling thread, and its own error where it did not.
RAISED = (jax.errors.JaxRuntimeError, ValueError)
Struct = jax.ShapeDtypeStruct
DTYPES = list(abi.DATA_TYPES)


@pytest.fixture(autouse=True)
def _debug():
    with debug_mode():
        yield


def message_of(run, *inputs, **static):
    with pytest.raises(RAISED) as caught:
        jax.block_until_ready(run(*inputs, **static))
    return str(caught.value)


def bits(array):
    return np.asarray(array).view(np.uint8)


def same(x, *_):
    return x


@numba.njit
def copies_but_one(x, skipped, out):
    for position, index in enumerate(np.ndindex(x.shape)):
        if position != skipped[()]:
            out[index] = x[index]


run_but_one = numba_kernel(copies_but_one, outs=same)


# Elements that are not written


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("dtype", DTYPES)
def test_an_unwritten_element_is_found_whatever_its_dtype(dtype):
    x = np.ones((2, 3), jnp.dtype(dtype))
    for skipped in (0, 4):
        message = message_of(run_but_one, x, skipped)
        assert f"kernel 'copies_but_one' of {__file__}:{copies_but_one.py_func.__code__.co_firstlineno} " in message
        index = np.unravel_index(skipped, x.shape)
        assert f"did not write element ({index[0]}, {index[1]}) of output 0 ({dtype}[2,3]). Every element " in message
    assert_array_equal(bits(run_but_one(x, -1)), bits(x))


@pytest.mark.parametrize("shape", [(), (1,), (5,), (2, 3), (2, 1, 3), (1, 2, 1, 2)], ids=str)
def test_an_unwritten_element_is_named_by_its_index(shape):
    x = np.ones(shape, np.float32)
    for skipped in range(x.size):
        index = tuple(int(i) for i in np.unravel_index(skipped, shape))
        assert f"element {index} of output 0 (float32[{','.join(map(str, shape))}])." in message_of(
            run_but_one, x, skipped
        )


def test_an_unwritten_element_of_a_batch_is_named_with_its_slice():
    x = jnp.ones((4, 3))
    skipped = jnp.array([-1, -1, 1, 2])
    mapped = jax.vmap(run_but_one)
    assert "element (1,) of output 0 (float32[3]), in slice (2,) of a batch of (4,), and 1 more." in message_of(
        mapped, x, skipped
    )
    assert_array_equal(mapped(x, jnp.full(4, -1)), x)
    nested = jax.vmap(jax.vmap(run_but_one, in_axes=(None, 0)), in_axes=(0, None))  # each shares an input
    assert "element (1,) of output 0 (float32[3]), in slice (0, 2) of a batch of (4, 4), and 7 more." in message_of(
        nested, x, skipped
    )
    assert_array_equal(nested(x, jnp.full(2, -1)), np.ones((4, 2, 3)))


@pytest.mark.parametrize("method", ["sequential", "sequential_unrolled", "broadcast_all", "expand_dims"])
def test_every_way_to_map(method):
    mapped = jax.vmap(numba_kernel(copies_but_one, outs=same, vmap_method=method), in_axes=(0, None))
    assert "did not write element (1,) of output 0" in message_of(mapped, jnp.ones((2, 3)), 1)
    assert_array_equal(mapped(jnp.ones((2, 3)), -1), np.ones((2, 3)))


@numba.njit
def divides(x, quotient, rest):
    for i in range(x.size):
        quotient[i] = x[i] // 3
        if x[i] != 5:
            rest[i] = x[i] % 3


def test_the_right_one_of_several_outputs_is_named():
    run = numba_kernel(divides, outs=lambda x: (x, x))
    message = message_of(run, jnp.arange(8, dtype=jnp.int32))
    assert "did not write element (5,) of output 1 (int32[8])." in message
    assert_array_equal(run(jnp.arange(5)), [[0, 0, 0, 1, 1], [0, 1, 2, 0, 1]])


@numba.njit
def fills(out, count=0):
    for i in range(count):
        out[i] = i


def test_a_kernel_without_inputs():
    run = numba_kernel(fills, outs=Struct((4,), jnp.int32))
    assert "did not write element (1,) of output 0 (int32[4]), and 2 more." in message_of(run, count=1)
    assert_array_equal(run(count=4), range(4))


@pytest.mark.parametrize("shape", [(0,), (2, 0), (0, 3)], ids=str)
def test_no_elements(shape):
    x = np.ones(shape, np.float32)
    assert run_but_one(x, -1).shape == shape
    assert jax.vmap(run_but_one, in_axes=(None, 0))(x, jnp.arange(3)).shape == (3, *shape)
    assert jax.vmap(run_but_one, in_axes=(0, None))(jnp.ones((0, 2, 2)), 1).shape == (0, 2, 2)


@numba.njit
def accumulates(x, out):
    for i in range(x.size):
        out[i] += x[i]


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "complex64", "complex128"])
def test_a_value_computed_from_an_unwritten_float_is_nan(dtype):
    """The sum with a NaN is that NaN, and float16 and bfloat16 keep it through float32."""
    message = message_of(numba_kernel(accumulates, outs=same), jnp.ones(3, dtype))
    assert "did not write element (0,)" in message
    assert "written, and before it is read" in message


# No false alarm


@numba.njit
def copies(x, out):
    for i in range(x.size):
        out[i] = x[i]


run_copies = numba_kernel(copies, outs=same)


@pytest.mark.parametrize("dtype", [name for name in DTYPES if jnp.dtype(name).itemsize <= 2 and name != "bool"])
def test_a_kernel_may_write_every_bit_pattern(dtype):
    unsigned = f"u{jnp.dtype(dtype).itemsize}"
    x = np.arange(256 ** jnp.dtype(dtype).itemsize, dtype=unsigned).view(jnp.dtype(dtype))
    assert_array_equal(bits(run_copies(x)), bits(x))


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_kernel_may_write_values_equal_to_poison(dtype):
    poisons = np.concatenate([poison(jnp.dtype(dtype), number) for number in range(POISONS)])
    x = np.array([False, True]) if dtype == "bool" else poisons.view(jnp.dtype(dtype))
    assert_array_equal(bits(run_copies(x)), bits(x))


@numba.njit
def random_bytes(x, out):
    for i in range(out.size):
        out[i] = np.random.randint(256)  # noqa: NPY002  # Numba compiles this one


def test_random_values_are_not_reported():
    """After two runs, about 15 of a million random bytes would count as unwritten."""
    run = numba_kernel(random_bytes, outs=Struct((1_000_000,), jnp.uint8))
    assert np.unique(run(0)).size == 256


@numba.njit
def adds_and_copies(total, x, new_total, out):
    for i in range(x.size):
        new_total[i] += x[i]
        out[i] = x[i]


def test_an_update_in_place_happens_once_though_the_kernel_runs_again():
    run = numba_kernel(adds_and_copies, outs=lambda total, x: (total, x), input_output_aliases={0: 0})
    total, x = jnp.full(256, 1000, jnp.int32), jnp.arange(256, dtype=jnp.uint8)
    for _ in range(2):
        new_total, out = run(total, x)
        assert_array_equal(new_total, 1000 + np.arange(256))
        assert_array_equal(out, x)
        assert_array_equal(total, np.full(256, 1000))
    stacked = jax.vmap(run, in_axes=(None, 0))(total, jnp.stack([x, x]))
    assert_array_equal(stacked[0], [1000 + np.arange(256)] * 2)


@numba.njit
def leaves_alone(x, out):
    pass


def test_an_output_in_the_memory_of_an_input_counts_as_written():
    run = numba_kernel(leaves_alone, outs=same, input_output_aliases={0: 0})
    assert_array_equal(run(jnp.arange(3)), range(3))
    assert "did not write element (0,)" in message_of(numba_kernel(leaves_alone, outs=same), jnp.arange(3))


# Kernels that must not run twice

notes = []


def note(value):
    notes.append(value)


@numba.njit
def notes_and_copies(x, skipped, out):
    with objmode():
        note("run")
    for i in range(x.size):
        if i != skipped[()]:
            out[i] = x[i]


@numba.njit
def only_notes(x):
    with objmode():
        note("run")


def test_a_kernel_with_a_side_effect_runs_once():
    run = numba_kernel(notes_and_copies, outs=same, has_side_effect=True)
    for dtype in ("bool", "float32", "int32", "complex64"):
        notes.clear()
        message = message_of(run, jnp.ones(3, dtype), 1)
        assert notes == ["run"]
        assert f"did not write element (1,) of output 0 ({dtype}[3])." in message
        assert ("(Unless it wrote " in message) is (dtype != "bool")
    notes.clear()
    x = jnp.arange(256, dtype=jnp.uint8)  # one run cannot tell
    assert_array_equal(run(x, -1), x)
    assert notes == ["run"]


def test_a_kernel_without_outputs():
    notes.clear()
    numba_kernel(only_notes, outs=(), has_side_effect=True)(jnp.ones(3))
    jax.effects_barrier()
    assert notes == ["run"]


def test_other_kernels_run_with_two_poisons():
    run = numba_kernel(notes_and_copies, outs=same)
    notes.clear()
    jax.block_until_ready(run(jnp.ones(3), -1))
    assert notes == ["run"] * 2
    message_of(run, jnp.ones(3), 1)
    assert notes == ["run"] * 4


# The caller's memory

# Numba compiles them although x is read-only.
UNSEEN_WRITES = [
    "x.flat[1] = 9",
    "\n    for element in np.nditer(x): element[()] = 9",
    "np.fill_diagonal(x.reshape(2, 2), 9)",
    "np.dot(x.reshape(2, 2), out.reshape(2, 2) + 1, x.reshape(2, 2))",
]


def writing(statement):
    space = {"np": np}
    exec(f"def writing(x, out):\n    out[:] = 0\n    {statement}\n", space)  # noqa: S102
    return numba_kernel(numba.njit(space["writing"]), outs=same)


@pytest.mark.parametrize("statement", UNSEEN_WRITES)
def test_a_write_that_numba_does_not_see_leaves_the_callers_array_as_it_was(statement):
    x = jnp.arange(1, 5, dtype=jnp.float32)
    run = writing(statement)
    for call in (run, jax.jit(run)):
        message = message_of(call, x)
        assert "kernel 'writing' of <string>:1 changed element (" in message
        assert " of input 0 (float32[4])" in message
        assert "input_output_aliases" in message
        assert_array_equal(x, [1, 2, 3, 4])


def test_the_changed_element_is_named_with_its_values():
    x = jnp.arange(1, 5, dtype=jnp.float32)
    assert "changed element (1,) of input 0 (float32[4]): 2.0 became 9.0." in message_of(writing("x.flat[1] = 9"), x)
    assert (
        "element (1,) of input 0 (float32[4]), in slice (0,) of a batch of (2,), and 1 more: 2.0 became"
        in message_of(jax.vmap(writing("x.flat[1] = 9")), jnp.stack([x, x]))
    )


@register_jitable
def declared(array, index, value):
    array[index] = value


@numba.njit
def writes_beside(x, index, out):
    out[:] = x
    declared(out, index[()], 1.0)


@pytest.mark.parametrize("index", [-16, -5, 4, 19])
def test_a_write_beside_an_array_that_no_check_sees(index):
    """Numba compiles declared implementations with the options of the declaration."""
    run = numba_kernel(writes_beside, outs=same)
    wrapped = index - 4 if index < 0 else index  # counted from the end
    assert "wrote out of bounds, beside output 0 (float32[4])" in message_of(run, jnp.ones(4), wrapped)
    assert_array_equal(run(jnp.zeros(4), -1), [0, 0, 0, 1])


# Exceptions, threads and loops


@numba.njit
def raises(x, out):
    x.flat[0] = 9
    raise KeyError("its own")


def test_the_kernels_own_exception_wins():
    x = jnp.ones(3)
    assert "KeyError: 'its own'" in message_of(numba_kernel(raises, outs=same), x)
    assert_array_equal(x, np.ones(3))


@numba.njit(parallel=True)
def parallel_but_one(x, skipped, out):
    left_out = skipped[()]
    for i in numba.prange(x.size):
        if i != left_out:
            out[i] = x[i]


@pytest.mark.parametrize("kernel", [copies_but_one, parallel_but_one], ids=lambda kernel: kernel.__name__)
def test_many_threads_at_once(kernel):
    run = numba_kernel(kernel, outs=same)
    x, harmful = jnp.arange(50.0), writing("x.flat[0] = 9")

    def work(_):
        with debug_mode():  # it holds for one thread
            for i in range(10):
                assert f"did not write element ({i},) of" in message_of(run, x, i)
                assert "changed element (0,)" in message_of(harmful, x)
                assert_array_equal(run(x, -1), np.arange(50.0))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(8)))
    assert_array_equal(x, np.arange(50.0))


def test_inside_a_program_with_control_flow():
    program = jax.jit(lambda x, skipped: jax.lax.scan(lambda c, s: (run_but_one(c, s) + 1, s), x, skipped)[0])
    assert_array_equal(program(jnp.zeros(3), jnp.full(4, -1)), np.full(3, 4))
    assert "did not write element (2,)" in message_of(program, jnp.zeros(3), jnp.array([-1, -1, 2]))
