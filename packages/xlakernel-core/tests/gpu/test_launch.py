"""Calls of the CUDA driver by a handler: parameters, relocated pointers, order, and omitted steps."""

import struct

import pytest

from xlakernel.core.errors import DtypeError
from xlakernel.core.gpu.plan import Array, Copy, Fill, Launch, Plan, Pointer
from xlakernel.core.gpu.replaying.launch import build_handler

STREAM = 0x5EED
X, Y, OUT = 0x10_0000_0000, 0x11_0000_0000, 0x12_0000_0000
ARRAYS = (
    Array("input", 0, "float32", (4,)),
    Array("input", 1, "int32", ()),
    Array("output", 0, "float64", (2, 3)),
)


def plan_of(*steps, **options):
    return Plan(ARRAYS, steps, **options)


def add(driver, *pointers, handle=0xF00, **options):
    """Return a launch with pointers as parameters, which the driver reads."""
    driver.parameter_sizes[handle] = [8] * len(pointers)
    offsets = tuple(range(0, 8 * len(pointers), 8))
    options = {"grid": (3, 1, 1), "block": (32, 1, 1)} | options
    places = tuple(zip(offsets, pointers, strict=True))
    return Launch("add", handle, parameters=bytes(8 * len(pointers)), offsets=offsets, pointers=places, **options)


def launched(*addresses, handle=0xF00, grid=(3, 1, 1), block=(32, 1, 1), shared=0, stream=STREAM, attributes=b""):
    values = tuple(struct.pack("<Q", address) for address in addresses)
    return ("cuLaunchKernelEx", handle, grid, block, shared, stream, attributes, values)


def test_a_launch_has_its_configuration_and_its_pointers(driver, replay):
    step = add(driver, Pointer(0), Pointer(2), grid=(7, 6, 5), block=(4, 3, 2), shared_mem=99_000)
    expected = launched(X, OUT, grid=(7, 6, 5), block=(4, 3, 2), shared=99_000)
    assert replay(plan_of(step)) == [expected]


def test_everything_but_the_pointers_is_as_it_was_recorded(driver, replay):
    block = bytes(range(40))
    sizes = [8, 8, 4, 1, 16]
    driver.parameter_sizes[0xF00] = sizes
    step = Launch(
        "k", 0xF00, (1, 1, 1), (1, 1, 1), 0, block, (0, 8, 16, 20, 24), ((8, Pointer(1)), (29, Pointer(0, 5)))
    )
    ((*_, found),) = replay(plan_of(step))
    moved = block[:8] + struct.pack("<Q", Y) + block[16:29] + struct.pack("<Q", X + 5) + block[37:]
    assert found == tuple(moved[at : at + size] for at, size in zip(step.offsets, sizes, strict=True))


@pytest.mark.parametrize("offset", [0, 12, -8, 1 << 40], ids=str)
def test_a_pointer_may_be_anywhere_beside_its_array(driver, replay, offset):
    step = add(driver, Pointer(2, offset))
    assert replay(plan_of(step)) == [launched(OUT + offset)]


def test_a_kernel_without_parameters_is_launched(driver, replay):
    assert replay(plan_of(add(driver))) == [launched()]


@pytest.mark.parametrize("count", [1, 3])
def test_attributes_arrive_as_they_were_recorded(driver, replay, count):
    attributes = b"".join(struct.pack("<II8Q", i + 1, 0, *range(i, i + 8)) for i in range(count))
    assert replay(plan_of(add(driver, attributes=attributes))) == [launched(attributes=attributes)]


def test_a_large_block_of_parameters_is_passed_on(driver, replay):
    block = bytes(i % 251 for i in range(32_764))
    driver.parameter_sizes[0xF00] = [len(block)]
    step = Launch("k", 0xF00, (1, 1, 1), (1, 1, 1), 0, block, (0,))
    assert replay(plan_of(step))[0][-1] == (block,)


FILLS = {
    "one row": (Fill(Pointer(0, 4), 0xAB, 1, 12), ("cuMemsetD8Async", X + 4, 0xAB, 12, STREAM)),
    "two bytes": (Fill(Pointer(0), 0xABCD, 2, 3), ("cuMemsetD16Async", X, 0xABCD, 3, STREAM)),
    "four bytes": (Fill(Pointer(2), 0xFFFFFFFF, 4, 9), ("cuMemsetD32Async", OUT, 0xFFFFFFFF, 9, STREAM)),
    "rows": (Fill(Pointer(2), 7, 1, 8, 2, 24), ("cuMemsetD2D8Async", OUT, 24, 7, 8, 2, STREAM)),
    "rows of two bytes": (Fill(Pointer(2), 7, 2, 8, 2, 24), ("cuMemsetD2D16Async", OUT, 24, 7, 8, 2, STREAM)),
    "rows of four bytes": (Fill(Pointer(2), 7, 4, 5, 2, 24), ("cuMemsetD2D32Async", OUT, 24, 7, 5, 2, STREAM)),
    "an address that stays": (Fill(0xDEAD_0000_0000, 0, 1, 5), ("cuMemsetD8Async", 0xDEAD_0000_0000, 0, 5, STREAM)),
    "the low bits": (Fill(Pointer(0), 0xFFFFFFFF, 1, 2), ("cuMemsetD8Async", X, 0xFF, 2, STREAM)),
    "a long row": (Fill(Pointer(0), 0, 1, 1 << 35), ("cuMemsetD8Async", X, 0, 1 << 35, STREAM)),
}


