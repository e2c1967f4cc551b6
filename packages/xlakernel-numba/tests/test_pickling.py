"""Wrappers as functions: their names and signatures, pickles, and pools of processes."""

import copy
import inspect
import pickle
import subprocess
import sys
import types

import jax
import jax.numpy as jnp
import numba
import numpy as np
import pytest

from xlakernel.core.backend import fingerprint
from xlakernel.core.backend.native import dumps
from xlakernel.core.errors import PickledKernelError
from xlakernel.numba import numba_kernel
from xlakernel.numba._recipe import COMPILER

pytestmark = pytest.mark.versions


@numba.njit
def scale(x, out, factor=2.0):
    for i in range(x.size):
        out[i] = factor * x[i]


def same(x):
    return x


scaled = numba_kernel(scale, outs=same)


class Namespace:
    inside = numba_kernel(scale, outs=same)


def test_a_wrapper_has_a_name_and_a_signature():
    assert (scaled.__module__, scaled.__name__, scaled.__qualname__) == (__name__, "scale", "scale")
    assert str(inspect.signature(scaled)) == "(*inputs, factor=2.0, **static)"
    assert repr(scaled) == f"<Numba kernel scale as a function of JAX arrays, in {__name__}>"
    assert "scale(x, out, factor)" in scaled.__doc__
    assert copy.copy(scaled) is copy.deepcopy(scaled) is scaled


def test_a_wrapper_of_a_module_is_pickled_by_its_name():
    assert pickle.loads(pickle.dumps(scaled)) is scaled
    assert b"scaled" in pickle.dumps(scaled)


def test_any_other_wrapper_is_pickled_with_its_kernel():
    again = pickle.loads(pickle.dumps(numba_kernel(scale, outs=same)))
    assert again is not scaled
    assert again(jnp.ones(2), factor=3.0).tolist() == [3, 3]
    assert pickle.loads(pickle.dumps(Namespace.inside))(jnp.ones(1)).tolist() == [2]


NUMBERS = np.arange(12.0).reshape(3, 4)
BYTES = bytearray(100)
ARRAYS = {
    "every second": NUMBERS[0, ::2],
    "reversed": NUMBERS[0, ::-1],
    "a part": NUMBERS[:, 1:3],
    "transposed part": NUMBERS.T[1:],
    "broadcast": np.broadcast_to(NUMBERS[0, 1:2], 3),
    "field": np.ones(3, "f4,f8")["f1"],
    "records": np.ones(4, "f4,f8")[::2],
    "Fortran order": NUMBERS.T,
    "unaligned": np.ndarray(3, float, BYTES, offset=1),
    "unaligned, Fortran order": np.ndarray((2, 3), float, BYTES, offset=1, order="F"),
    "unaligned part": np.ndarray((2, 3), float, BYTES, offset=1)[:, 1:],
}


@pytest.mark.parametrize("name", ARRAYS)
def test_a_kernel_with_an_array_of_any_layout_is_pickled(name):
    table = ARRAYS[name]

    @numba.njit
    def add_size(x, out):
        out[0] = x[0] + table.size

    again = pickle.loads(pickle.dumps(numba_kernel(add_size, outs=same)))
    assert again(jnp.zeros(1)) == table.size
    found = pickle.loads(dumps(COMPILER, table))
    np.testing.assert_array_equal(found, table)
    assert fingerprint(found) == fingerprint(table)


FACTOR = 2.0


@numba.njit
def helper(x):
    return FACTOR * x


@numba.njit
def scale_by_helper(x, out):
    for i in range(x.size):
        out[i] = helper(x[i])


@numba.njit
def negate(x, out):
    for i in range(x.size):
        out[i] = -x[i]


by_helper = numba_kernel(scale_by_helper, outs=same)
with_lambda = numba_kernel(scale, outs=lambda x: x)
helper_with_lambda = numba_kernel(scale_by_helper, outs=lambda x: x)
with_rules = numba_kernel(
    scale_by_helper,
    outs=lambda x: jax.eval_shape(jnp.sin, jax.ShapeDtypeStruct(x.shape, x.dtype)),
    vjp=lambda primals, results, cotangents: (with_rules(cotangents[0]) + jnp.where(WEIGHTS > 0, 1, 2),),
)
WEIGHTS = jnp.ones(2)


