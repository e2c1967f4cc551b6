"""Handlers in debug mode, which run their kernel on copies of its arrays with poisoned outputs."""

import itertools
import random
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_array_equal

from xlakernel.core.backend.native import Argument, new_lock
from xlakernel.core.ffi import abi
from xlakernel.core.native.debugging.call_frame import ArrayView
from xlakernel.core.native.debugging.copies import POISONS, Copies, part_of, poison
from xlakernel.core.native.debugging.memory import HostMemory
from xlakernel.core.native.debugging.observer import runs_needed

F32 = ("float32", 1)
I8 = ("int8", 1)

# JAX raises a ValueError where the program ran in the calling thread, and its own error where it did not.
RAISED = (jax.errors.JaxRuntimeError, ValueError)


def call(target, outs, *ins, aliases=None, **attributes):
    """Call a registered target with buffers as they are, batched or not."""
    options = {"has_side_effect": True, "input_output_aliases": aliases}
    return jax.jit(lambda *xs: jax.ffi.ffi_call(target, outs, **options)(*xs, **attributes))(*ins)


def struct_of(x):
    return jax.ShapeDtypeStruct(x.shape, x.dtype)


def message_of(*args, **kwargs):
    with pytest.raises(RAISED) as caught:
        jax.block_until_ready(call(*args, **kwargs))
    return str(caught.value)


def scale_all_but(x, factor, skipped, out):
    for i in range(x.size):
        if i != skipped:
            out[i] = factor * x[i]


def add_to(total, x, new_total, copy):
    for i in range(x.size):
        new_total[i] += x[i]
        copy[i] = x[i]


def fail(x, out):
    raise ValueError("its own")


@pytest.fixture(scope="module")
def scale_target(register):
    return register(scale_all_but, [F32], [F32], {"factor": "float32", "skipped": "int32"}, debug=True)


def test_scalars_are_passed(scale_target):
    x = jnp.arange(3.0)
    assert_array_equal(call(scale_target, struct_of(x), x, np.float32(3), np.int32(-1)), 3 * x)
    message = message_of(scale_target, struct_of(x), x, np.float32(3), np.int32(1))
    assert message.startswith("FAILED_PRECONDITION: kernel 'scale_all_but' of ")
    assert "did not write element (1,) of output 0 (float32[3])." in message


@pytest.mark.parametrize("batch", [(2,), (2, 1, 3), (0,), (1,)], ids=str)
def test_batches_with_shared_inputs(scale_target, batch):
    out = jax.ShapeDtypeStruct((*batch, 4), jnp.float32)
    x = jnp.arange(4.0).reshape((1,) * len(batch) + (4,))
    scalars = (np.full((1,) * len(batch), value) for value in (np.float32(2), np.int32(-1)))
    assert_array_equal(call(scale_target, out, x, *scalars), np.broadcast_to(2 * x, out.shape))


def test_the_call_is_checked_before_the_kernel_runs_on_copies(scale_target):
    out = jax.ShapeDtypeStruct((3,), jnp.float32)
    text = message_of(scale_target, out, jnp.arange(3), np.float32(3), np.int32(1))
    assert "differ in dtype or rank" in text


def test_memory_that_an_input_and_an_output_share(register):
    target = register(add_to, [("int32", 1), I8], [("int32", 1), I8], debug=True)
    total, x = jnp.full(256, 1000, jnp.int32), jnp.arange(256, dtype=jnp.uint8).view(jnp.int8)
    # Among all values is the poison, so the kernel runs more than once.
    new_total, copy = call(target, (struct_of(total), struct_of(x)), total, x, aliases={0: 0})
    assert_array_equal(new_total, 1000 + np.asarray(x, np.int32))
    assert_array_equal(copy, x)
    assert_array_equal(total, np.full(256, 1000))


@pytest.mark.parametrize("element", range(4))
def test_the_changed_element_of_an_input(element):
    data = np.arange(4, dtype=np.int32)
    view = ArrayView(Argument("input", 0, "int32", 1, None), data.ctypes.data, (4,), 0)
    copies = Copies([view], [], 0, HostMemory())
    copies.bytes_of(view).view(np.int32)[element] += 1
    assert_array_equal(copies.changed(view), np.arange(4) == element)


def test_an_empty_array_at_an_address_that_others_share():
    """XLA passes arrays without elements at arbitrary addresses."""
    data = np.arange(4, dtype=np.int32)

    def view(source, index, extent):
        argument = Argument(source, index, "int32", 1, None)
        return ArrayView(argument, data.ctypes.data, (extent,), 0)

    inputs, output = [view("input", 0, 4), view("input", 1, 0)], view("output", 0, 4)
    copies = Copies(inputs, [output], 0, HostMemory())
    with copies.placed() as addresses:
        assert addresses[inputs[0]] == addresses[output] != addresses[inputs[1]]
    assert_array_equal(copies.bytes_of(output).view(np.int32), data)
    assert not list(copies.damaged())


def largest(x, out):
    for i in range(x.size):
        out[i] = max(out[i], x[i])


def raise_to(x, out):
    for i in range(x.size):
        if not out[i] > x[i]:  # as a GPU's atomic maximum, which ignores NaN
            out[i] = x[i]


