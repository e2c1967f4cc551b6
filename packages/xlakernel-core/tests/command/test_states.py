"""What is said of each library, from answers that are made up."""

import pytest

from xlakernel.command.ask import NO_ANSWER
from xlakernel.command.doctor import examine
from xlakernel.command.facts import Facts

LAYERS = {"tbb": "", "omp": "", "workqueue": ""}
NUMBA = {"version": "0.68.1", "layers": LAYERS, "threads": 2, "layer": "omp"}
WARP = {"version": "1.14.0", "devices": [{"name": "CPU", "alias": "cpu"}], "jax_kernel": True, "jax_experimental": True}
JAX = {"version": "0.12.0", "devices": [{"platform": "cpu", "kind": "cpu", "id": 0}]}
CORE = {"ffi_major": 0, "debug": False}
DRIVER = {"found": True, "version": 13010, "status": 0, "devices": ["NVIDIA H200", "NVIDIA H200"]}


def finding(name, versions=(), variables=(), **answers):
    versions = {"jax": "0.12.0", "numba": "0.68.1", **dict(versions)}
    facts = Facts(prefix="/home/me/env", versions=versions, variables=dict(variables), answers=answers)
    return next((found for found in examine(facts) if found.name == name), None)


@pytest.mark.parametrize(
    ("name", "answers", "text"),
    [
        ("jax", {"jax": JAX}, "its devices are cpu: 1 × cpu"),
        ("core", {"jax": JAX, "core": CORE}, "version 0 of the XLA FFI"),
        ("numba", {"numba": NUMBA}, "Numba 0.68.1"),
        ("threads", {"numba": NUMBA}, "threading layer is omp, with 2 threads"),
        ("driver", {"driver": DRIVER}, "for CUDA 13.1, and has 2 × NVIDIA H200"),
        ("warp", {"warp": WARP}, "Warp 1.14.0 starts; its devices are cpu"),
    ],
)
def test_well(name, answers, text):
    found = finding(name, **answers)
    assert (found.state, found.mend) == ("ok", None)
    assert text in found.text


FAILED = {"error": "its process was ended by SIGSEGV"}


@pytest.mark.parametrize(
    ("name", "versions", "answers", "mend"),
    [
        ("jax", {}, {"jax": FAILED}, "pip install -U jax jaxlib"),
        ("jax", {"jax-cuda12-plugin": "0.6"}, {"jax": FAILED}, 'pip install -U "jax[cuda12]"'),
        ("core", {}, {"jax": JAX, "core": FAILED}, "pip install -U xlakernel-core jax"),
        ("core", {"jax": "0.7.1"}, {"jax": JAX, "core": FAILED}, 'pip install -U "jax>=0.7.2"'),
        ("numba", {}, {"numba": FAILED}, "pip install -U numba llvmlite"),
        ("driver", {}, {"driver": FAILED}, None),
        ("warp", {"warp-lang": "1.19"}, {"warp": FAILED}, "pip install -U warp-lang"),
        (
            *("numba-cuda", {"numba-cuda": "0.30"}, {"numba_cuda": FAILED, "numba": NUMBA}),
            'pip install -U "numba-cuda[cu13]" numba "numpy<2.5"',
        ),
    ],
)
def test_what_fails_is_quoted(name, versions, answers, mend):
    found = finding(name, versions, **answers)
    assert (found.state, found.mend) == ("problem", mend)
    assert FAILED["error"] in found.text
    assert found.stops


@pytest.mark.parametrize("name", ["jax", "numba"])
def test_what_is_slow_is_not_installed_anew(name):
    found = finding(name, **{name: {"error": f"its process {NO_ANSWER} 1 s"}})
    assert (found.state, found.mend) == ("problem", "xlakernel doctor --timeout 120")


@pytest.mark.parametrize(
    ("name", "package", "mend"),
    [
        ("numba", "xlakernel-numba", "pip install xlakernel-numba"),
        ("numba-cuda", "xlakernel-cuda", 'pip install "xlakernel-cuda[cuda13]"'),
        ("warp", "xlakernel-warp", "pip install xlakernel-warp"),
    ],
)
def test_what_is_not_installed_is_a_problem_of_those_who_need_it(name, package, mend):
    facts = Facts(versions={"jax": "0.12.0"}, answers={"jax": JAX})
    needed = Facts(versions={"jax": "0.12.0", package: "0.1.0"}, answers={"jax": JAX})
    alone, wanted = (next(found for found in examine(each) if found.name == name) for each in (facts, needed))
    assert (alone.state, alone.mend) == ("note", mend)
    assert (wanted.state, wanted.mend) == ("problem", mend)


def test_core_is_not_judged_where_jax_is_broken():
    assert finding("core", jax=FAILED, core=FAILED) is None


def test_debug_mode():
    assert finding("core", jax=JAX, core=CORE | {"debug": True}).mend == "unset XLAKERNEL_DEBUG"
    wrong = {"error": "SettingError: the environment variable XLAKERNEL_DEBUG is 'maybe'"}
    found = finding("core", jax=JAX, core=wrong)
    assert (found.state, found.mend) == ("problem", "unset XLAKERNEL_DEBUG")


# pip installs the library in a folder that the loader does not know.
FIND_TBB = "export LD_LIBRARY_PATH=/home/me/env/lib:$LD_LIBRARY_PATH"


@pytest.mark.parametrize(
    ("layers", "variables", "mend"),
    [
        ({"tbb": "no"}, {"NUMBA_THREADING_LAYER": "workqueue"}, "unset NUMBA_THREADING_LAYER"),
        ({"tbb": "no", "omp": "libgomp.so.1: no such file"}, {}, "apt-get install libgomp1"),
        ({"tbb": "no", "omp": "no module"}, {}, f"pip install tbb && {FIND_TBB}"),
    ],
)
def test_workqueue(layers, variables, mend):
    answer = NUMBA | {"layer": "workqueue", "layers": LAYERS | layers}
    found = finding("threads", variables=variables, numba=answer)
    assert (found.state, found.mend) == ("problem", mend)
    assert found.link.endswith("threading-layer.html")


def test_a_tbb_that_is_installed_and_not_found():
    answer = NUMBA | {"layer": "workqueue", "layers": LAYERS | {"tbb": "no", "omp": "no"}}
    assert finding("threads", {"tbb": "2023.1.0"}, numba=answer).mend == FIND_TBB


def test_a_driver_without_a_gpu():
    none = {"found": True, "version": 13010, "status": 100, "devices": []}
    assert "CUDA error 100" in finding("driver", driver=none).text
    hidden = finding("driver", variables={"CUDA_VISIBLE_DEVICES": ""}, driver=none)
    assert (hidden.state, hidden.mend, hidden.stops) == ("problem", "unset CUDA_VISIBLE_DEVICES", ("gpu",))


def test_a_compiler_that_is_missing():
    answer = {"compiler_error": "NvvmSupportError: libNVVM cannot be found"}
    for major in (12, 13):
        newest = DRIVER | {"version": 1000 * major + 40}
        found = finding("numba-cuda", {"numba-cuda": "0.30.4"}, numba=NUMBA, numba_cuda=answer, driver=newest)
        assert (found.state, found.mend) == ("problem", f'pip install "numba-cuda[cu{major}]"')


def test_a_warp_without_jax_experimental():
    answer = WARP | {"jax_experimental": False}
    found = finding("warp", warp=answer)
    assert (found.state, found.mend, found.stops) == ("note", "pip install xlakernel-warp", ())
    assert finding("warp", {"xlakernel-warp": "0.1.0"}, warp=answer).mend is None
