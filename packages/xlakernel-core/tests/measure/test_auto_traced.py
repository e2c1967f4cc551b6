"""``backend="auto"`` in traced calls, which use known choices, and `tune`, which measures for them."""

import functools
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from jax.extend.core import jaxpr_as_fun
from jax.sharding import PartitionSpec

from xlakernel.core import AutoChoice, auto_choices, reset_auto_choices, tune, use_backend
from xlakernel.core.errors import ArgumentError, AutoBackendWarning, KernelTypeError, XLAKernelError
from xlakernel.core.measure import auto, choices

X = np.ones(5, np.float32)

pytestmark = pytest.mark.usefixtures("auto_folder", "speeds")


@pytest.fixture
def op(alike):
    return alike


@pytest.fixture
def call(op):
    """The operator as a function of one array."""
    return lambda x: op(x, outs=jax.ShapeDtypeStruct(jnp.shape(x), jnp.result_type(x)), backend="auto")


def over_shards(f):
    mesh = jax.sharding.Mesh(jax.devices("cpu")[:1], "d")
    return jax.shard_map(f, mesh=mesh, in_specs=PartitionSpec("d"), out_specs=PartitionSpec("d"))


# Programs that call a function of X once, each its own transformation.
TRACED = {
    "jit": lambda f: jax.jit(f)(X),
    "jit of a constant": lambda f: jax.jit(lambda: f(X))(),
    "compiled ahead": lambda f: jax.jit(f).lower(X).compile()(X),
    "vmap": lambda f: jax.vmap(f)(X[None]),
    "vmap in jit": lambda f: jax.jit(jax.vmap(f, in_axes=1, out_axes=1))(X[:, None]),
    "grad": lambda f: jax.grad(lambda x: f(x).sum())(X),
    "jvp": lambda f: jax.jvp(f, (X,), (X,))[0],
    "linearize": lambda f: jax.linearize(f, X)[0],
    "checkpoint": lambda f: jax.checkpoint(f)(X),
    "scan": lambda f: jax.lax.scan(lambda x, _: (f(x), None), X, length=1)[0],
    "while": lambda f: jax.lax.while_loop(lambda x: x[0] < 2, f, X),
    "cond": lambda f: jax.lax.cond(X[0] > 0, f, lambda x: x, X),
    "shard_map": lambda f: over_shards(f)(X),
    "lowered only": lambda f: jax.jit(f).lower(X),
    "a jaxpr": lambda f: jax.core.eval_jaxpr(*_open(jax.make_jaxpr(f)(X)), X),
}


def _open(closed):
    return closed.jaxpr, closed.consts


@pytest.mark.parametrize("transform", TRACED.values(), ids=TRACED)
def test_traced_calls_are_not_measured(op, call, made, ran, measured, transform):
    with pytest.warns(AutoBackendWarning, match=f"{op.name}: .*found no measurement .*default, 'a'") as said:
        jax.block_until_ready(transform(call))
    assert (measured, len(said), said[0].filename) == ([], 1, __file__)
    # The forward kernel and the derivative's may be two programs, but none of another backend.
    assert set(made) == {("cpu", "a")}
    assert ran in ([], ["a"], ["a", "a"])


@pytest.mark.parametrize("transform", TRACED.values(), ids=TRACED)
def test_traced_calls_take_the_known_choice(call, made, ran, measured, transform):
    call(X)
    made.clear()
    ran.clear()
    jax.block_until_ready(transform(call))
    assert set(made) <= {("cpu", "b")} and set(ran) <= {"b"} and (made or ran)
    assert len(measured) == 1


def test_the_types_of_results_need_no_choice(call, made, measured):
    assert jax.eval_shape(call, X).shape == (5,)
    assert (made, measured) == ([], [])


def test_the_warning_comes_once_for_each_operator(call, new_operator):
    other = new_operator(lambda x: x)
    other.def_kernel("b", "cpu", lambda outs: lambda x: x)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for n in (3, 30, 300):
            jax.jit(call)(np.ones(n, np.float32))
        jax.jit(lambda x: other(x, outs=x, backend="auto"))(X)
    assert [warning.category for warning in said] == [AutoBackendWarning] * 2
    message = str(said[0].message)
    assert "float32[4] -> float32[4] on cpu" in message and "xlakernel.core.tune(function, *arrays)" in message


