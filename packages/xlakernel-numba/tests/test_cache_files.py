"""The files of the cache on disk: several processes at once, damaged files, and full disks."""

import itertools
import os
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor

import pytest

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(os.name != "posix", reason="nothing is kept where there are no owners and modes"),
]

# Long enough for LLVM not to inline it, so that the kernel calls it by a name.
_LINES = "".join(f"        s += math.sin(v * {k}.5) * math.cos(s + {k})\n" for k in range(60))

KERNELS = f"""
import math
import numba
import numpy as np

def make(constant):
    @numba.njit
    def helper(v):
        s = 0.0
{_LINES}
        return constant + 0 * min(s, 1)

    @numba.njit(cache=True)
    def kernel(x, out):
        for i in range(x.size):
            out[i] = helper(x[i])
        for i in range(0, x.size, 3):
            out[i] = helper(x[i]) + helper(out[i]) - constant
    return kernel

def factory(constant):
    @numba.njit(cache=True)
    def kernel(x, out):
        for i in range(x.size):
            out[i] = x[i] + constant
    return kernel

@numba.njit(cache=True)
def plus_one(x, out):
    for i in range(x.size):
        out[i] = x[i] + 1

@numba.njit(cache=True)
def helper(v):
    return v + 2

@numba.njit
def calls_cached(x, out):
    for i in range(x.size):
        out[i] = helper(x[i])

@numba.njit(cache=True)
def prints(x, out):
    print(x, "of", np.shape(x))
    out[:] = x

@numba.njit(cache=True)
def raises(x, out):
    out[:] = x
    if x[0] == 0:
        raise KeyError("first", 1)

@numba.njit(cache=True)
def in_python(x, out):
    with numba.objmode(y="float32[:]"):
        y = np.flip(x).copy()
    out[:] = y

def logs_in_closure():
    log = []

    @numba.njit(cache=True)
    def kernel(x, out):
        out[:] = x
        with numba.objmode():
            log.append(1)
    return kernel, log

def logs_in_default():
    log = []

    def note(log=log):
        log.append(1)

    @numba.njit(cache=True)
    def kernel(x, out):
        out[:] = x
        with numba.objmode():
            note()
    return kernel, log

def python_and_helper():
    @numba.njit
    def helper(value):
        return value + 1

    @numba.njit(cache=True)
    def kernel(x, out):
        out[:] = helper(x)
        with numba.objmode():
            np.shape(x)
    return kernel

global_log = []

@numba.njit(cache=True)
def logs_globally(x, out):
    out[:] = x
    with numba.objmode():
        global_log.append(1)

@numba.njit(cache=True)
def wrong(x, out):
    x[0] = 1
    out[:] = x
"""

HEAD = """
import sys, warnings
import numpy as np
import jax
from numba.core import event
from xlakernel.core.native.machine import machine_code
from xlakernel.numba import numba_kernel
import kernels

jax.config.update("jax_enable_x64", True)
compiled = []

class Listener(event.Listener):
    def on_start(self, started):
        compiled.append(started.data["dispatcher"])

    def on_end(self, ended):
        pass

event.register("numba:compile", Listener())

def call(kernel, x=np.zeros(3, np.float32)):
    return np.asarray(numba_kernel(kernel, outs=lambda x: x)(x)).tolist()
"""


@pytest.fixture
def process(tmp_path, run_program):
    """Return a function that runs a program in a new process and returns its output and its warnings.

    A new interpreter is started where *interpreter* says so or Numba reads its settings, as it is imported.
    """
    (tmp_path / "kernels.py").write_text(KERNELS)
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    settings = {
        "XLAKERNEL_CACHE_DIR": str(tmp_path / "cache"),
        "PYTHONPATH": path,
        "JAX_PLATFORMS": "cpu",
        # Without bytecode files, because Python takes two edits within a second for one.
        "PYTHONDONTWRITEBYTECODE": "1",
    }

    def run(program, *, warn=False, interpreter=False, **numba_settings):
        program = HEAD + textwrap.dedent(program)
        if interpreter or numba_settings:
            command = [sys.executable, *([] if warn else ["-W", "error"]), "-c", program]
            environment = {**os.environ, **settings, **numba_settings}
            done = subprocess.run(
                command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
            )
        else:
            done = run_program(program, environment=settings, folder=tmp_path, strict=not warn, timeout=300)
        assert done.returncode == 0, done.stderr
        return (done.stdout, done.stderr) if warn else done.stdout

    return run


def code_files(tmp_path):
    return sorted((tmp_path / "cache").rglob("*.code"))


def test_code_of_two_processes_calls_its_own_helpers_in_a_third(process):
    """Numba numbers the names of functions in each process, and has one table of symbols."""
    for constant in (1, 2):
        assert process(f"print(call(kernels.make({constant}.0))[0])") == f"{constant}.0\n"
    both = "print([call(kernels.make(c))[0] for c in {}], len(compiled))"
    assert process(both.format([1.0, 2.0])) == "[1.0, 2.0] 0\n"
    assert process(both.format([2.0, 1.0])) == "[2.0, 1.0] 0\n"


