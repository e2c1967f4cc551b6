"""Each known incompatibility, from facts that are made up: what holds it, what does not, and what mends it."""

import re
import tomllib
from itertools import chain
from pathlib import Path

import pytest

from xlakernel.command.facts import Facts
from xlakernel.command.incompatibilities import OLDEST, known_incompatibilities
from xlakernel.command.versions import release

PACKAGES = Path(__file__).parents[3]


def driver(major, minor=0, gpus=("NVIDIA H200",)):
    return {"found": True, "version": 1000 * major + 10 * minor, "status": 0, "devices": list(gpus)}


def on(*platforms):
    return {"version": "1", "devices": [{"platform": name, "kind": name, "id": 0} for name in platforms]}


def found(versions=(), variables=(), **answers):
    facts = Facts(versions=dict(versions), variables=dict(variables), answers=answers)
    return {finding.name: finding for finding in known_incompatibilities(facts)}


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


def test_what_goes_together_is_left_alone():
    assert found(GOOD, jax=on("gpu"), driver=driver(13, 1)) == {}
    assert found() == {}


@pytest.mark.parametrize(
    ("versions", "name", "mend"),
    [
        ({"jax": "0.7.1"}, "jax-too-old", 'pip install -U "jax>=0.7.2"'),
        ({"numpy": "1.26.4"}, "numpy-too-old", 'pip install -U "numpy>=2.0"'),
        ({"numba": "0.60.0"}, "numba-too-old", 'pip install -U "numba>=0.61"'),
        ({"numba-cuda": "0.9"}, "numba-cuda-too-old", 'pip install -U "numba-cuda>=0.24"'),
        ({"warp-lang": "1.13.0"}, "warp-lang-too-old", 'pip install -U "warp-lang>=1.14"'),
        ({"cuda-bindings": "12.8.0"}, "cuda-bindings-too-old", 'pip install -U "cuda-bindings>=12.9"'),
        ({"numpy": "2.5.0"}, "numba-cuda-numpy", 'pip install "numpy<2.5"'),
        ({"numpy": "2.5.0rc1"}, "numba-cuda-numpy", 'pip install "numpy<2.5"'),
        ({"jax-cuda13-plugin": "0.11.2"}, "jax-cuda13-plugin-jaxlib", 'pip install "jax[cuda13]==0.12.0.1"'),
        ({"cuda-bindings": None}, "xlakernel-warp-cuda-bindings", 'pip install "cuda-bindings>=12.9"'),
        ({"scipy": None}, "xlakernel-sparse-scipy", "pip install scipy"),
    ],
)
def test_versions(versions, name, mend):
    installed = {key: version for key, version in {**GOOD, **versions}.items() if version is not None}
    finding = found(installed)[name]
    assert finding.state == "problem"
    assert finding.mend == mend
    for distribution, version in versions.items():
        assert distribution in finding.text.lower()
        assert version is None or version in finding.text


def test_a_newer_numba_cuda_may_know_a_newer_numpy():
    assert "numba-cuda-numpy" not in found({"numpy": "2.5.0", "numba-cuda": "0.31.0"})
    assert "numba-cuda-numpy" not in found({"numpy": "2.5.0"})


def test_a_driver_that_is_too_old():
    finding = found(driver=driver(12, 3))["driver-too-old"]
    assert "CUDA 12.3" in finding.text and "12.4" in finding.text and finding.stops == ("gpu",)
    assert "driver-too-old" not in found(driver=driver(12, 4))


def test_libraries_for_a_newer_cuda_than_the_drivers():
    finding = found(GOOD, driver=driver(12, 9), jax=on("gpu"))["cuda-driver"]
    assert "cuda-bindings, cuda-toolkit, jax-cuda13-plugin" in finding.text
    remove = "pip uninstall -y jax-cuda13-plugin jax-cuda13-pjrt"
    assert finding.mend == f'{remove} && pip install "xlakernel-cuda[cuda12]"'
    # A driver runs what is for an older one.
    older = {"cuda-bindings": "12.9.1", "jax-cuda12-plugin": "0.12.0.1", "jaxlib": "0.12.0.1"}
    assert found(older, driver=driver(13), jax=on("gpu")) == {}


@pytest.mark.parametrize(
    ("versions", "variables", "said", "state", "mend"),
    [
        ({}, {"JAX_PLATFORMS": "cpu"}, None, "note", "unset JAX_PLATFORMS"),
        ({}, {}, None, "note", 'pip install "jax[cuda13]"'),
        ({"xlakernel-cuda": "0.1.0", "cuda-bindings": "13.0"}, {}, None, "problem", 'pip install "jax[cuda13]"'),
        ({"jax-cuda13-plugin": "1"}, {}, "no cuDNN", "problem", 'pip install -U "jax[cuda13]"'),
    ],
)
def test_a_gpu_that_jax_does_not_use(versions, variables, said, state, mend):
    answer = on("cpu") | ({"said": said} if said else {})
    finding = found(versions, variables=variables, driver=driver(13), jax=answer)["jax-gpu"]
    assert (finding.state, finding.mend, finding.stops) == (state, mend, ("gpu",))
    assert said is None or finding.text.endswith(said)
    assert "jax-gpu" not in found(versions, variables=variables, driver=driver(13), jax=on("gpu"))
    assert "jax-gpu" not in found(versions, variables=variables, driver=driver(13, gpus=()), jax=on("cpu"))


@pytest.mark.parametrize(
    ("variable", "name", "stops"),
    [("NUMBA_DISABLE_JIT", "numba-disable-jit", "numba"), ("NUMBA_ENABLE_CUDASIM", "numba-cudasim", "numba_cuda")],
)
def test_settings_of_numba(variable, name, stops):
    finding = found(variables={variable: "1"})[name]
    assert (finding.state, finding.mend, finding.stops) == ("problem", f"unset {variable}", (stops,))
    assert found(variables={variable: "0"}) == {}


def test_the_oldest_releases_are_those_that_the_packages_declare():
    if not (PACKAGES / "xlakernel-core").is_dir():
        pytest.skip("the packages are not side by side here")
    declared = {}
    for path in PACKAGES.glob("*/pyproject.toml"):
        project = tomllib.loads(path.read_text("utf-8"))["project"]
        for line in chain(project["dependencies"], *project.get("optional-dependencies", {}).values()):
            if match := re.match(r"([\w-]+)(?:\[.*\])?>=([\d.]+)", line):
                declared.setdefault(match[1], set()).add(match[2])
    for name, (oldest, _) in OLDEST.items():
        assert oldest in declared[name], name
        assert all(release(version) >= release(oldest) for version in declared[name]), name
