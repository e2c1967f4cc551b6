"""Calls that run through Python, on the CPU platform."""

import threading
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_array_equal

from xlakernel.core.errors import DtypeError
from xlakernel.core.ffi import abi
from xlakernel.core.ffi.registry import ensure_registered

pytest.importorskip("cuda.bindings")
from xlakernel.core.gpu.python_call import build_python_handler

STREAM = 0x5EED
F32 = ("float32", (3,))

# JAX raises a ValueError where the program ran in the calling thread, and its own error where it did not.
RAISED = (jax.errors.JaxRuntimeError, ValueError)


@pytest.fixture(scope="module")
def register_launch(host_launchable):
    """Return a function that takes what ``host_launchable`` takes, and returns the name of the registered target."""

    def register(*args, stream=STREAM, **kwargs):
        launchable = host_launchable(*args, **kwargs)
        return ensure_registered(launchable.name, "cpu", lambda: build_python_handler(launchable, stream=stream))

    return register


def call(target, outs, *ins, **attributes):
    """Call a registered target with buffers as they are, batched or not; *outs* is a shape, or structs."""
    if isinstance(outs, tuple) and all(isinstance(extent, int) for extent in outs):
        outs = jax.ShapeDtypeStruct(outs, jnp.float32)
    return jax.jit(lambda *xs: jax.ffi.ffi_call(target, outs, has_side_effect=True)(*xs, **attributes))(*ins)


def message_of(*args, **kwargs):
    with pytest.raises(RAISED) as caught:
        jax.block_until_ready(call(*args, **kwargs))
    return str(caught.value)


def cumsum(x, out):
    """The elements of a slice depend on each other, so a mixed-up slice shows."""
    out[:] = np.cumsum(x)


def add(x, y, total, product):
    total[:] = x + y
    product[:] = x * y


# Values


def test_the_launching_function_gets_the_stream_and_the_arrays(register_launch):
    streams = []
    target = register_launch(cumsum, [F32], [F32], streams=streams)
    assert_array_equal(call(target, (3,), jnp.arange(3.0)), [0, 1, 3])
    assert_array_equal(call(target, (3,), jnp.ones(3)), [1, 2, 3])
    assert streams == [STREAM, STREAM]


@pytest.mark.parametrize("name", abi.DATA_TYPES)
def test_every_dtype(register_launch, x64, name):
    def copy(x, out):
        out[:] = x

    target = register_launch(copy, [(name, (2, 3))], [(name, (2, 3))])
    x = jnp.arange(6).reshape(2, 3).astype(name)
    assert_array_equal(call(target, jax.ShapeDtypeStruct(x.shape, x.dtype), x), x)


@pytest.mark.parametrize(
    ("x", "y", "batch"),
    [
        ((), (), ()),
        ((4,), (4,), (4,)),
        ((1,), (4,), (4,)),
        ((1,), (1,), (1,)),
        ((2, 5), (1, 5), (2, 5)),
        ((2, 1, 4), (1, 3, 1), (2, 3, 4)),
    ],
    ids=str,
)
def test_batches_with_shared_inputs(register_launch, x, y, batch):
    streams = []
    target = register_launch(add, [F32, F32], [F32, F32], streams=streams)
    x, y = (jax.random.normal(jax.random.key(i), (*extents, 3)) for i, extents in enumerate((x, y)))
    out = jax.ShapeDtypeStruct((*batch, 3), jnp.float32)
    total, product = call(target, (out, out), x, y)
    assert_array_equal(total, x + y)
    assert_array_equal(product, x * y)
    assert len(streams) == np.prod(batch, dtype=int)


@pytest.mark.parametrize(("x", "batch"), [((0,), (0,)), ((1,), (0,)), ((2, 0), (2, 0)), ((1, 1), (0, 3))], ids=str)
def test_a_batch_of_none_launches_nothing(register_launch, x, batch):
    streams = []
    target = register_launch(cumsum, [F32], [F32], streams=streams)
    assert call(target, (*batch, 3), jnp.ones((*x, 3))).shape == (*batch, 3)
    assert not streams


