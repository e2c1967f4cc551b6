"""The tables of names in the reference: all public names of SciPy's arrays and of brainevent, as installed."""

import re
from pathlib import Path

import pytest
import scipy.sparse

from xlakernel.sparse import COO, CSC, CSR

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "names.md"

pytestmark = pytest.mark.skipif(not PAGE.exists(), reason="the documentation is not part of a source distribution")


def table(title):
    """Return the names of a table's first column, and the text beside each."""
    section = PAGE.read_text("utf-8").partition(f"## {title}\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (.*?) \| (.*) \|$", section, re.MULTILINE)[1:]
    return {name: ours for names, ours in rows for name in re.findall(r"`(\w+)`", names)}


def public(of):
    return {name for name in dir(of) if not name.startswith("_")}


def test_every_name_of_scipy_is_in_the_table():
    listed = table("`scipy.sparse.csr_array`")
    assert public(scipy.sparse.csr_array((1, 1))) <= set(listed)


def test_names_of_scipy_that_are_the_same_exist():
    same = [name for name, ours in table("`scipy.sparse.csr_array`").items() if ours.startswith("the same")]
    assert len(same) > 40
    for kind in (CSR, CSC, COO):
        missing = [name for name in same if not hasattr(kind, name) and name != "data"]
        assert missing == (["indices", "indptr"] if kind is COO else [])


def test_every_name_of_brainevent_is_in_the_table():
    brainevent = pytest.importorskip("brainevent")  # needs Python 3.12; no dependency of the tests
    assert public(brainevent) <= set(table("brainevent"))
