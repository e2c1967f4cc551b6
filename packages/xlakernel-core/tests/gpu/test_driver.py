"""Calls of the CUDA driver from Python, with stand-ins for its functions."""

import itertools
import threading
import time
import types

import jax
import pytest

pytest.importorskip("cuda.bindings")

from xlakernel.core.errors import DeviceError, OutputSpecError, RecordingError
from xlakernel.core.gpu import driver
from xlakernel.core.gpu.recording import addresses, record


@pytest.fixture
def devices(monkeypatch):
    """Return a function that returns the devices of a driver of this version."""

    def ask(version):
        monkeypatch.setattr(jax, "local_devices", lambda backend: [types.SimpleNamespace(local_hardware_id=3)])
        monkeypatch.setattr(driver.cuda, "cuInit", lambda flags: (0,))
        monkeypatch.setattr(driver.cuda, "cuDriverGetVersion", lambda: (0, version))
        return driver.devices.__wrapped__()

    return ask


def test_the_devices_are_those_of_jax(devices):
    assert devices(12040) == (3,)


def test_a_driver_without_cuFuncGetParamInfo_is_refused(devices):
    with pytest.raises(DeviceError, match=r"driver is for CUDA 12\.3; .* for CUDA 12\.4 \(550 on Linux\) or newer"):
        devices(12030)


def test_no_current_device(monkeypatch):
    monkeypatch.setattr(driver.cuda, "cuCtxGetDevice", lambda: (201, None))
    monkeypatch.setattr(driver, "describe", lambda status: f"error {status}")
    with pytest.raises(DeviceError, match="error 201: no device's context is current in this thread"):
        driver.current_device()
    monkeypatch.setattr(driver.cuda, "cuCtxGetDevice", lambda: (0, 2))
    assert driver.current_device() == 2


@pytest.fixture
def limit(monkeypatch):
    """The dynamic shared memory of the one function that a driver has, in a list of what it was set to."""
    found = [48 << 10]

    def get(attribute, function):
        assert attribute == driver._MAX_DYNAMIC_SHARED_MEM
        now = found[-1]
        time.sleep(0.001)  # the driver lets other threads go on
        return 0, now

    def put(function, attribute, nbytes):
        assert attribute == driver._MAX_DYNAMIC_SHARED_MEM
        found.append(nbytes)
        return (0,)

    monkeypatch.setattr(driver.cuda, "cuFuncGetAttribute", get)
    monkeypatch.setattr(driver.cuda, "cuFuncSetAttribute", put)
    return found


def test_a_smaller_launch_leaves_the_limit_of_larger_ones(limit):
    for nbytes in (1 << 10, 200 << 10, 100 << 10, 200 << 10, 220 << 10):
        driver.allow_shared_mem(1, nbytes)
    assert limit == [48 << 10, 200 << 10, 220 << 10]