def test_arrays_without_elements_are_launched_with(register_launch):
    def fill(x, out):
        out[...] = x.size

    streams = []
    target = register_launch(fill, [("float32", (2, 0))], [("float32", ())], streams=streams)
    assert call(target, (), jnp.ones((2, 0))) == 0
    assert_array_equal(call(target, (3,), jnp.ones((3, 2, 0))), [0, 0, 0])
    assert len(streams) == 4
    empty = register_launch(cumsum, [("float32", (0,))], [("float32", (0,))], streams=streams)
    assert call(empty, (0,), jnp.ones(0)).shape == (0,)
    assert len(streams) == 5


def test_a_call_without_arrays(register_launch):
    streams = []
    assert call(register_launch(lambda: None, streams=streams), []) == []
    jax.effects_barrier()
    assert streams == [STREAM]


# Exceptions


def line_of(function, offset):
    return f"{__file__}:{function.__code__.co_firstlineno + offset} in {function.__qualname__}"


def refuse(x, out):
    raise LookupError("nothing\0 here: ä")


def misuse_a_library(x, out):
    np.reshape(x, (5, 5))


def helper(x):
    return {}["missing"]


def use_a_helper(x, out):
    helper(x)


@pytest.mark.parametrize(
    ("function", "text", "where"),
    [
        (refuse, r"INTERNAL: LookupError: nothing\0 here: ä", line_of(refuse, 1)),
        (misuse_a_library, "INVALID_ARGUMENT: ValueError: cannot reshape", line_of(misuse_a_library, 1)),
        (use_a_helper, "NOT_FOUND: KeyError: 'missing'", line_of(helper, 1)),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_an_exception_has_its_type_message_and_line(register_launch, function, text, where):
    target = register_launch(function, [F32], [F32])
    message = message_of(target, (3,), jnp.ones(3))
    assert message.startswith(text)
    assert f"(raised by kernel {function.__name__!r}, {where})" in message


def test_an_exception_from_elsewhere_names_the_place_of_the_definition(register_launch, host_launchable):
    # It is a library's, and nothing of the user's is in the traceback.
    launchable = host_launchable(cumsum, [F32], [F32])
    object.__setattr__(launchable, "launch", np.ctypeslib.load_library)
    ensure_registered(launchable.name, "cpu", lambda: build_python_handler(launchable, stream=STREAM))
    message = message_of(launchable.name, (3,), jnp.ones(3))
    assert f"(raised by kernel 'cumsum' of {launchable.place})" in message


def test_a_call_after_an_exception_is_as_before(register_launch):
    def positive(x, out):
        if x[0] < 0:
            raise ValueError("negative")
        out[:] = x

    streams = []
    target = register_launch(positive, [F32], [F32], streams=streams)
    x = jnp.ones((4, 3)).at[2].set(-1)
    for _ in range(2):
        assert "ValueError: negative" in message_of(target, (4, 3), x)
        assert_array_equal(call(target, (3,), jnp.ones(3)), np.ones(3))
    assert len(streams) == 2 * (3 + 1)  # the slice after the failure is not launched


# Threads


def test_calls_from_many_threads(register_launch):
    barrier, seen = threading.Barrier(2), set()

    def meet(x, out):
        seen.add(threading.get_ident())
        if x[0]:
            barrier.wait(30)  # only calls that run at the same time get past it
        out[:] = x

    program = jax.jit(jax.ffi.ffi_call(register_launch(meet, [F32], [F32]), jax.ShapeDtypeStruct((3,), jnp.float32)))
    program(jnp.zeros(3)).block_until_ready()  # the others would wait for the first call of all
    with ThreadPoolExecutor(4) as pool:
        for number, found in enumerate(pool.map(lambda i: np.asarray(program(jnp.full(3, i, float))), range(1, 81)), 1):
            assert_array_equal(found, np.full(3, number))
    assert len(seen) >= 2


# Wrong calls


@pytest.fixture(scope="module")
def add_target(register_launch):
    def add_never(x, y, total, product):
        raise AssertionError("it was launched")

    return register_launch(add_never, [F32, ("int32", ())], [F32, F32])


def outs(*shapes):
    return tuple(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes)


ONE = np.int32(1)
MADE = r"xlakernel: add_never: made for input 0 (float32[3]), input 1 (int32[]), output 0 (float32[3]), "


@pytest.mark.parametrize(
    ("results", "ins", "text"),
    [
        (outs((3,), (3,)), (np.ones(3, np.int32), ONE), "input 0 of the call is int32[3]"),
        (outs((3,), (3,)), (np.ones(4, np.float32), ONE), "input 0 of the call is float32[4]"),
        (outs((3,), (3,)), (np.float32(1), ONE), "input 0 of the call is float32[]"),
        (outs((3,), (3,)), (np.ones((2, 3), np.float32), ONE), "input 1 of the call is int32[]"),
        (outs((3,), (4,)), (np.ones(3, np.float32), ONE), "output 1 of the call is float32[4]"),
        (outs((2, 3), (3,)), (np.ones((1, 3), np.float32), ONE[None]), "output 1 of the call is float32[3]"),
        (
            outs((2, 1, 3), (2, 1, 3)),
            (np.ones((2, 1, 3), np.float32), np.ones(2, np.int32)),
            "input 1 of the call is int32[2]",
        ),
    ],
)
def test_an_array_of_another_type_is_refused(add_target, results, ins, text):
    message = message_of(add_target, results, *ins)
    assert message.startswith("INVALID_ARGUMENT: " + MADE)
    assert message.partition("\n")[0].endswith(text)


@pytest.mark.parametrize(
    ("results", "x", "y", "text"),
    [
        (outs((2, 3), (2, 3)), (3,), (1,), "output 0 (float32[3]) has (2,), another has (3,)"),
        (outs((2, 3), (2, 3)), (2,), (3,), "input 1 (int32[]) has (3,), another has (2,)"),
        (outs((2, 3), (1, 3)), (2,), (2,), "output 1 (float32[3]) has (1,), another has (2,)"),
        (outs((2, 0, 3), (2, 2, 3)), (2, 1), (1, 1), "output 1 (float32[3]) has (2, 2), another has (2, 0)"),
    ],
)
def test_batches_that_do_not_fit_are_refused(add_target, results, x, y, text):
    message = message_of(add_target, results, np.ones((*x, 3), np.float32), np.ones(y, np.int32))
    assert message.startswith(
        "INVALID_ARGUMENT: xlakernel: add_never: the batch dimensions of the call's arrays differ"
    )
    assert text in message


@pytest.mark.parametrize(
    ("results", "ins", "attributes", "found"),
    [
        (outs((3,), (3,)), (), {}, "0 inputs, 2 outputs and 0 attributes"),
        (outs((3,)), (np.ones(3, np.float32), ONE), {}, "2 inputs, 1 outputs and 0 attributes"),
        (outs((3,), (3,)), (np.ones(3, np.float32), ONE), {"a": 1}, "2 inputs, 2 outputs and 1 attributes"),
    ],
)
def test_other_numbers_of_arrays_are_refused(add_target, results, ins, attributes, found):
    message = message_of(add_target, results, *ins, **attributes)
    assert f"add_never: made for 2 inputs, 2 outputs and 0 attributes; the call has {found}" in message


def test_a_dtype_that_no_handler_takes_is_refused_when_it_is_built(host_launchable):
    narrow = jnp.dtype("float8_e4m3fn")
    with pytest.raises(DtypeError, match=r"cumsum: input 0 \(float8_e4m3fn\[3\]\).*allowed: bool, int8, .*Cast"):
        build_python_handler(host_launchable(cumsum, [(narrow, (3,))], [(narrow, (3,))]))


def test_without_a_gpu_xla_reports_it(register_launch):
    streams = []
    target = register_launch(cumsum, [F32], [F32], stream=None, streams=streams)
    message = message_of(target, (3,), jnp.ones(3))
    assert not streams
    assert "raised by" not in message  # it is XLA's own error, as it came


# Call frames made by hand: what XLA has on a GPU
