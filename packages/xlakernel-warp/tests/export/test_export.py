"""Programs exported in one process and called in another, which imports nothing of the user's by hand."""

import json
import os
import subprocess
import sys
from importlib import metadata
from math import cos
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

pytest.importorskip("flatbuffers", reason="xlakernel-core[export] is not installed")

FILES = Path(__file__).parent / "exported"
HELPERS, KERNELS = ((FILES / name).read_text() for name in ("helpers.py", "kernels.py"))

VALUES = {
    "plain": [2, 3, 5],
    "decorated": [3, 4, 6],
    "decorated_as_warps": [4, 5, 7],
    "calls_helper": [3, 6, 12],
    "reads_module": [10, 20, 40],
    "reads_vector": [14, 28, 56],
    "with_struct": [1.5, 2.5, 4.5],
    "generic": [2, 4, 8],
    "overload": [2, 4, 8],
    "several": [6, 9, 15],
    "decorated_callable": [1.5, 2, 3],
    "static": [2.5, 5, 10],
    "two_shapes": [4, 6, 10],
    "output_init": [11, 12, 14],
    "in_out": [12, 13, 15],
    "alias": [3, 4, 8],
    "dims": [1, 3, 7],
    "rows": [11, 12, 14],
    "nothing": [6, 7, 9],
    "mapped": [2, 6, 14],
    "one_by_one": [2, 6, 14],
    "mapped_gradient": [2, 4, 8],
    "through_python": [-1, -2, -4],
}


def run_python(script, *arguments, folder, **settings):
    path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
    # Without bytecode files, because Python takes two edits within a second for one.
    settings = {"JAX_PLATFORMS": "cpu", "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": path, **settings}
    command = [sys.executable, "-P", "-W", "error", str(FILES / script), *map(str, arguments)]
    done = subprocess.run(
        command, env={**os.environ, **settings}, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1] if done.stdout else ""  # Warp prints more before


PLATFORMS = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
WAYS = ["own", "another_warp"]


@pytest.fixture(scope="module", params=PLATFORMS)
def programs(request, tmp_path_factory):
    """Folders of programs that a process has exported: as they are, and as another Warp would have."""
    sources, programs = tmp_path_factory.mktemp("sources"), tmp_path_factory.mktemp("programs")
    return write(sources, programs, request.param)


def write(sources, programs, platform):
    (sources / "helpers.py").write_text(HELPERS)
    (sources / "kernels.py").write_text(KERNELS)
    run_python("write.py", programs, folder=sources, JAX_PLATFORMS=platform)
    (programs / "platform").write_text(platform)
    return programs


@pytest.fixture(scope="module")
def load(programs, tmp_path_factory):
    """Return a function that loads programs, or those named, beside sources in another folder, maybe changed ones."""

    def load_(*ways, names=(), change=lambda text: text):
        sources = tmp_path_factory.mktemp("elsewhere")
        (sources / "helpers.py").write_text(change(HELPERS))
        (sources / "kernels.py").write_text(change(KERNELS))
        given = {"folder": sources, "JAX_PLATFORMS": (programs / "platform").read_text()}
        # In processes of their own: what is registered is not compared again.
        return {way: json.loads(run_python("read.py", programs / way, *names, **given)) for way in ways}

    return load_


@pytest.fixture(scope="module")
def unchanged(load):
    return load(*WAYS) | load("other_structs", names=["plain", "through_python"])


@pytest.mark.parametrize("name", VALUES)
def test_a_program_runs_in_another_process(unchanged, name):
    assert unchanged["own"][name] == [VALUES[name], [value + 1 for value in VALUES[name]]]


def test_modules_of_kernels_are_imported_when_a_program_is_loaded(unchanged):
    assert unchanged["own"]["imported"]


def test_a_symbolic_batch_stays_symbolic(unchanged):
    assert unchanged["own"]["symbolic"] == [21, 105]


def test_derivatives_are_exported(unchanged):
    assert unchanged["own"]["differentiable"] == [[1, 4, 16], [2, 4, 8]]
    assert unchanged["own"]["gradient"][0] == pytest.approx([cos(x * x) * 2 * x for x in (1, 2, 4)], rel=1e-5)


def test_debug_mode_is_exported(unchanged):
    assert "kernel 'gap'" in unchanged["own"]["debug"] and "did not write" in unchanged["own"]["debug"]


