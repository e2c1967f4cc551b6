"""The doctor in environments that lack a library, or have incompatible ones."""

import importlib.util

import pytest

from xlakernel.command.install import install_command

pytestmark = pytest.mark.process

# Libraries that start slowly, for tests of others.
REST = ["jax", "warp"]


def test_no_numba(environment):
    status, findings = environment(without=["numba", "llvmlite", "numba_cuda"]).doctor()
    assert findings["jax"]["state"] == findings["core"]["state"] == "ok"
    assert findings["numba"]["text"].startswith("numba is not installed")
    assert findings["numba"]["fix"] == install_command("numba")
    assert set(findings["numba"]["stops"]) >= {"numba", "numba_cuda", "warp"}
    # It is a problem of the packages that need it; core alone does not.
    needed = any(importlib.util.find_spec(f"xlakernel.{name}") for name in ("numba", "cuda", "warp"))
    assert (findings["numba"]["state"], status) == (("problem", 1) if needed else ("note", 0))


def test_numpy_too_new_for_numba_cuda(environment):
    made = environment(without=REST)
    made.pretend("numpy", "2.5.0")
    made.pretend("numba-cuda", "0.30.4")
    _, findings = made.doctor()
    found = findings["numba-cuda-numpy"]
    assert found["state"] == "problem"
    assert "NumPy 2.5.0 is too new for numba-cuda 0.30.4" in found["text"]
    assert found["fix"] == 'pip install "numpy<2.5"'
    assert found["stops"] == ["numba_cuda"]


def test_a_jax_that_cannot_be_imported(environment):
    made = environment(without=["jax", "warp"])
    made.write("jax/__init__.py", "raise RuntimeError('jaxlib version 9 is newer than and\\nincompatible with jax')")
    status, findings = made.doctor()
    assert status == 1
    assert (
        "jax cannot be used: RuntimeError: jaxlib version 9 is newer than and incompatible" in findings["jax"]["text"]
    )
    assert findings["jax"]["fix"] == "pip install -U jax jaxlib"
    assert findings["numba"]["name"] == "numba"


def test_a_library_that_ends_its_process(environment):
    made = environment(without=["warp"])
    made.write(
        "warp/__init__.py", "import os, signal\nos.write(2, b'bad plugin\\n')\nos.kill(os.getpid(), signal.SIGSEGV)"
    )
    status, findings = made.doctor()
    assert status == 1
    assert findings["jax"]["state"] == "ok"
    assert "its process ended with Segmentation fault; its last line: bad plugin" in findings["warp"]["text"]


def test_the_command_does_not_import_the_libraries(environment):
    made = environment()
    # An installed library may have had Python load something at its start.
    program = "import sys; before = {*sys.modules}; import xlakernel.command; print(*{*sys.modules} - before)"
    loaded = made.python("-c", program).stdout.split()
    assert "xlakernel.command.doctor" in loaded
    assert {"jax", "numpy", "numba", "warp", "cuda", "xlakernel.core"}.isdisjoint(loaded)
