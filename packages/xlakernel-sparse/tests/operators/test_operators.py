"""The operators as functions: values, arguments, and which kernels run."""

import importlib.util
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from xlakernel import sparse
from xlakernel.core import XLACustomKernel, operators, use_backend
from xlakernel.core.backend import install_command
from xlakernel.core.errors import (
    BackendNotFoundError,
    DtypeError,
    InputError,
    MissingDependencyError,
    ShapeError,
    XLAKernelError,
)
from xlakernel.sparse.operators.backends import register
from xlakernel.sparse.operators.operand import DENSE

pytestmark = pytest.mark.versions

PRODUCTS = ["csrmv", "csrmm", "binary_csrmv", "binary_csrmm", "weighted_csrmv", "weighted_csrmm"]


def product(name, w, csr, x, **options):
    return getattr(sparse, name)(w, csr["indices"], csr["indptr"], x, **{"shape": csr["shape"], **options})


def operand(name, length, dtype="float32"):
    x = np.arange(1.0, length * 3 + 1).reshape(length, 3)
    x[::2, 1], x[1] = 0, 0
    return jnp.asarray(x if name.endswith("mm") else x[:, 1], dtype)


# Values.


@pytest.mark.parametrize("name", PRODUCTS)
def test_values(csr, to_dense, make_weights, op_by_op, name):
    for transpose, homogeneous in ((False, True), (True, False)):
        w, x = make_weights(homogeneous=homogeneous), operand(name, 5 if transpose else 7)
        A = np.asarray(to_dense(w), "float64")
        value = np.asarray(x) != 0 if name.startswith("binary") else np.asarray(x)
        found = product(name, w, csr, x, transpose=transpose)
        np.testing.assert_allclose(found, (A.T if transpose else A) @ value, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["csrmv", "weighted_csrmm"])
