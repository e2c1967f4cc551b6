"""Attributes, text and sums of a procedural matrix, and the errors of wrong arguments."""

import copy
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from procedural_cases import make

from xlakernel.core import use_backend
from xlakernel.core.errors import ArgumentError, DtypeError, InputError, ShapeError, StructureError
from xlakernel.sparse import CSR, ProceduralMatrix

GIVEN = {"seed": 0, "shape": (10, 20), "probability": 0.1}


@pytest.fixture(scope="module")
def matrix():
    return ProceduralMatrix.homogeneous(0.5, **GIVEN)


def test_repr(matrix):
    assert repr(matrix) == "ProceduralMatrix(float32[10,20], homogeneous, probability=0.1)"
    fixed = ProceduralMatrix.normal(0, 1, seed=0, shape=(10, 20), per_row=4)
    assert repr(fixed.T) == "ProceduralMatrix(float32[20,10], normal, per_column=4)"
    assert "object" in repr(jax.tree.map(lambda _: object(), matrix))


def test_the_leaves_are_the_parameters_and_the_seed(matrix):
    leaves, structure = jax.tree.flatten(matrix)
    assert [(leaf.shape, leaf.dtype.name) for leaf in leaves] == [((), "float32"), ((2,), "uint32")]
    assert repr(jax.tree.unflatten(structure, leaves)) == repr(matrix)
    for other in (copy.copy(matrix), pickle.loads(pickle.dumps(matrix))):
        np.testing.assert_array_equal(other.todense(), matrix.todense())
    with pytest.raises(AttributeError, match=r"immutable: seed cannot be set. A.with_parameters"):
        matrix.seed = 3


def test_other_parameters(matrix):
    doubled = matrix.with_parameters(1.0)
    np.testing.assert_array_equal(doubled.todense(), 2 * matrix.todense())
    assert matrix.astype("float16").dtype == "float16"
    assert ProceduralMatrix.uniform(0, 1, **GIVEN).dtype == "float32"
    assert ProceduralMatrix.homogeneous(2, **GIVEN).dtype == "int32"


@pytest.mark.usefixtures("x64")
def test_sums_and_means():
    for distribution, connection in (("uniform", {"probability": 0.2}), ("homogeneous", {"per_row": 5})):
        matrix, dense = make(distribution, (10, 20), **connection)
        for axis in (None, 0, 1, -1):
            np.testing.assert_allclose(matrix.sum(axis), dense.sum(axis), rtol=1e-5, atol=1e-5)
            np.testing.assert_allclose(matrix.mean(axis), dense.mean(axis), rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(matrix.toarray(), matrix.todense())


def test_the_transpose_of_the_transpose(matrix):
    assert isinstance(matrix.T.tocsr(), CSR)
    np.testing.assert_array_equal(matrix.T.T.todense(), matrix.todense())
    np.testing.assert_array_equal(matrix.T.todense(), matrix.todense().T)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"probability": None}, ArgumentError, "give either probability or per_row; got None and None"),
        ({"per_row": 3}, ArgumentError, "give either probability or per_row; got 0.1 and 3"),
        ({"probability": 1.5}, ArgumentError, r"probability is 1.5; allowed: 0, and numbers from 1e-08 to 1"),
        ({"probability": 1e-9}, ArgumentError, "probability is 1e-09"),
        ({"probability": -0.1}, ArgumentError, "probability is -0.1"),
        ({"probability": True}, ArgumentError, "probability is True"),
        ({"probability": float("nan")}, ArgumentError, "probability is nan"),
        ({"probability": None, "per_row": -1}, ArgumentError, "per_row is -1; allowed: integers from 0"),
        ({"probability": None, "per_row": 2.5}, ArgumentError, "per_row is 2.5"),
        ({"seed": -1}, InputError, r"seed is -1 .* integer from 0 to 2\*\*64 - 1, or a key of jax.random"),
        ({"seed": 2**64}, InputError, "seed is 18446744073709551616"),
        ({"seed": 0.5}, InputError, "seed is 0.5 of type float"),
        ({"seed": jnp.arange(2)}, InputError, r"seed is Array\(\[0, 1\]"),
        ({"seed": jax.random.split(jax.random.key(0))}, InputError, r"array of keys of shape \(2,\); expected one"),
        ({"shape": (3,)}, ShapeError, r"expected \(rows, columns\)"),
        ({"shape": (3, 2**31)}, ShapeError, "there may be up to 2000000000"),
    ],
)
def test_wrong_arguments(given, error, message):
    with pytest.raises(error, match=message) as caught:
        ProceduralMatrix.homogeneous(0.5, **{**GIVEN, **given})
    assert str(caught.value).startswith("ProceduralMatrix.homogeneous: ")


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda m: ProceduralMatrix(3), InputError, r"make one with ProceduralMatrix.homogeneous\(weight, …\)"),
        (lambda m: ProceduralMatrix.homogeneous(None, **GIVEN), InputError, "weight is None of type NoneType"),
        (lambda m: ProceduralMatrix.homogeneous(True, **GIVEN), DtypeError, "weight is of dtype bool"),
        (lambda m: ProceduralMatrix.uniform(0, 1j, **GIVEN), DtypeError, "high is of dtype complex64; expected a real"),
        (lambda m: ProceduralMatrix.normal(jnp.ones(3), 1, **GIVEN), ShapeError, r"mean has the shape \(3,\)"),
        (lambda m: m.with_parameters(1, 2), InputError, "got 2 parameters; expected 1: weight"),
        (lambda m: m @ jnp.ones(10), ShapeError, r"it must be \(20,\) or \(20, k\).* fits on the other side"),
        (lambda m: m @ m.T, InputError, "both are sparse"),
        (lambda m: np.asarray(m), InputError, r"A.todense\(\) returns a dense array, A.tocsr\(\) a stored matrix"),
        (lambda m: m.sum(2), ShapeError, "axis is 2"),
        (lambda m: jax.jit(lambda m: m.tocsr())(m), StructureError, "Convert it outside of jit, vmap and grad"),
        (lambda m: jax.tree.map(lambda leaf: leaf[None], m) @ jnp.ones(20), ShapeError, "batch of matrices"),
    ],
)
def test_wrong_calls(matrix, call, error, message):
    with pytest.raises(error, match=message):
        call(matrix)


def test_warp_has_no_kernels(matrix):
    with use_backend("warp"), pytest.raises(Exception, match="no 'warp' kernel"):
        matrix @ jnp.ones(20)
