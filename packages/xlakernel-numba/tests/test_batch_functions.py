"""A function as ``vmap_method``, which computes a whole batch in place of a loop over its slices."""

import pickle
import re

import jax
import jax.numpy as jnp
import numba
import numpy as np
import pytest
from jax import export as jax_export
from jax.sharding import PartitionSpec as P
from numpy.testing import assert_allclose, assert_array_equal

from xlakernel.core import debug_mode, deserialize, export
from xlakernel.core.errors import ResultError, VmapMethodError
from xlakernel.core.testing import check_kernel
from xlakernel.numba import numba_kernel


def first(x, *_):
    return x


@numba.njit
def leaky(x, decay, out, gain=1.0):
    total = x.dtype.type(0)
    for i in range(x.size):
        total = decay[()] * total + gain * x[i]
        out[i] = total


@numba.njit
def leaky_rows(x, decay, out, gain=1.0):
    for b in range(x.shape[0]):
        total = x.dtype.type(0)
        for i in range(x.shape[1]):
            total = decay[b] * total + gain * x[b, i]
            out[b, i] = total


def leaky_in_jax(x, decay, gain=1.0):
    def step(total, value):
        total = decay * total + gain * value
        return total, total

    return jax.lax.scan(step, jnp.zeros_like(x, shape=()), x)[1]


class Batches:
    """A batch function that records the shapes of its calls."""

    def __init__(self):
        self.shapes = []
        self.rows = numba_kernel(leaky_rows, outs=first)

    def __call__(self, x, decay, **scalars):
        self.shapes.append((x.shape, decay.shape))
        return self.rows(x, decay, **scalars)


@pytest.fixture
def batches():
    return Batches()


@pytest.fixture
def run(batches):
    return numba_kernel(leaky, outs=first, vmap_method=batches, reference=leaky_in_jax)


def normal(*shape):
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


X, DECAY = normal(3, 5), np.float32([0.1, 0.5, 0.9])


def test_a_single_call_runs_the_kernel(run, batches):
    assert_allclose(run(X[0], DECAY[0]), leaky_in_jax(X[0], DECAY[0]), rtol=1e-5)
    assert batches.shapes == []


@pytest.mark.parametrize("size", [0, 1, 3])
def test_a_batch_is_one_call_of_the_function(run, batches, size):
    x, decay = X[:size], DECAY[:size]
    expected = jax.vmap(leaky_in_jax)(x, decay)
    for mapped in (jax.vmap(run), jax.jit(jax.vmap(run)), jax.vmap(jax.jit(run))):
        assert_allclose(mapped(x, decay), expected, rtol=1e-5)
    assert set(batches.shapes) == {((size, 5), (size,))}


@pytest.mark.parametrize("in_axes", [(0, None), (None, 0), (1, 0)])
def test_an_input_that_is_not_mapped_is_repeated(run, batches, in_axes):
    x, decay = (X[0] if in_axes[0] is None else X), (DECAY[0] if in_axes[1] is None else DECAY)
    x = np.asarray(x).T if in_axes[0] == 1 else x
    assert_allclose(jax.vmap(run, in_axes)(x, decay), jax.vmap(leaky_in_jax, in_axes)(x, decay), rtol=1e-5)
    assert set(batches.shapes) == {((3, 5), (3,))}


@pytest.mark.parametrize("jit", [False, True])
def test_nested_levels_are_one_batch(run, batches, jit):
    def nested(function):
        mapped = jax.vmap(jax.vmap(function, (0, None), 1), (None, 0))
        return jax.jit(mapped) if jit else mapped

    assert_allclose(nested(run)(X, DECAY[:2]), nested(leaky_in_jax)(X, DECAY[:2]), rtol=1e-5)
    assert set(batches.shapes) == {((6, 5), (6,))}


@pytest.mark.parametrize("sizes", [(0, 3), (3, 0), (1, 3)])
def test_nested_batches_with_empty_or_single_levels(run, sizes):
    x = normal(*sizes, 5)
    mapped = jax.vmap(jax.vmap(run, (0, None)), (0, None))
    assert_allclose(mapped(x, DECAY[0]), jax.vmap(jax.vmap(lambda x: leaky_in_jax(x, DECAY[0])))(x), rtol=1e-5)


@pytest.mark.parametrize("gain", [2, 2.0, np.float64(2), np.float32(2), jnp.float32(2)], ids=repr)
def test_scalars_are_passed_by_name(run, batches, gain):
    expected = 2 * jax.vmap(leaky_in_jax)(X, DECAY)
    for wrap in (lambda f: f, jax.jit):
        assert_allclose(wrap(jax.vmap(lambda x, d: run(x, d, gain=gain)))(X, DECAY), expected, rtol=1e-5)
    assert_allclose(jax.jit(lambda g: jax.vmap(lambda x, d: run(x, d, gain=g))(X, DECAY))(2.0), expected, rtol=1e-5)
    assert set(batches.shapes) == {((3, 5), (3,))}


