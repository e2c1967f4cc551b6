"""Handlers that call something other than a function of Numba's, with attributes that are arrays."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from llvmlite import ir
from numba.core import cgutils
from numpy.testing import assert_array_equal

from xlakernel.core.backend.native import Argument, Callee, build_handler
from xlakernel.core.ffi.registry import ensure_registered
from xlakernel.core.native.machine.frame import I64

RAISED = (jax.errors.JaxRuntimeError, ValueError)  # JAX raises the latter where the program ran in the calling thread
numbers = itertools.count()


class Count(Callee):
    """Adds 1 to the first elements of the output; how many of them is the attribute's first number."""

    def prepare(self, builder, frame, arrays, attributes):
        _, data = frame.array_attribute(0)
        return list(arrays.values()), builder.load(builder.bitcast(data, I64.as_pointer()))

    def call(self, builder, frame, prepared):
        (_, array), count = prepared
        out = builder.bitcast(array.data(builder), ir.IntType(32).as_pointer())
        with cgutils.for_range(builder, count, intp=I64) as loop:
            builder.atomic_rmw("add", builder.gep(out, [loop.index]), ir.Constant(ir.IntType(32), 1), "monotonic")


ARGUMENTS = [
    Argument("input", 0, "int32", 1),
    Argument("output", 0, "int32", 1),
    Argument("attribute", 0, "uint8", 1, size=8),
]


@pytest.fixture(scope="module")
def target():
    name = f"test/count{next(numbers)}"
    return ensure_registered(name, "cpu", lambda: build_handler(Count(), ARGUMENTS, kernel="count", place="here:1"))


def call(target, shape, count, dtype=np.uint8):
    attribute = np.frombuffer(np.int64(count).tobytes(), dtype)
    run = jax.ffi.ffi_call(target, jax.ShapeDtypeStruct(shape, jnp.int32), input_output_aliases={0: 0})
    return jax.jit(lambda x: run(x, launch=attribute))(jnp.zeros(shape, jnp.int32))


@pytest.mark.parametrize(("slices", "size"), [(1, 7), (2, 300_000), (5, 1000), (1000, 3), (3, 1), (0, 5)])
def test_each_slice_runs_once(target, slices, size):
    assert_array_equal(call(target, (slices, size), size), np.ones((slices, size)))


def test_a_call_without_a_batch(target):
    assert_array_equal(call(target, (7,), 7), np.ones(7))


def test_the_attributes_of_a_call_are_read(target):
    assert_array_equal(call(target, (4, 3), 2), [[1, 1, 0]] * 4)


def test_an_attribute_of_another_size_is_refused(target):
    run = jax.ffi.ffi_call(target, jax.ShapeDtypeStruct((3,), jnp.int32))
    with pytest.raises(RAISED, match=r"(?s)INVALID_ARGUMENT.*count: attribute 0 is not of size 8"):
        jax.block_until_ready(jax.jit(lambda x: run(x, launch=np.zeros(16, np.uint8)))(jnp.zeros(3, jnp.int32)))


def test_an_attribute_of_another_dtype_is_refused(target):
    with pytest.raises(RAISED, match=r"(?s)INVALID_ARGUMENT.*count: attribute 0 is not uint8"):
        jax.block_until_ready(call(target, (3,), 3, np.float32))


def test_an_attribute_that_is_no_array_is_refused(target):
    run = jax.ffi.ffi_call(target, jax.ShapeDtypeStruct((3,), jnp.int32))
    with pytest.raises(RAISED, match=r"(?s)INVALID_ARGUMENT.*count: attribute 0 is not an array"):
        jax.block_until_ready(jax.jit(lambda x: run(x, launch=np.int64(3)))(jnp.zeros(3, jnp.int32)))
