"""Scalars: keywords that are passed to the kernel by value, with their own types."""

import enum
import functools
import gc
import math

import jax
import jax.numpy as jnp
import ml_dtypes
import numba
import numpy as np
import pytest
from numba.extending import overload
from numpy.testing import assert_array_equal

from xlakernel.core import debug_mode
from xlakernel.core.errors import ArityError, KernelTypeError, StaticArgumentError, XLAKernelError
from xlakernel.numba import numba_kernel

Struct = jax.ShapeDtypeStruct
X = np.arange(3, dtype=np.float32)


def kind_of(value):
    raise NotImplementedError  # compiled code only


@overload(kind_of)
def _kind_of(value):
    number = {"bool": 1, "int": 2, "uint": 3, "float": 4}[str(value).rstrip("0123456789")] * 100
    bits = getattr(value, "bitwidth", 8)
    return lambda value: number + bits


@numba.njit
def describe(value, kind, out):
    """Return a code for the compiled type of the scalar: hundreds for the kind, the rest for its bits."""
    kind[()] = kind_of(value)
    out[()] = value


run_describe = numba_kernel(describe, outs=(Struct((), jnp.int32), Struct((), jnp.float32)))
BOOL, INT, UINT, FLOAT = 100, 200, 300, 400

KINDS = [
    (True, BOOL + 8),
    (np.True_, BOOL + 8),
    (1, INT + 64),
    (np.int8(1), INT + 8),
    (np.int16(1), INT + 16),
    (np.int32(1), INT + 32),
    (np.int64(1), INT + 64),
    (np.uint8(1), UINT + 8),
    (np.uint16(1), UINT + 16),
    (np.uint32(1), UINT + 32),
    (np.uint64(1), UINT + 64),
    (1.0, FLOAT + 64),
    (np.float32(1), FLOAT + 32),
    (np.float64(1), FLOAT + 64),
    (enum.IntEnum("E", [("ONE", 1)]).ONE, INT + 64),
]


def test_the_type_of_a_scalar_is_kept_for_equal_values():
    for value, kind in [*KINDS, *KINDS[::-1]]:  # in both orders: a cache that confuses them keeps the first
        found, out = run_describe(value=value)
        assert (found, out) == (kind, 1), repr(value)


@numba.njit(cache=True)
def describe_both(first, second, kinds, out):
    kinds[0], kinds[1] = kind_of(first), kind_of(second)
    out[0], out[1] = first, second


def test_types_of_two_scalars_are_kept_in_their_order():
    run = numba_kernel(describe_both, outs=(Struct((2,), jnp.int32), Struct((2,), jnp.float32)))
    for first, second in ((np.int32(3), np.float32(0.5)), (np.float32(0.5), np.int32(3))):
        kinds, out = run(first=first, second=second)
        expected = [INT + 32 if value == 3 else FLOAT + 32 for value in (first, second)]
        assert_array_equal(kinds, expected)
        assert_array_equal(out, [first, second])


def test_types_are_kept_inside_one_jit():
    results = jax.jit(lambda: [run_describe(value=value)[0] for value, _ in KINDS])()
    assert [int(kind) for kind in results] == [kind for _, kind in KINDS]


def test_types_are_kept_as_static_argnames_of_a_jit():
    """JAX's cache treats 1, 1.0 and True as one static argument, so each has its own jit."""
    for value, kind in KINDS:
        assert jax.jit(functools.partial(run_describe, value=value))()[0] == kind


@numba.njit
def anywhere(first, x, middle, out, last):
    for i in range(x.size):
        out[i] = 100 * first + 10 * middle + last + x[i]


run_anywhere = numba_kernel(anywhere, outs=lambda x: x)


def test_anywhere_in_the_signature_in_any_order_of_the_call():
    for call in (run_anywhere, jax.jit(run_anywhere, static_argnames=("first", "middle", "last"))):
        assert_array_equal(call(X, first=1, middle=2, last=3), 123 + X)
        assert_array_equal(call(X, last=3, first=1, middle=2), 123 + X)
        assert_array_equal(call(X, first=3, middle=2, last=1.5), 321.5 + X)
    mapped = jax.vmap(functools.partial(run_anywhere, first=1, middle=2, last=3))
    assert_array_equal(mapped(np.stack([X, X + 1])), [123 + X, 124 + X])


