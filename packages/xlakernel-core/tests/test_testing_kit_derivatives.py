"""Faults of derivatives that `check_kernel` finds; those of large and small values are beside this file."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.custom_batching import custom_vmap

X = np.linspace(0.5, 2.5, 5, dtype=np.float32)
Y = np.linspace(-1, 1, 5, dtype=np.float32)


def with_jvp(rule):
    @jax.custom_jvp
    def fn(x, y):
        return jnp.sin(x) * y

    fn.defjvp(lambda primals, tangents: (fn(*primals), rule(*primals, *tangents)))
    return fn


def exact(x, y, dx, dy):
    return jnp.cos(x) * y * dx + jnp.sin(x) * dy


def wrong_at_2(x, y, dx, dy):
    return jnp.cos(x).at[2].multiply(1.05) * y * dx + jnp.sin(x) * dy


def wrong_for_y(x, y, dx, dy):
    return jnp.cos(x) * y * dx - jnp.sin(x) * dy


def forgets_y(x, y, dx, dy):
    return jnp.cos(x) * y * dx


@pytest.mark.parametrize("size", [5, 200])
@pytest.mark.parametrize(
    ("rule", "number", "element"), [(wrong_at_2, 0, "(2,)"), (wrong_for_y, 1, ""), (forgets_y, 1, "")]
)
@pytest.mark.parametrize("known", [True, False], ids=["reference", "no reference"])
def test_wrong_derivatives(assert_caught, assert_passes, rule, number, element, size, known):
    x, y = np.linspace(0.5, 1.2, size, dtype=np.float32), np.linspace(1, 2, size, dtype=np.float32)
    options = {"reference": lambda x, y: np.sin(x) * y} if known else {}
    assert_caught("grad_forward", f"differentiable input {number}, by jvp", with_jvp(rule), x, y, **options)
    place = f"element {element}" if size == 5 else "a random direction"
    found = f"the gradient of differentiable input {number} along {place}"
    assert_caught("grad_reverse", found, with_jvp(rule), x, y, **options)
    for check in ("grad_forward", "grad_reverse", "grad_vmap"):
        assert_passes(check, with_jvp(exact), x, y, **options)


@pytest.mark.parametrize(
    "rule",
    [
        lambda x, y, dx, dy: jnp.cos(x) * y * jnp.abs(dx) + jnp.sin(x) * dy,
        lambda x, y, dx, dy: jnp.cos(x) * y * dx + jnp.sin(x) * dy + dx * dy,
    ],
    ids=["absolute value", "product"],
)
def test_a_derivative_that_is_not_linear(assert_caught, rule):
    """A rule for the reverse mode may be right beside it."""
    x, y = np.linspace(0.5, 1.2, 5, dtype=np.float32), np.linspace(1, 2, 5, dtype=np.float32)
    function = jax.custom_jvp(lambda x, y: jnp.sin(x) * y)
    function.defjvp(lambda primals, tangents: (function(*primals), rule(*primals, *tangents)))
    assert_caught("grad_forward", "a random direction of all differentiable inputs, by jvp", function, x, y)


def test_finite_differences_are_in_double_precision_if_possible(run_check):
    def rough(x):
        return jnp.sin(only_float32(x))

    fine = "compared with finite differences in double precision, relative error at most 0.0002; "
    fine += "derivatives below 1e-10 of the results are not resolved"
    coarse = "compared with finite differences in the kernel's own precision, relative error at most 0.005; "
    coarse += "derivatives below 1e-04 of the results are not resolved"
    for check in ("grad_forward", "grad_reverse"):
        for options in ({}, {"reference": np.sin}):
            assert run_check(check, jnp.sin, X, **options).detail == fine
        assert run_check(check, rough, X, reference=np.sin).detail == fine
        assert run_check(check, rough, X).detail == coarse


def only_float32(x):
    """Return *x*, which must be of float32: differences are rough then."""
    assert x.dtype == np.float32
    return x


@pytest.mark.parametrize("size", [5, 200])
def test_derivatives_of_kernels_for_float32_only(assert_caught, assert_passes, size):
    def with_factor(factor):
        @jax.custom_jvp
        def fn(x):
            return jnp.exp(only_float32(x))

        fn.defjvp(lambda p, t: (fn(*p), factor * jnp.exp(p[0]) * t[0]))
        return fn

    x = np.linspace(-1, 1, size, dtype=np.float32)
    for check in ("grad_forward", "grad_reverse"):
        assert_passes(check, with_factor(1), x)
        assert_caught(
            check, "element (" if size == 5 or check == "grad_forward" else "a random direction", with_factor(1.03), x
        )


def test_the_second_derivative(assert_caught, assert_passes):
    def stopped(x, y, dx, dy):
        return exact(jax.lax.stop_gradient(x), y, dx, dy)

    for check in ("grad_forward", "grad_reverse"):
        assert_passes(check, with_jvp(stopped), X, Y)
        assert_caught(check, "second order: ", with_jvp(stopped), X, Y, grad_order=2)
        assert_passes(check, with_jvp(exact), X, Y, grad_order=2)


def test_complex_derivatives(assert_caught, assert_passes):
    z = (X + 1j * Y).astype(np.complex64)

    def with_rule(rule):
        @jax.custom_jvp
        def fn(z):
            return z * z

        fn.defjvp(lambda p, t: (fn(*p), rule(p[0], t[0])))
        return fn

    for check in ("grad_forward", "grad_reverse"):
        assert_passes(check, with_rule(lambda z, dz: 2 * z * dz), z)
        assert_caught(check, "element (0,)", with_rule(lambda z, dz: 2 * jnp.conj(z) * dz), z)


def test_no_derivative(assert_caught, run_check):
    def fn(x):
        return jax.pure_callback(lambda x: np.asarray(x) * 2, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

    assert_caught("grad_reverse", "raised ValueError", fn, X)
    assert 'skip={"grad": "the reason"}' in run_check("grad_reverse", fn, X).detail
    assert run_check("grad_forward", jnp.cumsum, np.arange(3)).outcome == "not tried"
    assert run_check("grad_forward", jnp.sign, np.arange(3)).outcome == "not tried"


@pytest.mark.parametrize("sizes", [[1e-3, 1, 100], [1e-6, 1], [2, 3e4]], ids=str)
@pytest.mark.parametrize("check", ["grad_forward", "grad_reverse"])
def test_elements_of_very_different_sizes(assert_caught, assert_passes, check, sizes):
    x = np.array(sizes, np.float32)
    for fn in (jnp.log, jnp.sqrt, lambda x: 1 / x):
        assert_passes(check, lambda x, fn=fn: fn(x), x, rtol=1e-3)

    @jax.custom_jvp
    def wrong(x):
        return jnp.log(x)

    wrong.defjvp(lambda primals, tangents: (jnp.log(*primals), 1.1 * tangents[0] / primals[0]))
    assert_caught(check, "derivative along" if check == "grad_forward" else "the gradient of", wrong, x)


@pytest.mark.parametrize("x", [[1e-14, 1, 2], [1e-14, 2e-14]], ids=str)
@pytest.mark.parametrize("value", [lambda x: x + 1, jnp.exp], ids=["sum", "exponential"])
def test_a_derivative_that_is_0_at_small_elements(assert_caught, value, x):
    """A step as small as these elements is lost in the rounding of the result, and the difference is 0, too."""

    def slope(x, dx):
        return jnp.where(jnp.abs(x) > 1e-9, jax.jvp(value, (x,), (dx,))[1], 0)

    function = jax.custom_jvp(value)
    function.defjvp(lambda primals, tangents: (function(*primals), slope(*primals, *tangents)))
    x = np.array(x, np.float32)
    assert_caught("grad_forward", "derivative along element (0,)", function, x)
    assert_caught("grad_reverse", "along element (0,) is 0", function, x)


def doubled(mix):
    """Return a function whose derivative doubles a batch of directions, after *mix* has changed the slices."""

    @custom_vmap
    def double(x):
        return 2 * x

    double.def_vmap(lambda size, is_batched, x: (mix(2 * x), True))
    return double


@pytest.mark.parametrize("mix", [lambda x: jnp.broadcast_to(x[:1], x.shape), lambda x: x[::-1]])
def test_directions_of_other_slices(assert_caught, assert_passes, mix):
    def with_vjp(rule):
        fn = jax.custom_vjp(lambda x: 2 * x)
        fn.defvjp(lambda x: (2 * x, ()), lambda _, cotangents: (rule(cotangents),))
        return fn

    def with_jvp(rule):
        fn = jax.custom_jvp(lambda x: 2 * x)
        fn.defjvp(lambda primals, tangents: (2 * primals[0], rule(*tangents)))
        return fn

    assert_caught("grad_vmap", "vmap with cotangents of each slice", with_vjp(doubled(mix)), X)
    for make in (with_vjp, with_jvp):
        assert_passes("grad_vmap", make(lambda x: 2 * x), X)


def with_vjp(gradient):
    @jax.custom_vjp
    def fn(x):
        return x * x

    fn.defvjp(lambda x: (x * x, x), lambda x, c: (gradient(x, c),))
    return fn


@pytest.mark.parametrize("x", [X, X[:1].reshape(())], ids=["vector", "scalar"])
@pytest.mark.parametrize(
    "gradient",
    [
        lambda x, c: 2 * x * jnp.abs(c),
        lambda x, c: 2 * x * jnp.maximum(c, 0),
        lambda x, c: 2 * x * jnp.clip(c, -1.6, 1.6),
        lambda x, c: jnp.where(jnp.abs(c) > 0.1, 2 * x * c, 0),
        lambda x, c: jnp.where(c == 0, 1e-3, 2 * x * c),
        lambda x, c: jnp.where(c == 0, jnp.nan, 2 * x * c),
    ],
    ids=["absolute", "positive", "clipped", "thresholded", "wrong for zero", "NaN for zero"],
)
def test_gradients_that_are_not_linear_in_the_cotangents(assert_caught, assert_passes, x, gradient):
    assert_passes("grad_reverse", with_vjp(lambda x, c: 2 * x * c), x)
    assert_caught("grad_reverse", "gradient", with_vjp(gradient), x)


def test_a_gradient_that_is_wrong_where_one_output_is_unused(assert_caught):
    function = jax.custom_vjp(lambda x: (x.sum(), (x * x).sum()))

    def pull(x, cotangents):
        first, second = cotangents
        return (jnp.where(second == 0, jnp.nan, first + 2 * x * second),)

    function.defvjp(lambda x: (function(x), x), pull)
    assert_caught("grad_reverse", "for cotangents of zeros, the gradient of differentiable input 0", function, X)


@pytest.mark.parametrize("mapped", [(True, False, False), (False, True, False), (True, True, False)])
def test_a_derivative_that_is_wrong_for_some_inputs_of_a_batch(assert_caught, mapped):
    """The cotangent is mapped as well."""

    @custom_vmap
    def product(x, y, z, c):
        return x * y * z * c

    @product.def_vmap
    def _(size, batched, *operands):
        spread = [v if b else jnp.broadcast_to(v, (size, *v.shape)) for v, b in zip(operands, batched, strict=True)]
        result = jnp.prod(jnp.stack(spread), 0)
        return result * (2 if batched == [*mapped, True] else 1), True

    function = jax.custom_vjp(lambda x, y, z: x * y * z)
    function.defvjp(
        lambda x, y, z: (x * y * z, (x, y, z)),
        lambda kept, c: tuple(
            product(*(jnp.ones_like(v) if i == k else v for i, v in enumerate(kept)), c) for k in range(3)
        ),
    )
    assert_caught("grad_vmap", "of the batch, element", function, X, Y + 2, X + 1)


@pytest.mark.parametrize("check", ["grad_forward", "grad_reverse", "grad_vmap"])
@pytest.mark.parametrize("x", [[1, np.nan], [np.inf, 1], [1, -1]])
def test_results_without_differences(run_check, check, x):
    outcome = run_check(check, lambda x: jnp.log(2 * x), np.array(x, np.float32), reference=lambda x: jnp.log(2 * x))
    assert outcome.outcome == "not tried" and "a result is NaN, or is infinite" in outcome.detail


def test_a_custom_vjp_has_no_forward_mode(run_check, assert_passes):
    function = jax.custom_vjp(lambda x: x * x)
    function.defvjp(lambda x: (x * x, x), lambda x, cotangent: (2 * x * cotangent,))
    outcome = run_check("grad_forward", function, X)
    assert (
        outcome.outcome == "not tried" and "custom_vjp function; give the kernel jvp= or reference=" in outcome.detail
    )
    assert_passes("grad_reverse", function, X)
    assert_passes("grad_vmap", function, X)
