"""Errors of a handler: a call unlike the recorded one, and a step that the CUDA driver refuses."""

import dataclasses

import pytest

from xlakernel.core.ffi.abi import ERROR_CODES
from xlakernel.core.gpu.plan import Array, Copy, Fill, Launch, Plan, Pointer
from xlakernel.core.gpu.replaying.launch import build_handler

ARRAYS = (Array("input", 0, "float32", (4,)), Array("input", 1, "int8", ()), Array("output", 0, "float32", (4, 2)))
STEP = Launch("k", 1, (3, 2, 1), (32, 4, 1), 1024)
PLAN = Plan(ARRAYS, (STEP,), scratch=(64,))
INPUTS = [("float32", (4,), 0x1000), ("int8", (), 0x2000)]
OUTPUTS = [("float32", (4, 2), 0x3000), ("uint8", (64,), 0x4000)]


@pytest.fixture
def error_of(driver, fake_call):
    """Return a function that calls the handler of plans and returns the text and the code of its one error."""

    def error_of_(plans, *arrays, **options):
        handler = build_handler(plans, label="saxpy (a.py:7)", functions=driver.functions)
        call = fake_call(*arrays, **options)
        assert call.run(handler) == call.OUR_ERROR
        ((text, code),) = call.errors
        assert text.startswith("xlakernel: saxpy (a.py:7): ")
        return text, code

    return error_of_


# Calls other than the recorded one.


def swap(arrays, index, dtype=None, shape=None):
    old = arrays[index]
    return [*arrays[:index], (dtype or old[0], old[1] if shape is None else shape, old[2]), *arrays[index + 1 :]]


OTHER_CALLS = {
    "an input less": (INPUTS[:1], OUTPUTS),
    "no arrays": ([], []),
    "an input more": ([*INPUTS, INPUTS[0]], OUTPUTS),
    "no scratch": (INPUTS, OUTPUTS[:1]),
    "an output more": (INPUTS, [*OUTPUTS, OUTPUTS[0]]),
    "dtype": (swap(INPUTS, 0, dtype="int32"), OUTPUTS),
    "dtype of an output": (INPUTS, swap(OUTPUTS, 0, dtype="float64")),
    "extent": (swap(INPUTS, 0, shape=(5,)), OUTPUTS),
    "an extent of 1": (swap(INPUTS, 0, shape=(1,)), OUTPUTS),
    "last extent": (INPUTS, swap(OUTPUTS, 0, shape=(4, 3))),
    "first rank too low": (swap(INPUTS, 0, shape=()), OUTPUTS),
    "another rank too low": (INPUTS, swap(OUTPUTS, 0, shape=(8,))),
    "a batch dimension on one alone": (swap(INPUTS, 0, shape=(2, 4)), OUTPUTS),
    "a batch dimension on the others": (INPUTS, swap(OUTPUTS, 0, shape=(2, 4, 2))),
    "scratch too small": (INPUTS, swap(OUTPUTS, 1, shape=(63,))),
    "scratch of another dtype": (INPUTS, swap(OUTPUTS, 1, dtype="int8")),
    "scratch of another rank": (INPUTS, swap(OUTPUTS, 1, shape=(64, 1))),
}


@pytest.mark.parametrize("name", OTHER_CALLS)
def test_another_call_is_refused_with_what_was_recorded_and_what_came(driver, error_of, name):
    inputs, outputs = OTHER_CALLS[name]
    text, code = error_of([PLAN], inputs, outputs)
    assert code == ERROR_CODES["INVALID_ARGUMENT"]
    recorded = "recorded for input 0 (float32[4]), input 1 (int8[]), output 0 (float32[4,2]), then a result of 64 bytes"
    assert recorded in text
    came = [("input", *array) for array in inputs] + [("output", *array) for array in outputs]
    numbers = [*range(len(inputs)), *range(len(outputs))]
    described = [
        f"{source} {number} ({dtype}[{','.join(map(str, shape))}])"
        for number, (source, dtype, shape, _) in zip(numbers, came, strict=True)
    ]
    assert text.endswith(f"; the call has {', '.join(described) or 'no arrays'}.")
    assert driver.calls == []


