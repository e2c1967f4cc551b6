"""One structure with padding, duplicates and empty lines, in every format, and its dense equivalent."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import settings
from jax.extend.core import ClosedJaxpr, Jaxpr

from xlakernel.core import operators, use_backend
from xlakernel.sparse import COO, CSC, CSR, BinaryArray, WeightedArray

settings.register_profile("xlakernel", deadline=None, database=None, max_examples=15)
settings.load_profile("xlakernel")

SHAPE = (5, 7)
# An empty row, an empty column, unsorted columns, a duplicate, and two slots of padding.
INDPTR = [0, 3, 3, 5, 6, 10]
INDICES = [3, 0, 3, 6, 1, 4, 2, 6, 0, 1, 0, 0]
ROWS = [0, 0, 0, 2, 2, 3, 4, 4, 4, 4, 5, 5]
COLUMNS = [*INDICES[:10], 7, 7]
NNZ = len(INDICES)

OPERANDS = {"dense": lambda x: x, "binary": BinaryArray, "weighted": WeightedArray}


def weights(seed=0, dtype="float32", *, homogeneous=False):
    return jnp.asarray(np.random.default_rng(seed).normal(size=1 if homogeneous else NNZ), dtype)


def dense(w):
    """The matrix of the structure with the weights *w*, as a dense array; JAX can differentiate it."""
    return jnp.zeros(SHAPE, w.dtype).at[jnp.array(ROWS), jnp.array(COLUMNS)].add(w, mode="drop")


def spikes(x):
    """1 where *x* is not zero, differentiated as *x*: the value of binary events."""
    return x + jax.lax.stop_gradient((x != 0).astype(x.dtype) - x)


@dataclasses.dataclass
class Example:
    """A matrix in one format, and the dense equivalent."""

    matrix: Any
    dense: Callable[[Any], Any]

    def product(self, operand, side):
        """Return the product as a function of weights and operand, and the same with dense arrays."""
        wrap, value = OPERANDS[operand], spikes if operand == "binary" else lambda x: x
        if side == "left":
            return lambda w, x: self.matrix.with_data(w) @ wrap(x), lambda w, x: self.dense(w) @ value(x)
        return lambda w, x: wrap(x) @ self.matrix.with_data(w), lambda w, x: value(x) @ self.dense(w)

    def operand(self, side, *batch, seed=1, dtype="float32"):
        """Return an operand of which a third is zero; with a batch, a matrix."""
        length = self.matrix.shape[1 if side == "left" else 0]
        x = np.random.default_rng(seed).normal(size=(*batch, length))
        x[..., ::3] = 0
        return jnp.asarray(x.T if side == "left" else x, dtype)


def example(name, dtype="float32", *, homogeneous=False):
    w, index = weights(dtype=dtype, homogeneous=homogeneous), jnp.int32
    compressed = (w, jnp.array(INDICES, index), jnp.array(INDPTR, index))
    if name == "coo":
        return Example(COO((w, jnp.array(ROWS, index), jnp.array(COLUMNS, index)), shape=SHAPE), dense)
    if name.endswith("csr"):
        matrix, oracle = CSR(compressed, shape=SHAPE), dense
    else:  # the same arrays describe the transpose
        matrix, oracle = CSC(compressed, shape=SHAPE[::-1]), lambda w: dense(w).T
    return Example(matrix.prepare() if name.startswith("prepared") else matrix, oracle)


@pytest.fixture(scope="session")
def make():
    """Return `example`: ``make(format, dtype, homogeneous=)``."""
    return example


@pytest.fixture(scope="session")
def csr():
    """The structure as arguments of the functions for compressed rows."""
    return {"indices": jnp.array(INDICES, jnp.int32), "indptr": jnp.array(INDPTR, jnp.int32), "shape": SHAPE}


@pytest.fixture(scope="session")
def to_dense():
    return dense


@pytest.fixture(scope="session")
def make_weights():
    return weights


@pytest.fixture
def plain_jax():
    """The kernels in plain JAX."""
    with use_backend("jax"):
        yield


@pytest.fixture
def op_by_op():
    """The same, without jit: only single operations are compiled, which all derivatives share."""
    with use_backend("jax"), jax.disable_jit():
        yield


@pytest.fixture
def x64():
    with jax.enable_x64(True) if hasattr(jax, "enable_x64") else jax.experimental.enable_x64():
        yield


@pytest.fixture(scope="session")
def calls():
    """Return a function that lists the operators that a program calls: ``calls(function, *arguments)``."""

    def inside(value):
        if isinstance(value, (ClosedJaxpr, Jaxpr)):
            return list(found(getattr(value, "jaxpr", value)))
        return [name for part in value for name in inside(part)] if isinstance(value, (tuple, list)) else []

    def found(jaxpr):
        for equation in jaxpr.eqns:
            if equation.primitive.name in operators():
                yield equation.primitive.name
            for value in equation.params.values():
                yield from inside(value)

    return lambda function, *arguments: inside(jax.make_jaxpr(function)(*arguments))
