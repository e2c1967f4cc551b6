"""Initial values of outputs: their bytes, and the fills of a stream."""

import ctypes
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from cuda.bindings import driver
from hypothesis import given
from hypothesis import strategies as st
from numba import cuda

from xlakernel.core import output_init
from xlakernel.core.errors import AliasError, LaunchError, ShardingRuleError
from xlakernel.core.gpu.fill import fill
from xlakernel.core.gpu.plan import Array
from xlakernel.core.structs import Struct
from xlakernel.cuda import numba_cuda_kernel

DTYPES = ("bool", "int8", "uint16", "int32", "uint64", "float16", "bfloat16", "float32", "float64", "complex64")
DTYPES += ("complex128",)


def pattern(value, dtype):
    return output_init.patterns("k", output_init.freeze("k", value, ()), [Struct((), jnp.dtype(dtype))])[0]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("value", [0, 1, True, 0.0, np.float32(1), np.int8(1), ml_dtypes.bfloat16(1)])
def test_a_value_that_a_dtype_has_is_its_bytes(value, dtype):
    assert pattern(value, dtype) == np.asarray(value).astype(jnp.dtype(dtype)).tobytes()


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (0.5, "int32"),
        (300, "int8"),
        (-1, "uint16"),
        (2, "bool"),
        (1e300, "float32"),
        (1e9, "float16"),
        (1j, "float32"),
        (float("nan"), "int32"),
        (float("inf"), "int64"),
        (2**64, "uint64"),
    ],
)
def test_a_value_that_a_dtype_does_not_have_is_refused(value, dtype):
    with pytest.raises(LaunchError, match="output_init"):
        pattern(value, dtype)


@pytest.mark.parametrize(
    ("value", "dtype"),
    [(0.1, "float32"), (0.1, "bfloat16"), (1 + 2j, "complex64"), (-0.0, "float64"), (2**64 - 1, "uint64")]
    + [(value, dtype) for value in (float("inf"), float("nan")) for dtype in ("float16", "float32", "complex128")],
)
def test_floats_are_rounded_and_need_not_be_finite(value, dtype):
    assert pattern(value, dtype) == np.asarray(value).astype(jnp.dtype(dtype)).tobytes()


@pytest.mark.parametrize("wrong", ["1", object(), np.ones(2), [[1, "x"]]])
def test_only_numbers_are_values(make_axpy, wrong):
    with pytest.raises(LaunchError, match="axpy: output_init has"):
        make_axpy(output_init=wrong)


def test_each_output_may_have_its_own(make_axpy):
    outs = [Struct((2,), jnp.float32), Struct((), jnp.int8)]
    for values in ((None, 3), {"b": None, "a": 3}):  # a dictionary is bound by name
        assert output_init.patterns("k", output_init.freeze("k", values, ("x", "b", "a")), outs) == (None, b"\x03")
    assert output_init.patterns("k", output_init.freeze("k", None, ()), outs) == (None, None)
    with pytest.raises(LaunchError, match="3 values for 1 outputs"):
        jax.eval_shape(make_axpy(output_init=[1, 2, 3]), jnp.ones(3), jnp.ones(3))


class Step(NamedTuple):
    v: object
    spikes: object


def test_a_dictionary_is_bound_by_name():
    def outs(x):
        return {"v": Struct((2,), jnp.float32), "spikes": Struct((2,), jnp.int8)}

    kernel = cuda.jit(lambda x, v, spikes: None)
    for init in ({"v": 0.5, "spikes": None}, {"spikes": 1, "v": None}, (0.5, 1), 1):
        run = numba_cuda_kernel(kernel, outs, launch_dims=2, output_init=init)
        assert jax.eval_shape(run, jnp.ones(2)) == outs(None)
    for wrong in ({"v": 1, "spikes": 0.5}, {"v": 1}, {"v": 1, "other": 1}):
        with pytest.raises(LaunchError, match="output_init"):
            jax.eval_shape(numba_cuda_kernel(kernel, outs, launch_dims=2, output_init=wrong), jnp.ones(2))


