"""Operators in pickles, and in pools of new processes."""

import pickle
import subprocess
import sys

import jax.numpy as jnp
import pytest

from xlakernel.core import XLACustomKernel
from xlakernel.core.errors import PickledKernelError

pytestmark = pytest.mark.versions

doubled = XLACustomKernel("pickled.doubled")
doubled.def_jax_kernel(lambda outs: lambda x: 2 * x)


def test_an_operator_of_a_module_is_pickled_by_its_name():
    assert doubled.__module__ == __name__
    assert pickle.loads(pickle.dumps(doubled)) is doubled
    assert pickle.loads(pickle.dumps([doubled, doubled])) == [doubled, doubled]


def test_an_operator_without_a_name_is_not_pickled(op):
    with pytest.raises(pickle.PicklingError, match=r"it has no name in .* Bind it to a name"):
        pickle.dumps(op)


@pytest.mark.parametrize("there", [None, 3, XLACustomKernel("pickled.another")], ids=str)
def test_a_name_that_leads_elsewhere_is_not_followed(monkeypatch, there):
    pickled = pickle.dumps(doubled)
    monkeypatch.setattr(sys.modules[__name__], "doubled", there)
    with pytest.raises(PickledKernelError, match=r"'pickled\.doubled' that was pickled as .*doubled cannot be found"):
        pickle.loads(pickled)(jnp.ones(2), outs=jnp.ones(2))


POOL = """
import multiprocessing
import jax, numpy as np
from xlakernel.core import XLACustomKernel
from xlakernel.core.errors import PickledKernelError

doubled = XLACustomKernel("doubled")
doubled.def_jax_kernel(lambda outs: lambda x: 2 * x)

def call(op):
    return np.asarray(op(np.ones(2, np.float32), outs=jax.ShapeDtypeStruct((2,), np.float32))).tolist()

if __name__ == "__main__":
    only_here = XLACustomKernel("only_here")
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.apply(call, (doubled,)))
        try:
            pool.apply(call, (only_here,))
        except PickledKernelError as error:
            print(str(error).split(":")[0])
"""


@pytest.mark.process
def test_pools_of_new_processes(tmp_path):
    (tmp_path / "program.py").write_text(POOL)
    done = subprocess.run(
        [sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "[2.0, 2.0]",
        "the operator 'only_here' that was pickled as __main__.only_here cannot be found",
    ]
