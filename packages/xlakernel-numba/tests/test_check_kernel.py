"""The errors that `check_kernel` finds in sharding rules and derivatives of wrappers."""

import os
import subprocess
import sys

import jax.numpy as jnp
import numba
import numpy as np
import pytest

from xlakernel.core.errors import KernelCheckError
from xlakernel.core.testing import check_kernel
from xlakernel.core.testing._table import CHECKS
from xlakernel.numba import numba_kernel

X = np.linspace(0.5, 2.5, 5, dtype=np.float32)
RNG = np.random.default_rng(0)
A = RNG.normal(size=(4, 6)).astype(np.float32)
B = RNG.normal(size=(6, 8)).astype(np.float32)
C = RNG.normal(size=(4, 8)).astype(np.float32)


@numba.njit
def running_sums(x, out):
    for i in range(x.shape[0]):
        total = x.dtype.type(0)
        for j in range(x.shape[1]):
            total += x[i, j]
            out[i, j] = total


@numba.njit
def affine(a, b, c, out):
    for i in range(a.shape[0]):
        for j in range(b.shape[1]):
            total = c[i, j]
            for k in range(a.shape[1]):
                total += a[i, k] * b[k, j]
            out[i, j] = total


def run_check(check, fn, *args, **options):
    """Run one check and return its outcome."""
    skip = {name: "this test is about another check" for name in CHECKS if name != check}
    try:
        return check_kernel(fn, *args, skip=skip, **options)[check]
    except KernelCheckError as error:
        return error.report[check]


def assert_passes(check, fn, *args, **options):
    outcome = run_check(check, fn, *args, **options)
    assert outcome.outcome == "passed", outcome


def assert_caught(check, text, fn, *args, **options):
    outcome = run_check(check, fn, *args, **options)
    assert outcome.outcome == "failed" and text in outcome.detail and "Next: " in outcome.detail, outcome


def kernel_with(rule, kernel, last):
    return numba_kernel(kernel, outs=lambda *xs: xs[last], sharding_rule=rule)


@pytest.mark.parametrize(
    ("kernel", "inputs", "reference", "wrong", "right", "place"),
    [
        (
            running_sums,
            (A,),
            lambda x: np.cumsum(x, 1),
            "i j -> i j",
            "i [j] -> i [j]",
            "split along dimension 1 of input 0: output (float32[4, 6]): element ",
        ),
        (
            running_sums,
            (A.T.copy(),),
            lambda x: np.cumsum(x, 1),
            "[i] j -> [i] j",
            "i [j] -> i [j]",
            "split along dimension 1 of input 0: ",
        ),
        (
            affine,
            (A, B, C),
            lambda a, b, c: a @ b + c,
            "m k, k n, m n -> m n",
            "m [k], [k] n, m n -> m n",
            "split along dimension 1 of input 0: output (float32[4, 8]): element ",
        ),
    ],
    ids=["rows", "columns", "a bias that is added by each"],
)
def test_a_wrong_sharding_rule(kernel, inputs, reference, wrong, right, place):
    last = len(inputs) - 1
    assert_caught("sharding_rule", place, kernel_with(wrong, kernel, last), *inputs, reference=reference)
    outcome = run_check("sharding_rule", kernel_with(wrong, kernel, last), *inputs, reference=reference)
    assert "put the factors that each call needs whole in brackets, in the kernel's sharding_rule." in outcome.detail
    for rule in (right, None):
        outcome = run_check("sharding_rule", kernel_with(rule, kernel, last), *inputs, reference=reference)
        tried = 2 * len(inputs)
        assert (outcome.outcome, outcome.detail) == (
            "passed",
            f"on 8 cpu devices, split along {tried} dimensions of the inputs",
        )