@pytest.mark.parametrize("name", ["scaled", "by_helper", "with_lambda", "with_rules"])
def test_a_name_that_leads_to_the_same_kernel_is_enough(name):
    wrapper = globals()[name]
    helper(1.0)  # is compiled on its own
    assert wrapper(jnp.ones(2)).tolist() == [2, 2]
    assert pickle.loads(pickle.dumps(wrapper)) is wrapper


@pytest.mark.parametrize("there", [None, 3, numba_kernel(negate, outs=same), numba_kernel(scale, outs=jnp.zeros_like)])
def test_a_name_that_leads_elsewhere_is_not_followed(monkeypatch, there):
    pickled, pickled_with_lambda = pickle.dumps(scaled), pickle.dumps(with_lambda)
    for name in ("scaled", "with_lambda"):
        monkeypatch.setattr(sys.modules[__name__], name, there)
    again = pickle.loads(pickled)
    assert again is not there
    assert again(jnp.ones(2), factor=3.0).tolist() == [3, 3]
    with pytest.raises(PickledKernelError, match=r"with_lambda cannot be found: .* under that name\. Bind the wrapper"):
        pickle.loads(pickled_with_lambda)(jnp.ones(2))


def test_a_module_that_is_gone_is_named(monkeypatch):
    gone = type(sys)("gone_by_now")
    monkeypatch.setitem(sys.modules, gone.__name__, gone)
    gone.kernel = numba_kernel(scale, outs=lambda x: x)
    gone.kernel.__module__ = gone.__name__
    pickled = pickle.dumps(gone.kernel)
    monkeypatch.delitem(sys.modules, gone.__name__)
    with pytest.raises(PickledKernelError, match=r"gone_by_now\.kernel cannot be found: this process has nothing"):
        pickle.loads(pickled)(jnp.ones(2))


@pytest.mark.parametrize("wrapper", [by_helper, numba_kernel(scale_by_helper, outs=same)], ids=["named", "unnamed"])
def test_a_constant_of_a_helper_is_part_of_the_kernel(monkeypatch, wrapper):
    pickled = [pickle.dumps(wrapper)]
    monkeypatch.setattr(sys.modules[__name__], "FACTOR", 5.0)
    pickled.append(pickle.dumps(wrapper))
    monkeypatch.setattr(sys.modules[__name__], "FACTOR", 7.0)
    for _ in range(2):
        assert [pickle.loads(each)(jnp.ones(1)).tolist() for each in pickled] == [[2], [5]]


def test_a_constant_that_differs_without_the_kernel_is_an_error(monkeypatch):
    pickled = pickle.dumps(helper_with_lambda)
    monkeypatch.setattr(sys.modules[__name__], "FACTOR", 5.0)
    with pytest.raises(PickledKernelError, match="globals that the kernel refers to must be the same in each process"):
        pickle.loads(pickled)(jnp.ones(2))


settings = types.ModuleType("settings_of_test_pickling")
settings.FACTOR = 2.0
sys.modules[settings.__name__] = settings


@numba.njit
def scale_by_setting(x, out):
    for i in range(x.size):
        out[i] = settings.FACTOR * x[i]


def test_a_module_attribute_that_differs_is_an_error(monkeypatch):
    pickled = pickle.dumps(numba_kernel(scale_by_setting, outs=same))
    assert pickle.loads(pickled)(jnp.ones(1)) == 2
    monkeypatch.setattr(settings, "FACTOR", 5.0)
    with pytest.raises(PickledKernelError, match="globals that the kernel refers to must be the same in each process"):
        pickle.loads(pickled)(jnp.ones(1))


def test_a_global_named_like_an_attribute_is_not_part_of_the_kernel(monkeypatch):
    pickled = pickle.dumps(numba_kernel(scale_by_setting, outs=same))
    monkeypatch.setattr(sys.modules[__name__], "FACTOR", 5.0)
    assert pickle.loads(pickled)(jnp.ones(1)) == 2