def test_arrays_that_all_lack_a_dimension_are_refused(driver, fake_call):
    """Numbers before an array's extents in memory are not read as extents."""
    plan = Plan((Array("input", 0, "float32", (4, 2)), Array("output", 0, "float32", (4, 2))), ())
    handler = build_handler([plan], label="l", functions=driver.functions)
    array = ("float32", (2,), 0x1000)
    call = fake_call([array], [array], before=(4,))
    assert call.run(handler) == call.OUR_ERROR
    assert call.errors[0][0].endswith("the call has input 0 (float32[2]), output 0 (float32[2]).")


BATCHES = {
    "extents differ": ((2, 4), (3,), (3, 4, 2)),
    "an output is shared": ((3, 4), (3,), (1, 4, 2)),
    "an empty input": ((0, 4), (3,), (3, 4, 2)),
    "a full input of an empty batch": ((3, 4), (1,), (0, 4, 2)),
    "an axis of two": ((2, 3, 4), (2, 1), (2, 4, 4, 2)),
    "axes exchanged": ((2, 3, 4), (1, 1), (3, 2, 4, 2)),
}


@pytest.mark.parametrize("name", BATCHES)
def test_batches_that_do_not_belong_together_are_refused(driver, error_of, name):
    x, y, out = BATCHES[name]
    arrays = [("float32", x, 0x1000), ("int8", y, 0x2000)], [("float32", out, 0x3000), OUTPUTS[1]]
    text, code = error_of([PLAN], *arrays)
    assert code == ERROR_CODES["INVALID_ARGUMENT"]
    assert "batch dimensions" in text and f"float32[{','.join(map(str, out))}]" in text
    assert driver.calls == []


def test_scratch_may_be_larger(driver, fake_call):
    handler = build_handler([PLAN], label="l", functions=driver.functions)
    assert fake_call(INPUTS, swap(OUTPUTS, 1, shape=(65,))).run(handler) is None
    assert len(driver.calls) == 1


def test_attributes_are_refused(error_of):
    text, code = error_of([PLAN], INPUTS, OUTPUTS, attributes=2)
    assert text.endswith("and 2 attributes, which nothing reads.") and code == ERROR_CODES["INVALID_ARGUMENT"]


# Devices.


def test_a_device_without_a_plan_is_named_with_those_that_have_one(driver, error_of):
    driver.device = 7
    text, code = error_of([dataclasses.replace(PLAN, device=device) for device in (0, 3)], INPUTS, OUTPUTS)
    assert "this call runs on CUDA device 7; it was recorded for devices 0, 3." in text
    assert code == ERROR_CODES["INVALID_ARGUMENT"]
    assert driver.calls == []


def test_a_single_plan_for_a_device_runs_on_no_other(driver, error_of):
    driver.device = 1
    text, _ = error_of([dataclasses.replace(PLAN, device=0)], INPUTS, OUTPUTS)
    assert "runs on CUDA device 1; it was recorded for devices 0." in text


def test_a_missing_current_device_is_an_error(driver, error_of):
    driver.refusals["cuCtxGetDevice"] = 201
    text, code = error_of([dataclasses.replace(PLAN, device=0)], INPUTS, OUTPUTS)
    assert "the CUDA driver gives no current device: error 201, which has no name." in text
    assert code == ERROR_CODES["INTERNAL"]


# The driver refuses a step.

REFUSED = {
    "cuLaunchKernelEx": (STEP, "to launch kernel 'k' (grid (3, 2, 1), block (32, 4, 1), 1024 bytes of dynamic shared"),
    "cuMemsetD32Async": (
        Fill(Pointer(2, 8), 0, 4, 5),
        "to fill 1 × 5 elements of 4 bytes in output 0 (float32[4,2]), at byte 8:",
    ),
    "cuMemsetD2D8Async": (Fill(0xABC0, 0, 1, 5, 2, 8), "to fill 2 × 5 elements of 1 bytes in memory at 0xabc0:"),
    "cuMemcpyDtoDAsync_v2": (
        Copy(Pointer(0), Pointer(3, 4), 16),
        "to copy 1 × 1 × 16 bytes from input 0 (float32[4]), at byte 0 to temporary block 0 of 64 bytes, at byte 4:",
    ),
    "cuMemcpy3DAsync_v2": (Copy(Pointer(0), 0xABC0, 8, 2), "to copy 1 × 2 × 8 bytes from input 0"),
}


