"""What several test files share: new operators, 64-bit types, and handlers of hand-compiled kernels."""

import inspect
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import numba
import numpy as np
import pytest
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir
from numba.core import types

from xlakernel.core import XLACustomKernel
from xlakernel.core.backend.native import Argument, NumbaFunction, array_type, build_handler, numba_dtype
from xlakernel.core.cache_folder import cache_folder
from xlakernel.core.config import _automatic
from xlakernel.core.errors import KernelCheckError
from xlakernel.core.ffi.registry import ensure_registered
from xlakernel.core.measure import auto, race
from xlakernel.core.measure import choices as remembered
from xlakernel.core.testing import check_kernel
from xlakernel.core.testing._table import CHECKS

# Several devices without several machines. It must be said before JAX starts.
if jax.config.jax_num_cpu_devices != 4:
    jax.config.update("jax_num_cpu_devices", 4)

_numbers = itertools.count()
_ONES = np.ones(5, np.float32)


@pytest.fixture(autouse=True)
def no_default_outlives_a_test():
    """An operator whose default is "auto" takes the fast path of eager calls from all of them."""
    before = set(_automatic)
    yield
    _automatic.clear()
    _automatic.update(before)


@pytest.fixture(autouse=True)
def on_the_cpu(request):
    """What is not about a GPU is tested on the CPU, also where a GPU is the default device."""
    if request.node.get_closest_marker("gpu"):
        yield
    else:
        before = jax.config.jax_default_device
        jax.config.update("jax_default_device", jax.devices("cpu")[0])  # of every thread
        yield
        jax.config.update("jax_default_device", before)


@pytest.fixture
def new_name():
    """Return a function that returns a name nobody has."""
    return lambda: f"test_{next(_numbers)}"


@pytest.fixture
def new_operator(new_name):
    """Return a function that makes an operator, with a plain JAX kernel if it is given one."""

    def make(kernel=None):
        op = XLACustomKernel(new_name())
        if kernel is not None:
            op.def_jax_kernel(lambda outs, **static: kernel)
        return op

    return make


@pytest.fixture
def op(new_operator):
    """An operator without kernels."""
    return new_operator()


@pytest.fixture
def made():
    """The backends of `choices` whose generators were called, in order."""
    return []


@pytest.fixture
def choices(new_operator, made):
    """An operator with the backends a, b, c and d on the CPU, each another factor, and all but d on the GPU."""

    def generator(backend, factor):
        def generate(outs):
            made.append(backend)
            return lambda x: x * factor

        return generate

    op = new_operator()
    for factor, backend in enumerate("abcd", start=2):
        op.def_kernel(backend, "cpu", generator(backend, factor))
        if backend != "d":
            op.def_kernel(backend, "gpu", generator(backend, factor))
    return op


