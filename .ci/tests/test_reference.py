"""What the check of the reference finds in a package that is as it should be, with one fault at a time put into it."""

import pytest
from check_reference import ROOT, problems

ERRORS = '''
class XLAKernelError(Exception):
    """The root."""

class ShapeError(XLAKernelError):
    """A shape."""
'''

INIT = """
from .__about__ import __version__
from ._product import TABLE, Matrix, product

__all__ = ["TABLE", "Matrix", "__version__", "product"]
"""

PRODUCT = '''
import dataclasses

from xlakernel.core.errors import ShapeError


TABLE = {}


class _Base:
    def scaled(self, by, timeout=1):
        """Return a multiple.

        Args:
          by: a number.
          timeout: how many seconds it may take.
        """


class Matrix(_Base):
    """A matrix.

    Args:
      rows: how many.
    """

    def __init__(self, rows):
        self._rows = rows

    @property
    def rows(self):
        """The number of rows."""
        return self._rows


def product(data, x, *, shape):
    """Multiply.

    Args:
      data: weights, ``(n,)``, float32.
      x: the vector, ``(columns,)``, of the
        dtype of *data*.
      shape: (rows, columns).

    Raises:
      ShapeError: if lengths do not fit.
    """
    _check(data, x)
    return data


def _check(data, x):
    if len(data) != len(x):
        raise ShapeError("no")
'''

PAGE = """
.. currentmodule:: xlakernel.sparse

.. autoclass:: Matrix
   :members:
   :inherited-members:

.. autofunction:: product

``TABLE`` has nothing in it.
"""

CORE = """
.. automodule:: xlakernel.core.errors
   :members:
"""

TESTS = """
from xlakernel.sparse import Matrix, product
Matrix(3).scaled(by=Matrix(3).rows), product(1, 2, shape=3), XLAKernelError, ShapeError
"""

FILES = {
    "packages/xlakernel-core/src/xlakernel/core/__init__.py": "",
    "packages/xlakernel-core/src/xlakernel/core/errors.py": ERRORS,
    "packages/xlakernel-core/tests/test_errors.py": "",
    "packages/xlakernel-sparse/src/xlakernel/sparse/__init__.py": INIT,
    "packages/xlakernel-sparse/src/xlakernel/sparse/__about__.py": '__version__ = "1"',
    "packages/xlakernel-sparse/src/xlakernel/sparse/_product.py": PRODUCT,
    "packages/xlakernel-sparse/tests/deep/test_product.py": TESTS,
    "docs/reference/core.md": CORE,
    "docs/reference/sparse.md": PAGE,
}
PUBLIC = {"core": ("xlakernel.core.errors",), "sparse": ("xlakernel.sparse",)}

#: What is replaced in the files, and what is to be found then.
FAULTS = (
    ("``TABLE`` has", "It has", "xlakernel.sparse.TABLE: it is not in docs/reference"),
    (".. autofunction:: product\n", "", "_product.product: it is not in docs/reference"),
    (".. autofunction:: product\n", ".. autofunction:: products\n", "_product.product: it is not in docs/reference"),
    ("   :inherited-members:\n", "", "_product._Base.scaled: it is not in docs/reference"),
    (".. autoclass:: Matrix\n   :members:\n", ".. autoclass:: Matrix\n", "_product.Matrix.rows: it is not in docs"),
    ("      rows: how many.\n", "", "_product.Matrix: the parameter rows is not under Args"),
    ("          by: a number.\n", "", "_product._Base.scaled: the parameter by is not under Args"),
    ("how many seconds it", "how long it", "_product._Base.scaled: timeout is a quantity without a unit"),
    ("      x: the vector", "      y: the vector", "_product.product: the parameter x is not under Args"),
    ("def product(data, x, *, shape)", "def product(data, x, *, shape, fast)", "the parameter fast is not under Args"),
    ("weights, ``(n,)``, float32", "weights, float32", "_product.product: the array data has no shape"),
    ("weights, ``(n,)``, float32", "weights, ``(n,)``", "_product.product: the array data has no dtype"),
    ("        dtype of *data*.\n", "", "_product.product: the array x has no dtype"),
    ("      ShapeError: if", "      ValueError: if", "product: it raises ShapeError, which is not under Raises"),
    ('    """Multiply.', '    text = """Multiply.', "_product.product: it has no docstring"),
    ("scaled(by", "times(by", "_product._Base.scaled: no test of xlakernel-sparse has its name"),
    ("XLAKernelError, ShapeError\n", "XLAKernelError\n", "errors.ShapeError: no test of xlakernel-core has its name"),
)


@pytest.fixture
def found_in(tmp_path):
    """Return what the check finds in a tree of the files that it is given."""

    def find(files):
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")
        return list(problems(tmp_path, PUBLIC))

    return find


def test_nothing_is_found_where_nothing_is_wrong(found_in):
    assert found_in(FILES) == []


@pytest.mark.parametrize(("old", "new", "expected"), FAULTS)
def test_each_fault_is_found(found_in, old, new, expected):
    assert sum(old in text for text in FILES.values()) == 1
    found = found_in({name: text.replace(old, new) for name, text in FILES.items()})
    assert any(expected in line for line in found), found


def test_a_package_that_nobody_listed_is_found(found_in):
    more = {**FILES, "packages/xlakernel-other/src/xlakernel/other/__init__.py": ""}
    assert found_in(more) == ["packages/ has ['core', 'other', 'sparse'], and PUBLIC ['core', 'sparse']"]


def test_a_list_of_names_may_have_a_type(found_in):
    path = "packages/xlakernel-core/src/xlakernel/core/errors.py"
    typed = {**FILES, path: f'__all__: list[str] = ["ShapeError", "LengthError"]\n{ERRORS}'}
    assert found_in(typed) == ["xlakernel.core.errors.LengthError: it is not in docs/reference"]


def test_a_module_without_names_is_found(found_in):
    found = found_in({**FILES, "packages/xlakernel-sparse/src/xlakernel/sparse/__init__.py": "import this\n"})
    assert any(line.startswith("xlakernel.sparse: no public name was found") for line in found), found


def test_the_repository_is_read():
    """A change of the layout must not let the check find nothing in nothing."""
    found = list(problems(ROOT, {"core": ("xlakernel.core.config",)}))  # which is not public
    assert "xlakernel.core.config.is_debugging: it is not in docs/reference" in found
    assert not any("config.use_backend" in line for line in found), found  # which is, elsewhere