@numba.njit
def many(k, j, i, h, g, f, e, d, c, b, a, out):
    out[()] = a + 2 * b + 3 * c + 4 * d + 5 * e + 6 * f + 7 * g + 8 * h + 9 * i + 10 * j + 11 * k


def test_operands_sorted_by_name_reach_their_own_parameters():
    values = dict(zip("abcdefghijk", range(11), strict=True))
    assert numba_kernel(many, outs=Struct((), jnp.int32))(**values) == sum((n + 1) * n for n in range(11))


@numba.njit
def bits(value, out):
    out[0] = value


SIGNALING = 0x7FA00001FFA00001  # two NaNs of 32 bits that arithmetic would change


@pytest.mark.parametrize(
    "value",
    [0.0, -0.0, float("inf"), float("-inf"), float("nan"), 5e-324, 2**63 - 1, -(2**63), 1e308, SIGNALING],
    ids=repr,
)
def test_extreme_values_are_passed_bit_for_bit(value, x64):
    dtype = np.asarray(value).dtype
    run = numba_kernel(bits, outs=Struct((1,), dtype))
    for call in (run, jax.jit(run, static_argnames="value")):
        assert np.asarray(call(value=value)).tobytes() == np.asarray(value).tobytes()


@pytest.mark.parametrize("value", [np.uint64(2**63 - 1), np.uint64(2**64 - 1), 2**63, 2**64 - 1], ids=repr)
def test_large_unsigned_values_are_passed(value, x64):
    run = numba_kernel(bits, outs=Struct((1,), jnp.uint64))
    assert int(run(value=value)[0]) == int(value)


def test_equal_and_unequal_zeros_and_nans(run_axpy):
    """JAX compares by ==, where 0.0 equals -0.0 and a NaN not itself."""
    run = numba_kernel(bits, outs=Struct((1,), jnp.float32))
    assert not np.signbit(run(value=0.0)[0])
    assert np.signbit(run(value=-0.0)[0])
    both = jax.jit(lambda: (run(value=0.0), run(value=-0.0)))()
    assert [bool(np.signbit(zero[0])) for zero in both] == [False, True]
    assert np.isnan(run_axpy(X, X, alpha=float("nan"))).all()


def test_a_new_value_compiles_nothing():
    traced = []
    run = numba_kernel(bits, outs=lambda: traced.append(1) or Struct((1,), jnp.float32))
    mapped = jax.jit(lambda: traced.append(2))  # an empty program, so that JAX's own caches are warm
    mapped()
    values = [float("nan"), 0.0, -0.0, float("inf"), *np.linspace(-1, 1, 500)]
    for value in [*values, *values]:
        assert_array_equal(run(value=float(value)), [np.float32(value)])
    assert traced == [2, 1]


def test_new_values_keep_no_memory():
    run = numba_kernel(bits, outs=Struct((1,), jnp.float32))

    def kept(values):
        for value in values:
            run(value=float(value)).block_until_ready()
        gc.collect()
        return len(gc.get_objects())

    kept(range(2000))  # more than are remembered
    before = kept(range(2000, 2100))
    assert kept(range(3000, 3500)) - before < 100


UNUSABLE = [
    *(
        "text",
        b"bytes",
        None,
        [1.0],
        (1.0,),
        {"a": 1},
        object(),
        2**64,
        -(2**63) - 1,
        10**400,
        np.longdouble(1),
        1 + 2j,
    ),
    *(np.datetime64(1, "s"), np.timedelta64(1, "s"), float, Struct((), jnp.float32)),
]


@pytest.mark.parametrize("value", UNUSABLE, ids=lambda value: repr(value).partition(" at 0x")[0][:30])
def test_other_values_are_refused(run_axpy, value):
    for call in (run_axpy, jax.jit(functools.partial(run_axpy, alpha=value))):
        with pytest.raises(StaticArgumentError) as caught:
            call(X, X, alpha=value) if call is run_axpy else call(X, X)
        message = str(caught.value)
        for part in (
            "axpy: the scalar 'alpha'",
            repr(value),
            type(value).__name__,
            "allowed: bool, int",
            "as an array",
        ):
            assert part in message
    assert_array_equal(run_axpy(X, X, alpha=1), 2 * X)


TWOS = [
    *(np.array(2.0), np.array(2, np.uint8), jnp.float32(2), jnp.int8(2), jnp.bfloat16(2), np.float16(2)),
    *(ml_dtypes.bfloat16(2), np.complex64(2), jnp.complex64(2)),
]


