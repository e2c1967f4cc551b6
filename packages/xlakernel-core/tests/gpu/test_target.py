"""Registration of a launchable: its name, its devices, and the objects that it keeps alive."""

import contextlib
import gc
import types
import weakref

import pytest

pytest.importorskip("cuda.bindings")

from xlakernel.core.errors import DeviceError, RecordingError
from xlakernel.core.ffi.registry import Handler
from xlakernel.core.gpu import target
from xlakernel.core.gpu.launchable import Launchable
from xlakernel.core.gpu.plan import Array, Copy, Fill, Launch, Plan, Pointer


class Kernel:
    """A kernel that a library unloads when there is no reference to it."""


class DeviceArray:
    def __init__(self, begin):
        self.__cuda_array_interface__ = {"data": (begin, False), "shape": (4,), "typestr": "<f4", "version": 3}


@pytest.fixture
def registered(monkeypatch):
    """The handlers that were registered, by name, the devices of recordings, and the shared memory that was allowed.

    There is no GPU.
    """
    handlers, recorded, allowed = {}, [], []

    def record(launchable, device):
        recorded.append(device)
        bound = device if launchable.closed_over else None
        steps = launchable.launch(0, [0] * len(launchable.arrays)) or ()
        return Plan(launchable.arrays, steps, device=bound), list(launchable.closed_over)

    stubs = {
        "_targets": {},
        "devices": lambda: (0, 1),
        "usual_device": lambda: 0,
        "context_of": lambda device: contextlib.nullcontext(),
        "device_of": lambda address: address >> 40,  # as if each device had a part of the addresses
        "load_kernel": lambda handle: handle,
        "allow_shared_mem": lambda function, nbytes: allowed.append((function, nbytes)),
        "record": record,
        "build_handler": lambda plans, label: Handler(1, [plan.device for plan in plans]),
        "build_debug_handler": lambda launchable, once: Handler(1, once),
        "ensure_registered": lambda name, platform, build, recipe: handlers.setdefault(name, build()),
    }
    for name, stub in stubs.items():
        monkeypatch.setattr(target, name, stub)
    return types.SimpleNamespace(handlers=handlers, recorded=recorded, allowed=allowed)


def launchable(name="name", arrays=(), steps=(), **options):
    return Launchable(name, "f", "here:1", arrays, lambda stream, addresses: steps, **options)


def test_a_kernel_stays_when_its_name_is_bound_to_another_one(registered):
    kernel = Kernel()
    found = weakref.ref(kernel)
    target.register(launchable(closed_over=[lambda: kernel]))
    kernel = None
    gc.collect()
    assert found() is not None


@pytest.mark.parametrize("device", [0, 1])
def test_what_refers_to_device_arrays_is_recorded_where_they_are(registered, device):
    target.register(launchable(closed_over=[DeviceArray((device << 40) + 4096)]))
    assert registered.recorded == [device]


def test_what_refers_to_arrays_of_several_devices_is_recorded_on_the_usual_one(registered):
    target.register(launchable(closed_over=[DeviceArray(4096), DeviceArray((1 << 40) + 4096)]))
    assert registered.recorded == [0]


@pytest.mark.parametrize("debug", [False, True])
@pytest.mark.parametrize("once", [False, True])
def test_another_process_registers_the_same_name(registered, monkeypatch, once, debug):
    name = target.register(launchable(), once=once, debug=debug).name
    first = registered.handlers.pop(name)
    monkeypatch.setattr(target, "_targets", {})
    assert target.register_again(launchable("its own name there"), name, debug=debug).name == name
    if debug:
        assert registered.handlers[name].keep_alive is first.keep_alive is once


ARRAYS = (Array("input", 0, "float32", (4,)), Array("output", 0, "float32", (4,)), Array("output", 1, "int8", ()))
FILL = Fill(1 << 30, value=0, itemsize=1, width=4)
KERNEL_OF = {"kernel": "k", "handle": 7, "grid": (1, 1, 1), "block": (1, 1, 1)}


@pytest.mark.parametrize("steps", [(), (FILL,), (Copy(Pointer(0), 1 << 30, width=4),)])
def test_a_plan_that_has_no_output_to_write_to_is_refused(registered, steps):
    with pytest.raises(RecordingError, match=r"output 0 \(float32\[4\]\), or output 1 \(int8\[\]\) .* another stream"):
        target.register(launchable(arrays=ARRAYS, steps=steps))
    target.register(launchable(arrays=ARRAYS, steps=steps, aliases=((0, 0), (0, 1))))
    target.register(launchable("no output", arrays=ARRAYS[:1], steps=steps))


@pytest.mark.parametrize(
    "step",
    [
        Fill(Pointer(2), value=0, itemsize=1, width=1),
        Copy(Pointer(0), Pointer(1), width=4),
        Launch(**KERNEL_OF, parameters=bytes(8), offsets=(0,), pointers=((0, Pointer(1, 4)),)),
    ],
)
def test_one_output_is_enough(registered, step):
    target.register(launchable(arrays=ARRAYS, steps=(FILL, step)))
    assert list(registered.handlers) == ["name"]


def test_the_shared_memory_of_a_recorded_kernel_is_allowed_on_the_other_gpus(registered):
    target.register(launchable(steps=(Launch(**KERNEL_OF, shared_mem=99_000),)))
    assert registered.recorded == [0] and registered.allowed == [(KERNEL_OF["handle"], 99_000)]


def test_a_gpu_that_allows_a_recorded_kernel_less_shared_memory_is_left_to_the_replay(registered, monkeypatch):
    def refuse(function, nbytes):
        raise DeviceError("invalid argument")

    monkeypatch.setattr(target, "allow_shared_mem", refuse)
    target.register(launchable(steps=(Launch(**KERNEL_OF, shared_mem=99_000),)))
    assert list(registered.handlers) == ["name"]


@pytest.mark.parametrize("debug", [False, True])
@pytest.mark.parametrize("record", [True, False, "auto"])
def test_registering_without_a_gpu_is_an_error(registered, monkeypatch, record, debug):
    def missing():
        raise DeviceError("needs an NVIDIA GPU")

    monkeypatch.setattr(target, "devices", missing)
    with pytest.raises(DeviceError, match="needs an NVIDIA GPU"):
        target.register(launchable(record=record), debug=debug)
