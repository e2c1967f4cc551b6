"""Comparison of code with the code that was exported."""

import pytest

from xlakernel.core.errors import ExportError
from xlakernel.core.identity.fingerprint import examine
from xlakernel.core.programs.comparison import Compared, refers_to


def compared(function):
    return Compared("the kernel scale", lambda: examine(function), lambda value: refers_to(value, "Use a number."))


def scale(x, out, factor=2.0):
    out[0] = factor * x[0]


def test_the_same_code_is_accepted():
    compared(scale).check_same(compared(scale).checks())
    compared(scale).check_unchanged(examine(scale).digest)
    compared(scale).check_exportable(examine(scale).digest)


def test_other_code_is_refused():
    def other(x, out, factor=3.0):
        out[0] = factor * x[0]

    with pytest.raises(ExportError, match="the kernel scale is not the one that was exported: its code has changed"):
        compared(other).check_same(compared(scale).checks())
    with pytest.raises(ExportError, match="lowered before something that the kernel scale refers to changed"):
        compared(other).check_unchanged(examine(scale).digest)
    with pytest.raises(ExportError, match="lowered before something that the kernel scale refers to changed"):
        compared(other).check_exportable(examine(scale).digest)


def test_code_that_cannot_be_compared_is_refused():
    unknown = object()

    def refers(x, out):
        out[0] = id(unknown)

    checks = compared(refers).checks()
    assert checks["bytecode"] is None
    with pytest.raises(ExportError, match=r"cannot be compared with the one that was exported: it refers to <object"):
        compared(refers).check_same(checks)
    with pytest.raises(ExportError, match="export: the kernel scale refers to <object"):
        compared(refers).check_exportable(examine(refers).digest)
