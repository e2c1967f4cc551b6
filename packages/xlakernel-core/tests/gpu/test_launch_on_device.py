"""Handlers of hand-made plans on a GPU, with the driver's functions and XLA's stream."""

import dataclasses

import cuda.bindings.driver as cuda_driver
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from xlakernel.core.call import Kernel, NativeCall, Target, native_call
from xlakernel.core.ffi.registry import ensure_registered
from xlakernel.core.gpu.plan import Copy, Fill, Launch, Plan, Pointer, arrays_of
from xlakernel.core.gpu.replaying.launch import build_handler
from xlakernel.core.structs import Struct

pytestmark = pytest.mark.gpu

# JAX raises a ValueError where the program ran in the calling thread, and its own error where it did not.
RAISED = (jax.errors.JaxRuntimeError, ValueError)

# add(x, out, by): out[i] = x[i] + by in the thread i of one block.
PTX = b"""
.version 7.0
.target sm_80
.address_size 64
.visible .entry add(.param .u64 x, .param .u64 out, .param .f32 by)
{
    .reg .b32 %r<2>;
    .reg .b64 %d<4>;
    .reg .f32 %f<4>;
    ld.param.u64 %d1, [x];
    ld.param.u64 %d2, [out];
    ld.param.f32 %f1, [by];
    mov.u32 %r1, %tid.x;
    mul.wide.u32 %d3, %r1, 4;
    add.u64 %d1, %d1, %d3;
    add.u64 %d2, %d2, %d3;
    ld.global.f32 %f2, [%d1];
    add.f32 %f3, %f2, %f1;
    st.global.f32 [%d2], %f3;
    ret;
}
"""


def checked(answer):
    code, *values = answer
    assert code == cuda_driver.CUresult.CUDA_SUCCESS, code
    return values[0]


@pytest.fixture(scope="module")
def add():
    """The handle of the kernel, which belongs to no device."""
    jax.devices("gpu")
    library = checked(cuda_driver.cuLibraryLoadData(PTX, [], [], 0, [], [], 0))
    return int(checked(cuda_driver.cuLibraryGetKernel(library, b"add")))


@dataclasses.dataclass(frozen=True)
class Planned(Kernel):
    """A kernel that is a plan, whatever it is called with."""

    name: str
    steps: tuple
    scratch: tuple = ()
    platforms = ("cuda",)

    def target(self, inputs, outs, static, **_):
        plan = Plan(arrays_of(inputs, outs), self.steps, self.scratch)
        ensure_registered(self.name, "CUDA", lambda: build_handler([plan], label=self.name))
        return Target(self.name, scratch=self.scratch)


@pytest.fixture
def planned(new_name):
    """Return a function that returns what performs steps, with a float32 output of a shape."""

    def make(shape, *steps, scratch=()):
        kernel = Planned(new_name(), steps, scratch)
        call = NativeCall(kernel, (Struct(shape, np.dtype("float32")),))
        return jax.jit(lambda *xs: native_call(call, xs)[0])

    return make


def adding(handle, source, destination, by, threads=8):
    block = bytes(16) + np.float32(by).tobytes()
    return Launch("add", handle, (1, 1, 1), (threads, 1, 1), 0, block, (0, 8, 16), ((0, source), (8, destination)))


def test_kernels_run_in_order_and_share_scratch(planned, add):
    steps = adding(add, Pointer(0), Pointer(2), 1), adding(add, Pointer(2), Pointer(1), 10)
    call, x = planned((8,), *steps, scratch=(32,)), jnp.arange(8, dtype=jnp.float32)
    np.testing.assert_array_equal(call(x), np.arange(8) + 11)
    batch = jnp.arange(800, dtype=jnp.float32).reshape(100, 8)
    np.testing.assert_array_equal(jax.vmap(call)(batch), np.asarray(batch) + 11)
    looped = jax.jit(lambda x: jax.lax.fori_loop(0, 100, lambda _, y: call(y), x))
    np.testing.assert_array_equal(looped(x), np.arange(8) + 1100)


FILLS = {
    "one row": (Fill(Pointer(1), 0x3F, 1, 24), [0x3F3F3F3F] * 6),
    "two bytes": (Fill(Pointer(1), 0x1234, 2, 12), [0x12341234] * 6),
    "four bytes": (Fill(Pointer(1), 0x3F800000, 4, 6), [0x3F800000] * 6),
    "rows of a byte": (Fill(Pointer(1), 1, 1, 4, 2, 12), [0x01010101, 0, 0] * 2),
    "rows of two": (Fill(Pointer(1), 0x0102, 2, 2, 3, 8), [0x01020102, 0] * 3),
    "rows of four": (Fill(Pointer(1, 4), 0x01020304, 4, 2, 2, 12), [0, 0x01020304, 0x01020304] * 2),
}


@pytest.mark.parametrize("name", FILLS)
def test_memory_is_filled(planned, name):
    step, expected = FILLS[name]
    out = planned((6,), Fill(Pointer(1), 0, 1, 24), step)(jnp.ones(6))
    np.testing.assert_array_equal(np.asarray(out).view(np.uint32), expected)


def test_memory_is_copied(planned):
    x = jnp.arange(24, dtype=jnp.float32).reshape(2, 3, 4)
    whole = planned((2, 3, 4), Copy(Pointer(0), Pointer(1), 96))
    np.testing.assert_array_equal(whole(x), x)
    rows = planned((6, 2), Copy(Pointer(0, 4), Pointer(1), 8, 6, source_pitch=16, destination_pitch=8))
    np.testing.assert_array_equal(rows(x), np.asarray(x).reshape(6, 4)[:, 1:3])
    part = Copy(Pointer(0, 16), Pointer(1), 8, 2, 2, 16, 3, 8, 2)
    np.testing.assert_array_equal(planned((2, 2, 2), part)(x), np.asarray(x)[:, 1:, :2])


def test_a_block_that_is_too_large_is_refused(planned, add):
    call = planned((8,), adding(add, Pointer(0), Pointer(1), 1, threads=2048))
    with pytest.raises(RAISED, match=r"refused to launch kernel 'add' .*block \(2048, 1, 1\).*error 1, CUDA_ERROR_INV"):
        call(jnp.ones(8)).block_until_ready()
    np.testing.assert_array_equal(planned((8,), adding(add, Pointer(0), Pointer(1), 1))(jnp.ones(8)), np.full(8, 2))
