"""Rules for the states of entries at active events."""

import re
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from xlakernel.core.errors import ArgumentError, DtypeError, InputError, ShapeError
from xlakernel.sparse import CSR, csr_apply_on_post, csr_apply_on_pre, csr_transpose
from xlakernel.sparse.operators.plasticity import visits


@jax.custom_vjp
def spike(x):
    """Return 1 where *x* is positive, with a surrogate gradient."""
    return (x > 0).astype(x.dtype)


spike.defvjp(lambda x: (spike(x), x), lambda x, cotangent: (cotangent / (1 + x * x),))

WAYS = ["pre", "post", "post transposed"]
each_way = pytest.mark.parametrize("way", WAYS)


def rule(state, pre, post, p):
    weight, trace = state["w"], state["trace"]
    return {"w": weight + p["rate"] * jnp.sin(pre["x"]) * post * trace.sum(), "trace": trace * p["decay"] + pre["x"]}


@pytest.fixture
def apply(csr):
    """Return the function of a way, with the structure of these tests."""
    structure = csr["indices"], csr["indptr"]

    def make(way):
        if way == "pre":
            return lambda f, state, s, **values: csr_apply_on_pre(f, state, *structure, s, shape=csr["shape"], **values)
        transposed = csr_transpose(*structure, shape=csr["shape"]) if way == "post transposed" else None
        return lambda f, state, s, **values: csr_apply_on_post(
            f, state, *structure, s, shape=csr["shape"], transposed=transposed, **values
        )

    return make


@pytest.fixture
def entries(make):
    """The row and the column of each entry, without padding."""
    row, column = (np.asarray(x) for x in make("csr").matrix.coordinates())
    return row[:10], column[:10]


def inputs(dtype="float32", seed=0):
    rng = np.random.default_rng(seed)
    draw = lambda *shape: jnp.asarray(rng.normal(size=shape), dtype)  # noqa: E731
    state = {"w": draw(12), "trace": draw(12, 2)}
    params = {"rate": jnp.asarray(0.3, dtype), "decay": draw(2)}
    return state, {"x": draw(5)}, draw(7), params


def spikes_of(way, seed=0):
    return jnp.asarray(np.random.default_rng(seed).random(5 if way == "pre" else 7) < 0.5)


def everywhere(f, entries, way, state, s, pre, post, params):
    """The same, for all entries, of which those of inactive events are not used."""
    row, column = entries

    def at(tree, n):
        return jax.tree.map(lambda x: x[n], tree)

    mapped = jax.vmap(lambda *of_entry: f(*of_entry, params))
    changed = mapped(at(state, slice(10)), at(pre, row), at(post, column))
    active = s[row if way == "pre" else column] != 0

    def replace(old, x):
        return old.at[:10].set(jnp.where(active.reshape(-1, *[1] * (x.ndim - 1)), x, old[:10]))

    return jax.tree.map(replace, state, changed)


def assert_trees_close(found, expected, tolerance=1e-5):
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert one.shape == other.shape and one.dtype == other.dtype
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)


# Seed, entries of a chunk, rows, and the fraction that is active.
CHUNKS = [(0, 1, 5, 0.5), (1, 7, 30, 0.3), (2, 7, 30, 1), (3, 40, 30, 0.3), (4, 3, 8, 0), (5, 5, 0, 1), (6, 1000, 9, 1)]


@each_way
@pytest.mark.parametrize("rate", [0, 0.5, 1])
def test_values(apply, entries, way, rate):
    state, pre, post, params = inputs()
    s = jnp.asarray(np.random.default_rng(1).random(5 if way == "pre" else 7) < rate, "float32") * -2
    found = apply(way)(rule, state, s, pre_vals=pre, post_vals=post, params=params)
    assert_trees_close(found, everywhere(rule, entries, way, state, s, pre, post, params))


