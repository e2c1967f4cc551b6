"""Objects that a kernel uses in an ``objmode`` block: the kernel's own, also if others are equal."""

import functools
import types

import jax
import jax.numpy as jnp
import numba
import numpy as np
import pytest
from numba import objmode

from xlakernel.core import deserialize, export
from xlakernel.core.ffi.registry import registered_targets
from xlakernel.core.identity.fingerprint import fingerprint
from xlakernel.numba import numba_kernel

X = jnp.ones(1)


class Log:
    def __init__(self):
        self.seen = []


def count_in_closure():
    count = 0

    def note(_):
        nonlocal count
        count += 1

    return note, lambda: count


def count_in_attribute():
    def note(_):
        note.count += 1

    note.count = 0
    return note, lambda: note.count


def add_to_array():
    total = np.zeros(1)

    def note(value):
        total[0] += value

    return note, lambda: total[0]


def append():
    seen = []
    return seen.append, lambda: len(seen)


def insert():
    seen = {}
    return lambda value: seen.__setitem__("value", value), lambda: len(seen)


def add_to_set():
    seen = set()
    return lambda value: seen.add(value), lambda: len(seen)


def of_module():
    state = types.ModuleType("state")
    state.count = 0

    def note(_):
        state.count += 1

    return note, lambda: state.count


def of_instance():
    log = Log()
    return lambda value: log.seen.append(value), lambda: len(log.seen)


def of_partial():
    seen = []
    return functools.partial(seen.insert, 0), lambda: len(seen)


def of_default():
    seen = []

    def note(value, seen=seen):
        seen.append(value)

    return note, lambda: len(seen)


NOTES = [
    *[count_in_closure, count_in_attribute, add_to_array, append, insert, add_to_set, of_module, of_instance],
    *[of_partial, of_default],
]


def kernel_of(note):
    @numba.njit
    def kernel(x, out):
        out[:] = x
        value = x[0]
        with objmode():
            note(value)

    return kernel


def kernel_with_helper(note):
    @numba.njit
    def helper(value):
        with numba.objmode():
            note(value)

    @numba.njit
    def kernel(x, out):
        out[:] = x
        helper(x[0])

    return kernel


def lowered(kernel):
    return jax.jit(numba_kernel(kernel, outs=X, has_side_effect=True)).lower(X).compile()


def run(*programs):
    for program in programs:
        jax.block_until_ready(program(X))
    jax.effects_barrier()


# Objects in a closure, a default value and an attribute; the others are other methods and functions of such objects.
FIRST_NOTES = (count_in_closure, add_to_array, append, of_instance, of_partial, of_default)


@pytest.mark.parametrize(
    ("note", "make"),
    [
        *(pytest.param(note, kernel_of, marks=[pytest.mark.slow] * (note not in FIRST_NOTES)) for note in NOTES),
        (add_to_array, kernel_with_helper),
    ],
)
def test_an_effect_reaches_the_kernels_own_object(note, make):
    (one, count_one), (other, count_other) = note(), note()
    run(lowered(make(one)), lowered(make(other)))
    assert (count_one(), count_other()) == (1, 1)


@pytest.mark.parametrize("kind", [list, dict, set, lambda: np.zeros(1), Log, lambda: ([],)])
def test_kernels_with_equal_objects_are_different(kind):
    one, other = kind(), kind()
    assert fingerprint(kernel_of(one)) == fingerprint(kernel_of(one)) != fingerprint(kernel_of(other))


@pytest.mark.parametrize("kind", [list, lambda: np.zeros(1)])
def test_objects_in_other_places(kind):
    def make(one, other, third):
        @numba.njit
        def kernel(x, out):
            out[:] = x
            with objmode():
                note(one, other, third)

        return kernel

    def note(*_): ...

    a, b = kind(), kind()
    found = [fingerprint(make(*objects)) for objects in ((a, a, b), (a, b, b), (b, a, a), (b, b, a), (a, b, a))]
    assert len({*found}) == 5 and fingerprint(make(a, a, b)) == found[0]


def test_kernels_with_objects_in_exchanged_places():
    def make(one, other):
        @numba.njit
        def kernel(x, out):
            out[:] = x
            with objmode():
                one[0] += 1
                other[0] += 10

        return kernel

    a, b = np.zeros(1), np.zeros(1)
    forth, back = lowered(make(a, b)), lowered(make(b, a))
    run(forth, back, back)
    assert (a[0], b[0]) == (21, 12)


def test_a_global_that_is_bound_anew():
    space = {"numba": numba, "log": []}
    exec("@numba.njit\ndef kernel(x, out):\n    out[:] = x\n    with numba.objmode():\n        log.append(1)\n", space)  # noqa: S102
    first = space["log"]
    run(lowered(space["kernel"]))
    second = space["log"] = []
    run(lowered(space["kernel"]))
    assert (len(first), len(second)) == (1, 1)


def test_kernels_with_the_same_object_share_a_handler():
    seen = []

    def note(value):
        return len(seen)

    lowered(kernel_of(note))
    before = len(registered_targets())
    lowered(kernel_of(note))
    assert len(registered_targets()) == before


def test_without_object_mode_equal_objects_are_equal():
    def make(table):
        @numba.njit
        def kernel(x, out):
            out[:] = table

        return kernel

    assert fingerprint(make(np.zeros(1))) == fingerprint(make(np.zeros(1)))


def test_exported_kernels_are_compared_by_contents():
    """In this process, a loaded program calls the handler that is registered by its name."""
    (one, count_one), (other, count_other) = add_to_array(), add_to_array()
    for note in (one, other):
        for effects in (0, 2):
            program = export(jax.jit(numba_kernel(kernel_of(note), outs=X, has_side_effect=True)))(X)
            run(deserialize(program.serialize()).call, deserialize(program.serialize()).call)
            assert (count_one(), count_other()) == ((effects + 2, 0) if note is one else (4, effects + 2))