def add_up(x, out):
    for i in range(x.size):
        out[0] += x[i]


def set_bits(x, out):
    for i in range(1, x.size):
        out[i] |= x[i]
    out[0] = x[0]


def copy(x, out):
    for i in range(x.size):
        out[i] = x[i]


def draw(x, out):
    for i in range(x.size):
        out[i] = int(2 * random.random())


@pytest.mark.parametrize(
    ("kernel", "dtype", "extent", "element"),
    [
        (largest, "int32", 3, 0),
        (raise_to, "float32", 3, 0),
        (raise_to, "float16", 3, 0),
        (add_up, "int64", 1, 0),
        (add_up, "int8", 1, 0),
        (set_bits, "int32", 3, 1),
        (set_bits, "uint16", 3, 1),
    ],
)
def test_an_element_that_is_read_before_it_is_written(register, enable_x64, kernel, dtype, extent, element):
    with enable_x64():
        target = register(kernel, [(dtype, 1)], [(dtype, 1)], debug=True)
        x = jnp.full(3, 3, dtype)
        message = message_of(target, jax.ShapeDtypeStruct((extent,), x.dtype), x)
    expected = f"read element ({element},) of output 0 ({dtype}[{extent}]) before it was written: the result is "
    assert message.startswith(f"FAILED_PRECONDITION: kernel '{kernel.__name__}' of ") and expected in message


@pytest.mark.parametrize("kernel", [copy, draw])
def test_results_that_do_not_depend_on_the_earlier_contents(register, kernel):
    target = register(kernel, [("int32", 1)], [("int32", 1)], debug=True)
    x = jnp.ones(100, jnp.int32)
    for _ in range(20):
        found = call(target, struct_of(x), x)
    assert kernel is draw or (found == x).all()


@pytest.mark.parametrize("ordered", [False, True])
def test_a_kernel_that_must_run_in_order_runs_once(register, ordered):
    """The number of runs determines the bytes that cannot be distinguished from unwritten ones."""
    target = register(lambda x, out: None, [I8], [I8], debug=True, ordered=ordered)
    x = jnp.ones(3, jnp.int8)
    if ordered:
        assert_array_equal(call(target, struct_of(x), x), poison(np.dtype("int8"), 0).view(np.int8).repeat(3))
    else:
        assert "did not write element (0,) of output 0 (int8[3]), and 2 more." in message_of(target, struct_of(x), x)


@pytest.mark.parametrize("width", ["float32", "complex64"])
def test_one_run_suffices_for_wide_elements_with_a_caveat(register, width):
    target = register(lambda x, out: None, [(width, 1)], [(width, 1)], debug=True, ordered=True)
    x = jnp.ones(3, width)
    assert "(Unless it wrote " in message_of(target, struct_of(x), x)


def test_a_lock_is_free_again_after_each_kind_of_end(register):
    lock, x = new_lock(), jnp.ones(3)
    targets = [
        register(kernel, [F32], [F32], debug=True, lock=lock) for kernel in (fail, lambda x, out: None, copy_all)
    ]
    for _ in range(2):
        assert "ValueError: its own" in message_of(targets[0], struct_of(x), x)
        assert "did not write" in message_of(targets[1], struct_of(x), x)
        assert_array_equal(call(targets[2], struct_of(x), x), x)


def copy_all(x, out):
    for i in range(x.size):
        out[i] = x[i]


def test_many_threads_and_one_lock(register):
    target = register(copy_all, [F32], [F32], debug=True, lock=new_lock())
    program = jax.jit(jax.ffi.ffi_call(target, jax.ShapeDtypeStruct((100,), jnp.float32)))

    def work(number):
        return np.asarray(program(jnp.full(100, float(number))))

    with ThreadPoolExecutor(8) as pool:
        for number, found in enumerate(pool.map(work, range(200))):
            assert_array_equal(found, np.full(100, number))


# Poison


@pytest.mark.parametrize("name", abi.DATA_TYPES)
def test_poison_has_the_properties_that_its_detection_needs(name):
    dtype = np.dtype(name)
    patterns = [poison(dtype, number).tobytes() for number in range(POISONS)]
    assert {len(pattern) for pattern in patterns} == {dtype.itemsize}
    needed = runs_needed(dtype, once=False)
    assert needed <= POISONS
    for one, other in itertools.combinations(patterns[:needed], 2):
        assert one != other
    elements = np.frombuffer(b"".join(patterns), dtype)
    if dtype.kind == "b":
        assert needed == 1
        assert not set(elements.view(np.uint8).tolist()) & {0, 1}
    else:
        assert needed >= 2
        assert needed * part_of(dtype).itemsize >= 8
    if dtype.kind not in "biu":
        found = elements.astype(np.complex128)
        assert np.isnan(found[::2]).all()
        assert np.isfinite(found[1::2]).all() and (found[1::2].real > 1e4).all()


@pytest.mark.parametrize(
    ("name", "runs"), [("bool", 1), ("int8", 8), ("bfloat16", 4), ("float32", 1), ("complex64", 1)]
)
def test_the_number_of_runs_by_dtype(name, runs):
    assert runs_needed(np.dtype(name), once=True) == runs
