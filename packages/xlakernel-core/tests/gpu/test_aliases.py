"""Inputs that share the memory of outputs, where XLA gives both the same memory and where it does not."""

import types

import pytest

pytest.importorskip("cuda.bindings")

from xlakernel.core.gpu import aliases
from xlakernel.core.gpu.aliases import copies, on_outputs, with_copies
from xlakernel.core.gpu.launchable import Launchable
from xlakernel.core.gpu.plan import Array, Copy, Pointer

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


ADDRESSES, SHARED = [10, 20, 30, 40, 50, 60], [60, 20, 40, 40, 50, 60]


def test_work_without_aliases_is_kept(work):
    _, make = work
    launchable = make()
    assert on_outputs(launchable) is with_copies(launchable) is launchable
    assert copies(launchable) == ()


def test_recorded_work_is_on_the_outputs(work):
    done, make = work
    launchable = on_outputs(make(aliases=ALIASES))
    launchable.launch(STREAM, ADDRESSES)
    run = launchable.prepare(STREAM, ADDRESSES)
    assert done == [("launch", STREAM, *SHARED), ("prepare",)]
    run()
    assert done[2:] == [("launch", STREAM, *SHARED)]
    assert copies(launchable) == (Copy(Pointer(0), Pointer(5), 16), Copy(Pointer(2), Pointer(3), 0))


def test_a_call_through_python_copies_first(work):
    done, make = work
    with_copies(make(aliases=ALIASES)).launch(STREAM, ADDRESSES)
    assert done == [("copy", 10, 60, 16, STREAM), ("launch", STREAM, *SHARED)]


def test_a_call_through_python_does_not_copy_memory_to_itself(work):
    done, make = work
    with_copies(make(aliases=ALIASES)).launch(STREAM, SHARED)
    assert done == [("launch", STREAM, *SHARED)]
