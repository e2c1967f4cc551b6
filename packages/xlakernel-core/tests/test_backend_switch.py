"""A switch of backends reaches the programs that exist, and harms none."""

import jax
import jax.numpy as jnp
import pytest

from xlakernel.core import use_backend
from xlakernel.core.errors import BackendNotFoundError

ONE = jnp.ones(())


@pytest.fixture
def op(choices):
    return choices


@pytest.fixture
def run(choices, chosen):
    """Return a function that calls the operator and returns the backend that ran."""
    return lambda backend=None: chosen(lambda x: choices(x, outs=ONE, backend=backend))


def test_a_switch_applies_to_jitted_functions(op, chosen):
    f = jax.jit(lambda x: op(x, outs=x))
    assert chosen(f) == "a"
    with use_backend("b"):
        assert chosen(f) == "b"
    assert chosen(f) == "a"
    op.set_default("cpu", "c")
    assert chosen(f) == "c"
    with use_backend("b"):
        assert chosen(f) == "b"


def test_a_switch_reaches_functions_jitted_inside_others(op, chosen):
    inner = jax.jit(lambda x: op(x, outs=x))
    outer = jax.jit(lambda x: jax.lax.scan(lambda c, _: (inner(c), None), x, length=1)[0])
    assert chosen(outer) == "a"
    with use_backend("b"):
        assert chosen(outer) == "b"
    op.set_default("cpu", "c")
    assert chosen(outer) == "c"


def test_flipping_back_finds_the_old_program(op, made, chosen):
    traces = []

    @jax.jit
    def f(x):
        traces.append(None)
        return op(x, outs=x)

    for _ in range(3):
        assert chosen(f) == "a"
        for backend in "bc":
            with use_backend(backend):
                assert chosen(f) == backend
    assert made == ["a", "b", "c"]
    assert len(traces) == 3


def test_a_new_default_is_traced_once(op, chosen):
    traces = []

    @jax.jit
    def f(x):
        traces.append(None)
        return op(x, outs=x)

    for backend in "acc":
        op.set_default("cpu", backend)
        for _ in range(2):
            assert chosen(f) == backend
    assert len(traces) == 2


def test_flipping_back_finds_the_old_program_in_eager_calls(made, run):
    for _ in range(3):
        assert (run(), run(backend="b")) == ("a", "b")
        with use_backend("c"):
            assert run() == "c"
    assert made == ["a", "b", "c"]


def test_other_functions_keep_their_programs(op, new_operator, run):
    traces = []

    @jax.jit
    def unrelated(x):
        traces.append(None)
        return x + 1

    unrelated(ONE)
    op.set_default("cpu", "c")  # of which there is no program yet
    with use_backend("b"):
        run()
    run()
    new_operator(jnp.sin)(ONE, outs=ONE)
    unrelated(ONE)
    assert len(traces) == 1


def test_a_default_counts_for_its_own_operator(op, new_operator, run, chosen):
    other = new_operator(lambda x: x * 5)
    op.set_default("cpu", "b")
    assert run() == "b"
    assert chosen(lambda x: other(x, outs=x)) == "d"
    assert other.get_default("cpu") == "jax"


@pytest.fixture
def follower(op, new_operator):
    """An operator with the kernels of *op* but for c, and with its default."""
    follower = new_operator()
    for backend in ("a", "b"):
        follower.def_kernel(backend, "cpu", op.entry("cpu", backend).kernel_generator)
    follower.def_default_of(op)
    return follower


def test_a_default_applies_to_followers(op, follower, chosen):
    f = jax.jit(lambda x: follower(x, outs=x))
    assert (follower.get_default("cpu"), chosen(f)) == ("a", "a")
    op.set_default("cpu", "b")
    assert (follower.get_default("cpu"), chosen(f)) == ("b", "b")
    with use_backend("a"):
        assert chosen(f) == "a"
    op.set_default("cpu", "a")
    assert (follower.get_default("cpu"), chosen(f)) == ("a", "a")


def test_an_operator_that_follows_may_have_its_own_default(op, follower, chosen):
    f = jax.jit(lambda x: follower(x, outs=x))
    op.set_default("cpu", "b")
    follower.set_default("cpu", "a")  # also where it is the first one registered
    assert (follower.defaults, op.defaults["cpu"], chosen(f)) == ({"cpu": "a"}, "b", "a")
    follower.set_default("cpu", "b")
    op.set_default("cpu", "a")
    assert (follower.get_default("cpu"), chosen(f)) == ("b", "b")


def test_a_default_missing_in_a_follower_is_an_error(op, follower):
    op.set_default("cpu", "c")
    with pytest.raises(BackendNotFoundError, match=r"no 'c' kernel for platform 'cpu'; registered: \['a', 'b'\]"):
        follower(ONE, outs=ONE)


def test_traces_in_a_context_keep_its_choice(op, chosen):
    jitted = jax.jit(lambda x: op(x, outs=x))
    with use_backend("b"):
        traced, lowered = jitted.trace(ONE), jitted.lower(ONE)
        compiled = jitted.lower(ONE).compile()
    with use_backend("c"):
        assert [chosen(program) for program in (compiled, lowered.compile(), traced.lower().compile())] == ["b"] * 3
    assert [chosen(program) for program in (compiled, lowered.compile(), traced.lower().compile())] == ["b"] * 3


def test_a_jaxpr_keeps_its_choice(op, chosen):
    with use_backend("b"):
        jaxpr = jax.make_jaxpr(lambda x: op(x, outs=x))(ONE)
    assert chosen(lambda x: jax.core.eval_jaxpr(jaxpr.jaxpr, jaxpr.consts, x)[0]) == "b"


def test_the_context_of_the_transformation_chooses(op, chosen):
    op.def_jvp_rule2(lambda t, x, **params: op.primitive.bind(t, **params)[0])
    with use_backend("b"):
        assert chosen(lambda x: jax.vmap(lambda x: op(x, outs=ONE))(x[None])[0]) == "b"
        assert chosen(lambda x: jax.jvp(lambda x: op(x, outs=ONE), (x,), (x,))[1]) == "b"
    assert chosen(lambda x: jax.jvp(lambda x: op(x, outs=ONE, backend="c"), (x,), (x,))[1]) == "c"