def test_every_input_is_split():
    """The error is in a factor of the second input alone."""

    @numba.njit
    def products(x, y, out):
        for i in range(x.size):
            total = y.dtype.type(0)
            for j in range(y.size):
                total += y[j]
                out[i, j] = x[i] * total

    run = numba_kernel(products, outs=lambda x, y: jnp.zeros((x.size, y.size)), sharding_rule="i, j -> i j")
    assert_caught("sharding_rule", "split along dimension 0 of input 1: ", run, A[0, :5], B[0])


def test_extents_that_cannot_be_split_are_named():
    outcome = run_check("sharding_rule", jnp.sin, np.ones((1, 11, 9), np.float32))
    assert outcome.detail == (
        "on 8 cpu devices, split along 1 dimension of the inputs, but not along dimension 1 of input 0 (extent 11): "
        "no number of devices from 2 to 8 divides the extent"
    )


ONE_DEVICE = """
import jax, jax.numpy as jnp, numba, numpy as np
from xlakernel.core import XLACustomKernel
from xlakernel.core.errors import KernelCheckError
from xlakernel.core.testing import check_kernel
from xlakernel.core.testing._table import CHECKS
from xlakernel.numba import numba_kernel

@numba.njit
def cumsum(x, out):
    total = 0.0
    for i in range(x.size):
        total += x[i]
        out[i] = total

@numba.njit
def product(a, x, out):
    for i in range(a.shape[0]):
        out[i] = 0
        for j in range(a.shape[1]):
            out[i] += a[i, j] * x[j]

same = lambda x: x
def op(rule):
    made = XLACustomKernel("checked", replace=True)
    made.def_numba_kernel(lambda outs: numba_kernel(cumsum, outs=outs[0]))
    made.def_sharding_rule(rule)
    return lambda x: made(x, outs=x)

def scanned(x):
    return jax.lax.scan(lambda c, _: (wrong(c), None), x, None, length=1)[0]

wrong = numba_kernel(cumsum, outs=same, sharding_rule="i -> i")
vector, matrix = np.arange(4.0, dtype=np.float32), np.ones((4, 6), np.float32)
rows = lambda a, x: jax.ShapeDtypeStruct(a.shape[:1], a.dtype)
KERNELS = {
    "none": (jnp.sin, vector),
    "wrong": (wrong, vector),
    "right": (numba_kernel(cumsum, outs=same, sharding_rule="[i] -> [i]"), vector),
    "linear": (numba_kernel(cumsum, outs=same, sharding_rule="i -> i", transpose={0: lambda i, c: c}), vector),
    "reference": (numba_kernel(cumsum, outs=same, sharding_rule="i -> i", reference=jnp.cumsum), vector),
    "mapped": (jax.vmap(wrong), matrix),
    "program": (jax.jit(jax.checkpoint(lambda x: 2 * wrong(x + 1))), vector),
    "loop": (scanned, vector),
    "operator": (op("i -> i"), vector),
    "mapped operator": (jax.vmap(op("i -> i"), 1, 1), matrix),
    "sum": (numba_kernel(product, outs=rows, sharding_rule="m k, k -> m"), matrix, matrix[0]),
}
skip = {name: "not here" for name in CHECKS if name != "sharding_rule"}
for name, (kernel, *inputs) in KERNELS.items():
    try:
        report = check_kernel(kernel, *inputs, skip=skip)
    except KernelCheckError as error:
        report = error.report
    print(name, report["sharding_rule"].outcome, report["sharding_rule"].detail, sep="; ")
"""
ON_ONE_DEVICE = {
    "none": "passed",
    "wrong": "failed",
    "right": "passed",
    "linear": "failed",
    "reference": "failed",
    "mapped": "failed",
    "program": "failed",
    "loop": "failed",
    "operator": "failed",
    "mapped operator": "failed",
    "sum": "passed",
}