def test_jitted_functions_follow_and_a_program_compiled_ahead_keeps_its_backend(call, ran):
    jitted = jax.jit(call)
    with pytest.warns(AutoBackendWarning):
        jitted(X)
    ahead = jitted.lower(X).compile()
    call(X)
    for program, backend in ((jitted, "b"), (ahead, "a"), (jax.jit(lambda x: call(x)), "b")):
        ran.clear()
        jax.block_until_ready(program(X))
        assert ran == [backend]


def test_a_kept_program_takes_no_backend_that_was_added_later(op, call, ran):
    kept = jaxpr_as_fun(jax.make_jaxpr(call)(X))
    op.def_kernel("new", "cpu", lambda outs: lambda x: 5 * x)
    tune(call, X)
    ran.clear()
    np.testing.assert_array_equal(jax.jit(lambda x: kept(x)[0])(X), 2 * X)


def test_calls_outside_of_jit_follow(call, ran):
    def mapped():
        ran.clear()
        jax.block_until_ready(jax.vmap(call)(X[None]))
        return ran[-1]

    with pytest.warns(AutoBackendWarning):
        assert mapped() == "a"
    call(X)
    assert mapped() == "b"


def test_a_batch_takes_the_choice_of_a_slice(call, ran):
    call(X)
    ran.clear()
    x = np.ones((3, 5, 70), np.float32)
    result = jax.vmap(jax.vmap(call, in_axes=1, out_axes=1), in_axes=0)(x)
    np.testing.assert_array_equal(result, 2 * x)
    assert set(ran) == {"b"}


def test_the_default_runs_instead(op, call, ran):
    op.set_default("cpu", "c")
    with pytest.warns(AutoBackendWarning, match="default, 'c'"):
        jax.block_until_ready(jax.jit(call)(X))
    assert ran == ["c"]


def test_a_default_of_auto_leaves_the_first_that_was_registered(op, ran):
    op.set_default("cpu", "auto")
    with pytest.warns(AutoBackendWarning, match="default, 'a'"):
        jax.block_until_ready(jax.jit(lambda x: op(x, outs=x))(X))
    assert ran == ["a"]


@pytest.fixture
def exported(new_operator, made):
    """A function of one array that calls an operator without callbacks, which JAX does not export, and its name."""

    def generator(backend, platform):
        def generate(outs):
            made.append((platform, backend))
            return lambda x: 2 * x

        return generate

    op = new_operator()
    for backend in "abc":
        for platform in ("cpu", "gpu"):
            op.def_kernel(backend, platform, generator(backend, platform))
    op(X, outs=X, backend="auto")
    made.clear()
    return lambda x: op(x, outs=x, backend="auto"), op.name


def test_a_program_for_several_platforms_has_a_choice_for_each(exported, made, monkeypatch):
    call, name = exported
    (known,) = choices._known.values()

    class Gpu:
        platform, device_kind = "gpu", "NVIDIA of a test"

    devices = {"cpu": jax.local_devices(backend="cpu"), "gpu": [Gpu()]}
    monkeypatch.setattr(auto, "_local_devices", devices.__getitem__)
    question = choices.Question(name, "gpu", Gpu.device_kind, known.call, ("a", "b", "c"))
    choice = AutoChoice(**{**vars(known), "platform": "gpu", "device": Gpu.device_kind, "backend": "c"})
    choices.remember(question, choice)
    export.export(jax.jit(call), platforms=["cpu", "cuda"])(X)
    assert sorted(made) == [("cpu", "b"), ("gpu", "c")]


def test_a_platform_that_is_not_here_has_its_default(exported, made, monkeypatch):
    monkeypatch.setattr(auto, "_local_devices", lambda platform: ())
    with pytest.warns(AutoBackendWarning, match="on gpu \\(none here\\)"):
        export.export(jax.jit(exported[0]), platforms=["cuda"])(X)
    assert made == [("gpu", "a")]


def test_a_symbolic_size_has_the_default(exported, made):
    (n,) = export.symbolic_shape("n")
    with pytest.warns(AutoBackendWarning, match="float32\\[n\\]"):
        export.export(jax.jit(exported[0]), platforms=["cpu"])(jax.ShapeDtypeStruct((n,), jnp.float32))
    assert made == [("cpu", "a")]


def test_a_rule_may_pass_it_on_to_an_operator_of_other_backends(op, call, new_operator, ran):
    other = new_operator(lambda x: 2 * x)  # it has no b

    @op.def_jvp_rule
    def rule(primals, tangents, *, outs, dispatch, **static):
        results = op.primitive.bind(*primals, outs=outs, dispatch=dispatch, **static)
        return results, other.primitive.bind(*tangents, outs=outs, dispatch=dispatch, **static)

    call(X)
    ran.clear()
    np.testing.assert_array_equal(jax.jvp(call, (X,), (X,))[1], 2 * X)
    assert set(ran) == {"b"}


