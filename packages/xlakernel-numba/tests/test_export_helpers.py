"""Kernels of a script with helpers of every kind: what is exported loads in another process, or is refused at once."""

import subprocess
import sys
import textwrap

import pytest

pytestmark = pytest.mark.slow

HEAD = """
import sys, pathlib
import jax, jax.numpy as jnp, numba, numpy as np
from numba.extending import overload, register_jitable
from xlakernel.core import errors, export
from xlakernel.numba import numba_kernel
import declarations

GAIN = 3.0
X = jax.ShapeDtypeStruct((2,), jnp.float32)
"""
TAIL = """
def make():
    @numba.njit
    def kernel(x, out):
        for i in range(x.size):
            out[i] = {call}
    return kernel

program = jax.jit(numba_kernel(make(), outs=lambda x: x))
try:
    pathlib.Path("program.bin").write_bytes(export(program)(X).serialize())
except errors.ExportError as error:
    print("refused:", error)
"""
LOAD = """
import pathlib, jax.numpy as jnp
from xlakernel.core import deserialize
print(deserialize(pathlib.Path("program.bin").read_bytes()).call(jnp.ones(2)).tolist())
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
    "register_jitable of a module": ("", "declarations.threefold(x[i])"),
    "overload of a module": ("", "np.i0(x[i])"),
}
REFUSED = {
    "register_jitable": ("@register_jitable\ndef helper(v): return GAIN * v", "helper(x[i])"),
    "overload": ("def helper(v): pass\n@overload(helper)\ndef declared(v): return lambda v: GAIN * v", "helper(x[i])"),
    "register_jitable in a helper": (
        "@register_jitable\ndef inner(v): return GAIN * v\n@numba.njit\ndef helper(v): return inner(v)",
        "helper(x[i])",
    ),
}


def run(folder, text):
    command = [sys.executable, "-c", text] if text is LOAD else [sys.executable, "script.py"]
    if text is not LOAD:
        (folder / "script.py").write_text(text)
        (folder / "declarations.py").write_text(textwrap.dedent(DECLARATIONS))
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("name", CARRIED)
def test_a_helper_is_carried(tmp_path, name):
    source, call = CARRIED[name]
    assert run(tmp_path, HEAD + source + TAIL.format(call=call)) == ""
    assert run(tmp_path, LOAD) == "[3.0, 3.0]"


@pytest.mark.parametrize("name", REFUSED)
def test_a_declaration_that_is_not_found_again_is_refused(tmp_path, name):
    source, call = REFUSED[name]
    found = run(tmp_path, HEAD + source + TAIL.format(call=call))
    assert found.startswith("refused:") and "in __main__, where another process does not find it" in found
    assert "top level of a module" in found
    assert not (tmp_path / "program.bin").exists()
