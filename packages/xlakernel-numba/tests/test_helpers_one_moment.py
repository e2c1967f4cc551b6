"""A kernel has the values of one moment: another thread may change its references during a compilation."""

import collections
import gc
import types

import jax.numpy as jnp
import numpy as np
import pytest
from helper_kinds import HELPERS, KERNEL, ONE, define, module_of, run, slow_but_first
from numba.core.cpu import CPUContext

from xlakernel.core.backend.native import OwnCopies
from xlakernel.core.identity.snapshot import Snapshot
from xlakernel.numba import numba_kernel

pytestmark = pytest.mark.versions


@pytest.mark.parametrize("name", slow_but_first(HELPERS))
def test_a_global_that_another_thread_changes_during_compilation(name, monkeypatch):
    first, second = 31, 32  # which no other test has compiled
    cell = define(HELPERS[name] + "\n" + KERNEL, G=first)
    copy = OwnCopies._copy

    def changing(copies, *args, **options):
        cell["G"] = second
        return copy(copies, *args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(OwnCopies, "_copy", changing)
        assert run(cell["kernel"]) == first
    for value in (second, first):
        cell["G"] = value
        assert run(cell["kernel"]) == value


def test_an_attribute_of_a_module_that_another_thread_changes_while_a_shared_helper_is_compiled(monkeypatch):
    constants = types.ModuleType("constants")
    helper = "@numba.njit\ndef helper(v): return constants.G\n"
    source = f"{helper}@numba.njit\ndef kernel(x, out): out[0] = constants.G + 10 * helper(x[0])\n"
    kernel = define(source, constants=constants)["kernel"]
    copy = OwnCopies._copy

    def run(dtype):
        return float(numba_kernel(kernel, outs=ONE)(jnp.zeros(1, dtype))[0])

    def changing(*args, **options):
        constants.G = 42
        return copy(*args, **options)

    constants.G = 41
    assert run(jnp.float32) == 11 * 41  # compiles the helper
    with monkeypatch.context() as patch:
        patch.setattr(OwnCopies, "_copy", changing)
        assert run(jnp.int32) == 11 * 41
    for value in (42, 41):
        constants.G = value
        assert run(jnp.int16) == 11 * value


@pytest.mark.parametrize("order", ["contiguous", "strided"])
def test_an_array_that_another_thread_changes_during_compilation(order, monkeypatch):
    table = np.ones(8) if order == "contiguous" else np.ones(16)[::2]
    kernel = define("@numba.njit\ndef kernel(x, out): out[0] = x[0] + A[0] + A[7]", A=table)["kernel"]
    lower = CPUContext.make_constant_array

    def changing(*args):
        table[:] = 3 - table
        return lower(*args)

    with monkeypatch.context() as patch:
        patch.setattr(CPUContext, "make_constant_array", changing)
        assert run(kernel) == 2
    for value in (2, 1):
        table[:] = value
        assert run(kernel) == 2 * value


@pytest.mark.filterwarnings("ignore:tostring:DeprecationWarning")  # of Numba 0.61 with records
def test_a_record_that_another_thread_changes_during_compilation(monkeypatch):
    table = np.ones(1, [("gain", "f8")])
    cell = define("@numba.njit\ndef kernel(x, out): out[0] = x[0] + R.gain", R=table[0])
    get = CPUContext.get_constant_generic

    def changing(*args):
        table["gain"] = 2
        return get(*args)

    with monkeypatch.context() as patch:
        patch.setattr(CPUContext, "get_constant_generic", changing)
        assert run(cell["kernel"]) == 1
    for value in (2, 1):
        table["gain"] = value
        assert run(cell["kernel"]) == value


CONTAINERS = {
    "list": [[1.0]],
    "dictionary": {0: [1.0]},
    "array": np.ones((1, 1)),
    "tuple": ([1.0],),
    "list of a tuple": [([1.0],)],
    "tuple with a helper, of a module": module_of(T=([1.0], define(HELPERS["njit"], G=0)["helper"])),
    "dictionary of a named tuple": {0: collections.namedtuple("Row", "values")(np.ones(1))},
    "list of a module": module_of(T=[[1.0]]),
}


class FrozenDict(dict):
    def __setitem__(self, key, value):
        raise TypeError("frozen")


def test_containers_whose_methods_raise_are_read_by_their_base_type():
    table = FrozenDict({"gain": 1.0})
    declare = (
        "def helper(v): pass\n@overload(helper)\ndef declare(v):\n    gain = T['gain']\n    return lambda v: v + gain\n"
    )
    cell = define(declare + KERNEL, T=table)
    for gain in (1, 2):
        dict.__setitem__(table, "gain", float(gain))
        assert run(cell["kernel"]) == gain


def test_copies_of_arrays_are_not_kept_for_each_dtype():
    cell = define("@numba.njit\ndef kernel(x, out): out[0] = x[0] + A[-1]", A=np.ones(1000))

    def snapshots():
        gc.collect()
        return sum(type(value) is Snapshot for value in gc.get_objects())

    before = snapshots()
    for dtype in (jnp.float32, jnp.int32, jnp.float16):
        assert numba_kernel(cell["kernel"], outs=ONE)(jnp.zeros(1, dtype)) == 1
    assert snapshots() <= before


class Change:
    """Stands for another thread. Objects are compared by identity, and are not copied."""

    is_active = True

    def __init__(self, values):
        self.values = values

    def __call__(self):
        if self.is_active:
            self.values[0] = 2.0


@pytest.mark.parametrize("name", CONTAINERS)
def test_a_container_that_another_thread_changes_while_a_declaration_reads_it(name):
    table = CONTAINERS[name]
    values = getattr(table, "T", table)[0]
    read = "T.T[0][0]" if isinstance(table, types.ModuleType) else "T[0][0]"
    if isinstance(values, tuple):
        values, read = values[0], f"{read}[0]"
    declare = f"""
def helper(v): pass
@overload(helper)
def declare(v):
    change()
    gain = float({read})
    return lambda v: v + gain
"""
    change = Change(values)
    cell = define(declare + KERNEL, T=table, change=change)
    assert run(cell["kernel"]) == 1
    change.is_active = False
    for value in (2, 1):
        values[0] = value
        assert run(cell["kernel"]) == value


def test_a_list_that_contains_itself():
    table = [1.0]
    table.append(table)
    declare = (
        "def helper(v): pass\n@overload(helper)\ndef declare(v):\n    gain = T[0]\n    return lambda v: v + gain\n"
    )
    kernel = define(declare + KERNEL, T=table)["kernel"]
    assert run(kernel) == 1
    table[0] = 2.0
    assert run(kernel) == 2