@pytest.mark.parametrize("wrong", [{"v": 0.5, "spikes": 1}, {"spikes": 1, "v": 0.5}, ((0.5,), 1), (0.5, {"a": 1})])
def test_values_stand_where_the_outputs_do(wrong):
    structs = Step(Struct((2,), jnp.float32), Struct((2,), jnp.float32))
    run = functools.partial(numba_cuda_kernel, cuda.jit(lambda x, v, spikes: None), lambda x: structs, launch_dims=2)
    with pytest.raises(
        LaunchError, match=r"output_init is a PyTreeDef.*the outputs are a PyTreeDef.*structure of outs"
    ):
        jax.eval_shape(run(output_init=wrong), jnp.ones(2))
    for right in (0, None, (0.5, 1), [None, 1], Step(0.5, None)):
        assert jax.eval_shape(run(output_init=right), jnp.ones(2)) == structs


@pytest.mark.parametrize("init", [0, [0]])
def test_an_output_with_an_inputs_memory_begins_with_that(make_axpy, init):
    with pytest.raises(AliasError, match="output 0 begins with the values of input 1"):
        make_axpy(output_init=init, input_output_aliases={1: 0})
    make_axpy(output_init=[None], input_output_aliases={1: 0})


def test_devices_would_each_add_what_a_sum_begins_with(make_axpy):
    for init in (1, [0.5]):
        with pytest.raises(ShardingRuleError, match=r"axpy: .* sums output 0 over \['j'\], and output_init"):
            make_axpy(output_init=init, sharding_rule="[i] j, j -> [i]")
        make_axpy(output_init=init, sharding_rule="[i] [j], [j] -> [i]")
    make_axpy(output_init=0, sharding_rule="[i] j, j -> [i]")


def test_equal_values_of_other_types_are_other_kernels(make_axpy):
    kernels = [make_axpy(output_init=value).xlakernel for value in (1, 1.0, True, [1], None)]
    assert len({*kernels}) == len(kernels)
    assert make_axpy(output_init=float("nan")).xlakernel == make_axpy(output_init=np.float64("nan")).xlakernel


def set_host_memory(patch):
    """Let the driver's functions set host memory; return the list of what they were asked for."""
    calls = []

    def flat(itemsize):
        def memset(address, value, count, stream):
            calls.append((itemsize, count, stream))
            ctypes.memmove(address, value.to_bytes(itemsize, "little") * count, itemsize * count)
            return (driver.CUresult.CUDA_SUCCESS,)

        return memset

    def strided(address, pitch, value, width, height, stream):
        calls.append((4, width * height, stream))
        for row in range(height):
            ctypes.memmove(address + row * pitch, value.to_bytes(4, "little") * width, 4 * width)
        return (driver.CUresult.CUDA_SUCCESS,)

    for bits in (8, 16, 32):
        patch.setattr(driver, f"cuMemsetD{bits}Async", flat(bits // 8))
    patch.setattr(driver, "cuMemsetD2D32Async", strided)
    return calls


@pytest.fixture
def host(monkeypatch):
    return set_host_memory(monkeypatch)


def filled(dtype, shape, bits):
    array = Array("output", 0, dtype, shape)
    memory = np.full(array.nbytes + 32, 0xA5, np.uint8)
    fill(array, memory.ctypes.data + 16, bits, 7)
    assert (memory[:16] == 0xA5).all() and (memory[-16:] == 0xA5).all()
    return memory[16:-16].tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("value", [0, 1])
@pytest.mark.parametrize("shape", [(), (1,), (7,), (2, 3)])
def test_every_element_is_set_and_nothing_else(host, dtype, value, shape):
    assert filled(dtype, shape, pattern(value, dtype)) == np.full(shape, value, jnp.dtype(dtype)).tobytes()
    assert {stream for *_, stream in host} == {7}


@given(data=st.binary(min_size=16, max_size=16), size=st.sampled_from([1, 2, 4, 8, 16]))
def test_any_bytes_can_be_repeated(data, size):
    with pytest.MonkeyPatch.context() as patch:
        set_host_memory(patch)
        dtype = {1: "int8", 2: "int16", 4: "int32", 8: "int64", 16: "complex128"}[size]
        assert filled(dtype, (5,), data[:size]) == data[:size] * 5


def test_no_elements_are_no_memset(host):
    assert filled("float64", (0, 3), bytes(8)) == b""
    assert host == []


def test_zeros_of_any_width_are_one_memset(host):
    filled("complex128", (9,), bytes(16))
    assert len(host) == 1