@pytest.mark.parametrize("value", TWOS, ids=repr)
def test_arrays_without_dimensions_and_every_dtype_of_a_kernel(value):
    @numba.njit
    def scale(x, out, alpha):
        for i in range(x.size):
            out[i] = x[i] * alpha

    run = numba_kernel(scale, outs=lambda x: Struct(x.shape, jnp.complex64))
    for call in (functools.partial(run, alpha=value), jax.jit(functools.partial(run, alpha=value))):
        assert_array_equal(call(X), 2 * X)


@pytest.mark.parametrize("value", [2, -1.5, True, np.int16(-3), np.uint8(200), np.float32(0.1)])
def test_a_traced_scalar_has_its_own_dtype(value):
    expected = jnp.asarray(value).dtype
    kind = {"b": BOOL, "i": INT, "u": UINT, "f": FLOAT}[expected.kind] + 8 * expected.itemsize
    found, out = jax.jit(run_describe)(value=value)
    assert (int(found), out) == (kind, np.float32(value))


def test_a_traced_64_bit_scalar(x64):
    for value in (-(2**62) - 1, 0.1, np.uint64(2**64 - 1)):
        dtype = np.asarray(value).dtype
        run = numba_kernel(bits, outs=Struct((1,), dtype))
        assert np.asarray(jax.jit(run)(value=value)).tobytes() == np.asarray(value).tobytes()
        mapped = jax.vmap(lambda v, run=run: run(value=v))(np.asarray([value, value]))
        assert np.asarray(mapped).tobytes() == 2 * np.asarray(value).tobytes()


def axpy(x, y, alpha):
    return alpha * x + y


@numba.njit
def axpy_kernel(alpha, x, y, out):
    for i in range(out.size):
        out[i] = alpha * x[i] + y[i]


def test_scalars_are_traced_everywhere(run_axpy):
    assert_array_equal(jax.jit(lambda a: run_axpy(X, X, alpha=a))(2.0), 3 * X)
    assert_array_equal(jax.jit(run_axpy)(X, X, alpha=2.0), 3 * X)
    assert_array_equal(jax.lax.fori_loop(0, 3, lambda i, x: run_axpy(x, x, alpha=i), X), 6 * X)

    def step(carry, _):
        factor, x = carry
        return (factor + 1, run_axpy(x, x, alpha=factor)), factor

    (factor, x), _ = jax.lax.scan(step, (jnp.float32(1), X), length=3)
    assert factor == 4 and np.array_equal(x, 2 * 3 * 4 * X)
    assert_array_equal(jax.lax.cond(True, lambda a: run_axpy(X, X, alpha=a), lambda a: X, 2.0), 3 * X)
    assert_array_equal(jax.checkpoint(lambda a: run_axpy(X, X, alpha=a))(2.0), 3 * X)
    with jax.disable_jit():
        assert_array_equal(run_axpy(X, X, alpha=2.0), 3 * X)


BATCHES = [
    *(("native", X + 1), ("native", np.arange(3)), ("native", np.array([True, False, True]))),
    *((method, X + 1) for method in ("broadcast_all", "sequential", "sequential_unrolled")),
]


@pytest.mark.parametrize(("method", "values"), BATCHES, ids=lambda value: str(getattr(value, "dtype", value)))
def test_each_slice_of_a_batch_has_its_own_scalar(method, values):
    run = numba_kernel(axpy_kernel, outs=lambda x, y: x, vmap_method=method)
    values, batch = jnp.asarray(values), jnp.stack([X, 2 * X, 3 * X])
    grid = np.asarray(values, np.float32)[:, None, None] * batch + X
    both = jax.vmap(lambda x, a: run(x, X, alpha=a))
    for call in (both, jax.jit(both)):
        assert_array_equal(call(batch, values), [grid[i, i] for i in range(3)])
    assert_array_equal(jax.vmap(lambda a: run(X, X, alpha=a))(values), grid[:, 0])
    assert_array_equal(jax.vmap(lambda x: run(x, X, alpha=2.5))(batch), 2.5 * batch + X)
    assert_array_equal(jax.vmap(lambda a: jax.vmap(lambda x: run(x, X, alpha=a))(batch))(values), grid)


def test_a_large_batch_of_scalars_runs_on_several_threads():
    run = numba_kernel(axpy_kernel, outs=lambda x, y: x)
    values = jnp.arange(5000.0)
    assert_array_equal(jax.vmap(lambda a: run(X, X, alpha=a))(values), values[:, None] * X + X)


