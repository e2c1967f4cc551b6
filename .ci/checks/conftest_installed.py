"""Configuration of tests of installed wheels: the tests must not import xlakernel from a source folder."""

import sysconfig
from pathlib import Path

import pytest


def places():
    """Return the folders of the namespace package; a source folder on the path would be among them."""
    import xlakernel

    return {Path(path) for path in xlakernel.__path__}


@pytest.fixture(autouse=True, scope="session")
def only_what_is_installed():
    installed = {Path(sysconfig.get_path("purelib"), "xlakernel")}
    assert places() == installed
    yield
    assert places() == installed
