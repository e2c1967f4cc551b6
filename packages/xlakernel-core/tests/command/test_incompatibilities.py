"""Known incompatibilities in made-up facts, and their fixes."""

import pytest

from xlakernel.command.facts import Facts
from xlakernel.command.incompatibilities import RULES
from xlakernel.command.install import install_command


def driver(major, minor=0, gpus=("NVIDIA H200",)):
    return {"found": True, "version": 1000 * major + 10 * minor, "status": 0, "devices": list(gpus)}


def on(*platforms):
    return {"devices": [{"platform": name, "kind": name} for name in platforms]}


def found(versions=(), variables=(), **answers):
    facts = Facts(versions=dict(versions), variables=dict(variables), answers=answers)
    return {finding.name: finding for rule in RULES for finding in rule(facts)}


GOOD = {
    "jax": "0.12.0.1",
    "jaxlib": "0.12.0.1",
    "jax-cuda13-plugin": "0.12.0.1",
    "numpy": "2.4.6",
    "scipy": "1.18.1",
    "numba": "0.68.1",
    "numba-cuda": "0.30.4",
    "cuda-bindings": "13.5.0",
    "cuda-toolkit": "13.5.0",
    "warp-lang": "1.19.0",
    "xlakernel-cuda": "0.1.0",
    "xlakernel-warp": "0.1.0",
    "xlakernel-sparse": "0.1.0",
}


def test_compatible_versions_are_not_reported():
    assert found(GOOD, jax=on("gpu"), driver=driver(13, 1)) == {}
    assert found() == {}


@pytest.mark.parametrize("version", ["2.5.0", "2.5.0rc1"])
def test_a_numpy_that_is_too_new(version):
    finding = found({**GOOD, "numpy": version})["numba-cuda-numpy"]
    assert (finding.state, finding.fix, finding.stops) == ("problem", 'pip install "numpy<2.5"', ("numba_cuda",))
    assert version in finding.text and "0.30.4" in finding.text
    assert "numba-cuda-numpy" not in found({"numpy": version, "numba-cuda": "0.31.0"})
    assert "numba-cuda-numpy" not in found({"numpy": version})


def test_a_numba_that_compiles_nothing():
    finding = found(GOOD, variables={"NUMBA_DISABLE_JIT": "1"})["numba-disable-jit"]
    assert (finding.state, finding.fix) == ("problem", "unset NUMBA_DISABLE_JIT")
    for variables in ({}, {"NUMBA_DISABLE_JIT": "0"}):
        assert "numba-disable-jit" not in found(GOOD, variables=variables)


def test_libraries_for_a_newer_cuda_than_the_drivers():
    finding = found(GOOD, driver=driver(12, 9), jax=on("gpu"))["cuda-driver"]
    assert "cuda-bindings, cuda-toolkit, jax-cuda13-plugin" in finding.text
    remove = "pip uninstall -y jax-cuda13-plugin jax-cuda13-pjrt"
    assert finding.fix == f"{remove} && {install_command('cuda', 'cuda12')}"
    # A driver runs what is for an older one.
    older = {"cuda-bindings": "12.9.1", "jax-cuda12-plugin": "0.12.0.1", "jaxlib": "0.12.0.1"}
    assert found(older, driver=driver(13), jax=on("gpu")) == {}


@pytest.mark.parametrize(
    ("versions", "variables", "message", "state", "fix"),
    [
        ({}, {"JAX_PLATFORMS": "cpu"}, None, "note", "unset JAX_PLATFORMS"),
        ({}, {}, None, "note", 'pip install -U "jax[cuda13]"'),
        ({"xlakernel-cuda": "0.1.0"}, {}, None, "problem", 'pip install -U "jax[cuda13]"'),
        ({"jax-cuda13-plugin": "1"}, {}, "no cuDNN", "problem", 'pip install -U "jax[cuda13]"'),
    ],
)
def test_a_gpu_that_jax_does_not_use(versions, variables, message, state, fix):
    answer = on("cpu") | ({"message": message} if message else {})
    finding = found(versions, variables=variables, driver=driver(13), jax=answer)["jax-gpu"]
    assert (finding.state, finding.fix, finding.stops) == (state, fix, ("gpu",))
    assert message is None or finding.text.endswith(message)
    assert "jax-gpu" not in found(versions, variables=variables, driver=driver(13), jax=on("gpu"))
    assert "jax-gpu" not in found(versions, variables=variables, driver=driver(13, gpus=()), jax=on("cpu"))
