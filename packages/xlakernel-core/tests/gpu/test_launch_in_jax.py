"""Handlers in JAX programs, on the CPU with a given stream: batches of `jax.vmap`, scratch, errors, threads."""

import dataclasses
import struct
import threading
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from xlakernel.core.call import Kernel, NativeCall, Target, native_call
from xlakernel.core.ffi.registry import ensure_registered
from xlakernel.core.gpu.plan import Fill, Launch, Plan, Pointer, arrays_of
from xlakernel.core.gpu.replaying.launch import build_handler
from xlakernel.core.structs import Struct

STREAM = 0xABCD
# JAX raises a ValueError where the program ran in the calling thread, and its own error where it did not.
RAISED = (jax.errors.JaxRuntimeError, ValueError)


@dataclasses.dataclass(frozen=True)
class Recorded(Kernel):
    """A kernel that is a plan: one launch whose parameters are pointers to each of its arrays, and to its scratch."""

    name: str
    functions: tuple
    scratch: tuple = ()
    platforms = ("cpu",)

    def target(self, inputs, outs, static, **_):
        arrays = arrays_of(inputs, outs)
        count = len(arrays) + len(self.scratch)
        places = tuple((8 * i, Pointer(i)) for i in range(count))
        step = Launch("k", count, (1, 1, 1), (1, 1, 1), 0, bytes(8 * count), tuple(range(0, 8 * count, 8)), places)
        plan = Plan(arrays, (step,), self.scratch)
        name = f"{self.name}_{'_'.join(f'{a.dtype}{a.shape}' for a in arrays)}"
        build = lambda: build_handler([plan], label=self.name, functions=dict(self.functions), stream=STREAM)  # noqa: E731
        return Target(ensure_registered(name, "cpu", build), scratch=self.scratch)


@pytest.fixture
def recorded(driver, new_name):
    """Return a function that returns what calls a `Recorded` kernel with a float32 output of a shape."""

    def make(shape, **options):
        driver.parameter_sizes = {count: [8] * count for count in range(8)}
        kernel = Recorded(new_name(), tuple(driver.functions.items()), **options)
        # XLA may call it as long as the process lives.
        _kept.append(driver)
        call = NativeCall(kernel, (Struct(shape, np.dtype("float32")),), has_side_effect=True)
        return lambda *xs: native_call(call, xs)[0]

    return make


_kept = []


@pytest.fixture(autouse=True)
def _on_the_cpu():
    with jax.default_device(jax.devices("cpu")[0]):
        yield


def addresses(driver):
    """Return the pointers of each launch."""
    found = [[struct.unpack("<Q", value)[0] for value in call[-1]] for call in driver.calls]
    assert all(call[5] == STREAM for call in driver.calls)
    driver.calls.clear()
    return found


def test_a_call_gets_the_arrays_that_jax_has(driver, recorded):
    x, y = jnp.ones(3), jnp.ones((2, 2), jnp.int32)
    out = recorded((3,))(x, y).block_until_ready()
    assert addresses(driver) == [[array.unsafe_buffer_pointer() for array in (x, y, out)]]


def test_a_jitted_call_gets_them_each_time(driver, recorded):
    jitted, xs = jax.jit(recorded((5,))), [jnp.full(5, i) for i in range(3)]
    outs = [jitted(x).block_until_ready() for x in xs]
    expected = [[x.unsafe_buffer_pointer(), out.unsafe_buffer_pointer()] for x, out in zip(xs, outs, strict=True)]
    assert addresses(driver) == expected


def test_vmap_replays_each_slice(driver, recorded):
    x, y = jnp.ones((4, 3)), jnp.ones(3)
    out = jax.jit(jax.vmap(recorded((3,)), in_axes=(0, None)))(x, y).block_until_ready()
    at = [array.unsafe_buffer_pointer() for array in (x, y, out)]
    assert out.shape == (4, 3)
    assert addresses(driver) == [[at[0] + 12 * i, at[1], at[2] + 12 * i] for i in range(4)]


def test_nested_vmap_replays_each_slice(driver, recorded):
    x, y = jnp.ones((2, 3)), jnp.ones((4, 3))
    mapped = jax.vmap(jax.vmap(recorded((3,)), in_axes=(None, 0)), in_axes=(0, None))
    out = jax.jit(mapped)(x, y).block_until_ready()
    at = [array.unsafe_buffer_pointer() for array in (x, y, out)]
    assert out.shape == (2, 4, 3)
    expected = [[at[0] + 12 * i, at[1] + 12 * j, at[2] + 12 * (4 * i + j)] for i in range(2) for j in range(4)]
    assert addresses(driver) == expected