def test_threads_that_record_at_once_leave_the_largest_limit(limit):
    threads = [threading.Thread(target=driver.allow_shared_mem, args=(1, n << 10)) for n in range(100, 50, -1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert limit[-1] == max(limit) == 100 << 10


def test_temporaries_are_the_innermost_recordings(monkeypatch):
    monkeypatch.setattr(addresses.Ranges, "reserve", lambda self, nbytes: (self, nbytes))
    outer, inner = (object.__new__(addresses.Ranges) for _ in range(2))
    with outer.in_use():
        with inner.in_use():
            assert addresses.temporary(8) == (inner, 8)
        assert addresses.temporary(8) == (outer, 8)
    assert addresses.temporary(8) is None


GRANULE = 1 << 21


@pytest.fixture
def ranges(monkeypatch):
    """Return a function that returns `Ranges` of one device, and the list of what the driver was asked."""
    calls, next_address = [], itertools.count(1 << 40, 1 << 32)

    def stub(name, answer):
        monkeypatch.setattr(addresses.cuda, name, lambda *args: calls.append((name, *args[:2])) or answer())

    stub("cuMemAddressReserve", lambda: (0, next(next_address)))
    for name in ("cuMemMap", "cuMemSetAccess", "cuMemUnmap", "cuMemAddressFree"):
        stub(name, lambda: (0,))
    backing = addresses._Backing(GRANULE, "memory", "access")
    monkeypatch.setattr(addresses, "_backing", lambda device: backing)
    return lambda: addresses.Ranges(0), calls


def test_ranges_for_small_arrays_are_used_again(ranges):
    new, calls = ranges
    first, second = new(), new()
    starts = [first.reserve(8), first.reserve(100, shift=4), second.reserve(8)]
    assert len({start // GRANULE for start in starts}) == 3
    assert first.find(starts[1] - 4) == (1, -4) and first.find(starts[2]) is None and first.size(1) == 100
    first.free()
    second.free()
    made = len(calls)
    again = new()
    assert {again.reserve(16) // GRANULE for _ in starts} == {start // GRANULE for start in starts}
    assert len(calls) == made and again.size(2) == 16


def test_ranges_for_large_arrays_are_backed_and_freed_when_nothing_can_be_using_them(ranges, monkeypatch):
    new, calls = ranges
    now = [100.0]
    monkeypatch.setattr(addresses.time, "monotonic", lambda: now[0])
    large = new()
    start = large.reserve(3 * GRANULE, shift=256)
    begin = start - GRANULE - 256
    assert large.find(start + 3 * GRANULE + 8) == (0, 3 * GRANULE + 8)
    mapped = [call[1] for call in calls if call[0] == "cuMemMap"]
    assert mapped == [begin + k * GRANULE for k in range(1, 5)]
    made = len(calls)
    large.free()
    now[0] += addresses._REST - 1
    small = new()
    small.reserve(8)
    small.free()
    assert not {name for name, *_ in calls[made:]} & {"cuMemUnmap", "cuMemAddressFree"}
    now[0] += 1
    small.reserve(8)
    small.free()
    assert calls[-2:] == [
        ("cuMemUnmap", begin + GRANULE, 4 * GRANULE),
        ("cuMemAddressFree", begin, 6 * GRANULE),
    ]


def test_addresses_are_freed_if_no_memory_can_be_mapped(ranges, monkeypatch):
    """The error is the driver's own, and not that what was never mapped cannot be unmapped."""
    new, calls = ranges
    monkeypatch.setattr(addresses.cuda, "cuMemMap", lambda *_: (2,))
    monkeypatch.setattr("xlakernel.core.gpu.driver.describe", str)
    with pytest.raises(DeviceError, match=r"refused a request: 2"):
        new().reserve(8)
    assert [name for name, *_ in calls] == ["cuMemAddressReserve", "cuMemAddressFree"]


@pytest.mark.parametrize("status", [0, 901])
def test_missing_memory_for_temporaries_is_an_error(status):
    raised = RuntimeError("[2] Call to cuMemAlloc results in CUDA_ERROR_OUT_OF_MEMORY")
    with pytest.raises(DeviceError, match=r"f: .* too little free memory .*\[2\] Call to cuMemAlloc.*PREALLOCATE"):
        record._check_capture(status, raised, "f")


def test_an_exception_after_a_read_is_reported_as_the_read(monkeypatch):
    def refuse(graph, label):
        raise RecordingError(f"{label}: a copy to the host cannot be replayed.")

    monkeypatch.setattr(record, "read_graph", refuse)
    for raised in (ValueError("no spikes"), RuntimeError("[2] Call to cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY")):
        with pytest.raises(RecordingError, match=r"f: a copy to the host .* function then raised \w+Error: ") as caught:
            record._check_reads(None, raised, "f")
        assert caught.value.__cause__ is raised
    record._check_reads(None, OutputSpecError("f must not return a value"), "f")
    monkeypatch.setattr(record, "read_graph", lambda *_: None)
    record._check_reads(None, ValueError("no spikes"), "f")
