"""Wrappers as functions: their names and signatures, pickles, and pools of processes."""

import copy
import inspect
import pickle
import subprocess
import sys

import jax
import jax.numpy as jnp
import numba
import pytest

from xlakernel.numba import numba_kernel


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


def test_what_cannot_be_pickled_is_named():
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


def test_pools_of_new_processes(tmp_path):
    (tmp_path / "program.py").write_text(POOL)
    done = subprocess.run(
        [sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:2] == ["[[2.0, 2.0], [0.0]]", "[2.0, 2.0]"]
