"""Programs exported in one process and called in another, which does not import the user's modules itself."""

import json
import os
import subprocess
import sys
from math import cos
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

HELPERS = """
import numba

SCALE = 10

@numba.njit
def helper(value):
    return value * 3
"""

KERNELS = """
import functools
import helpers
import jax
import numba
from helpers import helper
from xlakernel.core import XLACustomKernel
from xlakernel.numba import numba_kernel

def like_first(x, *_):
    return x

@numba.njit
def plain(x, out):
    for i in range(x.size):  # as plain as can be
        out[i] = x[i] + 1

@functools.partial(numba_kernel, outs=like_first)
@numba.njit
def decorated(x, out):
    for i in range(x.size):
        out[i] = x[i] + 2

@numba.njit
def calls_helper(x, out):
    for i in range(x.size):
        out[i] = helper(x[i])

@numba.njit
def reads_module(x, out):
    for i in range(x.size):
        out[i] = x[i] * helpers.SCALE

@numba.njit
def scaled(x, out, factor, flag=True):
    for i in range(x.size):
        out[i] = x[i] * factor if flag else -x[i]

@numba.njit(parallel=True)
def parallel(x, out):
    for i in numba.prange(x.size):
        out[i] = x[i] + 5

@numba.njit(["void(f4[:], f4[:])"])
def signed(x, out):
    for i in range(x.size):
        out[i] = x[i] - 4

@numba.njit
def größe_π(x, out):
    for i in range(x.size):
        out[i] = x[i] / 2

@numba.njit
def complain(x):
    raise ValueError("as it should")

def make(value, function):
    @numba.njit
    def closure(x, out):
        for i in range(x.size):
            out[i] = function(x[i]) + value
    return closure

closed_over = make(7, helper)

operator = XLACustomKernel("operator of the export test")

@operator.def_numba_kernel
def generate(outs, *, shift):
    @numba.njit
    def generated(x, out):
        for i in range(x.size):
            out[i] = helper(x[i]) + shift
    return numba_kernel(generated, outs=outs)

@jax.custom_jvp
def square(x):
    return wrap(squared)(x)

@numba.njit
def squared(x, out):
    for i in range(x.size):
        out[i] = x[i] * x[i]

@square.defjvp
def square_jvp(primals, tangents):
    (x,), (t,) = primals, tangents
    return square(x), 2 * wrap(plain)(x) * t

def wrap(kernel, **options):
    return numba_kernel(kernel, outs=like_first, **options)
"""

WRITE = """
import sys
from pathlib import Path
import jax, jax.numpy as jnp, numba
from jax import export as jax_export
from xlakernel.core import export
from xlakernel.core.programs.artifact import pack, unpack
from xlakernel.numba import numba_kernel
import kernels
from kernels import wrap

@numba.njit
def in_main(x, out):
    for i in range(x.size):
        out[i] = kernels.helper(x[i]) * OFFSET

OFFSET = 2
X = jax.ShapeDtypeStruct((3,), jnp.float32)

def side_effect(x):
    numba_kernel(kernels.complain, outs=(), has_side_effect=True)(x)
    return x

(n,) = jax_export.symbolic_shape("n")
ROWS = jax.ShapeDtypeStruct((n, 3), jnp.float32)
programs = {name: wrap(getattr(kernels, name)) for name in (
    "plain", "calls_helper", "reads_module", "parallel", "signed", "größe_π", "closed_over")}
programs |= {
    "decorated": kernels.decorated,
    "in_main": wrap(in_main),
    "generator": lambda x: kernels.operator(x, outs=x, shift=1),
    "static": lambda x: wrap(kernels.scaled)(x, factor=1.5) + wrap(kernels.scaled)(x, factor=2, flag=False),
    "two": lambda x: wrap(kernels.calls_helper)(wrap(kernels.plain)(x)),
    "side_effect": side_effect,
    "gradient": jax.grad(lambda x: jnp.sin(kernels.square(x)).sum()),
    "differentiable": kernels.square,
}
blobs = {
    name: export(jax.jit(program))(X).serialize(vjp_order=name == "differentiable")
    for name, program in programs.items()
}
blobs["symbolic"] = export(jax.jit(jax.vmap(wrap(kernels.calls_helper))))(ROWS).serialize()
folder = Path(sys.argv[1])
for name, blob in blobs.items():
    (folder / name).write_bytes(blob)
# It is the first to be loaded: a later one would differ from the registered recipe.
targets, program, _ = unpack(blobs["plain"])
targets[0].recipe.data["checks"]["python"] = "3.0"
(folder / "another_python").write_bytes(pack(targets, program))
"""

READ = """
import json, sys
from pathlib import Path
import jax, jax.numpy as jnp
from xlakernel.core import deserialize
from xlakernel.core.ffi.registry import registered_targets

x = jnp.array([1.0, 2.0, 4.0])
report = {}
for path in sorted(Path(sys.argv[1]).iterdir()):
    name = path.name
    try:
        call = deserialize(path.read_bytes()).call
        if name == "symbolic":
            report[name] = [call(jnp.tile(x, (rows, 1))).sum().tolist() for rows in (1, 5)]
        elif name == "differentiable":
            report[name] = [call(x).tolist(), jax.grad(lambda x: jax.jit(call)(x).sum())(x).tolist()]
        else:
            report[name] = [call(x).tolist(), jax.jit(lambda x: call(x + 0) + 1)(x).tolist()]
    except Exception as error:
        report[name] = f"{type(error).__name__}: {error}"
report["imported"] = "kernels" in sys.modules and "helpers" in sys.modules
print(json.dumps(report))
"""