def test_an_empty_batch_launches_nothing(driver, recorded):
    assert jax.vmap(recorded((3,)))(jnp.ones((0, 3))).shape == (0, 3)
    assert addresses(driver) == []


def test_arrays_without_elements_are_launched_on(driver, recorded):
    assert recorded((0,))(jnp.ones((0, 2))).block_until_ready().shape == (0,)
    assert len(addresses(driver)) == 1


def test_scratch_is_memory_of_xlas(driver, recorded):
    out = jax.jit(jax.vmap(recorded((3,), scratch=(4096, 64))))(jnp.ones((2, 3))).block_until_ready()
    (*_, out_0, big, small), (*_, out_1, big_1, small_1) = addresses(driver)
    assert out_1 == out_0 + 12 == out.unsafe_buffer_pointer() + 12
    assert (big, small) == (big_1, small_1) and 0 not in (big, small)
    assert not big - 64 < small < big + 4096
    assert not big - 24 < out_0 < big + 4096


def test_a_refusal_is_an_error_of_jax(driver, recorded):
    call = jax.jit(recorded((3,)))
    driver.refusals["cuLaunchKernelEx"] = 1
    with pytest.raises(RAISED, match=r"INTERNAL.*refused to launch kernel 'k' \(grid \(1, 1, 1\).*INVALID_VALUE"):
        call(jnp.ones(3)).block_until_ready()
    driver.refusals.clear()
    call(jnp.ones(3)).block_until_ready()
    assert len(addresses(driver)) == 1


def test_a_name_called_with_other_arrays_is_an_error_of_jax(driver, new_name):
    inputs, outs = [Struct((3,), np.dtype("float32"))], [Struct((2,), np.dtype("int32"))]
    plan = Plan(arrays_of(inputs, outs), ())
    build = lambda: build_handler([plan], label="l", functions=driver.functions, stream=0)  # noqa: E731
    target = ensure_registered(new_name(), "cpu", build)
    out = jax.ShapeDtypeStruct((2,), jnp.int32)
    with pytest.raises(RAISED, match=r"recorded for input 0 \(float32\[3\]\).*; the call has input 0 \(float32\[4\]\)"):
        jax.jit(lambda x: jax.ffi.ffi_call(target, out, has_side_effect=True)(x))(jnp.ones(4)).block_until_ready()


def test_threads_replay_at_once(fake_call, driver):
    """Each thread calls one handler with arrays of its own, and builds others meanwhile."""
    arrays = arrays_of([Struct((4,), np.dtype("float32"))], [Struct((4,), np.dtype("float32"))])
    driver.parameter_sizes[1] = [8, 8]
    step = Launch("k", 1, (1, 1, 1), (1, 1, 1), 0, bytes(16), (0, 8), ((0, Pointer(0)), (8, Pointer(1))))
    plan = Plan(arrays, (step, Fill(Pointer(1), 0, 1, 16)))
    handler = build_handler([plan], label="l", functions=driver.functions)
    count, batch = 6, 50
    barrier = threading.Barrier(count)

    def work(number):
        x, out = 0x10_0000_0000 * (number + 1), 0x11_0000_0000 * (number + 1)
        call = fake_call([("float32", (batch, 4), x)], [("float32", (batch, 4), out)], stream=number + 1)
        barrier.wait()
        built = []
        for _ in range(20):
            assert call.run(handler) is None
            built.append(build_handler([plan], label="l", functions=driver.functions))
            assert call.run(built[-1]) is None
        return built

    with ThreadPoolExecutor(count) as pool:
        handlers = [handler for built in pool.map(work, range(count)) for handler in built]
    assert len({handler.address for handler in handlers}) == len(handlers)
    for number in range(count):
        x, out = 0x10_0000_0000 * (number + 1), 0x11_0000_0000 * (number + 1)
        expected = []
        for i in range(batch):
            values = tuple(struct.pack("<Q", address + 16 * i) for address in (x, out))
            expected.append(("cuLaunchKernelEx", 1, (1, 1, 1), (1, 1, 1), 0, number + 1, b"", values))
            expected.append(("cuMemsetD8Async", out + 16 * i, 0, 16, number + 1))
        found = [call for call in driver.calls if number + 1 in (call[5:6] + call[4:5])]
        assert found == expected * 40
