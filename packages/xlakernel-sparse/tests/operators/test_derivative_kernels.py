"""Which kernels derivatives of products run, how often they are compiled, and derivatives in the matrix itself."""

import jax
import jax.numpy as jnp
import pytest
from numpy.testing import assert_allclose

from xlakernel.core import use_backend
from xlakernel.core.errors import DifferentiationError
from xlakernel.sparse import BinaryArray, csr_sddmm

FORMATS = ["csr", "csc", "coo", "prepared csc"]


def test_what_is_not_differentiated_costs_no_kernel(make, calls, plain_jax):
    example = make("csr")
    sparse, _ = example.product("dense", "left")
    w, x = example.matrix.data, example.operand("left")
    loss = lambda w, x: jnp.sin(sparse(w, x)).sum()  # noqa: E731
    assert calls(jax.grad(loss, argnums=0), w, x) == ["csrmv", "csr_sddmm"]
    assert calls(jax.grad(loss, argnums=1), w, x) == ["csrmv", "csrmv"]
    assert calls(jax.grad(loss, argnums=(0, 1)), w, x) == ["csrmv", "csrmv", "csr_sddmm"]
    assert calls(lambda w, x: jax.jvp(lambda w: sparse(w, x), (w,), (w,)), w, x) == ["csrmv", "csrmv"]


def test_sums_of_integers_have_no_tangents_to_compute(make, calls, plain_jax):
    for name, operator in (("csr", "binary_csrmv"), ("prepared csr", "prepared_binary_csrmv")):
        example = make(name)
        counts, x = example.matrix.with_data(jnp.arange(12)), example.operand("left")
        assert calls(lambda x, A=counts: jax.jvp(lambda x: A @ BinaryArray(x), (x,), (x,))[0], x) == [operator]


def test_which_products_derivatives_of_events_are(make, calls, plain_jax):
    """By the weights it skips what is inactive; by the events there is no sparsity to use."""
    example = make("csr")
    for kind in ("binary", "weighted"):
        sparse, _ = example.product(kind, "right")
        w, x = example.matrix.data, example.operand("right")
        forward = lambda w, x, by, f=sparse: jax.jvp(  # noqa: E731
            lambda *moved: f(*(moved if by == "both" else (moved[0], x) if by == "w" else (w, moved[0]))),
            *(((w, x),) * 2 if by == "both" else ((w,),) * 2 if by == "w" else ((x,),) * 2),
        )
        name = f"{kind}_csrmv"
        assert calls(lambda w, x, f=forward: f(w, x, "w"), w, x) == [name, name]
        assert calls(lambda w, x, f=forward: f(w, x, "x"), w, x) == [name, "csrmv"]
        assert calls(lambda w, x, f=forward: f(w, x, "both"), w, x) == [name, name, "csrmv"]


def test_prepared_matrices_are_read_in_both_orders(make, calls, plain_jax):
    example = make("prepared csr")
    sparse, _ = example.product("dense", "left")
    w, x = example.matrix.data, example.operand("left")
    assert calls(jax.grad(lambda x: sparse(w, x).sum()), x) == ["prepared_csrmv"] * 2
    assert calls(jax.grad(lambda w: sparse(w, x).sum()), w) == ["prepared_csrmv", "csr_sddmm"]


@pytest.mark.parametrize("name", FORMATS)
def test_a_second_call_compiles_nothing(make, compilations, plain_jax, name):
    example = make(name)
    sparse, _ = example.product("binary", "left")
    arguments = example.matrix.data, example.operand("left")

    def run():
        y, pull = jax.vjp(sparse, *arguments)
        return pull(y), jax.jvp(sparse, arguments, arguments)

    compilations(run)
    assert compilations(run) == 0


def test_the_transpose_has_the_backend_of_the_product(make):
    """Also outside of the `use_backend` block."""
    for name in FORMATS:
        example = make(name)
        sparse, _ = example.product("dense", "left")
        with use_backend("jax"):
            y, pull = jax.vjp(sparse, example.matrix.data, example.operand("left"))
        assert "custom_call" not in jax.jit(pull).lower(y).as_text(), name