VALUES = {
    "plain": [2, 3, 5],
    "decorated": [3, 4, 6],
    "calls_helper": [3, 6, 12],
    "reads_module": [10, 20, 40],
    "parallel": [6, 7, 9],
    "signed": [-3, -2, 0],
    "größe_π": [0.5, 1, 2],
    "closed_over": [10, 13, 19],
    "in_main": [6, 12, 24],
    "generator": [4, 7, 13],
    "static": [0.5, 1, 2],
    "two": [6, 9, 15],
}


def run_python(script, *arguments, folder):
    path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
    # Without bytecode files, because Python takes two edits within a second for one.
    settings = {"JAX_PLATFORMS": "cpu", "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": path, "PYTHONUTF8": "1"}
    start = [str(script)] if isinstance(script, Path) else ["-c", script]
    command = [sys.executable, "-W", "error", *start, *map(str, arguments)]
    done = subprocess.run(
        command, env={**os.environ, **settings}, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    """A folder of programs that a process has exported."""
    sources, programs = tmp_path_factory.mktemp("sources"), tmp_path_factory.mktemp("programs")
    (sources / "helpers.py").write_text(HELPERS)
    (sources / "kernels.py").write_text(KERNELS)
    (sources / "write.py").write_text(WRITE)
    run_python(sources / "write.py", programs, folder=sources)
    return programs


@pytest.fixture(scope="module")
def load(programs, tmp_path_factory):
    """Return a function that loads the programs with possibly changed sources in another folder."""

    def load_(change=lambda text: text):
        sources = tmp_path_factory.mktemp("elsewhere")
        (sources / "helpers.py").write_text(change(HELPERS))
        (sources / "kernels.py").write_text(change(KERNELS))
        return json.loads(run_python(READ, programs, folder=sources))

    return load_


@pytest.fixture(scope="module")
def unchanged(load):
    return load()


@pytest.mark.parametrize("name", VALUES)
def test_a_program_runs_in_another_process(unchanged, name):
    assert unchanged[name] == [VALUES[name], [value + 1 for value in VALUES[name]]]


def test_modules_of_kernels_are_imported_when_a_program_is_loaded(unchanged):
    assert unchanged["imported"]


def test_symbolic_shapes_stay_symbolic(unchanged):
    assert unchanged["symbolic"] == [21, 105]


def test_side_effects_happen(unchanged):
    assert "ValueError: as it should" in unchanged["side_effect"]


def test_derivatives_are_exported(unchanged):
    two_cos = [2 * (x + 1) for x in (1, 2, 4)]
    assert unchanged["differentiable"] == [[1, 4, 16], two_cos]


def test_a_gradient_can_be_exported(unchanged):
    assert unchanged["gradient"][0] == pytest.approx([cos(x * x) * 2 * (x + 1) for x in (1, 2, 4)], rel=1e-5)


def test_the_program_of_another_python_is_refused(unchanged):
    message = unchanged["another_python"]
    assert message.startswith("ExportError: deserialize: ")
    assert "was exported by Python 3.0" in message and "Load the program with Python 3.0" in message


@pytest.fixture(scope="module")
def with_other_helpers(load):
    return load(lambda text: text.replace("value * 3", "value * 4").replace("SCALE = 10", "SCALE = 20"))


USE_HELPERS = ["calls_helper", "reads_module", "two", "symbolic"]


@pytest.mark.parametrize("name", USE_HELPERS)
def test_a_changed_helper_or_constant_of_another_module_is_refused(with_other_helpers, name):
    message = with_other_helpers[name]
    kernel = "reads_module" if name == "reads_module" else "calls_helper"
    assert message.startswith(f"ExportError: deserialize: the kernel kernels.{kernel} of module kernels (")
    assert "kernels.py) is not the one that was exported" in message
    assert "export the program again" in message


@pytest.mark.parametrize("name", ["plain", "decorated", "static", "parallel", "signed", "closed_over", "generator"])
def test_programs_without_the_changed_helper_run(with_other_helpers, unchanged, name):
    """The embedded kernels contain the old helper."""
    assert with_other_helpers[name] == unchanged[name]


def test_an_embedded_kernel_that_takes_its_helper_from_a_module_is_refused(with_other_helpers):
    message = with_other_helpers["in_main"]
    assert "the kernel __main__.in_main" in message and "is not the one that was exported" in message


def change_kernels(text):
    return (
        text.replace("x[i] + 1", "x[i] + 100")
        .replace("x[i] + 2", "x[i] + 200")
        .replace("parallel=True", "parallel=True, fastmath=True")
        .replace("def größe_π", "def renamed")
        .replace("def calls_helper(x, out):", "# a comment\n\ndef calls_helper(x, out):  # and one more")
    )


@pytest.fixture(scope="module")
def with_other_kernels(load):
    return load(change_kernels)


@pytest.mark.parametrize("name", ["plain", "decorated", "parallel", "two"])
def test_a_changed_kernel_is_refused(with_other_kernels, name):
    assert "is not the one that was exported" in with_other_kernels[name]


def test_a_kernel_that_is_gone_is_refused(with_other_kernels):
    assert "has nothing under the name größe_π" in with_other_kernels["größe_π"]


@pytest.mark.parametrize("name", ["calls_helper", "reads_module", "static", "symbolic"])
def test_comments_and_lines_do_not_count(with_other_kernels, unchanged, name):
    assert with_other_kernels[name] == unchanged[name]


def test_a_missing_module_is_named(programs, tmp_path):
    report = json.loads(run_python(READ, programs, folder=tmp_path))
    assert report["plain"].startswith("ExportError: deserialize: the program calls the kernel kernels.plain, and")
    assert "cannot be imported: No module named 'kernels'" in report["plain"]
    assert "its references cannot be imported: No module named 'kernels'" in report["in_main"]
