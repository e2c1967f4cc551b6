"""The cache on disk for ``njit(cache=True)``: a second process compiles nothing and never uses stale code."""

import json
import os
import subprocess
import sys

import jax
import numba
import numpy as np
import pytest

from xlakernel.core import code_files
from xlakernel.core.errors import CacheWarning
from xlakernel.numba import numba_kernel

pytestmark = pytest.mark.process

HELPERS = """
import numba

SCALE = {scale}

@numba.njit(inline="never")
def helper(value):
    return value {operator} 3
"""

KERNELS = """
import helpers
import numba
from helpers import helper

def divide(x, out):
    for i in range(x.size):
        out[i] = 1 / x[i]

@numba.njit(cache=True)
def plain(x, out):
    for i in range(x.size):
        out[i] = x[i] + 1

@numba.njit(cache=True)
def calls_helper(x, out):
    for i in range(x.size):
        out[i] = helper(x[i])

@numba.njit(cache=True)
def reads_module(x, out):
    for i in range(x.size):
        out[i] = x[i] * helpers.SCALE

@numba.njit
def checked(value):
    if value == 0:
        raise ValueError("zero")
    return value

@numba.njit(cache=True, parallel=True)
def parallel(x, out):
    for i in numba.prange(x.size):
        out[i] = checked(x[i]) + 2

@numba.njit
def not_cached(x, out):
    for i in range(x.size):
        out[i] = -x[i]

def make(value, function):
    @numba.njit(cache=True)
    def closure(x, out):
        for i in range(x.size):
            out[i] = function(x[i]) + value
    return closure

KERNELS = dict(
    plain=plain, calls_helper=calls_helper, reads_module=reads_module, parallel=parallel, not_cached=not_cached,
    strict=numba.njit(cache=True)(divide), like_numpy=numba.njit(cache=True, error_model="numpy")(divide),
    closure_1=make(1, helper), closure_2=make(2, helper),
)
"""

SCRIPT = """
import json, sys
import jax, ml_dtypes, numpy as np
from numba.core import event
from xlakernel.core.native.machine import machine_code
from xlakernel.numba import numba_kernel
import kernels

compiled, handlers = [], []
compile_handler = machine_code._compile
machine_code._compile = lambda codegen, text, name, **how: (
    handlers.append(name) or compile_handler(codegen, text, name, **how)
)

class Listener(event.Listener):
    def on_start(self, started):
        compiled.append(started.data["dispatcher"].__name__)

    def on_end(self, ended):
        pass

event.register("numba:compile", Listener())
report = {}
for name, kernel in kernels.KERNELS.items():
    x = np.array([0.0 if name == "like_numpy" else 2.0, 4.0], ml_dtypes.bfloat16 if name == "plain" else np.float32)
    compiled.clear()
    handlers.clear()
    out = numba_kernel(kernel, outs=lambda x: x)(x)
    report[name] = [np.asarray(out).astype(float).tolist(), compiled + handlers]
report["batch"] = [jax.vmap(numba_kernel(kernels.calls_helper, outs=lambda x: x))(np.ones((3, 2), "f")).tolist(), []]
for name in ("strict", "parallel"):
    try:
        numba_kernel(kernels.KERNELS[name], outs=lambda x: x)(np.array([1, 0], np.float32)).block_until_ready()
    except Exception as error:
        report["error of " + name] = [str(error).partition(" (raised")[0].rpartition(": ")[2], []]
print(json.dumps(report))
"""

VALUES = {
    "plain": [3, 5],
    "calls_helper": [6, 12],
    "reads_module": [20, 40],
    "parallel": [4, 6],
    "not_cached": [-2, -4],
    "strict": [0.5, 0.25],
    "like_numpy": [float("inf"), 0.25],
    "closure_1": [7, 13],
    "closure_2": [8, 14],
    "batch": [[3, 3]] * 3,
    "error of strict": "division by zero",
    "error of parallel": "zero",
}
KERNEL_NAMES = list(VALUES)[:9]


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A function that runs two modules of kernels in a new process."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "kernels.py").write_text(KERNELS)
    (folder / "script.py").write_text(SCRIPT)
    path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
    # Without bytecode files, because Python takes two edits within a second for one.
    settings = {
        "XLAKERNEL_CACHE_DIR": str(folder / "cache"),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPATH": path,
    }

    def run(*, operator="*", scale=10):
        (folder / "helpers.py").write_text(HELPERS.format(operator=operator, scale=scale))
        command = [sys.executable, "-W", "error", str(folder / "script.py")]
        done = subprocess.run(
            command,
            env={**os.environ, "JAX_PLATFORMS": "cpu", **settings},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        values, compiled = {}, {}
        for name, (value, names) in json.loads(done.stdout).items():
            values[name], compiled[name] = value, names
        files = {file.name: file.stat().st_mtime_ns for file in (folder / "cache").rglob("*.code")}
        return values, compiled, files

    run.first = run()
    return run


def test_the_first_process_compiles_and_writes_files(project):
    values, compiled, files = project.first
    assert values == VALUES
    assert all(compiled[name] for name in KERNEL_NAMES)
    assert "helper" in compiled["calls_helper"]
    assert len(files) == 2 * (len(KERNEL_NAMES) - 1) + 2  # kernels and handlers; batches and loops in threads


def test_the_second_process_compiles_nothing(project):
    values, compiled, files = project()
    assert values == VALUES
    assert {name for name, names in compiled.items() if names} == {"not_cached"}
    assert len(compiled["not_cached"]) == 2  # the kernel and its handler
    assert files == project.first[2]


def test_a_changed_helper_or_constant_of_another_module_is_noticed(project):
    values, compiled, _ = project(operator="-", scale=100)
    changed = {"calls_helper": [-1, 1], "reads_module": [200, 400], "closure_1": [0, 2], "closure_2": [1, 3]}
    assert values == {**VALUES, **changed, "batch": [[-2, -2]] * 3}
    assert {name for name, names in compiled.items() if names} == {*changed, "not_cached"}


def test_without_a_writable_folder_nothing_is_cached(tmp_path, monkeypatch):
    """Numba's folder next to the source is not used, and the kernel runs."""
    monkeypatch.setattr(code_files, "_warned", set())
    monkeypatch.setenv("XLAKERNEL_CACHE_DIR", str(tmp_path))
    tmp_path.chmod(0o700)
    code_files.code_folder().write_text("not a folder")
    call = numba_kernel(numba.njit(cache=True)(adds_one), outs=jax.ShapeDtypeStruct((1,), np.float32))
    with pytest.warns(CacheWarning, match="compiled code cannot be read from") as said:
        assert call(np.ones(1, np.float32)) == 2
    assert said[0].filename == __file__
    assert call(np.ones(1, np.float32)) == 2


def adds_one(x, out):
    out[0] = x[0] + 1


def run_twice(folder, program):
    """Run a program in two processes with a common folder for machine code; yield their completed processes."""
    (folder / "script.py").write_text(program)
    settings = {"JAX_PLATFORMS": "cpu", "XLAKERNEL_CACHE_DIR": str(folder / "cache")}
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, str(folder / "script.py")],
            env={**os.environ, **settings},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        yield done


