"""Kernels of a script with helpers of every kind: what is exported loads in another process, or is refused at once.

Two programs whose helpers differ by a global alone are loaded by one process.
"""

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

# Exports, for each helper, a program with GAIN = 3 and one with GAIN = 5.
EXPORT = """
import json, pathlib
import jax, jax.numpy as jnp, numba, numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic, overload, register_jitable
from xlakernel.core import errors, export
from xlakernel.numba import numba_kernel
import declarations

X = jax.ShapeDtypeStruct((2,), jnp.float32)
KERNEL = '''
def make():
    @numba.njit
    def kernel(x, out):
        for i in range(x.size):
            out[i] = {}
    return kernel
'''
def program(kernel):
    return export(jax.jit(numba_kernel(kernel, outs=lambda x: x)))(X)

for name, (source, call) in json.loads(pathlib.Path("helpers.json").read_text()).items():
    space = globals() | {"GAIN": 3.0}
    file = pathlib.Path(f"{name}.py")  # cache=True needs one
    file.write_text(source + KERNEL.format(call))
    exec(compile(file.read_text(), file.resolve(), "exec"), space)
    kernel = space["make"]()
    try:
        for space["GAIN"] in (3.0, 5.0):
            pathlib.Path(f"{name} {space['GAIN']}").write_bytes(program(kernel).serialize())
    except errors.ExportError as error:
        print("refused:", error)
"""
LOAD = """
import json, pathlib, sys
import jax.numpy as jnp
from xlakernel.core import deserialize, errors

def called(name):
    programs = [deserialize(pathlib.Path(f"{name} {gain}").read_bytes()) for gain in sys.argv[1:]]
    return [program.call(jnp.ones(2))[0].item() for program in [*programs, programs[0]]]

results = {}
for name in json.loads(pathlib.Path("helpers.json").read_text()):
    try:
        results[name] = called(name)
    except errors.ExportError as error:
        results[name] = str(error)
print(json.dumps(results))
"""
DECLARATIONS = """
import numba
import numpy as np
from numba.extending import overload, overload_method, register_jitable

@register_jitable
def threefold(v):
    return 3 * v

@overload(np.i0)
def declared(v):
    return lambda v: 3 * v
"""

CARRIED = {
    "njit": ("@numba.njit\ndef helper(v): return GAIN * v", "helper(x[i])"),
    "declared": ("@numba.njit('f4(f4)')\ndef helper(v): return np.float32(GAIN) * v", "helper(x[i])"),
    "vectorize": ("@numba.vectorize\ndef helper(v): return GAIN * v", "helper(x[i])"),
    "vectorize declared": ("@numba.vectorize(['f8(f8)'])\ndef helper(v): return GAIN * v", "helper(x[i])"),
    "guvectorize": (
        "@numba.guvectorize(['f8[:], f8[:]'], '(n)->(n)')\ndef add(v, out):\n    out[0] = GAIN * v[0]\n"
        "@numba.njit\ndef helper(v):\n    out = np.empty(1)\n    add(np.full(1, np.float64(v)), out)\n"
        "    return out[0]",
        "helper(x[i])",
    ),
    "cfunc": ("@numba.cfunc('f8(f8)')\ndef helper(v): return GAIN * v", "helper(x[i])"),
    "stencil": (
        "@numba.stencil\ndef st(a): return GAIN * a[0]\n@numba.njit\ndef helper(v): return st(np.full(3, v))[1]",
        "helper(x[i])",
    ),
    "options": (
        "@numba.njit(fastmath=True, boundscheck=True, error_model='numpy', nogil=True, inline='always', cache=True)\n"
        "def inner(v): return GAIN * v\n@numba.njit(parallel=True)\ndef helper(v):\n    total = 0.0\n"
        "    for i in numba.prange(2): total += inner(v)\n    return total / 2",
        "helper(x[i])",
    ),
    "recursive": ("@numba.njit\ndef helper(v, n): return helper(v, n - 1) if n else GAIN * v", "helper(x[i], 2)"),
    "recursive declared": (
        "@numba.njit('f8(f8, i8)')\ndef helper(v, n): return helper(v, n - 1) if n else GAIN * v",
        "helper(x[i], 2)",
    ),
    "mutually recursive": (
        "@numba.njit\ndef other(v, n): return helper(v, n - 1) if n else GAIN * v\n"
        "@numba.njit\ndef helper(v, n): return other(v, n - 1) if n else GAIN * v",
        "helper(x[i], 3)",
    ),
    "declared of declared": (
        "@numba.njit('f8(f8)')\ndef inner(v): return GAIN * v\n"
        "@numba.vectorize(['f8(f8)'])\ndef helper(v): return inner(v)",
        "helper(x[i])",
    ),
    "intrinsic": (
        "@intrinsic\ndef inner(context, v):\n    factor = ir.Constant(ir.DoubleType(), GAIN)\n"
        "    def code(context, builder, signature, args): return builder.fmul(args[0], factor)\n"
        "    return types.float64(types.float64), code\n@numba.njit\ndef helper(v): return inner(np.float64(v))",
        "helper(x[i])",
    ),
    "intrinsic of literals": (
        "@intrinsic(prefer_literal=True)\ndef inner(context, v, n):\n"
        "    factor = ir.Constant(ir.DoubleType(), GAIN * n.literal_value)\n"
        "    def code(context, builder, signature, args): return builder.fmul(args[0], factor)\n"
        "    return types.float64(types.float64, n), code\n"
        "@numba.njit\ndef helper(v): return inner(np.float64(v), 1)",
        "helper(x[i])",
    ),
    "register_jitable of a module": ("", "declarations.threefold(x[i]) * (GAIN / 3)"),
    "overload of a module": ("", "np.i0(x[i]) * (GAIN / 3)"),
}
REFUSED = {
    "register_jitable": ("@register_jitable\ndef helper(v): return GAIN * v", "helper(x[i])"),
    "overload": ("def helper(v): pass\n@overload(helper)\ndef declared(v): return lambda v: GAIN * v", "helper(x[i])"),
    "register_jitable in a helper": (
        "@register_jitable\ndef inner(v): return GAIN * v\n@numba.njit\ndef helper(v): return inner(v)",
        "helper(x[i])",
    ),
}


def export(folder, helpers):
    (folder / "helpers.json").write_text(json.dumps(helpers))
    (folder / "script.py").write_text(EXPORT)
    (folder / "declarations.py").write_text(DECLARATIONS)
    return run(folder, "script.py")


def run(folder, *command):
    command = [sys.executable, *command]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture(scope="module", params=[("3.0", "5.0"), ("5.0", "3.0")], ids=" ".join)
def loaded(request, exported):
    """Return the gains of the programs that a process loads, and the results of both and of the first again."""
    first, second = map(float, request.param)
    return [first, second, first], json.loads(run(exported, "-c", LOAD, *request.param))


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    folder = tmp_path_factory.mktemp("programs")
    assert export(folder, CARRIED) == ""
    return folder


@pytest.mark.parametrize("name", CARRIED)
def test_each_program_carries_its_helper(loaded, name):
    expected, results = loaded
    assert results[name] == expected


@pytest.mark.parametrize("name", REFUSED)
def test_a_declaration_that_cannot_be_imported_is_refused(tmp_path, name):
    found = export(tmp_path, {name: REFUSED[name]})
    assert found.startswith("refused:") and "in __main__, which another process cannot import" in found
    assert "top level of a module" in found
    assert not (tmp_path / f"{name} 3.0").exists()
