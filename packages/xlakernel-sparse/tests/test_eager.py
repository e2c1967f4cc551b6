"""Eager products run as one compiled program."""

import sys

import jax.numpy as jnp
import numpy as np
import pytest

from xlakernel.core.errors import DtypeError, InputError, ShapeError
from xlakernel.sparse import COO, CSC, CSR, BinaryArray, csrmv

FORMATS = [CSR, CSC, COO]


def python_calls(function):
    names = []
    sys.setprofile(lambda frame, event, _: names.append(frame.f_code.co_name) if event == "call" else None)
    try:
        function()
    finally:
        sys.setprofile(None)
    return names


@pytest.fixture(params=FORMATS)
def matrix(request):
    return request.param.from_dense(jnp.array([[0.0, 1.0], [2.0, 3.0]]))


def test_a_product_checks_nothing_again(matrix):
    x, events = jnp.ones(2), BinaryArray(jnp.array([True, False]))
    for product in (lambda: matrix @ x, lambda: x @ matrix, lambda: events @ matrix, lambda: matrix @ events):
        product()
        assert len(python_calls(product)) <= 25


@pytest.mark.parametrize("part", [slice(1), np.array([1, 0])])
def test_a_part_checks_nothing_again(matrix, part):
    matrix[part]
    assert len(python_calls(lambda: matrix[part])) <= 100


def test_new_weights_are_no_new_program(matrix):
    x = jnp.ones(2)
    first = matrix @ x
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(matrix), "_checked_product", None)  # which is called while tracing
        again = matrix.with_data(matrix.data * 2) @ x
    np.testing.assert_array_equal(again, 2 * first)


def test_wrong_arguments_are_refused_each_time(matrix):
    for _ in range(2):
        with pytest.raises(ShapeError, match="x has the shape"):
            matrix @ jnp.ones(3)
        with pytest.raises(InputError, match="both are sparse"):
            matrix @ matrix.to_scipy()
        with pytest.raises(InputError, match="expected an array"):
            matrix @ "x"


def test_indices_of_numpy_are_checked_for_room():
    structure = np.array([0, 2**40]), np.array([0, 1, 2])
    with pytest.raises(DtypeError, match="ranges from"):
        csrmv(jnp.ones(2), *structure, jnp.ones(2), shape=(2, 2))


@pytest.mark.parametrize("dtype", [">i4", ">f4"])
def test_bytes_of_another_order_are_refused(dtype):
    matrix = CSR.from_dense(jnp.eye(4))
    for multiply in (lambda x: matrix @ x, lambda x: x @ matrix, lambda x: BinaryArray(x) @ matrix):
        with pytest.raises(InputError, match="expected an array"):
            multiply(np.arange(4).astype(dtype))
