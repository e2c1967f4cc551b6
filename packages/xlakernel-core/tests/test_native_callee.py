"""Handlers that call other code than a function compiled by Numba, with an attribute."""

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
    """Adds 1 to the first n elements of the output, where the attribute contains n."""

    def prepare(self, builder, frame, arrays):
        data = frame.attribute().data
        return list(arrays.values()), builder.load(builder.bitcast(data, I64.as_pointer()))

    def call(self, builder, frame, prepared):
        (_, array), count = prepared
        out = builder.bitcast(array.data(builder), ir.IntType(32).as_pointer())
        with cgutils.for_range(builder, count, intp=I64) as loop:
            builder.atomic_rmw("add", builder.gep(out, [loop.index]), ir.Constant(ir.IntType(32), 1), "monotonic")


ARGUMENTS = [Argument("input", 0, "int32", 1), Argument("output", 0, "int32", 1)]


@pytest.fixture(scope="module")
def target():
    name = f"test/count{next(numbers)}"

    def build():
        return build_handler(Count(), ARGUMENTS, kernel="count", place="here:1", attribute_nbytes=8)

    return ensure_registered(name, "cpu", build)


def call(target, shape, count, dtype=np.uint8):
    attribute = np.frombuffer(np.int64(count).tobytes(), dtype)
    run = jax.ffi.ffi_call(target, jax.ShapeDtypeStruct(shape, jnp.int32), input_output_aliases={0: 0})
    return jax.jit(lambda x: run(x, launch=attribute))(jnp.zeros(shape, jnp.int32))


@pytest.mark.parametrize(("slices", "size"), [(1, 7), (2, 300_000), (5, 1000), (1000, 3), (3, 1), (0, 5)])
def test_each_slice_runs_once(target, slices, size):
    assert_array_equal(call(target, (slices, size), size), np.ones((slices, size)))


def test_a_call_without_a_batch(target):
    assert_array_equal(call(target, (7,), 7), np.ones(7))


def test_each_call_has_its_own_attribute(target):
    assert_array_equal(call(target, (4, 3), 2), [[1, 1, 0]] * 4)


@pytest.mark.parametrize(
    "attribute", [np.zeros(16, np.uint8), np.zeros(8, np.float32), np.int64(3), "12345678"], ids=lambda a: str(type(a))
)
def test_another_attribute_is_refused(target, attribute):
    run = jax.ffi.ffi_call(target, jax.ShapeDtypeStruct((3,), jnp.int32))
    with pytest.raises(
        RAISED, match=r"(?s)INVALID_ARGUMENT.*count: the attribute of the call is not an array of 8 uint8"
    ):
        jax.block_until_ready(jax.jit(lambda x: run(x, launch=attribute))(jnp.zeros(3, jnp.int32)))