def test_an_object_that_cannot_be_pickled_is_named():
    with pytest.raises((AttributeError, pickle.PicklingError), match="lambda"):
        pickle.dumps(numba_kernel(scale, outs=lambda x: x))


def test_a_wrapper_in_a_class_is_a_method():
    class Array:
        size, dtype, shape = 2, jnp.float32, (2,)
        doubled = numba_kernel(scale, outs=same)

        def __jax_array__(self):
            return jnp.ones(2)

    assert Array.doubled(jnp.ones(2)).tolist() == [2, 2]
    assert Array().doubled.__self__ is not None


def test_a_wrapper_is_jitted_with_static_names():
    jitted = jax.jit(scaled, static_argnames="factor")
    assert jitted(jnp.ones(2), factor=4.0).tolist() == [4, 4]


POOL = """
import concurrent.futures, multiprocessing
import jax.numpy as jnp, numba, numpy as np
from xlakernel.numba import numba_kernel

@numba.njit
def scale(x, out):
    for i in range(x.size):
        out[i] = 2 * x[i]

double = numba_kernel(scale, outs=lambda x: x)

def main():
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        print([np.asarray(found).tolist() for found in pool.map(double, [np.ones(2), np.zeros(1)])])
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
        print(np.asarray(pool.submit(double, np.ones(2)).result()).tolist())

if __name__ == "__main__":
    main()
"""


REBOUND = """
import multiprocessing
import jax.numpy as jnp, numba, numpy as np
from xlakernel.core.errors import PickledKernelError
from xlakernel.numba import numba_kernel

@numba.njit
def double(x, out):
    for i in range(x.size):
        out[i] = 2 * x[i]

@numba.njit
def triple(x, out):
    for i in range(x.size):
        out[i] = 3 * x[i]

def same(x):
    return x

def run(kernel):
    return np.asarray(kernel(jnp.ones(1))).tolist()

kernel = numba_kernel(double, outs=same)
with_lambda = numba_kernel(double, outs=lambda x: x)

if __name__ == "__main__":
    kernel = numba_kernel(triple, outs=same)
    with_lambda = numba_kernel(triple, outs=lambda x: x)
    only_here = numba_kernel(triple, outs=lambda x: x)
    several = [numba_kernel(k, outs=same) for k in (double, triple)]
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.apply(run, (kernel,)), *(pool.apply(run, (one,)) for one in several))
        for wrapper in (with_lambda, only_here):
            try:
                print(pool.apply(run, (wrapper,)))
            except PickledKernelError as error:
                print(str(error).split(".")[1])
"""


@pytest.mark.process
def test_a_name_that_leads_to_another_kernel_in_a_new_process(tmp_path):
    (tmp_path / "program.py").write_text(REBOUND)
    done = subprocess.run(
        [sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:3] == [
        "[3.0] [2.0] [3.0]",
        "with_lambda cannot be found: this process has another kernel under that name",
        "only_here cannot be found: this process has nothing under that name",
    ]


EDITED = """
import multiprocessing
import jax.numpy as jnp, numba, numpy as np
from xlakernel.numba import numba_kernel

GAIN = 2.0

@numba.njit
def scale(x, out):
    for i in range(x.size):
        out[i] = GAIN * x[i]

def same(x):
    return x

def run(kernel):
    return np.asarray(kernel(jnp.ones(1))).tolist()

named = numba_kernel(scale, outs=same)

if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        for GAIN in (2.0, 5.0, 7.0):
            print(pool.apply(run, (numba_kernel(scale, outs=same),)), pool.apply(run, (named,)))
"""


@pytest.mark.process
def test_a_worker_gets_the_present_globals(tmp_path):
    (tmp_path / "program.py").write_text(EDITED)
    done = subprocess.run(
        [sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:3] == ["[2.0] [2.0]", "[5.0] [5.0]", "[7.0] [7.0]"]


@pytest.mark.process
def test_pools_of_new_processes(tmp_path):
    (tmp_path / "program.py").write_text(POOL)
    done = subprocess.run(
        [sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:2] == ["[[2.0, 2.0], [0.0]]", "[2.0, 2.0]"]