def test_operators_that_a_rule_calls_outside_of_jit_follow(op, call, new_operator):
    other, others = new_operator(), []

    def generator(backend):
        def double(x):
            others.append(backend)
            return 2 * np.asarray(x)

        return lambda outs: lambda x: jax.pure_callback(double, outs[0], x)

    for backend in "ab":
        other.def_kernel(backend, "cpu", generator(backend))

    @op.def_jvp_rule
    def rule(primals, tangents, *, outs, dispatch, **static):
        results = op.primitive.bind(*primals, outs=outs, dispatch=dispatch, **static)
        return results, other.primitive.bind(*tangents, outs=outs, dispatch=dispatch, **static)

    call(X)
    with pytest.warns(AutoBackendWarning, match=other.name):
        jax.block_until_ready(jax.jvp(call, (X,), (X,)))
    assert set(others) == {"a"}
    tune(other, X, outs=X)
    others.clear()
    jax.block_until_ready(jax.jvp(call, (X,), (X,)))
    assert set(others) == {"b"}


# Tuning.


def test_tune_measures_each_operator_of_a_program(op, call, measured, ran):
    step = jax.jit(lambda x: call(x) + call(x[:2]).sum())
    choices = tune(step, jnp.asarray(X))
    assert [choice.call for choice in choices] == ["float32[8] -> float32[8]", "float32[2] -> float32[2]"]
    assert choices == sorted(auto_choices(op.name), key=lambda choice: choice.call, reverse=True)
    assert len(measured) == 2
    ran.clear()
    jax.block_until_ready(step(X))
    assert ran == ["b", "b"]


def test_tune_leaves_calls_with_another_backend_alone(op, ran):
    assert [choice.backend for choice in tune(op, X, outs=X)] == ["b"]
    ran.clear()
    assert tune(op, X, outs=X, backend="c") == []
    assert ran == ["c"]


def test_tune_measures_anew_but_once(call, measured, speeds):
    tune(call, X)
    speeds["c"] = 0.5
    step = functools.partial(jax.lax.fori_loop, 0, 3, lambda i, x: call(x))
    assert [choice.backend for choice in tune(step, X)] == ["c"]
    assert len(measured) == 2


def test_tune_leaves_a_transformation_inside_alone(call, measured):
    with pytest.warns(AutoBackendWarning):
        assert tune(lambda x: jax.grad(lambda x: call(x).sum())(x), X) == []
    assert measured == []


def test_tune_does_not_donate_arrays(call):
    x = jnp.ones(5)
    tune(jax.jit(call, donate_argnums=0), x)
    assert not x.is_deleted()


@pytest.mark.parametrize(
    "trace", [lambda f: jax.jit(f)(X), lambda f: jax.jit(lambda: f(X))(), lambda f: jax.vmap(f)(X)]
)
def test_tune_is_refused_inside_transformations(call, measured, trace):
    with pytest.raises(ArgumentError, match=r"tune: .* inside jax\.jit or another transformation.*Call tune before"):
        trace(lambda x: tune(call, x))
    assert measured == []


def test_tune_takes_a_function(call):
    with pytest.raises(KernelTypeError, match=r"tune: expected a function and its arguments; got 3\. Write tune\(f"):
        tune(3)


def test_tune_ends_with_an_error_of_the_function(call, measured):
    with pytest.raises(ZeroDivisionError):
        tune(lambda: 1 / 0)
    with pytest.warns(AutoBackendWarning), jax.disable_jit():
        call(X)  # which is not measured: the tuning is over
    assert measured == []


def test_tune_inside_tune(call, measured):
    inner = []
    outer = tune(lambda x: inner.extend(tune(call, x)) or call(x[:2]), X)
    assert [len(found) for found in (inner, outer)] == [1, 1]
    assert len(measured) == 2


def test_tune_raises_the_error_of_a_call(op):
    with pytest.raises(XLAKernelError, match="input 0 is ShapeDtypeStruct"):
        tune(op, jax.ShapeDtypeStruct((3,), jnp.float32), outs=X)


def test_a_reset_lets_the_next_tuning_choose(call, speeds):
    tune(call, X)
    reset_auto_choices()
    speeds["a"] = 0.1
    with use_backend("auto"):
        assert [choice.backend for choice in tune(call, X)] == ["a"]
