"""Exported programs, here and in another process."""

import importlib
import itertools
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numba import cuda
from numpy.testing import assert_array_equal

from xlakernel.core import deserialize, export
from xlakernel.core.errors import ExportError
from xlakernel.cuda import numba_cuda_kernel

pytestmark = pytest.mark.gpu

MODULE = """
from numba import cuda

@cuda.jit
def kernel(x, out, factor):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = factor * x[i] + OFFSET
OFFSET = {offset}
"""

CHILD = """
import sys
import numpy as np
from xlakernel.core import deserialize
program = deserialize(open(sys.argv[1], "rb").read())
print(np.asarray(program.call(np.arange(5, dtype=np.float32))).tolist())
"""


def made(factor):
    @cuda.jit
    def scaled(x, out):
        i = cuda.grid(1)
        if i < out.size:
            out[i] = factor * x[i]

    return jax.jit(numba_cuda_kernel(scaled, lambda x: x, launch_dims=lambda x: x.size))


X = jnp.arange(5, dtype=jnp.float32)


def in_another_process(blob, tmp_path, **environment):
    (tmp_path / "program").write_bytes(blob)
    return subprocess.run(
        [sys.executable, "-c", CHILD, str(tmp_path / "program")],
        env=os.environ | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_program_runs_here_after_a_round_trip():
    program = deserialize(export(made(3.0))(X).serialize())
    assert_array_equal(program.call(X), 3 * np.arange(5))


def test_a_kernel_without_a_module_runs_in_another_process(tmp_path):
    child = in_another_process(export(made(4.0))(X).serialize(), tmp_path)
    assert child.stdout.strip() == "[0.0, 4.0, 8.0, 12.0, 16.0]", child.stderr


GAIN = 4.0


def test_declared_signatures_of_a_device_function_are_exported(tmp_path, monkeypatch):
    @cuda.jit("float32(float32)", device=True)
    def declared(v):
        return GAIN * v

    def applied(x, out):
        i = cuda.grid(1)
        if i < out.size:
            out[i] = declared(x[i])

    programs = []
    for gain in (4.0, 5.0):
        monkeypatch.setitem(globals(), "GAIN", gain)
        run = numba_cuda_kernel(cuda.jit(applied), lambda x: x, launch_dims=lambda x: x.size)
        programs.append(export(jax.jit(run))(X).serialize())
    for gain, program in zip((4.0, 5.0), programs, strict=True):
        assert_array_equal(deserialize(program).call(X), gain * np.arange(5))
        child = in_another_process(program, tmp_path)
        assert child.stdout.strip() == str((gain * np.arange(5)).tolist()), child.stderr


@pytest.fixture
def users_module(tmp_path, monkeypatch):
    name = f"kernels_of_a_user_{next(_numbers)}"  # equal kernels of one module would be one target
    (tmp_path / f"{name}.py").write_text(MODULE.format(offset=1.0))
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module(name)
    del sys.modules[name]


_numbers = itertools.count()


@pytest.mark.parametrize("changed", [False, True])
def test_a_kernel_of_a_module_is_imported_and_compared(users_module, tmp_path, changed):
    run = numba_cuda_kernel(users_module.kernel, lambda x: x, launch_dims=lambda x: x.size)
    blob = export(jax.jit(lambda x: run(x, factor=2.0)))(X).serialize()
    if changed:
        # Of another length, so that no cached bytecode passes for it.
        (tmp_path / f"{users_module.__name__}.py").write_text(MODULE.format(offset=25.0))
    child = in_another_process(blob, tmp_path, PYTHONPATH=f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    if changed:
        assert "ExportError" in child.stderr and "is not the one that was exported" in child.stderr
    else:
        assert child.stdout.strip() == "[1.0, 3.0, 5.0, 7.0, 9.0]", child.stderr


def test_symbolic_shapes_are_refused():
    from jax import export as jax_export

    n = jax_export.symbolic_shape("n")[0]
    with pytest.raises(ExportError, match="one shape"):
        export(made(2.0))(jax.ShapeDtypeStruct((n,), jnp.float32))