@pytest.mark.parametrize("name", [*VALUES, "symbolic", "differentiable"])
def test_programs_run_with_another_warp(unchanged, name):
    assert unchanged["another_warp"][name] == unchanged["own"][name]


def test_a_warp_with_other_structs_is_refused(unchanged, programs):
    if (programs / "platform").read_text() != "cpu":
        pytest.skip("on a GPU the program has nothing of Warp's structs")
    message = unchanged["other_structs"]["plain"]
    assert message.startswith(
        "ExportError: deserialize: the program has the arguments that Warp 1.0 passes to the kernel"
    )
    assert f"this is Warp {metadata.version('warp-lang')}" in message
    assert unchanged["other_structs"]["through_python"] == unchanged["own"]["through_python"]


def change_helpers(text):
    return text.replace("value * 3.0", "value * 4.0").replace("wp.float64(10.0)", "wp.float64(10.0 + 1e-9)")


def change_kernels(text):
    """Change all kernels but `plain`, each in another way."""
    for before, after in {
        "# as plain as can be": "# plainer than ever",
        "x[i] + 2.0": "x[i] + 200.0",
        "(1.0, 2.0, 3.0)": "(1.0, 2.0, 4.0)",
        "second: float": "second: wp.float64",
        "value + value": "value + value + value",
        "shift: int": "shift: float",
        "times: float": "times: wp.float64",
        "@wp.kernel\ndef total": "@wp.kernel(enable_backward=False)\ndef total",
        "def square": "def renamed",
    }.items():
        assert before in KERNELS
        text = text.replace(before, after)
    return text


CHANGES = {
    "decorated": "its code has changed",
    "calls_helper": "or that of a function or kernel",
    "reads_module": "or a constant that it refers to",
    "reads_vector": "or a constant that it refers to",
    "with_struct": "its code has changed, or that of a function",
    "generic": "its code has changed, or that of a function",
    "several": "or that of a function or kernel",
    "decorated_callable": "its parameters were (x: array(ndim=1, dtype=float32), times: float32, out: array(ndim=1, "
    "dtype=float32)), and are (x: array(ndim=1, dtype=float32), times: float64, out: array(ndim=1, dtype=float32))",
    "static": "its parameters were (x: array(ndim=1, dtype=float32), factor: float32, out: array(ndim=1, "
    "dtype=float32), shift: int32), and are (x: array(ndim=1, dtype=float32), factor: float32, out: array(ndim=1, "
    "dtype=float32), shift: float32)",
    "in_out": "its options were",
}


UNCHANGED = ["plain", "two_shapes", "dims"]


@pytest.fixture(scope="module")
def changed(load):
    names = [*CHANGES, *UNCHANGED, "differentiable"]
    return load(*WAYS, names=names, change=lambda text: change_kernels(change_helpers(text)))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", CHANGES)
def test_what_changed_is_refused(changed, name, way):
    message = changed[way][name]
    assert message.startswith("ExportError: deserialize: the "), message
    assert "is not the one that was exported: " in message and CHANGES[name] in message
    assert "export the program again" in message


def test_a_kernel_that_is_gone_is_refused(changed):
    assert "has nothing under the name" in changed["own"]["differentiable"]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", UNCHANGED)
def test_comments_and_lines_do_not_count(changed, unchanged, name, way):
    assert changed[way][name] == unchanged["own"][name]


def test_a_missing_module_is_named(programs, tmp_path):
    platform = (programs / "platform").read_text()
    report = json.loads(run_python("read.py", programs / "own", "plain", folder=tmp_path, JAX_PLATFORMS=platform))
    assert report["plain"].startswith("ExportError: deserialize: the program calls the kernel kernels.plain, and")
    assert "cannot be imported: No module named 'kernels'" in report["plain"]


@pytest.mark.parametrize("platform", PLATFORMS)
def test_jaxs_persistent_cache_hits_across_processes(tmp_path, platform):
    found = []
    for source in (KERNELS, KERNELS, KERNELS.replace("x[i] + 1.0", "x[i] + 4.0")):
        (tmp_path / "helpers.py").write_text(HELPERS)
        (tmp_path / "kernels.py").write_text(source)
        printed = run_python("cached.py", tmp_path / "cache", folder=tmp_path, JAX_PLATFORMS=platform)
        found.append(json.loads(printed))
    for report, hits, misses, shift in zip(found, (0, 1, 0), (1, 0, 1), (1, 1, 4), strict=True):
        assert report == [[hits, misses, [shift + x for x in range(3)]]] * 4