@pytest.fixture
def auto_folder(monkeypatch, tmp_path):
    """Let ``backend="auto"`` begin with nothing, keep its files here, and take little time; return the folder."""
    monkeypatch.setenv("XLAKERNEL_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(remembered, "_known", {})
    monkeypatch.setattr(remembered, "_warned", set())
    monkeypatch.setattr(auto, "_PACE", race.Pace(rounds=1, seconds=1e-5))
    return cache_folder("auto")


@pytest.fixture
def measured(auto_folder, monkeypatch):
    """The names of the operators that were measured for ``backend="auto"``, in order."""
    names = []

    def measure(op, *args, known=auto._measure):
        names.append(op.name)
        return known(op, *args)

    monkeypatch.setattr(auto, "_measure", measure)
    return names


@pytest.fixture
def speeds(auto_folder, monkeypatch):
    """The seconds that a call with each backend takes, as ``backend="auto"`` finds them; b is the fastest."""
    seconds = {"a": 3.0, "b": 1.0, "c": 2.0}
    monkeypatch.setattr(race, "_time", lambda programs, pace: ({name: [seconds[name]] for name in programs}, {}))
    return seconds


@pytest.fixture
def ran():
    """The backends of `alike` whose kernels ran, in order, and nothing else."""
    return []


@pytest.fixture
def alike(new_operator, made, ran):
    """An operator that doubles, with the backends a, b and c on the CPU and the GPU, and a derivative."""

    def generator(backend, platform):
        def double(x):
            ran.append(backend)
            return 2 * np.asarray(x)

        def generate(outs, **static):
            made.append((platform, backend))
            if platform == "gpu":
                return lambda x: 2 * x
            return lambda x: jax.pure_callback(double, outs[0], x, vmap_method="expand_dims")

        return generate

    op = new_operator()
    for backend in "abc":
        for platform in ("cpu", "gpu"):
            op.def_kernel(backend, platform, generator(backend, platform))
    op.def_transpose(0, lambda ins, cotangents, **static: 2 * cotangents)
    return op


@pytest.fixture
def run(alike, ran):
    """Return a function that calls `alike` and says which backends ran, in order."""

    def run(x=_ONES, **keywords):
        ran.clear()
        result = jax.block_until_ready(alike(x, outs=jax.ShapeDtypeStruct(x.shape, x.dtype), **keywords))
        np.testing.assert_array_equal(result, 2 * np.asarray(x))
        return "".join(ran)

    return run


@pytest.fixture(scope="session")
def chosen():
    """Return a function that says which backend of `choices` a program runs: one that takes a scalar."""
    return lambda program: "??abcd"[int(program(np.float32(1)))]


@pytest.fixture(scope="session")
def enable_x64():
    """Return the context manager that turns 64-bit types on; JAX 0.8 gave it a new name."""
    if hasattr(jax, "enable_x64"):
        return lambda: jax.enable_x64(True)
    return jax.experimental.enable_x64


@pytest.fixture
def x64(enable_x64):
    with enable_x64():
        yield


def _arguments(kernel, inputs, outputs, scalars):
    """Parameters named in *scalars* are those; the others are the inputs and outputs, in order."""
    buffers = iter(
        [("input", i, spec) for i, spec in enumerate(inputs)] + [("output", i, s) for i, s in enumerate(outputs)]
    )
    order = sorted(scalars)
    for parameter in inspect.signature(kernel).parameters:
        if parameter in scalars:
            dtype = np.dtype(scalars[parameter])
            buffer = "complex64" if dtype.itemsize == 8 else dtype.name  # as `core.call.scalars` has it
            kind = numba_dtype(dtype, parameter)
            yield Argument("input", len(inputs) + order.index(parameter), buffer, 0, kind, dtype.name)
        else:
            source, index, (dtype, ndim) = next(buffers)
            kind = array_type(jax.numpy.dtype(dtype), ndim, parameter, readonly=source == "input")
            yield Argument(source, index, dtype, ndim, kind)


@pytest.fixture(scope="session")
def compile_handler():
    """Return a function that compiles a kernel and builds its handler.

    ``inputs`` and ``outputs`` are (dtype, rank) pairs, ``scalars`` maps names of parameters to dtypes.
    """

    def compile_(kernel, inputs=(), outputs=(), scalars=None, *, lock=None, debug=False, ordered=False, **options):
        arguments = list(_arguments(kernel, inputs, outputs, scalars or {}))
        signature = types.void(*(argument.type for argument in arguments))
        # Without what lets Python call it, as the packages compile kernels.
        dispatcher = numba.njit(no_cpython_wrapper=True, no_cfunc_wrapper=True, **options)(kernel)
        dispatcher.compile(signature)
        compiled = dispatcher.overloads[signature.args]
        place = f"{kernel.__code__.co_filename}:{kernel.__code__.co_firstlineno}"
        mode = {"debug": debug, "ordered": ordered}
        callee = NumbaFunction(compiled, arguments, kernel.__name__, place)
        return build_handler(callee, arguments, kernel=kernel.__name__, place=place, lock=lock, **mode)

    return compile_


@pytest.fixture(scope="session")
def register(compile_handler):
    """Return a function that takes what ``compile_handler`` takes, and returns the name of the registered target."""

    def register_(kernel, *args, **kwargs):
        name = f"test_{kernel.__name__}_{next(_numbers)}"
        return ensure_registered(name, "cpu", lambda: compile_handler(kernel, *args, **kwargs))

    return register_


_HEADER = """
import enum, functools, math, types
from collections import namedtuple
import numba
import numpy as np
from numba.extending import intrinsic, register_jitable
"""

# Answers each line, {name: paths of modules}, with one: {name: fingerprints of their kernels}.
_FINGERPRINT_SERVER = """
import importlib.util, json, sys
from xlakernel.core.identity.fingerprint import fingerprint

def hash_kernel(path):
    spec = importlib.util.spec_from_file_location("user_module", path)
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        return fingerprint(module.kernel)
    except Exception as error:
        return f"{path}: {error!r}"

for line in sys.stdin:
    answer = {name: [hash_kernel(path) for path in paths] for name, paths in json.loads(line).items()}
    sys.stdout.write(json.dumps(answer) + chr(10))
    sys.stdout.flush()
"""


def _serve(seed):
    env = {**os.environ, "PYTHONHASHSEED": seed, "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", _FINGERPRINT_SERVER]
    return subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@pytest.fixture(scope="session")
def hash_in_processes(tmp_path_factory):
    """Return a function that takes texts of modules by name, each with a ``kernel``.

    It returns their fingerprints by name, once from each of two processes that hash strings differently.
    """

    def hash_in_processes_(texts):
        paths = {}
        for name, variants in texts.items():
            folder = tmp_path_factory.mktemp("modules")
            paths[name] = [str(folder / f"{i}.py") for i in range(len(variants))]
            for path, text in zip(paths[name], variants, strict=True):
                Path(path).write_text(_HEADER + text)
        for server in servers:
            server.stdin.write(json.dumps(paths) + "\n")
            server.stdin.flush()
        return [json.loads(server.stdout.readline()) for server in servers]

    with _serve("1") as one, _serve("2") as other:
        servers = (one, other)
        yield hash_in_processes_


@pytest.fixture(scope="session")
def only():
    """Return a function that returns what `check_kernel` should skip to run only some checks."""
    return lambda *checks: {name: "this test is about another check" for name in CHECKS if name not in checks}


@pytest.fixture(scope="session")
def run_check(only):
    """Return a function that runs one check of `check_kernel` and returns its outcome."""

    def run(check, fn, *args, **options):
        try:
            report = check_kernel(fn, *args, skip=only(check), **options)
        except KernelCheckError as error:
            report = error.report
        return report[check]

    return run


@pytest.fixture(scope="session")
def assert_passes(run_check):
    """Return a function that asserts that a kernel passes one check."""

    def passes(check, fn, *args, **options):
        outcome = run_check(check, fn, *args, **options)
        assert outcome.outcome == "passed", outcome

    return passes


@pytest.fixture(scope="session")
def assert_caught(run_check):
    """Return a function that asserts that one check fails, with a text in what it says."""

    def caught(check, text, fn, *args, **options):
        outcome = run_check(check, fn, *args, **options)
        assert outcome.outcome == "failed", outcome
        assert text in outcome.detail
        assert "Next: " in outcome.detail or outcome.detail.startswith("raised ")

    return caught


@pytest.fixture(scope="session")
def new_primitive():
    """Return a function that makes a doubling whose batch is where *batch_axis* says; its result says nothing else."""

    def make(batch_axis):
        primitive = Primitive("double")
        primitive.def_impl(lambda x: 2 * x)
        primitive.def_abstract_eval(lambda x: jax.core.ShapedArray(x.shape, x.dtype))
        mlir.register_lowering(primitive, mlir.lower_fun(lambda x: 2 * x, multiple_results=False))
        batching.primitive_batchers[primitive] = lambda args, axes: (primitive.bind(*args), batch_axis(axes[0]))
        return primitive.bind

    return make
