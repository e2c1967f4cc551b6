"""Random plans on random batches, compared with a model of the driver's calls."""

import itertools
import math
import struct

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from xlakernel.core.gpu.plan import Array, Copy, Fill, Launch, Plan, Pointer
from xlakernel.core.gpu.replaying.launch import build_handler

STREAM = 0x5EED
EXTENTS = st.lists(st.integers(0, 4), max_size=3).map(tuple)
DTYPES = st.sampled_from(["bool", "int8", "float16", "bfloat16", "float32", "complex64", "int64", "complex128"])
COUNTS = st.integers(0, 5)
PITCHES = st.integers(0, 1 << 40)


@st.composite
def launches(draw, bases):
    sizes = draw(st.lists(st.sampled_from([0, 1, 2, 4, 8, 16, 72]), max_size=6))
    offsets = tuple(itertools.accumulate(sizes, initial=0))
    block = draw(st.binary(min_size=offsets[-1], max_size=offsets[-1]))
    places = [at for at, size in zip(offsets[:-1], sizes, strict=True) for at in range(at, at + size - 7, 8)]
    pointers = [(at, draw(pointers_into(bases))) for at in places if bases and draw(st.booleans())]
    number = st.integers(0, (1 << 32) - 1)
    grid, threads = draw(st.tuples(number, number, number)), draw(st.tuples(number, number, number))
    attributes = b"".join(struct.pack("<II64s", i, 0, bytes(range(64))) for i in range(draw(st.integers(0, 3))))
    handle = draw(st.integers(1, (1 << 63) - 1))
    step = Launch("k", handle, grid, threads, draw(number), block, offsets[:-1], tuple(pointers), attributes)
    return step, sizes


def pointers_into(bases):
    return st.builds(Pointer, st.integers(0, bases - 1), st.integers(-(1 << 34), 1 << 34))


@st.composite
def plans(draw):
    """A plan, and for each step the sizes of its parameters."""
    arrays = tuple(
        Array(source, i, draw(DTYPES), draw(EXTENTS))
        for source, count in (("input", draw(st.integers(0, 3))), ("output", draw(st.integers(0, 3))))
        for i in range(count)
    )
    scratch = tuple(draw(st.lists(st.integers(0, 100), max_size=2)))
    bases = len(arrays) + len(scratch)
    address = st.integers(1, (1 << 62) - 1)
    address = st.one_of(address, pointers_into(bases)) if bases else address
    fill = st.builds(Fill, address, st.integers(0, (1 << 32) - 1), st.sampled_from([1, 2, 4]), COUNTS, COUNTS, PITCHES)
    copy = st.builds(Copy, address, address, *[COUNTS] * 3, *[PITCHES] * 4)
    step = st.one_of(launches(bases), fill.map(lambda s: (s, ())), copy.map(lambda s: (s, ())))
    steps = draw(st.lists(step, max_size=5))
    return Plan(arrays, tuple(s for s, _ in steps), scratch), [sizes for _, sizes in steps]


@st.composite
def batches(draw, plan):
    """The dimensions of a batch, and on which axes which inputs are shared."""
    batch = draw(st.lists(st.sampled_from([0, 1, 2, 3]), max_size=3).map(tuple)) if plan.arrays else ()
    axes = st.sets(st.integers(0, len(batch) - 1)) if batch else st.just(set())
    shared = {i: draw(axes) for i, array in enumerate(plan.arrays) if array.source == "input"}
    # The batch has an extent only if an array has it.
    if not any(array.source == "output" for array in plan.arrays):
        batch = tuple(1 if all(a in own for own in shared.values()) else extent for a, extent in enumerate(batch))
    return batch, shared


def expected_calls(plan, sizes, placed, batch):
    """Return the expected calls of the driver: the plan's steps for each slice of the batch."""
    calls = []
    for index in itertools.product(*map(range, batch)):
        bases = []
        for (_, shape, address), array in zip(placed, plan.arrays, strict=False):
            flat = 0
            for own, i in zip(shape[: len(batch)], index, strict=True):
                flat = flat * own + (i if own != 1 else 0)
            bases.append(address + flat * array.nbytes)
        bases += [address for *_, address in placed[len(plan.arrays) :]]
        for step, own in zip(plan.steps, sizes, strict=True):
            calls += expected_call(step, own, bases)
    return calls


