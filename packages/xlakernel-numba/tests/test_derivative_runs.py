"""The functions that compute a derivative, the number of their calls, and their devices."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numba
import numpy as np
import pytest
from numpy.testing import assert_allclose

from xlakernel.core import XLACustomKernel
from xlakernel.numba import numba_kernel

pytestmark = pytest.mark.usefixtures("x64")
X = np.array([0.5, -1.5, 2.0])


def first(x, *_):
    return x


@numba.njit
def square(x, out):
    for i in range(x.size):
        out[i] = x[i] * x[i]


@numba.njit
def slope(x, x_dot, out):
    """Ten times the tangent, to identify the function that computed it."""
    for i in range(x.size):
        out[i] = 20 * x[i] * x_dot[i]


run_slope = numba_kernel(slope, outs=first)


def wrong_jvp(primals, tangents):
    return run_slope(*primals, *tangents)


def wrong_vjp(primals, out, out_bar):
    return run_slope(*primals, 5 * out_bar)


def reference(x):
    return jnp.exp(x)  # nothing like the kernel


def make(**declared):
    return numba_kernel(square, outs=first, **declared)


def total(f):
    return lambda x: f(x).sum()


def compiled(f):
    return jax.jit(f).lower(X).compile().as_text()


def test_first_derivatives_are_those_of_the_given_functions():
    both = make(jvp=wrong_jvp, vjp=wrong_vjp, reference=reference)
    assert_allclose(jax.grad(total(both))(X), 100 * X)
    assert_allclose(jax.jvp(both, (X,), (np.ones(3),))[1], 20 * X)
    forward = make(jvp=wrong_jvp, reference=reference)
    assert_allclose(jax.jvp(forward, (X,), (np.ones(3),))[1], 20 * X)
    assert_allclose(jax.grad(total(forward))(X), np.exp(X))
    backward = make(vjp=wrong_vjp, reference=reference)
    assert_allclose(jax.grad(total(backward))(X), 100 * X)
    assert_allclose(jax.jvp(backward, (X,), (np.ones(3),))[1], np.exp(X))


@pytest.mark.parametrize("inner", [jax.jacfwd, jax.jacrev], ids=["fwd", "rev"])
@pytest.mark.parametrize("outer", [jax.jacfwd, jax.jacrev], ids=["fwd of", "rev of"])
def test_second_derivatives_are_those_of_the_reference(outer, inner):
    for declared in ({"jvp": wrong_jvp}, {"vjp": wrong_vjp}, {"jvp": wrong_jvp, "vjp": wrong_vjp}):
        f = make(**declared, reference=reference)
        assert_allclose(outer(inner(total(f)))(X), np.diag(np.exp(X)))


def test_a_reference_calls_an_operator_that_is_defined_again():
    inner = XLACustomKernel("inner of a reference", replace=True)
    f = make(reference=lambda x: inner(x, outs=x))
    for factor in (2.0, 3.0):
        inner.def_reference(lambda x, factor=factor: factor * x)
        assert_allclose(jax.grad(total(f))(X), np.full(3, factor))


def test_second_derivatives_without_a_reference_are_those_of_the_rules():
    double = numba_kernel(slope, outs=first, reference=lambda x, x_dot: jnp.sin(x) * x_dot)
    f = make(jvp=lambda primals, tangents: double(*primals, *tangents), vjp=lambda p, out, ct: double(*p, ct))
    assert_allclose(jax.hessian(total(f))(X), np.diag(np.cos(X)))
    assert_allclose(jax.jacrev(jax.jacrev(total(f)))(X), np.diag(np.cos(X)))


def test_a_reference_may_call_kernels():
    inner = make(reference=lambda x: x * x)
    outer = numba_kernel(square, outs=first, reference=lambda x: inner(x) * 1.0)
    assert_allclose(jax.grad(total(outer))(X), 2 * X)
    assert_allclose(jax.hessian(total(outer))(X), 2 * np.eye(3))
    assert_allclose(jax.vmap(jax.hessian(total(outer)))(np.stack([X, X])), [2 * np.eye(3)] * 2)


@pytest.mark.parametrize(
    ("declared", "kernels"),
    [
        ({"reference": reference}, 1),
        ({"vjp": wrong_vjp}, 2),
        ({"vjp": wrong_vjp, "reference": reference}, 2),
        ({"jvp": wrong_jvp, "vjp": wrong_vjp}, 2),
        ({"jvp": wrong_jvp, "vjp": wrong_vjp, "reference": reference}, 2),
        ({"transpose": {0: lambda inputs, out_bar: out_bar}}, 1),
    ],
    ids=lambda case: " ".join(case) if isinstance(case, dict) else None,
)
@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["", "jit"])
def test_the_kernel_runs_once_for_a_value_and_its_gradient(declared, kernels, wrap):
    f = make(**declared)
    assert compiled(jax.value_and_grad(total(wrap(f)))).count("custom-call(") == kernels
    assert compiled(total(f)).count("custom-call(") == 1


def test_the_value_is_not_computed_for_the_gradient_alone():
    assert "custom-call(" not in compiled(jax.grad(total(make(reference=reference))))


def test_the_reference_computes_no_value():
    def log(x):
        return jnp.log(x) + 3 * x

    f = make(reference=log)
    assert " log(" in compiled(log)
    for derive in (jax.value_and_grad(total(f)), lambda x: jax.jvp(f, (x,), (x,))):
        program = compiled(derive)
        assert "custom-call(" in program
        assert " log(" not in program


# Traces.


def counted(function):
    def count(*args):
        count.calls += 1
        return function(*args)

    count.calls = 0
    return count


@pytest.mark.parametrize("keyword", ["reference", "jvp", "vjp", "transpose"])
@pytest.mark.parametrize(
    "derive",
    [
        lambda f: jax.grad(total(f))(X),
        lambda f: jax.value_and_grad(lambda x: f(jnp.sin(x)).sum())(X),
        lambda f: jax.vmap(jax.grad(total(f)))(np.stack([X, X])),
        lambda f: jax.jacrev(f)(X),
    ],
    ids=["grad", "value and grad", "vmap", "jacrev"],
)
def test_eager_derivatives_trace_once(keyword, derive):
    functions = {
        "reference": lambda x: x * x,
        "jvp": lambda primals, tangents: 2 * primals[0] * tangents[0],
        "vjp": lambda primals, out, out_bar: 2 * primals[0] * out_bar,
        "transpose": lambda inputs, out_bar: out_bar,
    }
    function = counted(functions[keyword])
    f = make(**{keyword: {0: function} if keyword == "transpose" else function})
    derive(f)
    traced = function.calls
    assert traced >= 1
    for _ in range(3):
        derive(f)
    assert function.calls == traced


def test_eager_tangents_trace_once():
    function = counted(lambda x: x * x)
    f = make(reference=function)
    for _ in range(3):
        jax.jvp(f, (X,), (X,))
    assert function.calls == 1
    for _ in range(3):
        jax.hessian(total(f))(X)
    assert function.calls <= 3


# Several devices: the program of a tangent map alone, in which JAX does not see that a kernel has a sharding rule.

ON_FOUR_DEVICES = """
import jax, jax.numpy as jnp, numba, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from xlakernel.numba import numba_kernel