def test_values_of_the_default_backend(csr, to_dense, make_weights, name):
    w, x = make_weights(), operand(name, 7)
    value = x != 0 if name.startswith("binary") else x
    np.testing.assert_allclose(product(name, w, csr, x), to_dense(w) @ value, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", PRODUCTS)
def test_zeros_of_events_skip_what_is_not_finite(csr, op_by_op, name):
    w = jnp.ones(12).at[4].set(jnp.inf).at[8].set(jnp.nan)  # at (2, 1) and (4, 0)
    found = product(name, w, csr, jnp.zeros((7, 2) if name.endswith("mm") else 7))
    skipped = name.startswith(("binary", "weighted"))
    assert bool(jnp.isnan(found).any()) != skipped
    assert not found[:2].any()


def test_nan_is_an_event(csr, make_weights, to_dense, op_by_op):
    w, x = make_weights(), jnp.zeros(7).at[3].set(jnp.nan)
    np.testing.assert_allclose(product("binary_csrmv", w, csr, x), to_dense(w)[:, 3], rtol=1e-6)
    assert jnp.isnan(product("weighted_csrmv", w, csr, x)).tolist() == [True, False, False, False, False]


DTYPES = ["float16", "bfloat16", "float32", "complex64", "int8", "int32", "uint8"]


@given(weights=st.sampled_from(DTYPES), of_operand=st.sampled_from([*DTYPES, "bool"]), name=st.sampled_from(PRODUCTS))
def test_dtypes(csr, weights, of_operand, name):
    """Those of both together, as JAX promotes them; binary events have none."""
    w, x = jnp.arange(-2, 10).astype(weights), operand(name, 7, of_operand)
    binary = name.startswith("binary")
    with use_backend("jax"), jax.disable_jit():
        if binary and of_operand == "complex64":
            with pytest.raises(DtypeError, match=f"{name}: events are of dtype complex64; expected bool, integers or"):
                product(name, w, csr, x)
            return
        found = product(name, w, csr, x)
    dtype = jnp.dtype(weights) if binary else jnp.result_type(w, x)
    assert found.dtype == dtype
    row, column = np.repeat(np.arange(5), np.diff(csr["indptr"])), np.asarray(csr["indices"])[:10]
    exact = np.zeros((5, 7), "complex128" if dtype.kind == "c" else "float64")
    np.add.at(exact, (row, column), np.asarray(w)[:10].astype(exact.dtype))
    expected = exact @ (np.asarray(x) != 0 if binary else np.asarray(x).astype(exact.dtype))
    if dtype.kind in "iu":
        np.testing.assert_array_equal(found, expected.astype("int64").astype(dtype))
    else:
        eps = float(jnp.finfo(dtype).eps)
        np.testing.assert_allclose(np.asarray(found).astype(exact.dtype), expected, rtol=2 * eps, atol=eps)


@pytest.mark.parametrize(("of_u", "of_v"), [("int32", "float32"), ("float16", "float32"), ("float32", "complex64")])
def test_dtypes_of_sampled_products(op_by_op, of_u, of_v):
    indices, indptr = jnp.array([2, 0, 1]), jnp.array([0, 1, 3])
    u, v = jnp.array([1, 2]).astype(of_u), jnp.array([0.25, 0.5, 1.5]).astype(of_v)
    found = sparse.csr_sddmm(indices, indptr, u, v, shape=(2, 3))
    assert found.dtype == of_v and found.tolist() == [1.5, 0.5, 1]


def test_half_precision_does_not_overflow_in_between(op_by_op):
    """60 000 + 60 000 - 60 000 in float16, which ends at 65 504."""
    structure = {"indices": jnp.array([0, 1, 2]), "indptr": jnp.array([0, 3]), "shape": (1, 3)}
    w = jnp.array([60000, 60000, -60000], "float16")
    y = sparse.csrmv(w, structure["indices"], structure["indptr"], jnp.ones(3, "float16"), shape=(1, 3))
    assert y.dtype == jnp.float16 and y.tolist() == [60000]


@pytest.mark.parametrize("index", ["int32", "int64", "uint8", "int16"])
def test_dtypes_of_indices(csr, make_weights, to_dense, x64, op_by_op, index):
    """Others are converted to int32 or int64."""
    w, x = make_weights(), jnp.arange(7.0, dtype="float32")
    y = sparse.csrmv(w, csr["indices"].astype(index), csr["indptr"].astype(index), x, shape=(5, 7))
    np.testing.assert_allclose(y, to_dense(w) @ x, rtol=1e-5)


def test_conversions(csr, make_weights, to_dense, op_by_op):
    w = make_weights()
    data, indices, indptr = sparse.csr_to_csc(w, **csr)
    by_columns = sparse.CSC((data, indices, indptr), shape=(5, 7))
    np.testing.assert_allclose(by_columns.todense(), to_dense(w), rtol=1e-6)
    _, _, permutation = sparse.csr_transpose(**csr)
    assert data[:10].tolist() == w[permutation[:10]].tolist() and data[10:].tolist() == [0, 0]
    one, *structure = sparse.csr_to_csc(w[:1], **csr)
    assert one.tolist() == w[:1].tolist() and [x.tolist() for x in structure] == [indices.tolist(), indptr.tolist()]


def test_lists_and_numpy_arrays_are_arrays(op_by_op):
    y = sparse.csrmv([1.0, 2.0, 3.0], [2, 0, 1], np.array([0, 1, 3]), [1.0, 10.0, 100.0], shape=np.array([2, 3]))
    assert y.tolist() == [100, 32]


# Arguments.

W, INDICES, INDPTR, X = np.ones(3, "f4"), np.array([2, 0, 1]), np.array([0, 1, 3]), np.ones(3, "f4")
ROW = np.array([0, 1, 1])
CSRMV = {"data": W, "indices": INDICES, "indptr": INDPTR, "x": X, "shape": (2, 3)}
SDDMM = {"indices": INDICES, "indptr": INDPTR, "u": np.ones(2, "f4"), "v": X, "shape": (2, 3)}
WRONG = [
    (
        "csrmv",
        CSRMV,
        {"x": X[:2]},
        ShapeError,
        r"x has the shape \(2,\); with a matrix of shape \(2, 3\) it must be \(3,\)\.",
    ),
    ("csrmv", CSRMV, {"x": np.ones((3, 1))}, ShapeError, r"x has the shape \(3, 1\); .* it must be \(3,\)\."),
    ("csrmv", CSRMV, {"transpose": True}, ShapeError, r"x has the shape \(3,\); .* it must be \(2,\)\."),
    ("csrmm", CSRMV, {}, ShapeError, r"x has the shape \(3,\); .* it must be \(3, k\)\."),
    ("csrmv", CSRMV, {"data": W[:2]}, ShapeError, r"data has the shape \(2,\); expected \(3,\), one number for each"),
    ("csrmv", CSRMV, {"data": W[0]}, ShapeError, r"data has the shape \(\); expected \(3,\)"),
    ("csrmv", CSRMV, {"data": W > 0}, DtypeError, "data is of dtype bool; allowed: float16, .* Cast it, for example"),
    ("csrmv", CSRMV, {"data": None}, InputError, "data is None of type NoneType; expected an array"),
    ("csrmv", CSRMV, {"x": [[1.0], [2.0, 3.0]]}, InputError, r"x is \[\[1.0\], .* of type list; expected an array"),
    ("csrmv", CSRMV, {"x": "x"}, InputError, "x is 'x' of type str; expected an array"),
    ("csrmv", CSRMV, {"indptr": INDPTR[:2]}, ShapeError, "indptr has 2 elements; a matrix with 2 rows has 3, one more"),
    ("csrmv", CSRMV, {"indices": W}, DtypeError, "indices is of dtype float32; expected int32 or int64"),
    ("csrmv", CSRMV, {"indices": INDICES[None]}, ShapeError, r"indices has the shape \(1, 3\); expected one dimension"),
    (
        "csrmv",
        CSRMV,
        {"indices": INDICES + 2**31},
        DtypeError,
        "indices holds 2147483650; int32 ranges from",
    ),
    ("csrmv", CSRMV, {"shape": 3}, ShapeError, r"shape is 3; expected \(rows, columns\), two integers"),
    ("csrmv", CSRMV, {"shape": (2, -3)}, ShapeError, r"shape is \(2, -3\); both must be at least 0"),
    (
        "csr_sddmm",
        SDDMM,
        {"u": X},
        ShapeError,
        r"u has the shape \(3,\) and v \(3,\); .* must be \(2, c\) and \(c, 3\)",
    ),
    ("csr_sddmm", SDDMM, {"u": np.ones((2, 1, 1))}, ShapeError, ".* at the entries of a matrix of shape"),
]


@pytest.mark.parametrize(("name", "arguments", "changes", "error", "message"), WRONG)
def test_invalid_arguments(name, arguments, changes, error, message):
    assert issubclass(error, XLAKernelError)
    with pytest.raises(error, match=f"^{name}: {message}"):
        getattr(sparse, name)(**{**arguments, **changes})


def test_traced_arguments_are_checked_as_well():
    with pytest.raises(ShapeError, match="csrmv: x has the shape"):
        jax.jit(lambda x: sparse.csrmv(W, INDICES, INDPTR, x, shape=(2, 3)))(X[:2])


# Backends.


def lowered(**options):
    return jax.jit(lambda x: sparse.csrmv(W, INDICES, INDPTR, x, shape=(2, 3), **options)).lower(X).as_text()


def test_the_backend_is_chosen_by_argument_and_by_context():
    assert "custom_call" in lowered()
    assert "custom_call" not in lowered(backend="jax")
    with use_backend("jax"):
        assert "custom_call" not in lowered()
        assert "custom_call" in lowered(backend="numba")


@pytest.mark.parametrize("name", PRODUCTS)
def test_an_unknown_backend_is_an_error(csr, make_weights, name):
    x = operand(name, 7)
    message = f"{name}: no 'cupy' kernel for platform 'cpu'; registered: .*'jax', 'numba'"
    with pytest.raises(BackendNotFoundError, match=message):
        product(name, make_weights(), csr, x, backend="cupy")
    with use_backend("cupy"), pytest.raises(BackendNotFoundError, match=message):
        product(name, make_weights(), csr, x)


@pytest.fixture
def without_extras(monkeypatch):
    """Neither xlakernel-cuda nor xlakernel-warp is installed."""
    find = importlib.util.find_spec
    missing = ("xlakernel.cuda", "xlakernel.warp")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *args: None if name in missing else find(name, *args))


