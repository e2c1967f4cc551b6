"""Plans of two hand-made recordings."""

import re
import struct

import numpy as np
import pytest

from xlakernel.core.errors import RecordingError
from xlakernel.core.gpu.launchable import Launchable
from xlakernel.core.gpu.plan import Array, Copy, Fill, Launch, Pointer
from xlakernel.core.gpu.recording.graph import Capture, merge_overlaps
from xlakernel.core.gpu.recording.match import Recording, StructMismatch, match

ARRAYS = (Array("input", 0, "float32", (8,)), Array("output", 0, "float32", (8,)))
ROOM = 1 << 21


class HandMadeRanges:
    """Ranges at made-up addresses: one for each array, and one for each temporary block."""

    def __init__(self, first, sizes=(32, 32)):
        self.starts = [first + 3 * ROOM * k for k in range(len(sizes))]
        self.sizes = sizes

    def find(self, address):
        for number, start in enumerate(self.starts):
            if start - ROOM <= address < start + 2 * ROOM:
                return number, address - start
        return None

    def size(self, number):
        return self.sizes[number]


def launch(*words, sizes=None, **changes):
    """Return a launch with parameters of 8 bytes, or of *sizes*; a word longer than that fills several."""
    sizes = sizes or (8,) * len(words)
    block = b"".join(
        struct.pack("<Q", word)[:size] if size <= 8 else word for word, size in zip(words, sizes, strict=True)
    )
    offsets = tuple(int(at) for at in np.cumsum((0, *sizes[:-1])))
    fields = {"kernel": "k", "handle": 7, "grid": (1, 1, 1), "block": (32, 1, 1)} | changes
    return Launch(**fields, parameters=block, offsets=offsets), sizes


def recording(first, steps, *, allocations=(), known=None, sizes=(32, 32), portable=True):
    found, sizes_of = [], {}
    for number, step in enumerate(steps):
        if isinstance(step, tuple):
            step, sizes_of[number] = step
        found.append(step)
    return Recording(
        Capture(tuple(found), sizes_of, tuple(allocations), portable), HandMadeRanges(first, sizes), known or {}
    )


A, B = 1 << 40, 1 << 41  # where the ranges of the recordings begin
OUT = 3 * ROOM  # where the output lies in them


def matched(one, two, **options):
    return match(one, two, Launchable("name", "f", "here:1", ARRAYS, lambda stream, addresses: None, **options), 0)


@pytest.mark.parametrize("offset", [0, 4, 32, -4, -ROOM, ROOM])
def test_a_word_that_moves_with_an_array_is_a_pointer(offset):
    plan, _ = matched(*(recording(at, [launch(at + offset, 5, at + OUT)]) for at in (A, B)))
    assert plan.steps[0].pointers == ((0, Pointer(0, offset)), (16, Pointer(1)))
    assert plan.steps[0].parameters[8:16] == struct.pack("<Q", 5)
    assert (plan.scratch, plan.device) == ((), None)


def test_pointers_inside_a_struct_are_found():
    def at(first):
        return recording(first, [launch(struct.pack("<QQQ", 8, first + 4, 8), sizes=(24,))])

    assert matched(at(A), at(B))[0].steps[0].pointers == ((8, Pointer(0, 4)),)


def test_fills_and_copies_have_addresses_too():
    def at(first):
        fill = Fill(first + OUT, value=3, itemsize=4, width=8)
        return recording(first, [fill, Copy(first + 16, first + OUT, width=16)])

    fill, copy = matched(at(A), at(B))[0].steps
    assert (fill.destination, copy.source, copy.destination) == (Pointer(1), Pointer(0, 16), Pointer(1))


@pytest.mark.parametrize("kind", ["own allocator", "on the stream", "same address again", "elsewhere"])
def test_temporary_memory_becomes_scratch(kind):
    def at(first, other, number):
        if kind == "own allocator":
            return recording(first, [launch(first + 2 * OUT + 8, first + 2 * OUT)], sizes=(32, 32, 100))
        if kind == "on the stream":
            steps, allocations = [launch(12345678 + 8, 12345678)], [(12345678, 100)]
            return recording(first, steps, allocations=allocations)
        begin = 1 << 36 if kind == "same address again" else other
        known = {begin: (begin, 100, number), begin + 8: (begin, 100, number)}
        return recording(first, [launch(begin + 8, begin)], known=known)

    plan, _ = matched(at(A, 1 << 36, 1), at(B, 1 << 37, 2))
    assert plan.scratch == (100,)
    assert plan.steps[0].pointers == ((0, Pointer(2, 8)), (8, Pointer(2, 0)))