@pytest.mark.parametrize("name", FILLS)
def test_memory_is_filled(replay, name):
    step, expected = FILLS[name]
    assert replay(plan_of(step)) == [expected]


def memcpy(**fields):
    return {"srcMemoryType": 2, "dstMemoryType": 2} | fields


COPIES = {
    "one row": (Copy(Pointer(0), Pointer(2, 8), 16), ("cuMemcpyDtoDAsync_v2", OUT + 8, X, 16, STREAM)),
    "from an address that stays": (Copy(0xABC0, Pointer(2), 16), ("cuMemcpyDtoDAsync_v2", OUT, 0xABC0, 16, STREAM)),
    "to an address that stays": (Copy(Pointer(0), 0xABC0, 16), ("cuMemcpyDtoDAsync_v2", 0xABC0, X, 16, STREAM)),
    "rows": (
        Copy(Pointer(0, 4), Pointer(2), 8, 2, source_pitch=12, destination_pitch=24),
        (
            "cuMemcpy3DAsync_v2",
            memcpy(srcDevice=X + 4, dstDevice=OUT, srcPitch=12, dstPitch=24, WidthInBytes=8, Height=2, Depth=1),
            STREAM,
        ),
    ),
    "slices of one row": (
        Copy(Pointer(0), 0xABC0, 8, 1, 3, 12, 5, 16, 7),
        (
            "cuMemcpy3DAsync_v2",
            memcpy(srcDevice=X, dstDevice=0xABC0, srcPitch=12, srcHeight=5, dstPitch=16, dstHeight=7)
            | {"WidthInBytes": 8, "Height": 1, "Depth": 3},
            STREAM,
        ),
    ),
}


def test_a_copy_of_memory_to_itself_is_left_out(driver, replay):
    assert replay(plan_of(Copy(Pointer(0), Pointer(0), 16), add(driver, Pointer(0)))) == [launched(X)]


@pytest.mark.parametrize("name", COPIES)
def test_memory_is_copied(replay, name):
    step, expected = COPIES[name]
    assert replay(plan_of(step)) == [expected]


@pytest.mark.parametrize(
    "step",
    [Fill(Pointer(0), 1, 4, 0), Fill(Pointer(0), 1, 4, 3, 0, 12), *(Copy(0, 0, *n) for n in [(0,), (1, 0), (1, 1, 0)])],
    ids=str,
)
def test_a_step_of_no_bytes_is_left_out(driver, replay, step):
    assert replay(plan_of(step)) == []
    assert replay(plan_of(step, add(driver, Pointer(0)), step)) == [launched(X)]


def test_steps_keep_their_order(driver, replay):
    steps = [add(driver, Pointer(0), handle=1), FILLS["rows"][0], add(driver, handle=2), COPIES["rows"][0]]
    calls = [launched(X, handle=1), FILLS["rows"][1], launched(handle=2), COPIES["rows"][1]]
    assert replay(plan_of(*steps, *steps)) == calls * 2
    assert replay(plan_of(*reversed(steps))) == calls[::-1]


def test_a_plan_without_steps_asks_nothing(replay):
    assert replay(plan_of()) == replay(Plan((), ())) == replay(plan_of(), batch=(3,)) == []


def test_a_call_without_arrays_is_replayed(driver, replay):
    assert replay(Plan((), (add(driver), Fill(0xABC0, 1, 1, 1)))) == [
        launched(),
        ("cuMemsetD8Async", 0xABC0, 1, 1, STREAM),
    ]


def test_scratch_is_counted_on_behind_the_arrays(driver, replay):
    plan = plan_of(add(driver, Pointer(3, 8), Pointer(4), Pointer(2)), scratch=(64, 128))
    scratch = [OUT + 0x1_0000_0000 * i for i in (1, 2)]
    assert replay(plan) == [launched(scratch[0] + 8, scratch[1], OUT)]
    # The slices of a batch use it one after the other.
    assert replay(plan, batch=(2,)) == [launched(scratch[0] + 8, scratch[1], OUT + 48 * i) for i in range(2)]


# Batches.


def test_each_slice_is_replayed_in_order_on_its_part_of_the_arrays(driver, replay):
    steps = (
        add(driver, Pointer(0, 4), Pointer(1), Pointer(2)),
        Fill(Pointer(2), 0, 1, 48),
        Copy(Pointer(0), 0xABC0, 16),
    )
    expected = []
    for i in range(3):
        expected.append(launched(X + 16 * i + 4, Y + 4 * i, OUT + 48 * i))
        expected.append(("cuMemsetD8Async", OUT + 48 * i, 0, 48, STREAM))
        expected.append(("cuMemcpyDtoDAsync_v2", 0xABC0, X + 16 * i, 16, STREAM))
    assert replay(plan_of(*steps), batch=(3,)) == expected


