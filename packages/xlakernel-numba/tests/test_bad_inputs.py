"""Arguments that are not arrays, unsupported dtypes, and invalid aliases."""

import contextlib
import datetime

import jax
import jax.numpy as jnp
import numba
import numpy as np
import pytest
from numpy.testing import assert_array_equal

from xlakernel.core import XLACustomKernel
from xlakernel.core.errors import (
    AliasError,
    DtypeError,
    InputError,
    KernelTypeError,
    OutputSpecError,
    StaticArgumentError,
    XLAKernelError,
)
from xlakernel.core.ffi.abi import DATA_TYPES
from xlakernel.numba import numba_kernel

Struct = jax.ShapeDtypeStruct
OUT = Struct((), jnp.float32)
X = np.arange(4, dtype=np.float32)


@numba.njit
def size_of(x, out):
    out[()] = x.size


run = numba_kernel(size_of, outs=OUT)


@pytest.fixture(autouse=True)
def _a_good_call_still_works():
    yield
    assert run(X) == 4


@pytest.mark.parametrize(
    "value",
    [
        *("text", b"bytes", None, [1.0, 2.0], [], (), (X,), {"a": X}, {1}, range(3), object(), float, len),
        *(np.array([None]), np.array("text"), np.array(["a"]), np.array([1], "M8[s]"), np.array([1], "m8[s]")),
        *(np.zeros(2, [("a", "i4")]), np.str_("a"), np.datetime64(1, "s"), np.ones(2, np.longdouble)),
        datetime.date(2000, 1, 1),
    ],
    ids=lambda value: repr(value).partition(" at 0x")[0][:40],
)
def test_inputs_that_are_not_arrays(value):
    for call in (run, lambda x: jax.jit(lambda: run(x))()):
        with pytest.raises((InputError, DtypeError), match="size_of: input 0 ") as caught:
            call(value)
        assert isinstance(caught.value, TypeError)
        assert "expected an array" in str(caught.value) or "allowed" in str(caught.value)


def test_arrays_that_are_not_in_native_byte_order(tmp_path, run_axpy):
    """JAX reads them in native order once the program for the native dtype is compiled."""
    operator = XLACustomKernel("test_bad_inputs")
    operator.def_numba_kernel(lambda outs: numba_kernel(size_of, outs=outs[0]))
    other = X.astype(X.dtype.newbyteorder())
    other.tofile(tmp_path / "file")
    for x in (other, np.memmap(tmp_path / "file", other.dtype)):
        for call in (run, lambda x: operator(x, outs=OUT), lambda x: jax.jit(lambda: run(x))()):
            assert call(X) == 4
            with pytest.raises(InputError, match=r"input 0 is .*; expected native byte order, x\.astype"):
                call(x)
    assert_array_equal(run_axpy(X, X, alpha=2), 3 * X)
    with pytest.raises(InputError, match=r"axpy: input 1 is .* native byte order"):
        run_axpy(X, other, alpha=2)
    with pytest.raises(StaticArgumentError, match=r"'alpha' is .* in native byte order"):
        run_axpy(X, X, alpha=other[1:2].reshape(()))


def test_the_message_names_the_input_that_is_wrong(run_axpy):
    with pytest.raises(InputError, match=r"axpy: input 1 is 'text' of type str; expected an array.*jnp\.asarray"):
        run_axpy(X, "text", alpha=1)
    with pytest.raises(InputError, match=r"input 0 is .{60} of type list"):
        run_axpy([1.0] * 1000, X, alpha=1)


def test_a_struct_has_no_value():
    with pytest.raises(InputError, match="input 0 is ShapeDtypeStruct"):
        run(OUT)


def test_a_number_that_does_not_fit():
    for call in (run, jax.jit(run)):
        with pytest.raises((XLAKernelError, OverflowError), match="input"):
            call(2**70)


def test_a_deleted_array():
    x = jnp.ones(3)
    x.delete()
    with pytest.raises((RuntimeError, ValueError), match="deleted"):
        run(x)


class Wrapper:
    def __jax_array__(self):
        return jnp.asarray(X)


@pytest.mark.filterwarnings("ignore:Triggering of __jax_array__:DeprecationWarning")
def test_an_object_that_converts_to_a_jax_array_is_one_or_is_refused():
    with contextlib.suppress(InputError):
        assert run(Wrapper()) == 4


