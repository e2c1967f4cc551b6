"""The on-disk cache of ``cuda.jit(cache=True)``."""

import os
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest
from numba import cuda
from numba.cuda import dispatcher as cuda_dispatcher
from numba.cuda import types

from xlakernel.core import code_files
from xlakernel.core.errors import CacheWarning
from xlakernel.cuda._kernels.recipe import COMPILER, copy_dispatcher

pytestmark = pytest.mark.versions


@pytest.fixture(autouse=True)
def cache_folder(monkeypatch, tmp_path):
    monkeypatch.setattr(code_files, "_warned", set())
    monkeypatch.setenv("XLAKERNEL_CACHE_DIR", str(tmp_path / "cache"))


@cuda.jit(cache=True)
def doubled(x, out):
    out[0] = 2 * x[0]


EXAMINED = COMPILER.examine(doubled)


class Compiled:
    """Stands for what Numba compiles on a machine with a GPU."""

    def __init__(self, **states):
        self.states = states

    _rebuild = classmethod(lambda cls, **states: cls(**states))

    def _reduce_states(self):
        return self.states


CONTEXT = SimpleNamespace(refresh=lambda: None, codegen=lambda: SimpleNamespace(magic_tuple=lambda: ((13, 0), (9, 0))))
SIGNATURES = [types.void(array, array) for array in (types.float32[::1], types.float64[::1], types.int32[:])]


def test_a_dispatcher_of_ours_is_named_as_the_users_and_has_files_of_our_own():
    own = copy_dispatcher(doubled, EXAMINED, "content")
    assert own.py_func.__qualname__ == doubled.py_func.__qualname__
    assert own.stats.cache_path is None
    assert copy_dispatcher(doubled, EXAMINED)._cache.load_overload(SIGNATURES[0], CONTEXT) is None


def test_each_signature_and_content_has_a_file_of_its_own(monkeypatch):
    monkeypatch.setattr(cuda_dispatcher, "_Kernel", Compiled)
    cases = [(content, signature) for content in ("one", "two") for signature in SIGNATURES]
    for number, (content, signature) in enumerate(cases):
        cache = copy_dispatcher(doubled, EXAMINED, content)._cache
        assert cache.load_overload(signature, CONTEXT) is None
        cache.save_overload(signature, Compiled(number=number))
    for number, (content, signature) in enumerate(cases):
        assert copy_dispatcher(doubled, EXAMINED, content)._cache.load_overload(signature, CONTEXT).states == {
            "number": number
        }
    assert len(list(code_files.code_folder().iterdir())) == len(cases)
    for file in code_files.code_folder().iterdir():
        file.write_bytes(bytes(file.stat().st_size))
    assert copy_dispatcher(doubled, EXAMINED, "one")._cache.load_overload(SIGNATURES[0], CONTEXT) is None


def test_what_cannot_be_pickled_is_a_warning():
    cache = copy_dispatcher(doubled, EXAMINED, "content")._cache
    cache.load_overload(SIGNATURES[0], CONTEXT)
    with pytest.warns(CacheWarning, match=r"doubled is not cached on disk despite cuda.jit's cache=True: .*pickle"):
        cache.save_overload(SIGNATURES[0], Compiled(handle=threading.Lock()))


PROGRAM = """
import jax.numpy as jnp
from numba import cuda
from numba.cuda import dispatcher
from xlakernel.cuda import numba_cuda_kernel

compiled, init = [], dispatcher._Kernel.__init__

def count(self, function, *args, **options):
    compiled.append(function.__name__)
    init(self, function, *args, **options)

dispatcher._Kernel.__init__ = count

def make(constant):
    @cuda.jit(cache=True)
    def kernel(x, out):
        i = cuda.grid(1)
        if i < out.size:
            out[i] = x[i] + constant
    return kernel

for constant in range(3):
    for dtype in (jnp.float32, jnp.int32):
        run = numba_cuda_kernel(make(constant), launch_dims=4, outs=lambda x: x)
        assert run(jnp.arange(4, dtype=dtype)).tolist() == [constant + i for i in range(4)]
print(len(compiled))
"""


@pytest.mark.gpu
def test_the_second_process_compiles_nothing(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    for compiled in (6, 0):
        command = [sys.executable, str(tmp_path / "program.py")]
        done = subprocess.run(command, env=os.environ, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr
        assert int(done.stdout) == compiled
    assert len(list(code_files.code_folder().glob("*.code"))) >= 6
