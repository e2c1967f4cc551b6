"""Fingerprints in one process: changes, objects of unknown kinds, and references of a kernel."""

import builtins
import ctypes
import enum
import math
import os
import sys
import threading
import time
import types
from collections import namedtuple
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import llvmlite.binding
import numba
import numpy as np
import pytest

from xlakernel.core.identity.fingerprint import examine, fingerprint

pytestmark = pytest.mark.versions

TABLE = np.zeros(3)
FACTOR = 1.0


class Opaque:
    """A class of an unknown kind."""

    def __init__(self, value=0):
        self.value = value

    def __eq__(self, other):
        return isinstance(other, Opaque)

    __hash__ = None


def closing_over(value):
    def kernel(x, out):
        out[0] = value

    return kernel


def reads_globals(x, out):
    out[0] = TABLE[0] * FACTOR


def test_the_hash_follows_a_global(monkeypatch):
    before = fingerprint(reads_globals)
    monkeypatch.setitem(globals(), "FACTOR", 1)
    assert fingerprint(reads_globals) != before
    monkeypatch.undo()
    assert fingerprint(reads_globals) == before


def test_the_hash_follows_an_arrays_content():
    before = fingerprint(reads_globals)
    TABLE[1] = 5
    assert fingerprint(reads_globals) != before
    TABLE[1] = 0
    assert fingerprint(reads_globals) == before


def test_the_hash_follows_a_closures_cell():
    def make():
        value = 1

        def change(new):
            nonlocal value
            value = new

        return lambda x, out: value, change

    kernel, change = make()
    before = fingerprint(kernel)
    change(True)
    assert fingerprint(kernel) != before
    change(1)
    assert fingerprint(kernel) == before


@pytest.mark.parametrize(
    "make",
    [Opaque, object, lambda: type("Opaque", (), {}), lambda: np.array([Opaque()]), np.random.default_rng, bytearray],
    ids=["instance", "object", "class", "array of objects", "generator", "bytearray"],
)
def test_an_unknown_object_is_distinguished_by_identity(make):
    one, other = make(), make()
    assert fingerprint(closing_over(one)) == fingerprint(closing_over(one))
    assert fingerprint(closing_over(one)) != fingerprint(closing_over(other))


def test_an_unknown_object_is_distinguished_in_containers():
    one, other = Opaque(), Opaque()
    assert fingerprint(closing_over((1, {"a": [one]}))) == fingerprint(closing_over((1, {"a": [one]})))
    assert fingerprint(closing_over((1, {"a": [one]}))) != fingerprint(closing_over((1, {"a": [other]})))


def test_a_new_object_at_the_address_of_an_old_one_is_another():
    seen = {fingerprint(closing_over(Opaque())) for _ in range(100)}
    assert len(seen) == 100


def test_an_unknown_object_is_another_in_every_process(hash_in_processes):
    text = "class Opaque:\n    pass\nVALUE = {}\ndef kernel(x, out):\n    out[0] = VALUE\n"
    one, other = hash_in_processes({"unknown": [text.format("Opaque()"), text.format("Opaque")]})
    assert not set(one["unknown"]) & set(other["unknown"])


def test_a_description_makes_an_object_known():
    def describe(value):
        return ("opaque", value.value) if isinstance(value, Opaque) else None

    one, same, other = (fingerprint(closing_over([Opaque(n)]), describe=describe) for n in (1, 1, 2))
    assert one == same != other
    assert not examine(closing_over(Opaque()), describe=describe).unknown
    rest = object()
    assert examine(closing_over([Opaque(rest)]), describe=describe).unknown == [rest]


def test_options_count_and_their_order_does_not():
    def kernel(x, out):
        out[0] = 1

    hashes = {fingerprint(kernel, options) for options in (None, {"a": 1}, {"a": 2}, {"b": 1}, {"a": 1, "b": 2})}
    assert len(hashes) == 5
    assert fingerprint(kernel, {"a": 1, "b": 2}) == fingerprint(kernel, {"b": 2, "a": 1})
    assert fingerprint(kernel, {}) == fingerprint(kernel)


def test_a_dispatcher_is_not_its_function():
    assert fingerprint(numba.njit(reads_globals)) != fingerprint(reads_globals)
    assert fingerprint(numba.njit(reads_globals)) == fingerprint(numba.njit(reads_globals))


def test_structured_dtypes_of_any_layout_are_hashed():
    layouts = [
        {"names": ["a", "b"], "formats": ["i4", "i4"], "offsets": offsets} for offsets in ([0, 4], [4, 0], [0, 0])
    ]
    hashes = {fingerprint(closing_over(np.zeros(2, np.dtype(layout)))) for layout in layouts}
    assert len(hashes) == 3


def test_threads_agree():
    shared, together = Opaque(), threading.Barrier(8)

    def find(_):
        together.wait(10)
        return fingerprint(closing_over(shared))

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(find, range(8)))) == 1


@numba.njit
def deepest(a):
    return a + 1


@numba.vectorize
def elementwise(a):
    return deepest(a)


@numba.njit(parallel=True)
def even(n):
    return n == 0 or odd(n - 1)


@numba.njit
def odd(n):
    return n != 0 and even(n - 1)


@numba.njit
def top(x, out):
    out[0] = elementwise(x[0]) + deepest(x[1]) + even(2)


def test_functions_are_listed_once():
    found = examine(top).functions
    assert found[0] is top
    assert sorted(map(id, found)) == sorted(map(id, [top, elementwise, deepest, even, odd]))


def test_references_of_a_kernel_without_helpers():
    assert examine(reads_globals).functions == [reads_globals]
    assert examine(closing_over((1, [deepest]))).functions[1:] == [deepest]


