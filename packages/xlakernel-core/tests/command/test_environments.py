"""The doctor in environments that lack something, or have what does not go together."""

import importlib.util

import pytest

# What takes long to start and is not what a test is about.
REST = ["jax", "warp"]


def has_gpu(findings):
    return findings["driver"]["state"] == "ok"


def test_no_numba(environment):
    status, findings = environment(without=["numba", "llvmlite", "numba_cuda"]).doctor()
    assert findings["jax"]["state"] == findings["core"]["state"] == "ok"
    assert findings["numba"]["text"].startswith("Numba is not installed")
    assert findings["numba"]["mend"].startswith("pip install xlakernel-")
    assert set(findings["numba"]["stops"]) >= {"numba", "numba_cuda", "warp"}
    assert "threads" not in findings
    # It is a problem of those who need it, which core alone does not.
    needed = any(importlib.util.find_spec(f"xlakernel.{name}") for name in ("numba", "cuda", "warp"))
    assert (findings["numba"]["state"], status) == (("problem", 1) if needed else ("note", 0))


def test_no_gpu(environment):
    made = environment()
    made.variables = {"LD_LIBRARY_PATH": "", "CUDA_VISIBLE_DEVICES": ""}
    _, findings = made.doctor()
    if has_gpu(findings):
        pytest.skip("there is a GPU, which cannot be hidden")
    driver = findings["driver"]
    assert driver["state"] in ("note", "problem")
    assert driver["stops"] == ["gpu"]
    assert "jax-gpu" not in findings


def test_numpy_too_new_for_numba_cuda(environment):
    made = environment(without=REST)
    made.pretend("numpy", "2.5.0")
    made.pretend("numba-cuda", "0.30.4")
    _, findings = made.doctor()
    found = findings["numba-cuda-numpy"]
    assert found["state"] == "problem"
    assert "NumPy 2.5.0 is too new for numba-cuda 0.30.4" in found["text"]
    assert found["mend"] == 'pip install "numpy<2.5"'
    assert found["stops"] == ["numba_cuda"]


WARP = """
class config:
    version, quiet = "1.19.0", False
class Device:
    name, alias = "CPU", "cpu"
def init():
    print("a banner")
def get_devices():
    return [Device]
def jax_kernel():
    pass
"""


@pytest.mark.parametrize("kept", [False, True])
def test_warp_without_jax_experimental(environment, kept):
    made = environment(without=["jax", "numba", "warp", "warp_lang"])
    made.write("warp/__init__.py", WARP)
    if kept:
        made.write("warp/jax_experimental.py", "")
    _, findings = made.doctor()
    found = findings["warp"]
    assert "Warp 1.19.0 starts; its devices are cpu" in found["text"]
    assert found["state"] == ("ok" if kept else "note")
    assert ("from xlakernel.warp import jax_kernel" in found["text"]) != kept
    assert found["stops"] == []


def test_workqueue_because_it_was_asked_for(environment):
    pytest.importorskip("numba")
    made = environment(without=REST)
    made.variables = {"NUMBA_THREADING_LAYER": "workqueue"}
    _, findings = made.doctor()
    found = findings["threads"]
    assert found["state"] == "problem"
    assert "threading layer is workqueue" in found["text"]
    assert found["mend"].startswith("unset NUMBA_THREADING_LAYER")


def test_workqueue_as_the_only_threading_layer(environment):
    pytest.importorskip("numba")
    made = environment(without=REST)
    made.write("sitecustomize.py", HIDES_LAYERS)
    _, findings = made.doctor()
    found = findings["threads"]
    assert found["state"] == "problem"
    assert "the others, tbb and omp, cannot be loaded" in found["text"]
    assert found["mend"] == "apt-get install libgomp1"


# As they fail where their libraries are missing.
HIDES_LAYERS = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name == "numba.np.ufunc.omppool":
            raise ImportError("libgomp.so.1: cannot open shared object file: No such file or directory")
        if name == "numba.np.ufunc.tbbpool":
            raise ImportError("libtbb.so.12: cannot open shared object file: No such file or directory")
sys.meta_path.insert(0, Missing())
"""


def test_a_layer_that_cannot_start(environment):
    pytest.importorskip("numba")
    made = environment(without=REST)
    made.write("sitecustomize.py", HIDES_LAYERS)
    made.variables = {"NUMBA_THREADING_LAYER": "omp"}
    _, findings = made.doctor()
    assert "cannot start its threads: ValueError" in findings["threads"]["text"]
    assert findings["threads"]["mend"] == "unset NUMBA_THREADING_LAYER && apt-get install libgomp1"


def test_a_jax_that_cannot_be_imported(environment):
    made = environment(without=["jax", "warp"])
    made.write("jax/__init__.py", "raise RuntimeError('jaxlib version 9 is newer than and\\nincompatible with jax')")
    status, findings = made.doctor()
    assert status == 1
    assert (
        "JAX does not start: RuntimeError: jaxlib version 9 is newer than and incompatible" in findings["jax"]["text"]
    )
    assert findings["jax"]["mend"] == "pip install -U jax jaxlib"
    assert findings["numba"]["name"] == "numba"


def test_a_library_that_ends_its_process(environment):
    made = environment(without=["warp"])
    made.write(
        "warp/__init__.py", "import os, signal\nos.write(2, b'bad plugin\\n')\nos.kill(os.getpid(), signal.SIGSEGV)"
    )
    status, findings = made.doctor()
    assert status == 1
    assert findings["jax"]["state"] == "ok"
    assert "its process was ended by SIGSEGV; its last words: bad plugin" in findings["warp"]["text"]


def test_the_command_starts_without_what_it_looks_at(environment):
    made = environment()
    # An installed library may have had Python load something at its start.
    program = "import sys; before = {*sys.modules}; import xlakernel.command; print(*{*sys.modules} - before)"
    loaded = made.python("-c", program).stdout.split()
    assert "xlakernel.command.doctor" in loaded
    assert {"jax", "numpy", "numba", "warp", "cuda", "xlakernel.core"}.isdisjoint(loaded)