NARROW = {
    **dict.fromkeys(["int4", "int2"], "int8"),
    **dict.fromkeys(["uint4", "uint2"], "uint8"),
    **dict.fromkeys(
        ["float8_e4m3fn", "float8_e5m2", "float8_e4m3b11fnuz", "float8_e8m0fnu", "float4_e2m1fn"], "float32"
    ),
}


@pytest.mark.parametrize("dtype", [name for name in NARROW if hasattr(jnp, name)])
def test_dtypes_that_numba_cannot_read(dtype):
    narrow = jnp.ones(4, jnp.dtype(getattr(jnp, dtype)))
    for call in (run, jax.jit(run), jax.vmap(run)):
        with pytest.raises(
            DtypeError, match=rf"size_of: input 0 has dtype {dtype}.*x\.astype\(jnp\.{NARROW[dtype]}\)"
        ) as caught:
            call(narrow)
        assert all(name in str(caught.value) for name in DATA_TYPES)
    assert run(narrow.astype(getattr(jnp, NARROW[dtype]))) == 4
    with pytest.raises(DtypeError, match=f"size_of: output 0 has dtype {dtype}"):
        numba_kernel(size_of, outs=Struct((), narrow.dtype))(X)


def test_random_keys():
    for call in (run, jax.jit(run), jax.vmap(run)):
        with pytest.raises(DtypeError, match=r"size_of: input 0 has the extended dtype key<.*jax\.random\.key_data"):
            call(jax.random.split(jax.random.key(0), 3))
    assert run(jax.random.key_data(jax.random.key(0))) == 2
    with pytest.raises(DtypeError, match="input 0 has the extended dtype"):
        numba_kernel(size_of, outs=lambda x: x)(jax.random.key(0))


# Aliases


@numba.njit
def copy_two(x, y, first, second):
    for i in range(x.size):
        first[i] = x[i]
    for i in range(y.size):
        second[i] = y[i]


def aliased(aliases, outs=lambda x, y: (x, y)):
    return numba_kernel(copy_two, outs=outs, input_output_aliases=aliases)


@pytest.mark.parametrize(
    "aliases",
    [
        *({0: -1}, {-1: 0}, {0: "first"}, {"x": 0}, {0: None}, {0: 1.0}, {0: 0, "x": 1}, {0: (0, 1)}),
        *([(0, 0)], [0], "00", 1, {0}),
    ],
    ids=repr,
)
def test_aliases_that_are_not_pairs_of_indices(aliases):
    with pytest.raises(AliasError, match=r"copy_two: input_output_aliases .*expected.*"):
        aliased(aliases)


def test_two_inputs_for_one_output():
    with pytest.raises(AliasError, match=r"\{0: 1, 1: 1\} gives two inputs the memory of one output"):
        aliased({0: 1, 1: 1})


@pytest.mark.parametrize(("aliases", "missing"), [({2: 0}, "input 2"), ({0: 2}, "output 2"), ({5: 5}, "input 5")])
def test_aliases_of_missing_arrays(aliases, missing):
    with pytest.raises(AliasError, match=rf"copy_two: .*there is no {missing}; the call has 2"):
        aliased(aliases)(X, X)


def test_aliases_of_unequal_arrays():
    with pytest.raises(
        AliasError, match=r"input 0 is float32\[4\] and output 1 is int32\[3\]; only arrays of one shape"
    ):
        aliased({0: 1})(X, jnp.arange(3))
    with pytest.raises(AliasError, match=r"float32\[4\].*float32\[2,2\]"):
        aliased({0: 0}, outs=lambda x, y: (Struct((2, 2), x.dtype), y))(X, X)


@pytest.mark.parametrize("aliases", [None, {}, {np.int64(0): np.int32(0)}], ids=repr)
def test_good_aliases(aliases):
    assert_array_equal(aliased(aliases)(X, X)[1], X)


def test_64_bit_outputs_are_refused_while_jax_has_none():
    wrapped = numba_kernel(copy_two, outs=lambda x, y: (jax.ShapeDtypeStruct(x.shape, np.float64), y))
    with pytest.raises(OutputSpecError, match=r"outs\[0\] has dtype float64.*ask for float32.*jax_enable_x64"):
        wrapped(jnp.ones(2), jnp.ones(2))


def test_a_wrapped_kernel_is_not_wrapped_again():
    with pytest.raises(KernelTypeError, match="wrapped already"):
        numba_kernel(numba_kernel(copy_two, outs=lambda x, y: (x, y)), outs=lambda x, y: x)
