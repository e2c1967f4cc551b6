"""Handlers that call something other than a function of Numba's: attributes that are arrays, and tasks."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from llvmlite import ir
from numba.core import cgutils
from numpy.testing import assert_array_equal

from xlakernel.core.ffi.registry import ensure_registered
from xlakernel.core.native import Argument, Callee, build_handler
from xlakernel.core.native.frame import I64, i64

TASKS = 300_000
RAISED = (jax.errors.JaxRuntimeError, ValueError)  # JAX raises the latter where the program ran in the calling thread
numbers = itertools.count()


class Count(Callee):
    """Adds 1 to one element of the output for each task; how many there are is the attribute's first number."""

    def tasks(self, builder, frame):
        _, data = frame.array_attribute(0)
        return builder.load(builder.bitcast(data, I64.as_pointer()))

    def prepare(self, builder, frame, arrays, attributes):
        return list(arrays.values())

    def call(self, builder, frame, prepared, first, last):
        out = builder.bitcast(prepared[1].data(builder), ir.IntType(32).as_pointer())
        with cgutils.for_range_slice(builder, first, last, i64(1), intp=I64) as (task, _):
            builder.atomic_rmw("add", builder.gep(out, [task]), ir.Constant(ir.IntType(32), 1), "monotonic")


ARGUMENTS = [
    Argument("input", 0, "int32", 1),
    Argument("output", 0, "int32", 1),
    Argument("attribute", 0, "uint8", 1, size=8),
]


@pytest.fixture(scope="module")
def target():
    name = f"test/count{next(numbers)}"
    return ensure_registered(name, "cpu", lambda: build_handler(Count(), ARGUMENTS, kernel="count", place="here:1"))


def call(target, shape, tasks, dtype=np.uint8):
    attribute = np.frombuffer(np.int64(tasks).tobytes(), dtype)
    run = jax.ffi.ffi_call(target, jax.ShapeDtypeStruct(shape, jnp.int32), input_output_aliases={0: 0})
    return jax.jit(lambda x: run(x, launch=attribute))(jnp.zeros(shape, jnp.int32))


@pytest.mark.parametrize("tasks", [1, 7, TASKS])
def test_each_task_runs_once(target, tasks):
    assert_array_equal(call(target, (tasks,), tasks), np.ones(tasks))


@pytest.mark.parametrize(("slices", "tasks"), [(1, TASKS), (2, TASKS), (5, 1000), (1000, 3), (3, 1), (0, 5)])
def test_each_task_of_each_slice_runs_once(target, slices, tasks):
    assert_array_equal(call(target, (slices, tasks), tasks), np.ones((slices, tasks)))


def test_fewer_tasks_than_elements(target):
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