@numba.njit
def triple(x, out):
    for i in range(x.size):
        out[i] = 3 * x[i]

def make(**declared):
    return numba_kernel(triple, outs=lambda x: x, sharding_rule="i -> i", **declared)

split = NamedSharding(Mesh(np.array(jax.devices()), ("d",)), P("d"))
x = jax.device_put(jnp.arange(8.0), split)
plain = make()
linear = make(transpose={0: lambda inputs, out_bar: plain(out_bar)})
ruled = make(jvp=lambda primals, tangents: plain(*tangents), vjp=lambda primals, out, out_bar: plain(out_bar))
assert jax.device_count() == 4
for f in (linear, ruled):
    programs = {
        "call": f,
        "tangent": lambda x: jax.jvp(f, (x,), (x,))[1],
        "cotangent": lambda x: jax.vjp(f, x)[1](x)[0],
        "gradient": lambda x: jax.grad(lambda x: f(x) @ x)(x) / 2,
        "vmap": lambda x: jax.vmap(jax.grad(lambda x: f(x) @ x))(x[None])[0] / 2,
    }
    for name, program in programs.items():
        for run in (program, jax.jit(program)):
            found = run(x)
            np.testing.assert_array_equal(found, 3 * np.arange(8.0), name)
            assert found.sharding.is_equivalent_to(split, 1), (name, found.sharding)
        assert "all-gather" not in jax.jit(program).lower(x).compile().as_text(), name
"""


@pytest.mark.process
def test_programs_of_rules_alone_are_split_over_devices():
    env = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=4"}
    done = subprocess.run([sys.executable, "-c", ON_FOUR_DEVICES], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