@pytest.mark.parametrize(
    ("backend", "platform", "extra", "advice"),
    [
        ("warp", "cpu", "warp", f"`{install_command('warp')}`."),
        ("numba_cuda", "cuda", "cuda", f"`{install_command('cuda', 'cuda13')}` (or [cuda12], for an older driver)."),
    ],
)
def test_a_missing_extra_is_named(without_extras, backend, platform, extra, advice):
    traced = jax.jit(lambda x: sparse.csrmv(W, INDICES, INDPTR, x, shape=(2, 3), backend=backend)).trace(X)
    message = f"csrmv: this kernel needs xlakernel-{extra}, which is not installed. Install it with {advice}"
    with pytest.raises(MissingDependencyError, match=re.escape(message)):
        traced.lower(lowering_platforms=(platform,))


def test_a_missing_package_is_no_default(without_extras):
    op = XLACustomKernel("a product of the tests", replace=True)
    register(op, "product", operand=DENSE)
    assert op.defaults == {"cpu": "numba", "gpu": "jax", "tpu": "jax"}
    assert set(op.available_backends("gpu")) == {"numba_cuda", "warp", "jax"}


def test_a_prepared_matrix_has_the_backends_of_others(make):
    example = make("prepared csr")
    x = example.operand("left")
    run = lambda x: example.matrix @ x  # noqa: E731
    assert "custom_call" in jax.jit(run).lower(x).as_text()
    with use_backend("jax"):
        assert "custom_call" not in jax.jit(run).lower(x).as_text()
    with use_backend("cupy"), pytest.raises(BackendNotFoundError, match="prepared_csrmv: no 'cupy' kernel"):
        run(x)


@pytest.mark.parametrize(("name", "columns"), [("csrmv", ()), ("csrmm", (3,))])
def test_a_default_counts_for_prepared_matrices_too(make, name, columns):
    example = make("prepared csr")
    x = example.operand("left", *columns)
    program = jax.jit(lambda x: example.matrix @ x)
    op = operators()[name]
    try:
        op.set_default("cpu", "jax")
        assert operators()[f"prepared_{name}"].get_default("cpu") == "jax"
        assert "custom_call" not in program.lower(x).as_text()
        assert "custom_call" in jax.jit(lambda x: example.matrix @ sparse.BinaryArray(x)).lower(x).as_text()
    finally:
        op.set_default("cpu", "numba")
    assert "custom_call" in program.lower(x).as_text()


def test_a_second_call_compiles_nothing(csr, make_weights, compilations):
    w, x = make_weights(), jnp.arange(7.0)
    for call in (
        lambda: sparse.csrmv(w, csr["indices"], csr["indptr"], x, shape=(5, 7)),
        lambda: sparse.csr_to_csc(w, **csr),
        lambda: sparse.CSR((w, csr["indices"], csr["indptr"]), shape=(5, 7)).prepare() @ x,
    ):
        compilations(call)
        assert compilations(call) == 0