THREADS = """
import jax.numpy as jnp
import numba
from xlakernel.numba import numba_kernel

@numba.njit(parallel=True)
def fill(x, out):
    for i in numba.prange(x.size):
        out[i] = x[i] + 2

@numba.njit(cache=True)
def calls_parallel(x, out):
    fill(x, out)

x = jnp.arange(3.0)
assert numba_kernel(calls_parallel, outs=x)(x).tolist() == [2, 3, 4]
print(numba.threading_layer())
"""


def test_a_kernel_with_a_parallel_helper_is_loaded_from_disk(tmp_path):
    """The first parallel code of the second process: https://github.com/numba/numba/issues/8578."""
    for _ in run_twice(tmp_path, THREADS):
        assert len(list(tmp_path.rglob("*.code"))) == 4  # with its handler; batches and loops in threads


RECURSION = """
import sys
import jax.numpy as jnp
import numba
from xlakernel.numba import numba_kernel

@numba.njit
def fibonacci(n):
    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)

@numba.njit(cache=True)
def calls_recursive(x, out):
    for i in range(x.size):
        out[i] = fibonacci(x[i])

print(numba_kernel(calls_recursive, outs=lambda x: x)(jnp.arange(7)).tolist())
"""


def test_a_kernel_with_a_recursive_helper_is_not_stored(tmp_path):
    """https://github.com/numba/numba/issues/6061"""
    for done in run_twice(tmp_path, RECURSION):
        assert done.stdout == "[0, 1, 1, 2, 3, 5, 8]\n"
        assert "calls_recursive is not cached on disk" in done.stderr


LOW_LEVEL = """
import jax, jax.numpy as jnp
import numba
from numba import types
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import lower_builtin, type_callable
from xlakernel.core import export
from xlakernel.core.errors import ExportError
from xlakernel.numba import numba_kernel

def typed(x): pass

def inferred(x): pass

@type_callable(typed)
def type_of(context):
    return lambda x: x

@infer_global(inferred)
class Inferred(AbstractTemplate):
    def generic(self, args, kws):
        return signature(args[0], args[0])

@lower_builtin(typed, types.Float)
@lower_builtin(inferred, types.Float)
def lower(context, builder, sig, args):
    return builder.fmul(args[0], context.get_constant(types.float32, 2))

@numba.njit(cache=True)
def kernel_1(x, out):
    out[0] = typed(x[0])

@numba.njit(cache=True)
def kernel_2(x, out):
    out[0] = inferred(x[0])

x = jnp.ones(1)
for kernel in (kernel_1, kernel_2):
    call = numba_kernel(kernel, outs=x)
    assert call(x)[0] == 2
    try:
        export(jax.jit(call))(x)
    except ExportError as error:
        assert "cannot be compared" in str(error), error
    else:
        raise AssertionError("exported")
"""


def test_a_low_level_implementation_is_neither_stored_nor_exported(tmp_path):
    for _ in run_twice(tmp_path, LOW_LEVEL):
        assert not [file.name for file in tmp_path.rglob("*.code") if "kernel_" in file.name]
        assert len(list(tmp_path.rglob("*.code"))) <= 2


OPERATOR = """
import operator, jax.numpy as jnp, numba
from xlakernel.numba import numba_kernel

GAIN = {gain}

@numba.extending.overload(operator.matmul)
def times(a, b):
    if isinstance(a, numba.types.Float):
        return lambda a, b: GAIN * a

@numba.njit(cache=True)
def kernel(x, out):
    out[0] = x[0] @ 1

assert numba_kernel(kernel, outs=jnp.ones(1))(jnp.ones(1))[0] == {gain}
"""


def test_an_operator_that_is_declared_anew_is_compiled_again(tmp_path):
    for gain in (2, 3):
        for _ in run_twice(tmp_path, OPERATOR.format(gain=gain)):
            pass
