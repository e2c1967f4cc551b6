"""Inputs that share the memory of outputs, where XLA gives both the same memory and where it does not."""

import types

import pytest

pytest.importorskip("cuda.bindings")

from xlakernel.core.gpu import aliases
from xlakernel.core.gpu.aliases import with_aliases
from xlakernel.core.gpu.launchable import Launchable
from xlakernel.core.gpu.plan import Array

STREAM = 7
ARRAYS = (
    Array("input", 0, "float32", (4,)),
    Array("input", 1, "float32", (3,)),
    Array("input", 2, "float32", (0,)),
    Array("output", 0, "float32", (0,)),
    Array("output", 1, "int8", ()),
    Array("output", 2, "float32", (4,)),
)
ALIASES = ((0, 2), (2, 0))


@pytest.fixture
def work(monkeypatch):
    """Return what is done in order, copies among it, and a launchable that adds itself to this."""
    done = []

    def copy(destination, source, nbytes, stream):
        done.append(("copy", source, destination, nbytes, stream))
        return (0,)

    def launch(stream, addresses):
        done.append(("launch", stream, *addresses))

    def prepare(stream, addresses):
        done.append(("prepare",))
        return lambda: launch(stream, addresses)

    monkeypatch.setattr(aliases, "cuda", types.SimpleNamespace(cuMemcpyDtoDAsync=copy))
    monkeypatch.setattr(aliases, "check", lambda result: result)
    return done, lambda **options: Launchable("name", "f", "here:1", ARRAYS, launch, prepare, **options)


def test_work_without_aliases_is_kept(work):
    _, make = work
    launchable = make()
    assert with_aliases(launchable) is launchable


def test_the_same_memory_is_not_copied(work):
    done, make = work
    with_aliases(make(aliases=ALIASES)).launch(STREAM, [10, 20, 30, 40, 50, 10])
    assert done == [("launch", STREAM, 10, 20, 40, 40, 50, 10)]


def test_other_memory_gets_the_values_first_and_is_the_input_too(work):
    done, make = work
    with_aliases(make(aliases=ALIASES)).launch(STREAM, [10, 20, 30, 40, 50, 60])
    assert done == [("copy", 10, 60, 16, STREAM), ("launch", STREAM, 60, 20, 40, 40, 50, 60)]


def test_prepared_work_copies_when_it_is_launched(work):
    done, make = work
    run = with_aliases(make(aliases=ALIASES)).prepare(STREAM, [10, 20, 30, 40, 50, 60])
    assert done == [("prepare",)]
    run()
    assert done[1:] == [("copy", 10, 60, 16, STREAM), ("launch", STREAM, 60, 20, 40, 40, 50, 60)]
