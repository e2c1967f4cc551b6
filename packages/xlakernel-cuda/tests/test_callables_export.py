"""Functions that launch Numba CUDA kernels, exported on a GPU and loaded in another process."""

import subprocess
import sys
import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_array_equal

from xlakernel.core import export

pytest.importorskip("numba_cuda", reason="numba-cuda is not installed")

pytestmark = [
    *(pytest.mark.gpu, pytest.mark.slow),
    pytest.mark.filterwarnings("ignore:.*Grid size"),  # Numba thinks that small launches are not worth it
]

MODULE = """
    from numba import cuda
    from xlakernel.cuda import numba_cuda_callable

    @cuda.jit
    def kernel(x, out):
        i = cuda.grid(1)
        if i < out.size:
            out[i] = x[i] + FACTOR

    FACTOR = 3

    def twice(x, out, stream):
        between = cuda.device_array(x.shape, x.dtype)
        kernel[8, 128, stream](x, between)
        kernel[8, 128, stream](between, out)

    run = numba_cuda_callable(twice, lambda x: x, record=True)
    """
LOAD = """
    import sys, warnings
    import jax.numpy as jnp
    from xlakernel.core import deserialize
    warnings.filterwarnings("ignore", ".*Grid size")
    sys.path.insert(0, sys.argv[1])
    program = deserialize(open(sys.argv[1] + "/program", "rb").read())
    print(float(program.call(jnp.arange(1000.0))[999]))
    """


def test_export_to_another_process(tmp_path, monkeypatch):
    pytest.importorskip("flatbuffers", reason="xlakernel-core[export] is not installed")
    (tmp_path / "mine_to_export.py").write_text(textwrap.dedent(MODULE))
    monkeypatch.syspath_prepend(tmp_path)
    import mine_to_export

    program = export(jax.jit(mine_to_export.run))(jax.ShapeDtypeStruct((1000,), jnp.float32))
    assert_array_equal(program.call(jnp.arange(1000.0)), np.arange(1000) + 6)
    (tmp_path / "program").write_bytes(program.serialize())

    def load():
        command = [sys.executable, "-c", textwrap.dedent(LOAD), str(tmp_path)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    child = load()
    assert child.stdout.split() == ["1005.0"], child.stderr
    (tmp_path / "mine_to_export.py").write_text(textwrap.dedent(MODULE).replace("FACTOR = 3", "FACTOR = 4"))
    child = load()
    assert "ExportError" in child.stderr
    assert "is not the one that was exported" in child.stderr
