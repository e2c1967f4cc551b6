"""Updates of weights at active events: values, derivatives, transformations, and updates in place."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from xlakernel import sparse
from xlakernel.core import use_backend
from xlakernel.core.errors import DtypeError, InputError, ShapeError
from xlakernel.sparse import BinaryArray, BitPackedArray, csr_transpose

FUNCTIONS = (
    *("update_csr_on_binary_pre", "update_csr_on_binary_post", "update_csc_on_binary_pre"),
    *("update_csc_on_binary_post", "update_dense_on_binary_pre", "update_dense_on_binary_post"),
)
each_function = pytest.mark.parametrize("name", FUNCTIONS)


class Update:
    """One of the functions on the structure of these tests, and the same by dense arrays.

    Attributes:
      run: ``run(weight, trace, spikes, w_min, w_max)``.
      lines, places: the numbers of events, and of elements of the trace.
      line, place: those of each weight; lines out of range for padding.
    """

    def __init__(self, name, csr, rows, columns):
        (pre, post), function = csr["shape"], getattr(sparse, name)
        structure = csr["indices"], csr["indptr"]
        by_row = name.endswith("pre")
        if "dense" in name:
            row, column = np.indices((pre, post))
            self.shape, bound = (pre, post), function
        else:
            row, column, self.shape = np.array(rows), np.array(columns), (len(rows),)
            shape = (pre, post)
            if "csc" in name:  # the same arrays describe the transpose
                pre, post, row, column, shape = post, pre, column, row, shape[::-1]
            arrays = csr_transpose(*structure, shape=shape) if name == "update_csr_on_binary_post" else structure

            def bound(w, *rest):
                return function(w, *arrays, *rest, shape=shape)

        order = (lambda t, s: (s, t)) if by_row else (lambda t, s: (t, s))
        self.run = lambda w, t, s, *limits: bound(w, *order(t, s), *limits)
        self.lines, self.places = (pre, post) if by_row else (post, pre)
        self.line, self.place = (row, column) if by_row else (column, row)

    def dense(self, w, t, s, lower=None, upper=None):
        active = jnp.append(jnp.asarray(s) != 0, False)[self.line]
        moved = w + jnp.append(t, 0)[self.place]
        if lower is not None:
            moved = jnp.where(moved < lower, lower, moved)
        if upper is not None:
            moved = jnp.where(moved > upper, upper, moved)
        return jnp.where(active, moved, w)

    def arguments(self, dtype="float32", seed=0):
        rng = np.random.default_rng(seed)
        w, t = rng.normal(size=self.shape), rng.normal(size=self.places)
        s = np.arange(self.lines) % 3 != 1
        return jnp.asarray(w, dtype), jnp.asarray(t, dtype), jnp.asarray(s)


@pytest.fixture
def update(csr, make):
    """Return `Update` by the name of the function."""
    coordinates = make("csr").matrix.coordinates()
    return lambda name: Update(name, csr, *coordinates)


def assert_close(found, expected, tolerance=1e-6):
    assert found.shape == expected.shape and found.dtype == expected.dtype
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


# Values.


@each_function
@pytest.mark.parametrize("limits", [(), (-0.5,), (None, 0.5), (-0.5, 0.5)])
def test_values(update, plain_jax, name, limits):
    example = update(name)
    w, t, s = example.arguments()
    assert_close(example.run(w, t, s, *limits), example.dense(w, t, s, *limits))


@each_function
def test_values_of_the_default_backend(update, name):
    example = update(name)
    w, t, s = example.arguments()
    assert_close(example.run(w, t, s, -0.5, 0.5), example.dense(w, t, s, -0.5, 0.5))


@given(spikes=st.lists(st.sampled_from([0.0, -0.0, 1.0, -2.0, np.nan, np.inf]), min_size=5, max_size=5))
def test_events_that_are_not_zero_are_active(csr, spikes):
    w, t, s = jnp.zeros(12), jnp.arange(1.0, 8), jnp.array(spikes)
    with use_backend("jax"):
        found = sparse.update_csr_on_binary_pre(w, csr["indices"], csr["indptr"], s, t, shape=csr["shape"])
        by_flags = sparse.update_csr_on_binary_pre(w, csr["indices"], csr["indptr"], s != 0, t, shape=csr["shape"])
    active = np.append(np.array(spikes) != 0, False)[np.repeat(np.arange(6), [3, 0, 2, 1, 4, 2])]
    np.testing.assert_array_equal(np.asarray(found) != 0, active)
    np.testing.assert_array_equal(found, by_flags)


@each_function
def test_kinds_of_events(update, plain_jax, name):
    example = update(name)
    w, t, s = example.arguments()
    expected = example.run(w, t, s)
    kinds = (s.astype("int8"), s.astype("float16") * -3, np.asarray(s), BinaryArray(s), BitPackedArray(s))
    for events in kinds:
        np.testing.assert_array_equal(example.run(w, t, events), expected)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "int8", "uint32", "complex64"])
def test_dtypes(update, plain_jax, x64, dtype):
    """The result has the dtype of the weights; half precision is added in float32."""
    example = update("update_csr_on_binary_pre")
    w, t, s = example.arguments()
    w, t = (8 * jnp.abs(w)).astype(dtype), jnp.round(8 * jnp.abs(t)) / 8
    trace = t.astype("int8" if np.dtype(dtype).kind in "iu" else "float32")
    found = example.run(w, trace, s)
    assert found.dtype == dtype
    expected = example.dense(w.astype("complex128"), trace.astype("complex128"), s)
    np.testing.assert_allclose(found.astype("complex128"), expected, rtol=float(jnp.finfo("bfloat16").eps))


@each_function
def test_limits_for_each_weight(update, plain_jax, name):
    example = update(name)
    w, t, s = example.arguments()
    upper = jnp.abs(example.arguments(seed=1)[0])
    assert_close(example.run(w, t, s, None, upper), example.dense(w, t, s, None, upper))
    assert_close(example.run(w, t, s, -0.25, upper), example.dense(w, t, s, -0.25, upper))


def test_weights_outside_of_the_limits_stay_until_they_are_active(update, plain_jax):
    example = update("update_csr_on_binary_pre")
    w, t, s = example.arguments()
    w = w.at[:].set(5)
    found = example.run(w, t, s, 0.0, 1.0)
    np.testing.assert_array_equal(found, np.where(np.append(s, False)[example.line], 1, 5))
    clipped = example.run(jnp.clip(w, 0, 1), t, s, 0.0, 1.0)
    np.testing.assert_array_equal(clipped, example.dense(jnp.clip(w, 0, 1), t, s, 0, 1))


# Derivatives.


def losses(example, limits=2):
    """Return the sum of squares of the updated weights, and the same by dense arrays."""
    s = example.arguments()[2]
    return (
        lambda w, t, *given: jnp.sum(example.run(w, t, s, *given[:limits]) ** 2),
        lambda w, t, *given: jnp.sum(example.dense(w, t, s, *given[:limits]) ** 2),
    )


@each_function
@pytest.mark.parametrize("limits", [0, 2])
def test_gradients(update, plain_jax, x64, name, limits):
    example = update(name)
    w, t, _ = example.arguments("float64")
    given, argnums = (w, t, *[jnp.array(-0.5), jnp.array(0.5)][:limits]), tuple(range(2 + limits))
    found, expected = (jax.grad(loss, argnums)(*given) for loss in losses(example, limits))
    for one, other in zip(found, expected, strict=True):
        assert_close(one, other, 1e-10)
    tangents = example.arguments("float64", seed=1)[:2] + (jnp.array(0.3), jnp.array(-0.2))[:limits]
    found, expected = (jax.jvp(loss, given, tangents) for loss in losses(example, limits))
    np.testing.assert_allclose(found, expected, rtol=1e-10)


@each_function
def test_gradients_against_finite_differences(update, smooth, plain_jax, x64, name):
    example = update(name)
    w, t, _ = example.arguments("float64")
    run, _ = losses(example)
    smooth(jax.jit(run), w, t, jnp.array(-0.5), jnp.array(0.5))


def test_gradients_by_limits_of_each_weight(update, plain_jax, x64):
    example = update("update_csr_on_binary_post")
    w, t, s = example.arguments("float64")
    upper = jnp.abs(example.arguments("float64", seed=1)[0])
    found = jax.grad(lambda upper: jnp.sum(example.run(w, t, s, None, upper) ** 2))(upper)
    expected = jax.grad(lambda upper: jnp.sum(example.dense(w, t, s, None, upper) ** 2))(upper)
    assert np.any(expected) and not np.all(expected)
    assert_close(found, expected, 1e-10)


@each_function
def test_inactive_entries_do_not_spread_what_is_not_finite(update, plain_jax, name):
    """An infinite trace, tangent or cotangent at inactive entries reaches no other derivative."""
    example = update(name)
    w, t, s = example.arguments()
    s = jnp.zeros_like(s).at[0].set(True)
    active = np.append(s, False)[example.line]
    _, pull = jax.vjp(lambda w, t: example.run(w, t, s), w, t)
    of_w, of_t = pull(jnp.where(active, 1, jnp.nan))
    assert np.isfinite(of_t).all() and np.isnan(of_w[~active]).all() and np.isfinite(of_w[active]).all()
    _, tangent = jax.jvp(lambda t: example.run(w, t, s), (t,), (jnp.full_like(t, jnp.inf),))
    np.testing.assert_array_equal(tangent, np.where(active, np.inf, 0))


def test_half_precision_is_differentiable(update, plain_jax):
    example = update("update_csr_on_binary_pre")
    w, t, s = example.arguments()

    def loss(w, t):
        return example.run(w, t, s, -0.5, 0.5).astype("float32").sum()

    of_w, of_t = jax.grad(loss, (0, 1))(w.astype("bfloat16"), t)
    assert of_w.dtype == "bfloat16" and of_t.dtype == "float32"
    exact = jax.grad(lambda w, t: example.dense(w, t, s, -0.5, 0.5).sum(), (0, 1))(w, t)
    np.testing.assert_allclose(of_t, exact[1])


# Transformations.


@each_function
@pytest.mark.parametrize("backend", ["jax", "numba"])
def test_vmap(update, name, backend):
    """Over each argument alone, and over all of them."""
    if backend == "numba" and "csc_on_binary_pre" in name:
        pytest.skip("it is the operator of `update_csr_on_binary_post`")
    example = update(name)
    w, t, s = example.arguments()
    given = (w, t, s, jnp.array(-0.5), jnp.array(0.5))
    other = (*(jnp.roll(x, 1) for x in given[:3]), jnp.array(-0.25), jnp.array(0.75))
    with use_backend("jax" if backend == "jax" else None, cpu=backend):
        for mapped in (*((i,) for i in range(5)), range(5)):
            batch = [jnp.stack([x, y]) if i in mapped else x for i, (x, y) in enumerate(zip(given, other, strict=True))]
            axes = [0 if i in mapped else None for i in range(5)]
            found = jax.vmap(example.run, axes)(*batch)
            assert_close(found, jax.vmap(example.dense, axes)(*batch))


def test_vmap_of_gradients(update, plain_jax):
    example = update("update_csr_on_binary_post")
    w, t, s = example.arguments()
    batch = jnp.stack([s, ~s])
    of = lambda f: jax.vmap(jax.grad(lambda w, t, s: jnp.sum(f(w, t, s, -0.5) ** 2), (0, 1)), (None, None, 0))  # noqa: E731
    for found, expected in zip(of(example.run)(w, t, batch), of(example.dense)(w, t, batch), strict=True):
        assert_close(found, expected, 1e-5)


def copies_of(compiled, size):
    """Return the instructions of a program that copy an array of *size* float32."""
    return re.findall(rf"= f32\[{size}\]\S* copy\(.*", compiled.as_text())


@pytest.mark.parametrize("backend", ["jax", "numba"])
def test_a_scan_carries_the_weights_in_place(csr, backend):
    """A step of a plastic network. The first update depends on the product, so that it cannot run before it."""
    n, per_row = 200, 50
    A = sparse.CSR.random(jax.random.key(0), (n, n), per_row=per_row)
    structure = csr_transpose(A.indices, A.indptr, shape=A.shape)

    def step(carry, spikes):
        w, trace = carry
        current = BinaryArray(spikes) @ A.with_data(w)
        fired = current > 1
        w = sparse.update_csr_on_binary_post(w, *structure, trace, fired, 0, 1, shape=A.shape)
        w = sparse.update_csr_on_binary_pre(w, A.indices, A.indptr, spikes, -trace, 0, 1, shape=A.shape)
        return (w, 0.9 * trace + 0.01 * fired), fired

    run = lambda w, spikes: jax.lax.scan(step, (w, jnp.zeros(n)), spikes)  # noqa: E731
    spikes = jax.random.bernoulli(jax.random.key(1), 0.05, (20, n))
    with use_backend(cpu=backend):
        compiled = jax.jit(run, donate_argnums=0).lower(A.data, spikes).compile()
        (found, _), fired = compiled(A.data + 0, spikes)
    with use_backend("jax"):
        (expected, _), expected_fired = run(A.data, spikes)
    np.testing.assert_array_equal(fired, expected_fired)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    if backend == "numba":
        assert copies_of(compiled, n * per_row) == []
        assert compiled.memory_analysis().temp_size_in_bytes < A.data.nbytes
        again = jax.jit(lambda w, spikes: (run(w, spikes), w)).lower(A.data, spikes).compile()
        assert copies_of(again, n * per_row), "or copies have another form"


@each_function
def test_donated_weights_are_updated_in_place(update, name):
    example = update(name)
    w, t, s = example.arguments()
    expected = example.dense(w, t, s)
    found = jax.jit(example.run, donate_argnums=0)(w, t, s)
    assert w.is_deleted()
    assert_close(found, expected)


def test_an_argument_that_is_not_donated_stays(update):
    example = update("update_csr_on_binary_pre")
    w, t, s = example.arguments()
    before = np.array(w)
    example.run(w, t, s)
    jax.jit(example.run)(w, t, s)
    np.testing.assert_array_equal(w, before)


# Wrong arguments.


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"weight": jnp.ones(1)}, ShapeError, r"weight has the shape \(1,\); expected \(12,\), .*jnp.full"),
        ({"weight": jnp.ones(11)}, ShapeError, r"weight has the shape \(11,\); expected \(12,\)"),
        ({"weight": jnp.ones(12, bool)}, DtypeError, "weight is of dtype bool; allowed: float16"),
        ({"weight": "w"}, InputError, "weight is 'w' of type str; expected an array"),
        ({"indptr": jnp.arange(5)}, ShapeError, "indptr has 5 elements; a matrix with 5 rows has 6"),
        ({"indices": jnp.ones(12)}, DtypeError, "indices is of dtype float32; expected int32 or int64"),
        ({"pre_spike": jnp.ones(4)}, ShapeError, r"pre_spike has the shape \(4,\); .*shape \(5, 7\) it must be \(5,\)"),
        (
            {"pre_spike": 1j * jnp.ones(5)},
            DtypeError,
            "pre_spike is of dtype complex64; expected bool, integers or real",
        ),
        ({"post_trace": jnp.ones(5)}, ShapeError, r"post_trace has the shape \(5,\); .* it must be \(7,\)"),
        (
            {"weight": jnp.ones(12, int)},
            DtypeError,
            "post_trace is of dtype float32; weights of dtype int32 cannot hold",
        ),
        ({"post_trace": 1j * jnp.ones(7)}, DtypeError, "post_trace is of dtype complex64; weights of dtype float32"),
        ({"w_min": jnp.ones(3)}, ShapeError, r"w_min and w_max have the shapes \(3,\) and \(\); .*\(12,\)"),
        ({"w_max": 1j}, DtypeError, "w_max is of dtype complex64; weights of dtype float32"),
        (
            {"weight": jnp.ones(12, complex), "w_max": 1.0},
            DtypeError,
            "weight is of .*; complex weights have no limits",
        ),
        ({"shape": (5,)}, ShapeError, r"shape is \(5,\); expected \(rows, columns\)"),
    ],
)
@pytest.mark.parametrize("jitted", [False, True])
def test_errors(csr, plain_jax, change, error, message, jitted):
    given = {"weight": jnp.ones(12), "pre_spike": jnp.ones(5), "post_trace": jnp.ones(7), **csr, **change}
    shape = given.pop("shape")
    run = functools.partial(sparse.update_csr_on_binary_pre, shape=shape)
    if jitted and not isinstance(given["weight"], str):
        run = jax.jit(run)
    with pytest.raises(error, match=f"update_csr_on_binary_pre: {message}"):
        run(**given)


def test_errors_of_other_functions(csr, plain_jax):
    structure = csr_transpose(csr["indices"], csr["indptr"], shape=csr["shape"])
    with pytest.raises(ShapeError, match=r"weight_indices has the shape \(3,\); .* it must be \(12,\)"):
        sparse.update_csr_on_binary_post(
            jnp.ones(12), *structure[:2], jnp.arange(3), jnp.ones(5), jnp.ones(7), shape=csr["shape"]
        )
    with pytest.raises(ShapeError, match=r"indptr has 8 elements; a matrix with 5 columns has 6"):
        sparse.update_csc_on_binary_pre(jnp.ones(12), *structure[:2], jnp.ones(7), jnp.ones(5), shape=(7, 5))
    with pytest.raises(ShapeError, match=r"weight has the shape \(3,\); expected two dimensions"):
        sparse.update_dense_on_binary_pre(jnp.ones(3), jnp.ones(3), jnp.ones(3))
    with pytest.raises(ShapeError, match=r"post_spike has the shape \(2,\); .*shape \(2, 3\) it must be \(3,\)"):
        sparse.update_dense_on_binary_post(jnp.ones((2, 3)), jnp.ones(2), jnp.ones(2))


@each_function
def test_the_upper_limit_wins_over_a_lower_one_that_exceeds_it(update, plain_jax, x64, name):
    example = update(name)
    w, t, _ = example.arguments("float64")
    found, expected = (jax.grad(loss, (2, 3))(w, t, jnp.array(0.5), jnp.array(0.2)) for loss in losses(example))
    np.testing.assert_allclose(found, expected)
    assert found[0] == 0 < found[1]


@each_function
def test_weights_that_are_nan_are_no_limits(update, plain_jax, x64, name):
    example = update(name)
    w, t, s = example.arguments("float64")
    w = w.at[(0,) * w.ndim].set(jnp.nan)

    def run(w, lower, upper):
        return jnp.sum(example.run(w, t, s, lower, upper))

    of_w, of_lower, of_upper = jax.grad(run, (0, 1, 2))(w, jnp.array(-9.0), jnp.array(9.0))
    np.testing.assert_array_equal(of_w, 1)
    assert of_lower == of_upper == 0