@pytest.mark.process
def test_rules_are_tried_on_one_device():
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""}
    done = subprocess.run(
        [sys.executable, "-c", ONE_DEVICE], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    found = {name: (outcome, detail) for name, outcome, detail in (x.split("; ", 2) for x in done.stdout.splitlines())}
    assert found.keys() == ON_ONE_DEVICE.keys()
    for name, outcome in ON_ONE_DEVICE.items():
        assert found[name][0] == outcome, (name, found[name])
        assert ("on 8 cpu devices" if outcome == "passed" else "split along dimension ") in found[name][1]


@numba.njit
def squares(x, out):
    for i in range(x.size):
        out[i] = x[i] * x[i]


def test_a_kernel_that_has_reverse_mode_only():
    def with_factor(factor):
        return numba_kernel(
            squares, outs=lambda x: x, vjp=lambda primals, results, cotangents: factor * primals[0] * cotangents
        )

    for factor in (2, 3):  # whether the gradient is right is for another check
        outcome = run_check("grad_forward", with_factor(factor), X, reference=lambda x: x * x)
        assert outcome.outcome == "not tried"
        assert outcome.detail.endswith(
            "asks for the tangents of its results, and only vjp= is known; give the kernel jvp= or reference="
        )
    assert_passes("grad_reverse", with_factor(2), X, reference=lambda x: x * x)
    assert_caught("grad_reverse", "finite differences give", with_factor(3), X, reference=lambda x: x * x)


def test_a_kernel_that_has_neither_mode():
    run = numba_kernel(squares, outs=lambda x: x)
    for check in ("grad_forward", "grad_reverse"):
        assert_caught(check, "raised DifferentiationError: squares", run, X, reference=lambda x: x * x)


@pytest.mark.parametrize("mode", ["jvp", "vjp"])
@pytest.mark.parametrize("mix", [lambda x: jnp.broadcast_to(2 * x[:1], x.shape), lambda x: 2 * x[::-1], None])
def test_kernels_of_derivatives_that_mix_up_slices(mode, mix):
    @numba.njit
    def double(x, out):
        for i in range(x.size):
            out[i] = 2 * x[i]

    derivative = numba_kernel(double, outs=lambda x: x, **({} if mix is None else {"vmap_method": mix}))
    rules = {
        "jvp": {"jvp": lambda primals, tangents: derivative(tangents[0]), "vjp": lambda primals, results, c: (2 * c,)},
        "vjp": {"vjp": lambda primals, results, c: (derivative(c),)},
    }
    kernel = numba_kernel(double, outs=lambda x: x, **rules[mode])
    outcome = run_check("grad_vmap", kernel, jnp.array([0.5, -1.2, 2.0]))
    if mix is None:
        assert outcome.outcome == "passed", outcome
    else:
        assert f"vmap with {'tangents' if mode == 'jvp' else 'cotangents'} of each slice" in outcome.detail


@pytest.mark.parametrize("mode", ["vjp", "jvp"])
def test_kernels_of_derivatives_that_change_their_primals(mode):
    @numba.njit
    def derive(x, moved, out):
        for i in range(x.size):
            out[i] = 2 * x[i] * moved[i]
            x.flat[i] = 2  # Numba lets it write to a read-only array

    derivative = numba_kernel(derive, outs=lambda x, moved: x)
    rule = {
        "vjp": lambda primals, results, cotangents: derivative(primals[0], cotangents),
        "jvp": lambda primals, tangents: derivative(primals[0], tangents[0]),
    }
    kernel = numba_kernel(squares, outs=lambda x: x, **{mode: rule[mode]})
    check = {"vjp": "grad_reverse", "jvp": "grad_forward"}[mode]
    outcome = run_check(check, kernel, X)
    assert outcome.outcome == "failed" and "changed an argument" in outcome.detail, outcome


def test_a_batch_that_changes_an_input():
    @numba.njit
    def overwrite(x, out):
        out[:] = x * x
        for i in range(x.size):
            x.flat[i] = -1

    kernel = numba_kernel(squares, outs=lambda x: x, vmap_method=numba_kernel(overwrite, outs=lambda x: x))
    assert_caught("vmap_first_axis", "changed an input", kernel, X, reference=lambda x: x * x)
