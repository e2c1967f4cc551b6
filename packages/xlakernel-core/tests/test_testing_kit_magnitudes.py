"""Derivatives of every magnitude: faults that `check_kernel` finds, and correct rules that pass."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

X = np.linspace(0.5, 2.5, 5, dtype=np.float32)
Y = np.linspace(-1, 1, 5, dtype=np.float32)


def square_times(scale, factor):
    @jax.custom_jvp
    def fn(x):
        return scale * x * x

    fn.defjvp(lambda primals, tangents: (fn(*primals), factor * 2 * scale * primals[0] * tangents[0]))
    return fn


@pytest.mark.parametrize("scale", [1e-12, 1e-6, 1e12])
@pytest.mark.parametrize("known", [True, False], ids=["reference", "no reference"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_derivatives_of_every_magnitude(assert_caught, assert_passes, scale, known, dtype):
    if dtype == np.float16:
        scale = {1e-12: 1e-3, 1e-6: 1e-1, 1e12: 1e3}[scale]
    x = np.linspace(1, 2, 4).astype(dtype)
    options = {"reference": lambda x: scale * x * x} if known else {}
    for check in ("grad_forward", "grad_reverse"):
        assert_caught(check, "element (0,)", square_times(scale, -7), x, **options)
        assert_passes(check, square_times(scale, 1), x, **options)


@pytest.mark.parametrize("factor", [1, -7])
def test_outputs_of_different_magnitudes(assert_caught, assert_passes, factor):
    current = square_times(1e-12, factor)
    for check in ("grad_forward", "grad_reverse"):
        arguments = check, "element (0,)", lambda v: (-65 * v, current(v)), np.linspace(1, 2, 4, dtype=np.float32)
        assert_passes(check, *arguments[2:]) if factor == 1 else assert_caught(*arguments)


def energy(x):
    stretch = jnp.linalg.norm(x, axis=1) - 1
    return 0.5 * stretch * stretch


@pytest.mark.parametrize(
    ("function", "x"),
    [
        (energy, [[0.01, 0.002, 0.003], [1, -0.5, 0.03]]),
        (energy, [[1, 0.2, 0.3], [100, -50, 3]]),
        (lambda x: jnp.sin(50 * x), [0.3, 0.7]),
        (jnp.sin, [1e6, 1.1]),
        (jnp.exp, [80, -80]),
        (jnp.square, [1e-20, 2e-20]),
        (jnp.sqrt, [1e30, 2e30]),
        (lambda x: 1 / x, [1e-10, 1]),
        (jax.nn.softmax, [0, -40, 30]),
        (jax.nn.logsumexp, [0, -40, 30]),
        (lambda x: x - x, [0, -40, 30]),
    ],
)
def test_correct_derivatives_where_one_step_does_not_fit(assert_passes, function, x):
    for check in ("grad_forward", "grad_reverse"):
        assert_passes(check, function, np.asarray(x, np.float32), reference=function)


@pytest.mark.parametrize("x", [[[0.01, 0.002, 0.003], [1, -0.5, 0.03]], [[1, 0.2, 0.3], [100, -50, 3]]])
def test_single_precision_without_a_reference(assert_passes, x):
    single = jax.jit(lambda x: energy(x.astype(jnp.float32)))
    assert_passes("grad_reverse", single, np.asarray(x, np.float32))


def scaled_derivative(function, factor, where=lambda x: jnp.ones(x.shape, bool)):
    """Return *function* with a jvp that is wrong by a factor at some elements."""
    wrong = jax.custom_jvp(function)

    @wrong.defjvp
    def rule(primals, tangents):
        y, dy = jax.jvp(function, primals, tangents)
        return y, jnp.where(where(primals[0]), factor * dy, dy).astype(y.dtype)

    return wrong


@pytest.mark.parametrize(
    ("function", "x", "known"),
    [
        (jnp.log1p, [1e-17, 1], True),
        (jnp.expm1, [1e-17, 1], True),
        (lambda x: jnp.log(1 + x), [1e-17, 1], True),
        (lambda x: jnp.log(1 + x), [1e-8, 1], False),
        (lambda x: (x - 65) + 65, [1e-6, 1], False),
    ],
)
def test_a_derivative_that_is_0_at_small_elements_of_any_function(assert_caught, assert_passes, function, x, known):
    x = np.asarray(x, np.float32)
    options = {"reference": function} if known else {}
    for check in ("grad_forward", "grad_reverse"):
        assert_caught(check, "element (0,)", scaled_derivative(function, 0, lambda x: x < 1e-3), x, **options)
        assert_passes(check, function, x, **options)


@pytest.mark.parametrize(("x", "factor", "known"), [([1e-6, 1e6], -7, True), ([0.02, 1e3], 0, False)])
def test_a_small_output_beside_a_large_one(assert_caught, assert_passes, x, factor, known):
    x = np.asarray(x, np.float32)
    options = {"reference": jnp.square} if known else {}
    for check in ("grad_forward", "grad_reverse"):
        assert_caught(check, "element (0,)", scaled_derivative(jnp.square, factor, lambda x: x < 0.1), x, **options)
        assert_passes(check, jnp.square, x, **options)


@pytest.mark.parametrize(
    ("function", "x"),
    [
        (jnp.exp, [-95]),
        (lambda x: jnp.where(jnp.isinf(x), 0, 2 * x), [np.inf, 1]),
        (lambda x: jnp.where(x < 0, -jnp.inf, x), [-1, 1]),
    ],
)
def test_correct_derivatives_at_the_limits_of_the_dtype(assert_passes, function, x):
    for check in ("grad_forward", "grad_reverse"):
        assert_passes(check, function, np.asarray(x, np.float32), reference=function)


def test_differences_that_are_too_inaccurate_ask_for_a_reference(assert_caught):
    # Steps in single precision are longer than a period.
    fast = jax.jit(lambda x: jnp.sin(1e5 * x.astype(jnp.float32)))
    assert_caught("grad_reverse", "give reference=", fast, np.linspace(1, 2, 4, dtype=np.float32))


@pytest.mark.parametrize("x", [[0.5, -1.2, 3e6], [3e6, 1e-3]])
def test_a_step_fits_the_element_that_moves(assert_caught, assert_passes, x):
    def bell(x):
        return jnp.exp(-0.5 * x * x)

    x = np.asarray(x, np.float32)
    for check in ("grad_forward", "grad_reverse"):
        assert_passes(check, bell, x, reference=bell)
        assert_caught(check, "along element (", scaled_derivative(bell, 0), x, reference=bell)