# The derivative in the matrix itself: prepared ones hold their weights twice.


def test_the_derivative_in_all_leaves_of_a_prepared_matrix_is_an_error(make, plain_jax):
    example = make("prepared csr")
    x = example.operand("left")
    with pytest.raises(DifferentiationError, match=r"stores its weights twice.*A\.with_data\(w\)"):
        jax.grad(lambda A: (A @ x).sum(), allow_int=True)(example.matrix)
    with pytest.raises(DifferentiationError, match="stores its weights twice"):
        jax.jit(jax.grad(lambda A: (A @ x).sum(), allow_int=True))(example.matrix)


@pytest.mark.parametrize("homogeneous", [False, True])
@pytest.mark.parametrize("name", ["csr", "csc", "coo"])  # JAX transposes no `stop_gradient`
def test_products_are_transposed_as_functions_of_the_weights(make, plain_jax, name, homogeneous):
    example = make(name, homogeneous=homogeneous)
    x, weights = example.operand("left"), example.matrix.data
    y = example.matrix @ x
    (found,) = jax.linear_transpose(lambda w: example.matrix.with_data(w) @ x, weights)(y)
    (expected,) = jax.vjp(lambda w: example.dense(w) @ x, weights)[1](y)
    assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize("name", ["csr", "csc", "coo"])
def test_the_derivative_in_a_matrix_is_a_matrix(make, op_by_op, name):
    example = make(name)
    x = example.operand("left")
    gradient = jax.grad(lambda A: (A @ x).sum(), allow_int=True)(example.matrix)
    assert type(gradient) is type(example.matrix)
    expected = jax.grad(lambda w: (example.dense(w) @ x).sum())(example.matrix.data)
    assert gradient.data.dtype == expected.dtype
    assert_allclose(gradient.data, expected, rtol=1e-6)


def test_equal_weights_are_held_once(make, op_by_op):
    example = make("prepared csc", homogeneous=True)
    x = example.operand("left")
    gradient = jax.grad(lambda A: (A @ x).sum(), allow_int=True)(example.matrix)
    expected = jax.grad(lambda w: (example.dense(w) @ x).sum())(example.matrix.data)
    assert gradient.data.dtype == expected.dtype
    assert_allclose(gradient.data, expected, rtol=1e-5)


THROUGH = {
    "jit": lambda put, w: jax.jit(put)(w),
    "prepare": lambda put, w: put(w).prepare(),
    "checkpoint": lambda put, w: jax.checkpoint(put)(w),
    "cond": lambda put, w: jax.lax.cond(w[0] > 0, lambda w: put(w), lambda w: put(w), w),
    "carry": lambda put, w: jax.lax.scan(lambda A, _: (A.with_data(A.data * 1), None), put(w), None, length=2)[0],
    "optimization barrier": lambda put, w: put(jax.lax.optimization_barrier(w)),
}


@pytest.mark.parametrize("through", THROUGH)
def test_weights_reach_a_prepared_matrix_through(make, plain_jax, through):
    """The copy of the weights stays without a derivative, whatever the matrix went through."""
    example = make("prepared csr")
    x = example.operand("left")
    found = jax.grad(lambda w: jnp.sin(THROUGH[through](example.matrix.with_data, w) @ x).sum())(example.matrix.data)
    expected = jax.grad(lambda w: jnp.sin(example.dense(w) @ x).sum())(example.matrix.data)
    assert found.dtype == expected.dtype
    assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("backend", ["jax", "auto"])
@pytest.mark.parametrize("inner", [(), (2,)], ids=["vectors", "matrices"])
def test_derivatives_of_a_sampled_product_stay_with_its_backend(inner, backend):
    structure = jnp.array([2, 0, 1]), jnp.array([0, 1, 3])
    loss = lambda u, v: csr_sddmm(*structure, u, v, shape=(2, 3)).sum()  # noqa: E731
    with use_backend(backend):
        program = str(jax.make_jaxpr(jax.grad(loss, (0, 1)))(jnp.ones((2, *inner)), jnp.ones((*inner, 3))))
    assert program.count("Dispatch(") == program.count(f"Dispatch(backends=(('cpu', '{backend}')") == 3