@pytest.mark.parametrize("function", REFUSED)
def test_a_refused_step_is_named(driver, error_of, function):
    step, text = REFUSED[function]
    driver.refusals[function] = 1
    plan = dataclasses.replace(PLAN, steps=(Fill(1, 0, 2, 0), Fill(1, 0, 2, 1), step, Fill(1, 0, 2, 1)))
    found, code = error_of([plan], INPUTS, OUTPUTS)
    assert f"the CUDA driver refused {text}" in found
    assert found.endswith("error 1, CUDA_ERROR_INVALID_VALUE.")
    assert code == ERROR_CODES["INTERNAL"]
    assert len(driver.calls) == 1, "what follows a refused step is not done"


@pytest.mark.parametrize(
    ("number", "code", "sticky"),
    [
        (1, "INTERNAL", False),
        (2, "RESOURCE_EXHAUSTED", False),
        (701, "RESOURCE_EXHAUSTED", False),
        (720, "INTERNAL", False),
        (700, "INTERNAL", True),
        (716, "INTERNAL", True),
        (719, "INTERNAL", True),
        (999, "INTERNAL", False),
    ],
)
def test_the_drivers_code_decides_the_advice(driver, error_of, number, code, sticky):
    driver.refusals["cuLaunchKernelEx"] = number
    text, found = error_of([PLAN], INPUTS, OUTPUTS)
    assert found == ERROR_CODES[code]
    assert f"error {number}, " in text
    assert ("An earlier kernel may be at fault" in text and "XLAKERNEL_DEBUG=1" in text) is sticky


def test_the_name_of_a_code_is_the_drivers(driver, error_of):
    driver.refusals["cuLaunchKernelEx"] = 700
    assert "error 700, CUDA_ERROR_ILLEGAL_ADDRESS. An earlier" in error_of([PLAN], INPUTS, OUTPUTS)[0]


def test_the_step_is_that_of_the_devices_plan(driver, error_of):
    plans = [
        dataclasses.replace(PLAN, steps=(dataclasses.replace(STEP, kernel=f"k{device}"),), device=device)
        for device in range(3)
    ]
    driver.device, driver.refusals["cuLaunchKernelEx"] = 2, 1
    assert "kernel 'k2'" in error_of(plans, INPUTS, OUTPUTS)[0]


def test_an_error_in_a_slice_ends_the_batch(driver, fake_call):
    plan = Plan(ARRAYS[:1], (Fill(Pointer(0), 0, 1, 16), STEP))
    driver.refusals["cuLaunchKernelEx"] = 1
    handler = build_handler([plan], label="l", functions=driver.functions)
    call = fake_call([("float32", (3, 4), 0x1000)])
    assert call.run(handler) == call.OUR_ERROR
    assert len(driver.calls) == 1
    del driver.refusals["cuLaunchKernelEx"]
    assert call.run(handler) is None, "a call after one that failed is as good as any"
    assert len(driver.calls) == 1 + 2 * 3


def test_text_is_cut_nowhere(driver, fake_call):
    driver.refusals["cuLaunchKernelEx"] = 1
    plan = Plan((), (dataclasses.replace(STEP, kernel="é\0z"),))
    call = fake_call()
    call.run(build_handler([plan], label="a\0b", functions=driver.functions))
    ((text, _),) = call.errors
    assert "a\\0b: " in text and "é" in text and text.endswith("CUDA_ERROR_INVALID_VALUE.")


def test_an_error_that_cannot_be_described_is_an_error(driver, fake_call, monkeypatch):
    driver.refusals["cuLaunchKernelEx"] = 1
    handler = build_handler([Plan((), (STEP,))], label="l", functions=driver.functions)
    monkeypatch.setattr("xlakernel.core.gpu.replaying.reports._name_step", lambda *_: 1 / 0)
    call = fake_call()
    assert call.run(handler) == call.OUR_ERROR
    ((text, code),) = call.errors
    assert "failed (code 1), and so did describing it: ZeroDivisionError" in text and code == ERROR_CODES["INTERNAL"]