def test_a_scalar_that_is_an_array_with_dimensions_is_refused(run_axpy):
    for call in (run_axpy, jax.jit(run_axpy), jax.vmap(lambda x, y, alpha: run_axpy(x, y, alpha=alpha))):
        rows = X[None] if call is not run_axpy else X
        with pytest.raises(StaticArgumentError, match=r"axpy: 'alpha' is an array, float32.*by position"):
            call(rows, rows, alpha=np.ones((1, 2), np.float32))
    with pytest.raises(StaticArgumentError, match=r"(?s)the scalar 'alpha' is .*allowed: bool"):
        run_axpy(X, X, alpha=jax.random.key(0))


def test_scalars_in_debug_mode(run_axpy):
    with debug_mode():
        assert_array_equal(run_axpy(X, X, alpha=2.0), 3 * X)
        assert_array_equal(jax.vmap(lambda a: run_axpy(X, X, alpha=a))(X), [axpy(X, X, a) for a in X])


def test_unknown_missing_and_doubled_names(run_axpy):
    with pytest.raises(ArityError, match=r"axpy: no parameter 'beta'; the kernel has \(x, y, out, alpha\)"):
        run_axpy(X, X, beta=2)
    with pytest.raises(
        ArityError, match=r"4 parameters .*x, y, out, alpha.*2 inputs by position .* \[\] by keyword.*1 output.*Missing"
    ):
        run_axpy(X, X)
    with pytest.raises(ArityError, match=r"the scalars \['alpha', 'x'\] by keyword.*Too many"):
        run_axpy(X, X, x=1, alpha=2)
    with pytest.raises(XLAKernelError, match="'x' is"):
        run_axpy(X, x=X, alpha=1)


NAMES = (
    *("args", "attributes", "call", "context", "ctx", "inputs", "kernel", "name", "outs", "params", "primals", "self"),
    *("static", "α"),
)


def product_of(static):
    return math.prod(static[name] for name in NAMES)


# The product of the scalars is linear in x.
DERIVATIVES = {
    "reference": lambda x, /, **static: product_of(static) * x,
    "jvp": lambda primals, tangents, /, **static: product_of(static) * tangents[0],
    "vjp": lambda primals, results, cotangents, /, **static: product_of(static) * cotangents,
    "transpose": {0: lambda inputs, cotangents, /, **static: product_of(static) * cotangents},
}


@pytest.mark.parametrize("way", DERIVATIVES)
def test_a_scalar_may_have_any_name(way):
    """The parameters of JAX's lowering rules and of this package's functions must not clash with the kernel's."""
    scope = {}
    lines = "for i in range(x.size):", f"    out[i] = {' * '.join(NAMES)} * x[i]"
    exec("\n    ".join([f"def scale(x, out, {', '.join(NAMES)}):", *lines]), scope)  # noqa: S102
    kernel = numba.njit(scope["scale"])
    run = numba_kernel(kernel, outs=lambda x: x, **{way: DERIVATIVES[way]})
    together = numba_kernel(kernel, outs=lambda x: x, vmap_method=lambda x, /, **static: product_of(static) * x)
    scalars = {name: 2.0 if i == 3 else -1.0 for i, name in enumerate(NAMES)}
    factor = product_of(scalars)
    with debug_mode():
        assert_array_equal(run(X, **scalars), factor * X)
    assert_array_equal(run(X, **scalars), factor * X)
    assert_array_equal(jax.jit(run)(X, **scalars), factor * X)
    assert_array_equal(jax.vmap(lambda x: together(x, **scalars))(X[None]), factor * X[None])
    assert_array_equal(jax.grad(lambda x: run(x, **scalars).sum())(X), np.full(3, factor))
    assert_array_equal(jax.vmap(jax.grad(lambda x: run(x, **scalars).sum()))(X[None]), np.full((1, 3), factor))
    traced = jax.jit(jax.grad(lambda x, scalars: run(x, **scalars).sum()))
    assert_array_equal(traced(X, scalars), np.full(3, factor))


def test_a_name_reserved_by_a_derivative_is_refused():
    run = numba_kernel(
        numba.njit(lambda x, out, primals: None), outs=lambda x: x, vjp=lambda primals, results, cotangents: None
    )
    with pytest.raises(KernelTypeError, match=r"vjp cannot be called as .*primals=.*'primals'.* / "):
        jax.grad(lambda x: run(x, primals=1).sum())(X)