@pytest.mark.parametrize(
    ("blocks", "expected"),
    [
        ([(1000, 16), (1016, 16)], [(1000, 16), (1016, 16)]),
        ([(1000, 16), (1000, 512)], [(1000, 512)]),  # freed, and allocated again in another size
        ([(1000, 512), (5000, 8), (1256, 512)], [(1000, 768), (5000, 8)]),
        ([(1000, 16), (2000, 16), (900, 2000), (5000, 8)], [(900, 2000), (5000, 8)]),
        ([(1000, 16), (1000, 16)], [(1000, 16)]),
    ],
)
def test_blocks_that_the_driver_puts_at_one_address_are_one(blocks, expected):
    assert merge_overlaps(blocks) == expected


def test_a_larger_block_at_the_address_of_a_smaller_one_has_room_in_the_scratch():
    def at(first):
        allocations = merge_overlaps([(1 << 30, 16), (1 << 30, 4096)])
        return recording(first, [launch(1 << 30), launch((1 << 30) + 1024)], allocations=allocations)

    plan, _ = matched(at(A), at(B))
    assert plan.scratch == (4096,)
    assert [step.pointers for step in plan.steps] == [((0, Pointer(2)),), ((0, Pointer(2, 1024)),)]


def test_the_end_of_a_temporary_block_is_its_own_unless_another_begins_there():
    def at(first):
        blocks = [(1 << 30, 64), ((1 << 30) + 64, 64)]
        words = [(1 << 30) + 64, (1 << 30) + 128]
        return recording(first, [launch(*words)], allocations=blocks)

    plan, _ = matched(at(A), at(B))
    assert plan.scratch == (64,)
    assert plan.steps[0].pointers == ((0, Pointer(2, 0)), (8, Pointer(2, 64)))


class DeviceArray:
    def __init__(self, begin, floats):
        self.__cuda_array_interface__ = {
            "data": (begin, False),
            "shape": (floats,),
            "typestr": "<f4",
            "version": 3,
        }


def test_a_device_array_that_the_function_refers_to_stays_and_is_kept():
    table = DeviceArray(1 << 30, 16)

    def function():
        return table

    known = {(1 << 30) + 8: (1 << 30, 4096, 9)}
    both = [recording(at, [launch((1 << 30) + 8, at)], known=known) for at in (A, B)]
    plan, kept = matched(*both, closed_over=[function])
    assert kept == [table]
    assert plan.steps[0].pointers == ((8, Pointer(0)),)
    assert plan.device == 0


@pytest.mark.parametrize("closed_over", [slice(0, 2), slice(0, 1), slice(1, 2)])
def test_arrays_that_the_function_takes_turns_with_are_no_temporary_memory(closed_over):
    arrays = [DeviceArray(1 << 30, 16), DeviceArray(1 << 31, 16)]
    known = {1 << 30: (1 << 30, 4096, 8), 1 << 31: (1 << 31, 4096, 9)}
    both = [recording(at, [launch(word)], known=known) for at, word in ((A, 1 << 30), (B, 1 << 31))]
    with pytest.raises(RecordingError, match=r"byte 0 of 4096 in allocation 8 and then to .* allocation 9"):
        matched(*both, closed_over=arrays[closed_over])


def test_temporary_memory_may_begin_where_an_array_ends_that_the_function_refers_to():
    table = DeviceArray((1 << 30) - 512, 512)
    known = {1 << 30: (1 << 30, 100, 8), 1 << 31: (1 << 31, 100, 9)}
    both = [recording(at, [launch(word)], known=known) for at, word in ((A, 1 << 30), (B, 1 << 31))]
    plan, kept = matched(*both, closed_over=[table])
    assert (plan.scratch, kept) == ((100,), [])


def test_a_pointer_to_unowned_memory_is_refused():
    known = {1 << 30: (1 << 30, 4096, 9)}
    both = [recording(at, [launch(1 << 30)], known=known) for at in (A, B)]
    with pytest.raises(RecordingError, match=r"parameter 0 of kernel 0 \(k\) is 0x40000000, .* 4096 bytes .* pool"):
        matched(*both, closed_over=[DeviceArray(1 << 31, 16)])


def test_an_odd_number_in_a_struct_is_no_pointer_unless_it_points_into_an_array():
    """A multiplier by which cuBLAS divides by 5 may be an address in a pool."""
    number, pool = 0x3CCCCCCCD, (0x3C0000000, 1 << 30, 9)
    both = [recording(at, [launch(struct.pack("<QQ", number, 5), sizes=(16,))], known={number: pool}) for at in (A, B)]
    plan, kept = matched(*both)
    assert (plan.steps[0].pointers, kept) == ((), [])
    assert plan.steps[0].parameters[:8] == struct.pack("<Q", number)
    array = DeviceArray(number - 1, 16)
    assert matched(*both, closed_over=[array])[1] == [array]
    alone = [recording(at, [launch(number)], known={number: pool}) for at in (A, B)]
    with pytest.raises(RecordingError, match="neither an argument"):
        matched(*alone)


