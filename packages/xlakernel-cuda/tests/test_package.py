"""The package as a user installs and imports it."""

import os
import subprocess
import sys
from importlib.metadata import version
from importlib.resources import files

import pytest

import xlakernel.cuda

pytestmark = pytest.mark.versions

HEAVY = {"numba", "numba_cuda", "cuda.bindings", "cupy", "warp"}


def test_version_is_the_one_installed():
    assert xlakernel.cuda.__version__ == version("xlakernel-cuda")


def test_types_ship():
    assert files("xlakernel.cuda").joinpath("py.typed").is_file()


def test_xlakernel_is_a_namespace_that_siblings_can_share():
    assert getattr(xlakernel, "__file__", None) is None


def test_import_needs_no_gpu_and_loads_nothing_heavy():
    code = f"import sys, xlakernel.cuda; print(sorted({HEAVY!r} & sys.modules.keys()))"
    child = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (child.returncode, child.stdout.strip()) == (0, "[]"), child.stderr