def test_values_that_other_processes_lack_are_unknown():
    class Unknown:
        pass

    def make(value):
        def kernel(x, out):
            out[0] = value

        return kernel

    assert not examine(make(1.5)).unknown
    assert not examine(numba.njit(make(np.arange(3)))).unknown
    assert examine(make(Unknown())).unknown


def test_versioned_packages_are_not_walked_through():
    """A Python function may refer to large modules, JAX among them."""

    def run(x):
        with threading.Lock():
            return jnp.sin(x) + jax.numpy.pi * len(os.path.join("a", str(math.pi)))

    assert examine(run).functions == [run]
    assert not examine(run).unknown


def test_a_users_module_with_a_name_of_the_standard_library_is_walked_through(monkeypatch, tmp_path):
    (tmp_path / "sched.py").write_text("LATE = 2\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "sched", raising=False)
    import sched

    def late():
        return sched.LATE

    before = fingerprint(late)
    sched.LATE = 3
    assert fingerprint(late) != before
    monkeypatch.delitem(sys.modules, "sched")


# Values and users' functions in modules of versioned packages.
def of_the_standard_library():
    return time.timezone


def of_numpy():
    return np.of_the_user


def of_builtins():
    return OF_THE_USER  # noqa: F821  # set below


@pytest.mark.parametrize(
    ("function", "module", "name"),
    [
        (of_the_standard_library, time, "timezone"),
        (of_numpy, np, "of_the_user"),
        (of_builtins, builtins, "OF_THE_USER"),
    ],
)
@pytest.mark.parametrize("make", [lambda value: value, closing_over, lambda value: numba.njit(closing_over(value))])
def test_values_and_users_functions_of_a_versioned_module_count(monkeypatch, function, module, name, make):
    found = set()
    for value in (2.0, 3.0):
        monkeypatch.setattr(module, name, make(value), raising=False)
        found.add(fingerprint(function))
    assert len(found) == 2


def test_another_function_by_the_name_of_a_librarys(monkeypatch):
    found = {fingerprint(lambda: np.sin(1.0))}
    monkeypatch.setattr(np, "sin", np.cos)
    found.add(fingerprint(lambda: np.sin(1.0)))
    assert len(found) == 2


@pytest.mark.parametrize("name", ["cupy", "torch", "warp"])
def test_a_users_package_by_the_name_of_a_library_is_walked_through(monkeypatch, name):
    module = types.ModuleType(name)
    monkeypatch.setitem(sys.modules, name, module)
    found = set()
    for value in (2.0, 3.0):
        module.helper = closing_over(value)
        module.helper.__module__ = name
        found.add(fingerprint(lambda: module.helper()))
    assert len(found) == 2


def test_a_type_of_named_tuples_has_its_fields():
    kinds = [numba.types.NamedUniTuple(numba.float32, 2, namedtuple("Pair", names)) for names in ("a b", "b a")]
    assert len({fingerprint(closing_over(kind)) for kind in kinds}) == 2


def test_an_external_function_that_gets_another_address_is_another_one():
    external = numba.types.ExternalFunction("test_fingerprint_external", numba.float64(numba.float64))
    double, triple = (numba.cfunc("float64(float64)")(f) for f in (lambda x: 2 * x, lambda x: 3 * x))
    found = []
    for callback in (double, triple):
        llvmlite.binding.add_symbol("test_fingerprint_external", callback.address)
        found.append(examine(closing_over(external)))
    assert found[0].digest != found[1].digest
    assert not found[0].unknown and found[1].unknown == [external]  # other processes have the first address


def test_a_function_of_ctypes_that_is_changed_in_place():
    """Numba reads its address and types when it compiles a call."""
    library = ctypes.CDLL(None)
    function, other = library.labs, library.atol
    found = [fingerprint(closing_over(function))]
    function.argtypes = [ctypes.c_long]
    found.append(fingerprint(closing_over(function)))
    function.restype = ctypes.c_long
    found.append(fingerprint(closing_over(function)))
    ctypes.memmove(ctypes.addressof(function), ctypes.addressof(other), ctypes.sizeof(ctypes.c_void_p))
    found += [fingerprint(closing_over(function)) for _ in range(2)]
    assert len(set(found)) == 4 and found[-1] == found[-2]


def test_an_object_that_has_the_address_of_another_function():
    class Callback(numba.types.WrapperAddressProtocol):
        address = 1

        def __wrapper_address__(self):
            return self.address

        def signature(self):
            return numba.float64(numba.float64)

    callback = Callback()
    before = examine(closing_over(callback))
    assert before.digest == fingerprint(closing_over(callback)) and before.unknown == [callback]
    callback.address = 2
    assert fingerprint(closing_over(callback)) != before.digest


def test_strings_of_a_set_may_contain_names_of_types():
    one, other = {("a", "bbuiltins.strc")}, {("abuiltins.strb", "c")}
    assert fingerprint(closing_over(one)) != fingerprint(closing_over(other))


def test_an_enumeration_has_its_aliases():
    kinds = [enum.IntEnum("Method", {"EULER": 1, "HEUN": 2, "DEFAULT": value}, module=__name__) for value in (1, 2)]
    assert len({fingerprint(closing_over(kind)) for kind in kinds}) == 2


def test_a_module_may_compute_its_attributes():
    class Computed(types.ModuleType):
        @property
        def GAIN(self):
            return self.value

    def computed(value):
        module = Computed("settings")
        module.value = value
        return module

    def asked(value):
        module = types.ModuleType("settings")
        module.__getattr__ = {"GAIN": value}.__getitem__
        return module

    for make in (computed, asked):
        found = set()
        for value in (2.0, 3.0):
            module = make(value)
            found.add(fingerprint(lambda module=module: module.GAIN))
        assert len(found) == 2