def expected_call(step, sizes, bases):
    def at(place):
        return (bases[place.array] + place.offset if isinstance(place, Pointer) else place) % (1 << 64)

    if isinstance(step, Launch):
        block = bytearray(step.parameters)
        for offset, pointer in step.pointers:
            block[offset : offset + 8] = struct.pack("<Q", at(pointer))
        values = tuple(bytes(block[o : o + size]) for o, size in zip(step.offsets, sizes, strict=True))
        config = (step.grid, step.block, step.shared_mem, STREAM, step.attributes)
        return [("cuLaunchKernelEx", step.handle, *config, values)]
    if isinstance(step, Fill):
        value, bits = step.value % (1 << 8 * step.itemsize), 8 * step.itemsize
        if step.width * step.height == 0:
            return []
        if step.height == 1:
            return [(f"cuMemsetD{bits}Async", at(step.destination), value, step.width, STREAM)]
        sizes = (step.width, step.height)
        return [(f"cuMemsetD2D{bits}Async", at(step.destination), step.pitch, value, *sizes, STREAM)]
    if math.prod((step.width, step.height, step.depth)) == 0:
        return []
    if step.height == step.depth == 1:
        if at(step.source) == at(step.destination):
            return []
        return [("cuMemcpyDtoDAsync_v2", at(step.destination), at(step.source), step.width, STREAM)]
    fields = {"srcMemoryType": 2, "srcDevice": at(step.source), "dstMemoryType": 2, "dstDevice": at(step.destination)}
    fields |= {"srcPitch": step.source_pitch, "srcHeight": step.source_height, "Depth": step.depth}
    fields |= {"dstPitch": step.destination_pitch, "dstHeight": step.destination_height}
    fields |= {"WidthInBytes": step.width, "Height": step.height}
    return [("cuMemcpy3DAsync_v2", {name: value for name, value in fields.items() if value}, STREAM)]


def assert_asks_what_the_model_says(driver, fake_call, arrays_at, data):
    plan, sizes = data.draw(plans())
    batch, shared = data.draw(batches(plan))
    # Launches of one handle take the same parameters.
    handles = [step.handle for step in plan.steps if isinstance(step, Launch)]
    if len(set(handles)) < len(handles):
        return
    driver.parameter_sizes = {
        step.handle: own for step, own in zip(plan.steps, sizes, strict=True) if isinstance(step, Launch)
    }
    inputs, outputs = arrays_at(plan, batch, shared)
    call = fake_call(inputs, outputs)
    driver.calls.clear()
    handler = build_handler([plan], label="l", functions=driver.functions)
    assert call.run(handler) is None, call.errors
    assert driver.calls == expected_calls(plan, sizes, [*inputs, *outputs], batch)


# The fixtures keep nothing from one example to the next but what each sets anew.
SETTINGS = {"deadline": None, "suppress_health_check": [HealthCheck.function_scoped_fixture]}


@settings(max_examples=150, **SETTINGS)
@given(data=st.data())
def test_any_plan_calls_the_driver_as_the_model_does(driver, fake_call, arrays_at, data):
    assert_asks_what_the_model_says(driver, fake_call, arrays_at, data)


@pytest.mark.slow
@settings(max_examples=2000, **SETTINGS)
@given(data=st.data())
def test_many_plans_call_the_driver_as_the_model_does(driver, fake_call, arrays_at, data):
    assert_asks_what_the_model_says(driver, fake_call, arrays_at, data)


@settings(max_examples=150, **SETTINGS)
@given(data=st.data())
def test_a_call_that_differs_anywhere_is_refused(driver, fake_call, arrays_at, data):
    plan, _ = data.draw(plans().filter(lambda plan: plan[0].arrays))
    batch, shared = data.draw(batches(plan))
    inputs, outputs = arrays_at(plan, batch, shared)
    described = [*inputs, *outputs]
    which = data.draw(st.integers(0, len(plan.arrays) - 1))
    dtype, shape, address = described[which]
    changes = [("uint16", shape, address)]
    own = len(plan.arrays[which].shape)
    if own:  # an extent of its own
        axis = len(shape) - data.draw(st.integers(1, own))
        changes.append((dtype, (*shape[:axis], shape[axis] + 1, *shape[axis + 1 :]), address))
    if len(plan.arrays) > 1:  # a rank that the others do not have
        changes.append((dtype, (1, *shape), address))
    described[which] = data.draw(st.sampled_from(changes))
    driver.calls.clear()
    call = fake_call(described[: len(inputs)], described[len(inputs) :])
    handler = build_handler([plan], label="l", functions=driver.functions)
    assert call.run(handler) == call.OUR_ERROR
    assert driver.calls == []