def test_a_block_of_a_pool_behind_an_array_that_the_function_refers_to_is_not_part_of_it():
    at = (1 << 30) + 64  # where the array ends, in an allocation that goes on
    both = [recording(first, [launch(at)], known={at: (1 << 30, 4096, 9)}) for first in (A, B)]
    with pytest.raises(RecordingError, match="neither an argument"):
        matched(*both, closed_over=[DeviceArray(1 << 30, 16)])


def test_handles_of_one_context_bind_the_plan_to_its_device():
    both = [recording(at, [launch(at)], portable=False) for at in (A, B)]
    assert matched(*both)[0].device == 0


@pytest.mark.parametrize(
    ("first", "second", "text"),
    [
        ([launch(1)], [launch(2)], "parameter 0 of kernel 0 (k) is 0x1 and then 0x2"),
        ([launch(A)], [launch(B + 4)], "points to byte 0 of 32 in array 0 and then to byte 4 of 32 in array 0"),
        ([launch(A)], [launch(B + OUT)], "in array 0 and then to byte 0 of 32 in array 1"),
        ([launch(A)], [launch(7)], "and then to no memory"),
        ([launch(1, grid=(2, 1, 1))], [launch(1)], "kernel 0 (k) has grid (2, 1, 1) and then (1, 1, 1)"),
        ([launch(1, shared_mem=4)], [launch(1)], "has shared mem 4 and then 0"),
        ([launch(1, handle=8)], [launch(1)], "compiled anew each time"),
        ([launch(1), launch(1)], [launch(1)], "2 steps (k, k) the first time and 1 steps (k) the second"),
        ([Fill(A, 1, 4, 8)], [Fill(B, 2, 4, 8)], "fill 0 has value 1 and then 2"),
        ([Fill(5, 1, 4, 8)], [Fill(6, 1, 4, 8)], "an address of fill 0 is 0x5 and then 0x6"),
        ([Copy(A, A + OUT, 8)], [Copy(B, B + OUT, 12)], "copy 0 has width 8 and then 12"),
        ([Copy(A, A + OUT, 8)], [Fill(B, 0, 1, 8)], "1 steps (copy) the first time"),
    ],
)
def test_a_recording_that_differs_from_its_twin_is_named(first, second, text):
    with pytest.raises(RecordingError, match=re.escape(text)) as caught:
        matched(recording(A, first), recording(B, second))
    assert not isinstance(caught.value, StructMismatch)
    assert str(caught.value).startswith("f cannot be recorded")


@pytest.mark.parametrize(("rubbish", "text"), [((1, 2), "0x1 and then 0x2"), ((A + 8, 0), "then to no memory")])
def test_what_differs_inside_a_struct_may_be_padding(rubbish, text):
    both = [launch(struct.pack("<QQ", *words), sizes=(16,)) for words in zip((A, B), rubbish, strict=True)]
    with pytest.raises(StructMismatch, match=text):
        matched(recording(A, both[:1]), recording(B, both[1:]))


@pytest.mark.parametrize("rubbish", [(1, 2), (A + 8, 0), (1 << 30, 1 << 30)])
def test_what_no_kernel_reads_may_differ_and_look_like_pointers(rubbish):
    both = [launch(struct.pack("<QQ", *words), sizes=(16,)) for words in zip((A, B), rubbish, strict=True)]
    known = {1 << 30: (1 << 30, 4096, 9)}

    def unused(sizes, position):
        return range(8, 16) if sizes[position] == 16 else ()

    plan, _ = matched(recording(A, both[:1], known=known), recording(B, both[1:], known=known), unused=unused)
    assert plan.steps[0].pointers == ((0, Pointer(0)),)


def test_a_pointer_where_no_kernel_is_known_to_read_is_relocated_all_the_same():
    both = [launch(struct.pack("<QQ", at, at + 8), sizes=(16,)) for at in (A, B)]
    plan, _ = matched(recording(A, both[:1]), recording(B, both[1:]), unused=lambda sizes, position: (0, 8))
    assert plan.steps[0].pointers == ((0, Pointer(0)), (8, Pointer(0, 8)))


def test_a_copy_from_memory_that_is_not_the_devices_is_refused():
    both = [recording(at, [Copy(0x5555_0000, at + OUT, 8)]) for at in (A, B)]
    with pytest.raises(RecordingError, match=r"an address of copy 0 is 0x55550000, which is in no memory of the GPU"):
        matched(*both)


def test_narrow_parameters_are_compared_whole():
    both = [launch(word, sizes=(4,)) for word in (1, 2)]
    with pytest.raises(RecordingError, match="0x1 and then 0x2"):
        matched(recording(A, both[:1]), recording(B, both[1:]))


def test_a_number_that_equals_an_address_of_one_recording_is_no_pointer():
    with pytest.raises(RecordingError, match="and then to no memory"):
        matched(recording(A, [launch(A + 8)]), recording(B, [launch(A + 8)]))
