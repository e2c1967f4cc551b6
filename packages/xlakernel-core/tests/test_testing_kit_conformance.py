"""Faults that `KernelConformance` finds in a backend, here one whose kernels are plain JAX."""

import functools

import jax
import jax.numpy as jnp
import pytest

from xlakernel.core.measure.comparison import CheckFailure
from xlakernel.core.testing.conformance import CASES, Case, KernelConformance

pytestmark = pytest.mark.slow

Failed, Skipped = pytest.fail.Exception, pytest.skip.Exception


class InJax(KernelConformance):
    """A class that pytest does not collect, by its name: the tests below call its methods."""

    backend = "plain JAX"
    kernels = {}  # noqa: RUF012 - replace those of the cases

    def build(self, case, outs, **options):
        def run(*inputs, **static):
            structs = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in map(jnp.asarray, inputs)]
            results = case.reference(jnp, *map(jnp.asarray, inputs), **static)
            return jax.tree.map(lambda y, out: y.astype(out.dtype), results, outs(*structs))

        return self.kernels.get(case.name, run)


def backend(**attributes):
    return type("Backend", (InJax,), attributes)()


@pytest.mark.parametrize("name", [name for name in CASES if name != "raises"])
def test_right_kernels_pass(name):
    suite = backend()
    suite.test_values(name, CASES[name].dtypes[0])
    for check in ("jit", "vmap_nested", "grad_reverse", "grad_vmap"):
        if name != "no_inputs" or check == "jit":
            suite.test_check(name, check)


def test_right_kernels_pass_elsewhere():
    suite = backend()
    suite.test_any_batch("matrix_product", (2, 3))
    for name in ("gather", "several_outputs"):
        suite.test_check(name, "export")
        suite.test_check(name, "shard_map")


def test_a_missing_kernel_fails():
    suite = backend(kernels={"total": None})
    with pytest.raises(Failed, match=r"plain JAX has no kernel for the case 'total', total\(x, out\): out\[\(\)\] = x"):
        suite.test_values("total", "float32")
    with pytest.raises(NotImplementedError, match="KernelConformance must define build"):
        KernelConformance().test_values("total", "float32")


def test_a_kernel_that_is_wrong_in_one_dtype_fails_for_that_only():
    def wrong(x):
        return x * x + x + (x.dtype == jnp.int16)

    suite = backend(kernels={"elementwise": wrong})
    suite.test_values("elementwise", "int32")
    with pytest.raises(Failed, match=r"plain JAX elementwise: eager: .*element \(\d,\) is .*expected"):
        suite.test_values("elementwise", "int16")


def test_a_kernel_that_is_wrong_for_one_rank_or_size_fails():
    for wrong in (lambda x: x * x + x + (x.ndim == 3), lambda x: x * x + x if x.size else jnp.zeros(3, x.dtype)):
        with pytest.raises(Failed, match=r"elementwise: eager: "):
            backend(kernels={"elementwise": wrong}).test_values("elementwise", "float32")


def mixed_up(name):
    """Return a right kernel with a batching rule that reverses the slices."""

    @jax.custom_batching.custom_vmap
    def kernel(*inputs):
        return CASES[name].reference(jnp, *inputs)

    @kernel.def_vmap
    def rule(size, batched, *inputs):
        return jnp.flip(jax.vmap(kernel.fun, [0 if is_batched else None for is_batched in batched])(*inputs), 0), True

    return kernel


def test_mixed_up_batches_fail():
    suite = backend(
        kernels={name: mixed_up(name) for name in ("coupled", "matrix_product", "outer_product", "scalars")}
    )
    suite.test_values("coupled", "float32")
    with pytest.raises(Failed, match=r"slice . of the batch"):
        suite.test_check("coupled", "vmap_first_axis")
    for name in suite.kernels:
        with pytest.raises(CheckFailure, match=r"slice .* of the batch"):
            suite.test_any_batch(name, (2, 3))


def test_an_error_that_is_lost_fails():
    with pytest.raises(Failed, match="DID NOT RAISE"):
        backend(kernels={"raises": lambda x: x}).test_errors_reach_the_caller()


@pytest.mark.parametrize("key", ["total", "float64", "total/float64", "eager", "call"])
def test_an_unsupported_case_is_skipped_with_its_reason(key):
    suite = backend(unsupported={key: "no such instruction"}, kernels={"total": lambda x: None})
    suite.test_unsupported_has_names_and_reasons()
    with pytest.raises(Skipped, match=f"plain JAX: {key}: no such instruction"):
        suite.test_values("total", "float64")
    with pytest.raises((Failed, Skipped)) as found:
        suite.test_check("total", "jit")
    assert found.type is (Skipped if key in ("total", "call") else Failed)


@pytest.mark.parametrize(("key", "reason"), [("complex32", "x"), ("total", ""), ("total/int3", "x"), ("grad", None)])
def test_unsupported_needs_known_names_and_reasons(key, reason):
    with pytest.raises(AssertionError, match=r"names nothing|has no reason"):
        backend(unsupported={key: reason}).test_unsupported_has_names_and_reasons()


def test_the_reference_of_every_case_returns_the_declared_outputs():
    """All backends are compared with the reference; it is compared with the outputs of the case."""
    for case in CASES.values():
        inputs = case.draw(0)
        declared = jax.tree.leaves(case.outs(*(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in inputs)))
        found = jax.tree.leaves(functools.partial(case.reference, jnp, **case.static)(*inputs))
        assert [(x.shape, x.dtype) for x in found] == [(x.shape, x.dtype) for x in declared], case.name


def test_the_class_names_every_case():
    assert all(f"``{name}``" in KernelConformance.__doc__ for name in CASES)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_cases_draw_their_first_shapes(case):
    assert isinstance(case, Case)
    drawn, again, other = case.draw(0), case.draw(0), case.draw(1)
    assert tuple(x.shape for x in drawn) == case.shapes[0]
    assert all((x == y).all() and x.dtype == y.dtype for x, y in zip(drawn, again, strict=True))
    assert not drawn or any((x != y).any() for x, y in zip(drawn, other, strict=True))
