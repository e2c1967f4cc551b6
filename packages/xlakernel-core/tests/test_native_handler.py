"""Direct calls of handlers with wrong buffers and scalars, which are refused with a message."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_array_equal

F32 = ("float32", 1)


def call(target, outs, *ins, **attributes):
    """Call a registered target with buffers as they are, batched or not; *outs* is a shape, or structs."""
    if isinstance(outs, tuple) and all(isinstance(extent, int) for extent in outs):
        outs = jax.ShapeDtypeStruct(outs, jnp.float32)
    return jax.jit(lambda *xs: jax.ffi.ffi_call(target, outs, has_side_effect=True)(*xs, **attributes))(*ins)


# JAX raises a ValueError where the program ran in the calling thread, and its own error where it did not.
RAISED = (jax.errors.JaxRuntimeError, ValueError)


def refused(text):
    return pytest.raises(RAISED, match=rf"(?s)INVALID_ARGUMENT.*xlakernel: \w+: .*{text}")


def cumsum(x, out):
    """The elements of a slice depend on each other, so that mixed-up slices are detected."""
    total = 0.0
    for i in range(x.size):
        total += x[i]
        out[i] = total


def outer(x, y, out):
    for i in range(x.size):
        for j in range(y.size):
            out[i, j] = x[i] * y[j]


def scale(alpha, x, zeta, out, beta):
    """Scalars in any position, and not in the order of their names."""
    for i in range(x.size):
        out[i] = 100 * alpha + 10 * beta + zeta + x[i]


def divmod_(x, quotient, rest):
    for i in range(x.size):
        quotient[i], rest[i] = x[i] // 3, x[i] % 3


@pytest.fixture(scope="module")
def cumsum_target(register):
    return register(cumsum, [F32], [F32])


@pytest.fixture(scope="module")
def outer_target(register):
    return register(outer, [F32, F32], [("float32", 2)])


@pytest.fixture(scope="module")
def scale_target(register):
    return register(scale, [F32], [F32], {"alpha": "int64", "beta": "float32", "zeta": "bool"})


@pytest.mark.parametrize("dtype", [np.float16, np.int32, np.uint32, np.complex64, np.bool_, jnp.bfloat16], ids=str)
def test_an_input_of_another_dtype_is_refused(cumsum_target, dtype):
    with refused(r"differ in dtype or rank.*input 0 float32\[1d\], output 0 float32\[1d\]"):
        call(cumsum_target, (3,), jnp.zeros(3, dtype))
    assert_array_equal(call(cumsum_target, (3,), jnp.ones(3)), [1, 2, 3])


def test_an_output_of_another_dtype_is_refused(cumsum_target):
    with refused("differ in dtype or rank"):
        call(cumsum_target, jax.ShapeDtypeStruct((3,), jnp.int32), jnp.ones(3))


@pytest.mark.parametrize(
    ("inner", "out"), [((), (3,)), ((3,), ()), ((), ()), ((2, 3), (3,)), ((3,), (2, 3)), ((1, 2, 3), (2, 3))]
)
def test_inconsistent_ranks_are_refused(cumsum_target, inner, out):
    with refused("differ in dtype or rank"):
        call(cumsum_target, out, jnp.ones(inner))


@pytest.mark.parametrize("ins", [[], [jnp.ones(3)], [jnp.ones(3)] * 3], ids=len)
def test_another_number_of_inputs_is_refused(outer_target, ins):
    with refused("compiled for 2 inputs, 1 outputs and 0 attributes; the call has other numbers of them"):
        call(outer_target, (3, 3), *ins)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_another_number_of_outputs_is_refused(register, count):
    target = register(divmod_, [("int32", 1)], [("int32", 1)] * 2)
    out = jax.ShapeDtypeStruct((3,), jnp.int32)
    with refused("compiled for 1 inputs, 2 outputs and 0 attributes"):
        call(target, [out] * count, jnp.arange(3))
    assert_array_equal(call(target, [out] * 2, jnp.arange(3, 6)), [[1, 1, 1], [0, 1, 2]])


GOOD = {"alpha": np.int64(1).view(np.complex64), "beta": np.float32(2), "zeta": np.bool_(True)}


def test_other_numbers_of_scalars_are_refused(scale_target):
    for scalars in ([], [GOOD["alpha"]], [*GOOD.values(), np.float32(0)]):
        with refused("compiled for 4 inputs, 1 outputs and 0 attributes"):
            call(scale_target, (3,), jnp.ones(3), *scalars)


def test_attributes_are_refused(scale_target):
    with refused("compiled for 4 inputs, 1 outputs and 0 attributes"):
        call(scale_target, (3,), jnp.ones(3), *GOOD.values(), other=np.float32(1))


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("alpha", np.zeros(2, np.uint32), r"differ in dtype or rank.*input 1 int64 in complex64, input 0 float32"),
        ("alpha", np.uint32(1), "differ in dtype or rank"),
        ("alpha", np.zeros(1, np.complex64), "differ in dtype or rank"),
        ("beta", np.int32(1), "differ in dtype or rank"),
        ("beta", np.ones(1, np.float32), "differ in dtype or rank"),
        ("zeta", np.int8(1), "differ in dtype or rank"),
    ],
    ids=str,
)
def test_scalars_of_another_type_are_refused(scale_target, name, value, text):
    with refused(text):
        call(scale_target, (3,), jnp.ones(3), *{**GOOD, name: value}.values())


def test_scalars_follow_the_inputs_in_the_order_of_their_names(scale_target):
    found = call(scale_target, (3,), jnp.arange(3.0), *GOOD.values())
    assert_array_equal(found, [121, 122, 123])
