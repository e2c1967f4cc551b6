"""Findings about each library, from made-up answers."""

import pytest

from xlakernel.command.doctor import examine
from xlakernel.command.facts import Facts
from xlakernel.command.install import install_command, pip_arguments
from xlakernel.command.probes import NO_ANSWER

WARP = {"devices": ["cpu"]}
JAX = {"devices": [{"platform": "cpu", "kind": "cpu"}]}
CORE = {"ffi_major": 0}
DRIVER = {"found": True, "version": 13010, "status": 0, "devices": ["NVIDIA H200", "NVIDIA H200"]}


def finding(name, versions=(), variables=(), **answers):
    facts = Facts(versions={"jax": "0.12.0", **dict(versions)}, variables=dict(variables), answers=answers)
    return next((found for found in examine(facts) if found.name == name), None)


@pytest.mark.parametrize(
    ("name", "answers", "text"),
    [
        ("jax", {"jax": JAX}, "its devices are cpu: 1 × cpu"),
        ("core", {"jax": JAX, "core": CORE}, "version 0 of the XLA FFI"),
        ("numba", {"numba": {}}, "it can be imported"),
        ("numba-cuda", {"numba_cuda": {}}, "finds its compiler"),
        ("driver", {"driver": DRIVER}, "for CUDA 13.1, and has 2 × NVIDIA H200"),
        ("warp", {"warp": WARP}, "its devices are cpu"),
    ],
)
def test_a_library_that_works(name, answers, text):
    found = finding(name, **answers)
    assert (found.state, found.fix) == ("ok", None)
    assert text in found.text


FAILED = {"error": "its process ended with Segmentation fault"}


@pytest.mark.parametrize(
    ("name", "versions", "answers", "fix"),
    [
        ("jax", {}, {"jax": FAILED}, "pip install -U jax jaxlib"),
        ("jax", {"jax-cuda13-plugin": "0.6"}, {"jax": FAILED}, 'pip install -U "jax[cuda13]"'),
        ("core", {}, {"jax": JAX, "core": FAILED}, f"pip install -U {pip_arguments('core')} jax"),
        ("numba", {}, {"numba": FAILED}, "pip install -U numba llvmlite"),
        ("driver", {}, {"driver": FAILED}, None),
        ("warp", {"warp-lang": "1.19"}, {"warp": FAILED}, "pip install -U warp-lang"),
        ("numba-cuda", {}, {"numba_cuda": FAILED}, 'pip install -U "numba-cuda[cu13]" numba "numpy<2.5"'),
    ],
)
def test_the_error_of_a_broken_library_is_quoted(name, versions, answers, fix):
    found = finding(name, versions, **answers)
    assert (found.state, found.fix) == ("problem", fix)
    assert FAILED["error"] in found.text
    assert found.stops


@pytest.mark.parametrize(
    ("variables", "fix"), [({"JAX_PLATFORMS": "cuda"}, "unset JAX_PLATFORMS"), ({}, "pip install -U jax jaxlib")]
)
def test_a_variable_is_unset_only_if_it_is_set(variables, fix):
    """JAX proposes to set one."""
    error = "Unable to initialize backend 'cuda': … (you may need to set JAX_PLATFORMS=cpu to skip this backend)"
    assert finding("jax", variables=variables, jax={"error": error}).fix == fix


def test_the_fix_suits_the_driver():
    old = DRIVER | {"version": 12040}
    assert finding("numba-cuda", numba_cuda=FAILED, driver=old).fix.startswith('pip install -U "numba-cuda[cu12]"')
    assert finding("numba-cuda", driver=old).fix == install_command("cuda", "cuda12")


@pytest.mark.parametrize("name", ["jax", "numba"])
def test_the_fix_for_a_slow_library_is_a_longer_timeout(name):
    found = finding(name, **{name: {"error": f"its process {NO_ANSWER} 1 s"}})
    assert (found.state, found.fix) == ("problem", "xlakernel doctor --timeout 120")


@pytest.mark.parametrize(
    ("name", "package", "fix"),
    [
        ("numba", "xlakernel-numba", install_command("numba")),
        ("numba-cuda", "xlakernel-cuda", install_command("cuda", "cuda13")),
        ("warp", "xlakernel-warp", install_command("warp")),
    ],
)
def test_a_missing_library_is_a_problem_of_the_packages_that_need_it(name, package, fix):
    alone, needed = finding(name, jax=JAX), finding(name, {package: "0.1.0"}, jax=JAX)
    assert (alone.state, alone.fix) == ("note", fix)
    assert (needed.state, needed.fix) == ("problem", fix)


def test_core_is_not_reported_if_jax_is_broken():
    assert finding("core", jax=FAILED, core=FAILED) is None


def test_a_setting_that_is_invalid():
    settings = {"XLAKERNEL_DEBUG": "maybe", "JAX_ENABLE_X64": "maybe"}
    wrong = {"error": "SettingError: the environment variable XLAKERNEL_DEBUG is 'maybe'"}
    found = finding("core", variables=settings, jax=JAX, core=wrong)
    assert (found.state, found.fix) == ("problem", "unset XLAKERNEL_DEBUG")
    wrong = {"error": "ValueError: invalid truth value 'maybe' for environment 'JAX_ENABLE_X64'"}
    found = finding("jax", variables=settings, jax=wrong)
    assert found.fix == "unset JAX_ENABLE_X64"


def test_a_platform_that_jax_does_not_find():
    absent = {"error": "RuntimeError: Unable to initialize backend 'cuda': no such platform"}
    found = finding("jax", variables={"JAX_PLATFORMS": "cuda"}, jax=absent)
    assert (found.state, found.fix) == ("problem", "unset JAX_PLATFORMS")
    for other in ({"JAX_PLATFORMS": "cpu"}, {"JAX_PLATFORMS": "cuda"}):
        assert finding("jax", variables=other, jax=FAILED).fix == "pip install -U jax jaxlib"


def test_a_driver_without_a_gpu():
    none = {"found": True, "version": 13010, "status": 100, "devices": []}
    assert "CUDA error 100" in finding("driver", driver=none).text
    hidden = finding("driver", variables={"CUDA_VISIBLE_DEVICES": ""}, driver=none)
    assert (hidden.state, hidden.fix, hidden.stops) == ("problem", "unset CUDA_VISIBLE_DEVICES", ("gpu",))


def test_a_driver_that_is_too_old():
    found = finding("driver", driver=DRIVER | {"version": 12030})
    assert found.state == "problem"
    assert "CUDA 12.3" in found.text and "12.4" in found.text and found.stops == ("gpu",)
    assert finding("driver", driver=DRIVER | {"version": 12040}).state == "ok"