@pytest.mark.parametrize("way", ["pre", "post transposed"])
@pytest.mark.parametrize(("seed", "chunk", "rows", "rate"), CHUNKS)
def test_chunks_of_any_size(way, seed, chunk, rows, rate):
    """Long, short and empty rows, over several chunks."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, 12, rows) * (rng.random(rows) < 0.6)
    indptr = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    indices, n = rng.integers(0, 9, indptr[-1] + 2).astype(np.int32), int(indptr[-1])
    row, column = np.repeat(np.arange(rows), lengths), indices[:n]
    s = rng.random(rows if way == "pre" else 9) < rate
    with mock.patch.object(visits, "_CHUNK", (chunk, chunk, 1)):
        f = lambda w, x, y, _: w + 10 * x + y  # noqa: E731
        options = {"pre_vals": jnp.arange(rows), "post_vals": jnp.arange(9), "shape": (rows, 9)}
        state = jnp.arange(n + 2)
        if way == "pre":
            found = csr_apply_on_pre(f, state, indices, indptr, s, **options)
        else:
            options["transposed"] = csr_transpose(indices, indptr, shape=(rows, 9))
            found = csr_apply_on_post(f, state, indices, indptr, s, **options)
    active = s[row if way == "pre" else column]
    np.testing.assert_array_equal(found, np.arange(n + 2) + np.append(active * (10 * row + column), [0, 0]))


@each_way
def test_gradients(apply, entries, x64, way):
    state, pre, post, params = inputs("float64")
    s = spikes_of(way)

    def losses(f, *given):
        total = lambda tree: sum(jnp.sum(jnp.cos(x)) for x in jax.tree.leaves(tree))  # noqa: E731
        return lambda state, pre, post, params: total(f(state, pre, post, params))

    one = losses(lambda state, pre, post, params: apply(way)(
        rule, state, s, pre_vals=pre, post_vals=post, params=params))  # fmt: skip
    other = losses(lambda *given: everywhere(rule, entries, way, given[0], s, *given[1:]))
    given, moved = (state, pre, post, params), inputs("float64", seed=1)

    def derivatives(f):
        of_rate = jax.grad(jax.grad(lambda r: f(state, pre, post, {**params, "rate": r})))
        return jax.grad(f, (0, 1, 2, 3))(*given), jax.jvp(f, given, moved)[1], of_rate(0.3)

    assert_trees_close(*(jax.jit(derivatives, static_argnums=0)(f) for f in (one, other)), 1e-10)


@each_way
def test_a_rule_may_close_over_traced_values(apply, x64, way):
    """Numbers with derivatives, and integers."""
    s = spikes_of(way)
    state = jnp.arange(12.0)

    @jax.jit
    def run(rate, step):
        return apply(way)(lambda w, *_: w + rate * w * step, state, s).sum()

    expected = lambda rate: jnp.sum(apply(way)(lambda w, _, __, p: w + p * w * 3, state, s, params=rate))  # noqa: E731
    np.testing.assert_allclose(run(0.5, 3), expected(0.5))
    np.testing.assert_allclose(jax.grad(run)(0.5, 3), jax.grad(expected)(0.5))
    assert jax.grad(run)(0.5, 3) != 0


@each_way
def test_vmap(apply, entries, way):
    """Over each argument alone, also of the gradient."""
    given = (*inputs(), spikes_of(way))
    other = (*inputs(seed=1), spikes_of(way, 1))
    f = lambda state, pre, post, params, s: apply(way)(  # noqa: E731
        rule, state, s, pre_vals=pre, post_vals=post, params=params)  # fmt: skip
    expected = lambda *given: everywhere(rule, entries, way, given[0], given[4], *given[1:4])  # noqa: E731
    for mapped in range(5):
        batch = list(given)
        batch[mapped] = jax.tree.map(lambda x, y: jnp.stack([x, y]), given[mapped], other[mapped])
        axes = [0 if i == mapped else None for i in range(5)]
        assert_trees_close(*jax.jit(lambda *x, axes=axes: [jax.vmap(g, axes)(*x) for g in (f, expected)])(*batch))
    loss = lambda *given: sum(x.sum() for x in jax.tree.leaves(f(*given)))  # noqa: E731
    gradient = jax.jit(jax.grad(loss, 3))
    found = jax.vmap(gradient, [None] * 4 + [0])(*given[:4], np.stack([given[4], other[4]]))
    assert_trees_close(jax.tree.map(lambda x: x[1], found), gradient(*given[:4], other[4]))


@each_way
def test_gradient_of_a_scan(apply, entries, x64, way):
    state, pre, post, params = inputs("float64")
    s = jnp.stack([spikes_of(way, i) for i in range(3)])

    def loss(f):
        def run(params):
            step = lambda state, s: (f(state, s, params), None)  # noqa: E731
            return jax.lax.scan(step, state, s)[0]["w"].sum()

        return jax.jit(jax.grad(run))(params)

    found = loss(lambda state, s, p: apply(way)(rule, state, s, pre_vals=pre, post_vals=post, params=p))
    assert_trees_close(found, loss(lambda state, s, p: everywhere(rule, entries, way, state, s, pre, post, p)), 1e-10)


def test_a_scan_carries_states_in_place():
    n, per_row = 300, 50
    A = CSR.random(jax.random.key(0), (n, n), per_row=per_row)

    def step(w, spikes):
        w = csr_apply_on_pre(lambda w, *_: 0.9 * w, w, A.indices, A.indptr, spikes, shape=A.shape)
        return w, None

    spikes = jax.random.bernoulli(jax.random.key(1), 0.02, (20, n))
    compiled = jax.jit(lambda w: jax.lax.scan(step, w, spikes)[0], donate_argnums=0).lower(A.data).compile()
    assert re.findall(rf"= f32\[{n * per_row}\]\S* copy\(.*", compiled.as_text()) == []
    expected = A.data * 0.9 ** spikes.sum(0)[A.coordinates()[0]]
    np.testing.assert_allclose(compiled(A.data + 0), expected, rtol=1e-5)


def test_dtypes_of_the_state_stay(apply):
    state = {"w": jnp.ones(12, "bfloat16"), "last": jnp.zeros(12, "int32"), "seen": jnp.zeros(12, bool)}
    f = lambda state, pre, post, t: {"w": state["w"] * 1.5 + pre, "last": t, "seen": True}  # noqa: E731
    found = apply("pre")(f, state, jnp.ones(5), pre_vals=jnp.ones(5), params=7)
    assert {name: x.dtype.name for name, x in found.items()} == {"w": "bfloat16", "last": "int32", "seen": "bool"}
    assert found["last"].tolist() == [7] * 10 + [0] * 2 and found["w"].tolist() == [2.5] * 10 + [1] * 2


def test_methods(make, entries):
    """Of each format, prepared or not; the states are in the order of the entries."""
    for name in ("csr", "csc", "prepared csr", "prepared csc"):
        A = make(name).matrix
        row, column = (np.asarray(x) for x in A.coordinates())
        pre, post = jnp.arange(1.0, A.shape[0] + 1), jnp.arange(1.0, A.shape[1] + 1)
        f = lambda w, x, y, p: w + p * x * y  # noqa: E731
        options = {"pre_vals": pre, "post_vals": post, "params": 2.0}
        is_entry = row < A.shape[0]
        change = 2 * np.append(pre, 0)[row] * np.append(post, 0)[column]
        for method, line, size in (("apply_on_pre", row, A.shape[0]), ("apply_on_post", column, A.shape[1])):
            s = np.arange(size) % 2 == 0
            active = np.append(s, False)[line] & is_entry
            found = getattr(A, method)(f, s, **options)
            np.testing.assert_allclose(found, A.data + change * active, rtol=1e-6)
            counts = getattr(A, method)(lambda c, *_: c + 1, s, edge_state=jnp.zeros(12, int))
            np.testing.assert_array_equal(counts, active)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"edge_state": jnp.ones(1)}, ShapeError, r"edge_state has a leaf of shape \(1,\); .* must be 12"),
        ({"edge_state": "w"}, InputError, "edge_state is 'w' of type str"),
        ({"pre_vals": jnp.ones(7)}, ShapeError, r"pre_vals has a leaf of shape \(7,\); .* must be 5"),
        ({"post_vals": [jnp.float32(1)]}, ShapeError, r"post_vals has a leaf of shape \(\); .* must be 7"),
        ({"pre_spike": jnp.ones(4)}, ShapeError, r"pre_spike has the shape \(4,\)"),
        ({"pre_spike": 1j * jnp.ones(5)}, DtypeError, "pre_spike is of dtype complex64"),
        ({"rule": lambda *_: (1, 2)}, ArgumentError, "rule returns the structure .*; expected that of edge_state"),
        (
            {"rule": lambda *_: jnp.ones(3)},
            ArgumentError,
            r"rule returns an array of shape \(3,\) for a state of shape",
        ),
        ({"indptr": jnp.arange(4)}, ShapeError, "indptr has 4 elements; a matrix with 5 rows has 6"),
    ],
)
def test_errors(csr, change, error, message):
    given = {"rule": lambda w, *_: w, "edge_state": jnp.ones(12), "pre_spike": jnp.ones(5), **csr, **change}
    with pytest.raises(error, match=f"csr_apply_on_pre: {message}"):
        csr_apply_on_pre(**given)


def test_errors_of_the_transposed_structure(csr):
    with pytest.raises(ArgumentError, match=r"csr_apply_on_post: transposed is .*; expected three arrays"):
        csr_apply_on_post(
            lambda w, *_: w, jnp.ones(12), csr["indices"], csr["indptr"], jnp.ones(7), shape=(5, 7), transposed=(1, 2)
        )


@each_way
def test_gradients_are_those_of_active_entries(make, x64, way):
    """The derivative of a rule may be infinite, or NaN, at inactive entries and padding."""
    csr = make("csr").matrix.astype("float64")
    places = [np.asarray(x)[:10] for x in csr.coordinates()]
    line, place = places if way == "pre" else places[::-1]
    lines, columns = csr.shape if way == "pre" else csr.shape[::-1]
    s = np.arange(lines) % 2 == 0
    active = s[line]
    weight, other = np.where(active, np.arange(1.0, 11), 0), np.zeros(columns)
    other[place[active]] = 2.0
    own = np.where(s, 4.0, 0)
    here = csr.with_data(jnp.asarray([*weight, np.nan, np.nan]))
    A = here.prepare() if way == "post transposed" else here

    def rule(w, pre, post, p):
        return p * jnp.sqrt(w) + jnp.sqrt(pre) + jnp.sqrt(post)

    def loss(w, p, other, own):
        values = dict(zip(("pre_vals", "post_vals"), (own, other) if way == "pre" else (other, own), strict=True))
        apply = A.apply_on_pre if way == "pre" else A.apply_on_post
        return apply(rule, s, edge_state=w, params=p, **values)[:10].sum()

    of_w, of_p, of_other, of_own = jax.grad(loss, (0, 1, 2, 3))(here.data, 3.0, other, own)
    np.testing.assert_allclose(of_w[:10], np.where(active, 1.5 / np.sqrt(np.where(active, weight, 1)), 1))
    np.testing.assert_allclose(of_p, np.sqrt(weight[active]).sum())
    assert np.isfinite(of_other).all()
    np.testing.assert_allclose(of_own, np.bincount(line[active], minlength=lines) / 4)


def test_gradients_without_active_entries():
    A = CSR.from_dense(jnp.eye(3))
    no, rule = jnp.zeros(3, bool), lambda w, pre, post, p: jnp.sqrt(w - 1)
    found = jax.grad(lambda w: A.apply_on_pre(rule, no, edge_state=w).sum())(A.data)
    np.testing.assert_array_equal(found, 1)


@pytest.mark.parametrize("rule", [lambda w, *_: w * w, lambda w, *_: 1 + spike(w)], ids=["square", "surrogate"])
def test_a_gradient_of_a_batch_of_events(rule):
    """One slice of the batch has no active entry."""
    A = CSR.from_dense(jnp.eye(3))
    s = jnp.array([[True, True, True], [True, False, False], [False, False, False]])
    w = jnp.asarray(np.random.default_rng(0).normal(size=(3, 3)), "float32")
    apply = jax.vmap(lambda w, s: A.apply_on_pre(rule, s, edge_state=w))
    expected = jax.grad(lambda w: jnp.where(s, jax.vmap(jax.vmap(rule))(w), w).sum())(w)
    np.testing.assert_allclose(jax.grad(lambda w: apply(w, s).sum())(w), expected, rtol=1e-6)
    np.testing.assert_allclose(jax.jit(jax.grad(lambda w: apply(w, s).sum()))(w), expected, rtol=1e-6)