def test_processes_that_compile_closures_and_dtypes_at_once(process, tmp_path):
    program = """
    dtypes = ("float32", "float64", "int32", "int64")
    cases = [(constant, dtype) for constant in range(4) for dtype in dtypes]
    first = {} % len(cases)
    for constant, dtype in cases[first:] + cases[:first]:
        x = np.arange(3).astype(dtype)
        assert call(kernels.factory(constant), x) == [constant, constant + 1, constant + 2], (constant, dtype)
    print(len(compiled))
    """
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda number: process(program.format(5 * number), interpreter=True), range(6)))
    before = {file: file.read_bytes() for file in code_files(tmp_path)}
    assert len(before) == 16 + 16 + 1  # kernels, handlers, and what spreads batches over threads
    assert process(program.format(0)) == "0\n"
    assert {file: file.read_bytes() for file in code_files(tmp_path)} == before
    assert not list((tmp_path / "cache").rglob(".*"))  # no temporary file


CLOSURES = "print([call(kernels.factory(c))[0] for c in range(6)], len(compiled))"
VALUES = "[0.0, 1.0, 2.0, 3.0, 4.0, 5.0]"


def test_damaged_files_are_misses_and_are_written_again(process, tmp_path):
    damages = (lambda old: b"", lambda old: old[:100], lambda old: bytes(len(old)), lambda old: old[:-9] + bytes(9))
    assert process(CLOSURES) == f"{VALUES} 6\n"
    for file, damage in zip(code_files(tmp_path), itertools.cycle(damages), strict=False):
        file.write_bytes(damage(file.read_bytes()))
    assert process(CLOSURES) == f"{VALUES} 6\n"
    assert process(CLOSURES) == f"{VALUES} 0\n"


def test_a_planted_file_is_a_miss_and_one_warning(process, tmp_path):
    process(CLOSURES)
    for file, plant in zip(code_files(tmp_path), itertools.cycle(("FIFO", "link", "folder", "mode")), strict=False):
        if plant == "mode":
            file.chmod(0o666)
            continue
        moved = file.rename(file.with_suffix(".moved"))
        if plant == "FIFO":
            os.mkfifo(file)
        elif plant == "link":
            file.symlink_to(moved)
        else:
            file.mkdir()
    printed, said = process(CLOSURES, warn=True)
    assert printed == f"{VALUES} 6\n"
    assert said.count("CacheWarning") == 1


LIMIT = """
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (1024, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
"""


def test_a_full_disk_is_a_warning(process, tmp_path):
    """RLIMIT_FSIZE, for kernels with and without a helper in Numba's cache."""
    program = LIMIT + "print(call(kernels.plus_one), call(kernels.calls_cached))"
    printed, said = process(program, warn=True, NUMBA_CACHE_DIR=str(tmp_path / "numba"))
    assert printed == "[1.0, 1.0, 1.0] [2.0, 2.0, 2.0]\n"
    assert said.count("CacheWarning: compiled code cannot be stored in") == 1
    assert "File too large" in said
    assert not code_files(tmp_path)


def test_numbas_files_of_a_helper_are_not_read(process, tmp_path):
    folder = {"NUMBA_CACHE_DIR": str(tmp_path / "numba")}
    process("kernels.helper(1.0)", **folder)
    files = [path for path in (tmp_path / "numba").rglob("*") if path.suffix in (".nbi", ".nbc")]
    assert len(files) == 2
    for path in files:
        path.write_bytes(bytes(path.stat().st_size))
    assert process("print(call(kernels.calls_cached))", **folder) == "[2.0, 2.0, 2.0]\n"


def test_an_invalid_kernel_is_reported_on_a_full_disk(process):
    program = """
    try:
        call(kernels.wrong)
    except Exception as error:
        print(type(error).__name__)
    """
    assert process(LIMIT + textwrap.dedent(program)) == "ReadOnlyInputError\n"


LINE = KERNELS.partition("raise KeyError")[0].count("\n") + 1


def test_the_python_objects_of_code_exist_in_the_next_process(process):
    program = f"""
    x = np.arange(3, dtype=np.float32)
    print(call(kernels.prints, x))
    print(call(kernels.in_python, x))
    try:
        call(kernels.raises, x)
    except Exception as error:
        print("KeyError: ('first', 1)" in str(error), "kernels.py:{LINE} in raises" in str(error))
    print(len(compiled))
    """
    expected = "[0. 1. 2.] of (3,)\n[0.0, 1.0, 2.0]\n[2.0, 1.0, 0.0]\nTrue True\n"
    first, second = process(program), process(program)
    assert first.startswith(expected)
    assert second in (expected + "0\n", expected + "1\n")  # what runs in the interpreter is compiled anew


def test_the_effect_of_object_mode_reaches_the_objects_of_the_next_process(process):
    """A file with the kernel would contain copies of the objects in its closure."""
    program = """
    for make in (kernels.logs_in_closure, kernels.logs_in_default):
        kernel, log = make()
        call(kernel)
        print(len(log), end=" ")
    call(kernels.logs_globally)
    print(len(kernels.global_log))
    """
    for _ in range(2):
        printed, said = process(program, warn=True)
        assert printed == "1 1 1\n"
        assert said.count("not cached on disk despite njit's cache=True: its objmode block may use an object") == 2
    assert process("print(call(kernels.python_and_helper())[0])") == "1.0\n"  # a warning would be an error


def test_a_kernel_that_moved_reports_its_new_line(process, tmp_path):
    program = """
    try:
        call(kernels.raises)
    except Exception as error:
        print(str(error).partition(" in raises")[0].rpartition(":")[2], bool(compiled))
    """
    for moved in range(2):
        (tmp_path / "kernels.py").write_text("\n" * moved + KERNELS)
        for compiled in (True, False):
            assert process(program) == f"{LINE + moved} {compiled}\n"