@pytest.mark.parametrize(
    ("gain", "kind"),
    [(2, int), (2.0, float), (np.float64(2), float), (np.float32(2), np.float32), (np.int8(2), np.int8)],
    ids=repr,
)
def test_only_a_python_number_keeps_the_dtype_of_an_array(gain, kind):
    kinds = set()

    def scale(x, decay, gain):
        kinds.add(type(gain))
        return x

    run = numba_kernel(leaky, outs=first, vmap_method=scale)
    jax.vmap(lambda x, d: run(x, d, gain=gain))(X, DECAY)
    assert kinds == {kind}


def test_the_default_of_a_scalar_is_that_of_the_call():
    run = numba_kernel(leaky, outs=first, vmap_method=lambda x, decay, gain: jnp.full_like(x, gain))
    assert_array_equal(jax.vmap(run)(X, DECAY), np.ones((3, 5)))


def test_mapped_scalars_are_looped_over(run, batches):
    gains = jnp.asarray([1.0, 2.0, 3.0])
    found = jax.vmap(lambda x, d, g: run(x, d, gain=g))(X, DECAY, gains)
    assert_allclose(found, jax.vmap(leaky_in_jax)(X, DECAY, gains), rtol=1e-5)
    both = jax.vmap(jax.vmap(lambda x, d, g: run(x, d, gain=g), (0, 0, None)), (None, None, 0))
    assert_allclose(both(X, DECAY, gains), gains[:, None, None] * jax.vmap(leaky_in_jax)(X, DECAY), rtol=1e-5)
    assert batches.shapes == []


def test_derivatives_are_those_of_the_kernel(run, batches):
    def losses(function):
        return lambda x, decay: (jax.vmap(function)(x, decay) ** 2).sum()

    for wrap in (lambda f: jax.grad(losses(f), (0, 1)), lambda f: jax.vmap(jax.grad(lambda x, d: f(x, d)[-1], (0, 1)))):
        for found, expected in zip(wrap(run)(X, DECAY), wrap(leaky_in_jax)(X, DECAY), strict=True):
            assert_allclose(found, expected, rtol=1e-4)
    assert set(batches.shapes) == {((3, 5), (3,))}


def test_a_linear_kernel_and_its_transpose():
    @numba.njit
    def twice(x, out):
        for i in range(x.size):
            out[i] = 2 * x[i]

    run = numba_kernel(twice, outs=first, vmap_method=lambda x: 2 * x, transpose={0: lambda ins, ct: 2 * ct})
    assert_array_equal(jax.grad(lambda x: jax.vmap(run)(x).sum())(X), np.full((3, 5), 2))


@numba.njit
def ends(x, most, least):  # JAX has the names of a dictionary in another order
    least[()] = x.min()
    most[()] = x.max()


def ends_out(x):
    one = jax.ShapeDtypeStruct((), x.dtype)
    return {"most": one, "least": one}


def test_results_are_bound_by_name_or_order():
    run = numba_kernel(ends, outs=ends_out, vmap_method=lambda x: {"least": x.min(1), "most": x.max(1)})
    found = jax.vmap(run)(X)
    assert_array_equal(found["least"], X.min(1))
    assert_array_equal(found["most"], X.max(1))