def test_nested_batches_share_what_has_one_there(driver, replay):
    step = add(driver, Pointer(0), Pointer(1), Pointer(2))
    calls = replay(plan_of(step), batch=(2, 3), shared={0: (0,), 1: (1,)})
    assert calls == [launched(X + 16 * j, Y + 4 * i, OUT + 48 * (3 * i + j)) for i in range(2) for j in range(3)]


def test_an_input_may_be_shared_by_all_slices(driver, replay):
    step = add(driver, Pointer(0), Pointer(1), Pointer(2))
    calls = replay(plan_of(step), batch=(2, 2), shared={0: (0, 1)})
    assert calls == [launched(X, Y + 4 * i, OUT + 48 * i) for i in range(4)]


def test_a_batch_of_one_is_one_call(driver, replay):
    assert replay(plan_of(add(driver, Pointer(0))), batch=(1, 1)) == [launched(X)]


@pytest.mark.parametrize("batch", [(0,), (0, 3), (3, 0), (2, 0, 1 << 40)], ids=str)
def test_an_empty_batch_asks_nothing(driver, replay, batch):
    assert replay(plan_of(add(driver, Pointer(0))), batch=batch, shared={0: range(3)}) == []


def test_a_batch_of_a_plan_without_outputs_is_counted_by_its_inputs(driver, replay):
    plan = Plan(ARRAYS[:2], (add(driver, Pointer(0), Pointer(1)),))
    assert replay(plan, batch=(2,), shared={0: (0,)}) == [launched(X, Y), launched(X, Y + 4)]


def test_arrays_without_elements_are_passed_on(driver, replay):
    plan = Plan((Array("input", 0, "float32", (0, 5)), Array("output", 0, "int8", (0,))), (add(driver, Pointer(0)),))
    assert replay(plan) == [launched(X)]
    assert replay(plan, batch=(2,)) == [launched(X)] * 2


# Streams, devices and the handshake.


def test_the_stream_is_xlas(driver, fake_call):
    handler = build_handler([Plan((), (add(driver),))], label="l", functions=driver.functions)
    for stream in (0x1111, 0, (1 << 63) - 1):
        assert fake_call(stream=stream).run(handler) is None
    assert driver.calls == [launched(stream=stream) for stream in (0x1111, None, (1 << 63) - 1)]


@pytest.mark.parametrize(("given", "seen"), [(0xABCD, 0xABCD), (0, None)])
def test_a_given_stream_replaces_xlas(driver, replay, fake_call, given, seen):
    plan = Plan((), (add(driver), Fill(1, 0, 1, 1)))
    handler = build_handler([plan], label="l", functions=driver.functions, stream=given)
    assert fake_call(stream=None).run(handler) is None
    assert driver.calls == [launched(stream=seen), ("cuMemsetD8Async", 1, 0, 1, seen)]


def test_an_error_of_the_stream_is_returned(driver, fake_call):
    handler = build_handler([Plan((), (add(driver),))], label="l", functions=driver.functions)
    call = fake_call(stream=None)
    assert call.run(handler) == call.STREAM_ERROR
    assert driver.calls == call.errors == []


def test_each_device_has_its_plan(driver, fake_call):
    plans = [Plan((), (add(driver, handle=0xA0 + device),), device=device) for device in (2, 0, 5)]
    handler = build_handler(plans, label="l", functions=driver.functions)
    for device in (0, 5, 2, 5):
        driver.device = device
        assert fake_call().run(handler) is None
    assert [call[1] for call in driver.calls] == [0xA0, 0xA5, 0xA2, 0xA5]


def test_a_plan_for_any_device_does_not_read_the_current_one(driver, replay):
    driver.refusals["cuCtxGetDevice"] = 201
    assert replay(Plan((), (add(driver),))) == [launched()]


def test_xla_may_capture_calls(driver, fake_call):
    handler = build_handler([Plan((), (add(driver),))], label="l", functions=driver.functions)
    assert fake_call().handshake(handler) == (0, 0, 1)
    assert driver.calls == []


def test_a_dtype_that_xla_has_no_number_for_is_refused(driver):
    with pytest.raises(DtypeError, match=r"input 0 \(float8_e4m3fn\[2\]\).*allowed: bool"):
        build_handler([Plan((Array("input", 0, "float8_e4m3fn", (2,)),), ())], label="l", functions=driver.functions)


def test_each_devices_plan_may_need_another_size_of_scratch(driver, fake_call):
    plans = [Plan((), (add(driver, Pointer(0)),), scratch=(size,), device=d) for d, size in enumerate((8, 16))]
    handler = build_handler(plans, label="l", functions=driver.functions)
    calls = [fake_call([], [("uint8", (size,), X)]) for size in (8, 16)]
    answers = []
    for driver.device in range(2):
        answers += [call.run(handler) is None for call in calls]
    assert answers == [True, True, False, True]
