"""The package as a user installs and imports it."""

import os
import subprocess
import sys
from importlib.metadata import version
from importlib.resources import files

import pytest

import xlakernel.warp

pytestmark = pytest.mark.versions


def test_version_is_the_one_installed():
    assert xlakernel.warp.__version__ == version("xlakernel-warp")


def test_types_ship():
    assert files("xlakernel.warp").joinpath("py.typed").is_file()


def test_xlakernel_is_a_namespace_that_siblings_can_share():
    assert getattr(xlakernel, "__file__", None) is None


def test_import_needs_no_gpu_and_prints_nothing():
    child = subprocess.run(
        [sys.executable, "-c", "import xlakernel.warp"],
        env=os.environ | {"CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (child.returncode, child.stdout, child.stderr) == (0, "", "")