WRONG = {
    "nothing": (lambda x: None, r"ends: vmap_method returned None"),
    "too few": (lambda x: x.min(1), r"ends: vmap_method returned 1 result; the kernel has 2 results"),
    "no batch": (lambda x: {"least": x.min(), "most": x.max(1)}, r"result 0 of vmap_method is float32\[\]; .*32\[3\]"),
    "a dtype": (
        lambda x: {"least": x.min(1), "most": x.argmax(1)},
        r"result 1 of vmap_method is int32\[3\]; .*float32",
    ),
    "names": (lambda x: {"least": x.min(1), "max": x.max(1)}, r"vmap_method returned results as .*return them as"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_results_are_errors(wrong):
    function, message = WRONG[wrong]
    with pytest.raises(ResultError, match=message):
        jax.vmap(numba_kernel(ends, outs=ends_out, vmap_method=function))(X)


def test_a_side_effect_needs_the_kernel_itself():
    with pytest.raises(VmapMethodError, match=r"leaky: has_side_effect=True, and vmap_method is a function.*'native'"):
        numba_kernel(leaky, outs=first, vmap_method=Batches(), has_side_effect=True)


def test_the_conformance_of_a_kernel_with_its_batch_function(run, batches):
    skip = dict.fromkeys(("threads", "export", "sharding"), "has a test of its own")
    check_kernel(run, X[0], DECAY[0], reference=leaky_in_jax, skip=skip)
    assert batches.shapes


def test_a_batch_function_that_computes_something_else_is_found():
    wrong = numba_kernel(leaky, outs=first, vmap_method=lambda x, decay: x)
    skip = dict.fromkeys(("threads", "export", "sharding", "grad"), "has a test of its own")
    with pytest.raises(AssertionError, match="vmap"):
        check_kernel(wrong, X[0], DECAY[0], reference=leaky_in_jax, skip=skip)


def test_debug_mode_checks_the_batch_function():
    @numba.njit
    def beyond(x, decay, out, gain):
        out[x.shape[0], 0] = 0

    run = numba_kernel(leaky, outs=first, vmap_method=numba_kernel(beyond, outs=first))
    with debug_mode(), pytest.raises(Exception, match=re.compile("index", re.I)):
        jax.block_until_ready(jax.vmap(lambda x, d: run(x, d))(X, DECAY))


@pytest.mark.filterwarnings("ignore::xlakernel.core.errors.GatheredOperandsWarning")  # without a rule
@pytest.mark.parametrize("kind", ["Auto", "Explicit"])
@pytest.mark.parametrize("rule", [None, "[i], -> [i]"])
@pytest.mark.parametrize("nested", [False, True])
def test_a_batch_that_is_split_over_devices(make_mesh, put, batches, rule, kind, nested):
    """With a sharding rule each device calls the function on its slices; without one each takes the whole batch."""
    run = numba_kernel(leaky, outs=first, vmap_method=batches, sharding_rule=rule)
    mesh = make_mesh(kind, a=2)
    x, decay = normal(4, 5), np.linspace(0.1, 0.9, 3, dtype=np.float32)
    axes = [(0, None), (None, 0)][: 1 + nested]
    mapped, reference = run, leaky_in_jax
    for level in axes:
        mapped, reference = jax.vmap(mapped, level), jax.vmap(reference, level)
    decay = decay if nested else decay[0]
    found = jax.jit(mapped)(put(mesh, x, "a", None), jnp.asarray(decay))
    assert_allclose(found, reference(x, decay), rtol=1e-5)
    size = (2 if rule else 4) * (3 if nested else 1)
    assert batches.shapes[-1] == ((size, 5), (size,))


def test_inside_shard_map(make_mesh, put, run, batches):
    mesh = make_mesh(a=2)
    x, decay = normal(4, 5), normal(4)
    mapped = jax.shard_map(jax.vmap(run), mesh=mesh, in_specs=P("a"), out_specs=P("a"))
    assert_allclose(mapped(put(mesh, x, "a"), put(mesh, decay, "a")), jax.vmap(leaky_in_jax)(x, decay), rtol=1e-5)
    assert batches.shapes[-1] == ((2, 5), (2,))


def test_an_exported_program_has_the_batch_function(run):
    program = export(jax.jit(jax.vmap(run)))(*(jax.ShapeDtypeStruct(array.shape, array.dtype) for array in (X, DECAY)))
    assert ["leaky_rows(" in name for name in program.targets] == [True]
    found = deserialize(program.serialize()).call(X, DECAY)
    assert_allclose(found, jax.vmap(leaky_in_jax)(X, DECAY), rtol=1e-5)


def test_a_symbolic_batch_is_exported(run):
    sizes = jax_export.symbolic_shape("m, n")
    specs = jax.ShapeDtypeStruct((*sizes, 5), X.dtype), jax.ShapeDtypeStruct(sizes[:1], X.dtype)
    program = export(jax.jit(jax.vmap(jax.vmap(run, (0, None)))))(*specs)
    x = normal(3, 2, 5)
    expected = jax.vmap(jax.vmap(leaky_in_jax, (0, None)))(x, DECAY)
    assert_allclose(deserialize(program.serialize()).call(x, DECAY), expected, rtol=1e-5)


def rows_of_this_module(x, decay, **scalars):
    return numba_kernel(leaky_rows, outs=first)(x, decay, **scalars)


def test_a_pickled_wrapper_keeps_its_batch_function():
    run = pickle.loads(pickle.dumps(numba_kernel(leaky, outs=first, vmap_method=rows_of_this_module)))
    assert_allclose(jax.vmap(run)(X, DECAY), jax.vmap(leaky_in_jax)(X, DECAY), rtol=1e-5)
    assert "leaky_rows" in jax.jit(jax.vmap(run)).lower(X, DECAY).as_text()


def test_batch_functions_that_are_equal_are_told_apart():
    class Filled:
        def __init__(self, value):
            self.value = value

        def __eq__(self, other):
            return isinstance(other, Filled)

        def __hash__(self):
            return 1

        def __call__(self, x):
            return jnp.full_like(x, self.value)

    @numba.njit
    def copied(x, out):
        out[:] = x

    functions = [jax.vmap(numba_kernel(copied, lambda x: x, vmap_method=Filled(value))) for value in (2, 3)]
    results = jax.jit(lambda x: [function(x) for function in functions])(jnp.ones((4, 3)))
    assert [float(result[0, 0]) for result in results] == [2, 3]
