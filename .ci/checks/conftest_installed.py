"""What surrounds the tests of packages that are installed from wheels: nothing of ours may come from elsewhere."""

import sysconfig
from pathlib import Path

import pytest


def places():
    """Return the folders that make up the namespace, which a source folder on any path would be one of."""
    import xlakernel

    return {Path(path) for path in xlakernel.__path__}


@pytest.fixture(autouse=True, scope="session")
def only_what_is_installed():
    installed = {Path(sysconfig.get_path("purelib"), "xlakernel")}
    assert places() == installed
    yield
    assert places() == installed
