"""What launches in ranges compute, against `wp.launch`, bit by bit."""

import threading
import types
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import warp as wp
from numpy.testing import assert_array_equal

N = 1003


def array(values, dtype=wp.float32, **options):
    return wp.array(values, dtype=dtype, device="cpu", **options)


@wp.struct
class Shift:
    scale: wp.float32
    by: wp.vec3
    table: wp.array(dtype=wp.float32)


@wp.func
def weight(x: wp.float32, shift: Shift):
    return x * shift.scale + shift.by[1]


@wp.func
def weight(i: wp.int32):  # noqa: F811  # an overload
    return wp.float32(i) * 0.5


@wp.func
def series(x: wp.float32):
    s = wp.float32(0.0)
    for k in range(30):
        s = s + wp.sin(x + wp.float32(k)) * wp.exp(-s * s)
    return s


@wp.kernel
def scaled(x: wp.array(dtype=wp.float32), out: wp.array(dtype=wp.float32), a: wp.float32):
    i = wp.tid()
    out[i] = a * x[i] + 1.0


@wp.kernel
def heavy(x: wp.array(dtype=wp.float32), out: wp.array(dtype=wp.float32)):
    i = wp.tid()
    if i % 7 == 3:
        out[i] = -1.0
        return
    out[i] = series(x[i])


@wp.kernel
def scalars(
    out: wp.array(dtype=wp.float64), a: wp.int64, b: wp.bool, c: wp.float16, d: wp.uint8, e: wp.vec3, f: wp.mat22
):
    i = wp.tid()
    if b:
        out[i] = wp.float64(a) + wp.float64(c) * wp.float64(i)
    else:
        out[i] = wp.float64(d) + wp.float64(e[2]) + wp.float64(f[1, 0])


@wp.kernel
def rotated(x: wp.array(dtype=wp.vec3), m: wp.array(dtype=wp.mat33), out: wp.array(dtype=wp.vec3)):
    i = wp.tid()
    out[i] = m[i] * x[i] + wp.cross(x[i], wp.vec3(1.0, 2.0, 3.0))


@wp.kernel
def weighted(x: wp.array(dtype=wp.float32), shift: Shift, out: wp.array(dtype=wp.float32)):
    i = wp.tid()
    out[i] = weight(x[i], shift) + weight(i) + shift.table[i % 4]


@wp.kernel
def drawn(out: wp.array(dtype=wp.float32)):
    i = wp.tid()
    state = wp.rand_init(42, i)
    out[i] = wp.randn(state) + wp.randf(state)


@wp.kernel
def coordinates2(x: wp.array2d(dtype=wp.float32), out: wp.array2d(dtype=wp.float32)):
    i, j = wp.tid()
    out[i, j] = x[i, j] + 100.0 * wp.float32(i) + wp.float32(j)


@wp.kernel
def coordinates3(x: wp.array3d(dtype=wp.float32), out: wp.array3d(dtype=wp.float32)):
    i, j, k = wp.tid()
    out[i, j, k] = x[i, j, k] + wp.float32(10000 * i + 100 * j + k)


@wp.kernel
def coordinates4(x: wp.array4d(dtype=wp.float32), out: wp.array4d(dtype=wp.float32)):
    i, j, k, m = wp.tid()
    out[i, j, k, m] = x[i, j, k, m] + wp.float32(1000 * i + 100 * j + 10 * k + m)


@wp.kernel
def scaled_any(x: wp.array(dtype=Any), c: Any, out: wp.array(dtype=Any)):
    i = wp.tid()
    out[i] = x[i] * c + x[i]


@wp.kernel
def counted(out: wp.array(dtype=wp.int32)):
    i = wp.tid()
    out[i] = out[i] + 1


_rng = np.random.default_rng(5)


def random(*shape, dtype=wp.float32):
    return array(_rng.standard_normal(shape), dtype)


def strided(n):
    return random(2 * n)[::2]


def shift():
    value = Shift()
    value.scale, value.by, value.table = 1.5, wp.vec3(1.0, 2.0, 3.0), random(4)
    return value


def integers():
    return array(np.arange(N), wp.int32)


def values():
    return 2**40, True, 0.25, 3, wp.vec3(1.0, 2.0, 3.0), wp.mat22(1.0, 2.0, 3.0, 4.0)


VEC, MAT = wp.vec3, wp.mat33
# Kernel, dimensions, the number of the argument that is written, and the arguments.
LAUNCHES = {
    "1-D": lambda: (scaled, N, 1, random(N), random(N), 2.0),
    "1-D, strided": lambda: (scaled, N, 1, strided(N), strided(N), 2.0),
    "1-D, one of them strided": lambda: (scaled, N, 1, random(N), strided(N), 2.0),
    "in place": lambda: (scaled, N, 1, x := random(N), x, 2.0),
    "loops, branches and helpers": lambda: (heavy, N, 1, random(N), random(N)),
    "scalars": lambda: (scalars, N, 0, random(N, dtype=wp.float64), *values()),
    "vectors and matrices": lambda: (
        rotated,
        N,
        2,
        random(N, 3, dtype=VEC),
        random(N, 3, 3, dtype=MAT),
        random(N, 3, dtype=VEC),
    ),
    "a struct": lambda: (weighted, N, 2, random(N), shift(), random(N)),
    "random numbers": lambda: (drawn, N, 0, random(N)),
    "2-D": lambda: (coordinates2, (17, 59), 1, random(17, 59), random(17, 59)),
    "3-D": lambda: (coordinates3, (7, 11, 13), 1, random(7, 11, 13), random(7, 11, 13)),
    "4-D": lambda: (coordinates4, (3, 5, 7, 11), 1, random(3, 5, 7, 11), random(3, 5, 7, 11)),
    "an overload for float": lambda: (scaled_any, N, 2, random(N), wp.float32(3.0), random(N)),
    "an overload for int": lambda: (scaled_any, N, 2, integers(), 3, integers()),
    "one thread": lambda: (scaled, 1, 1, random(1), random(1), 2.0),
}


@pytest.fixture(params=LAUNCHES, scope="module")
def case(request, record, pieces_of):
    """A launch in pieces, the array that it writes, what was there before, and what `wp.launch` writes."""
    kernel, dim, written, *arguments = LAUNCHES[request.param]()
    launch, out = record(kernel, dim, *arguments), arguments[written]
    before = out.numpy().copy()
    launch.launch()
    expected = out.numpy().copy()
    return types.SimpleNamespace(pieces=pieces_of(launch), out=out, before=before, expected=expected)


def check(case, run):
    case.out.assign(case.before)
    run(case.pieces)
    assert_array_equal(case.out.numpy(), case.expected)


def test_a_whole_range_is_a_launch(case):
    assert not np.array_equal(case.before, case.expected)
    check(case, lambda pieces: pieces(0, pieces.size))


@pytest.mark.parametrize("parts", [2, 3, 7, 64])
def test_pieces_in_any_order_are_a_launch(case, parts):
    def run(pieces):
        ends = np.linspace(0, pieces.size, parts + 1).astype(int).tolist()
        for i in np.random.default_rng(parts).permutation(parts):
            pieces(ends[i], ends[i + 1])

    check(case, run)


def test_pieces_in_several_threads_are_a_launch(case):
    def run(pieces):
        ends = np.linspace(0, pieces.size, 33).astype(int).tolist()
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(pieces, ends[:-1], ends[1:]))

    for _ in range(5):
        check(case, run)


LAST = 2**64 - 1


@pytest.mark.parametrize(
    ("begin", "end"), [(0, 0), (5, 5), (5, 4), (0, 1), (17, 18), (3, N), (N, N + 5), (N - 1, LAST), (LAST, 0)]
)
def test_each_thread_of_a_range_runs_once_and_no_other(record, pieces_of, begin, end):
    out = array(np.zeros(N), wp.int32)
    pieces_of(record(counted, N, out))(begin, end)
    indices = np.arange(N, dtype=object)
    assert_array_equal(out.numpy(), (indices >= begin) & (indices < end))


def test_bounds_and_arguments_may_be_those_of_another_launch(record, pieces_of):
    pieces = pieces_of(record(counted, N, array(np.zeros(N), wp.int32)))
    out = array(np.zeros(2 * N), wp.int32)
    pieces(N - 1, 2 * N, record(counted, 2 * N, out))
    assert_array_equal(out.numpy(), np.arange(2 * N) >= N - 1)


def test_ranges_run_beside_launches(record, pieces_of):
    out, other = array(np.zeros(N), wp.int32), array(np.zeros(N), wp.int32)
    pieces, launch = pieces_of(record(counted, N, out)), record(counted, N, other)

    def halves(begin, end):
        for _ in range(200):
            pieces(begin, end)

    threads = [threading.Thread(target=halves, args=ends) for ends in ((0, N // 2), (N // 2, N))]
    for thread in threads:
        thread.start()
    for _ in range(200):
        launch.launch()
    for thread in threads:
        thread.join()
    assert_array_equal(out.numpy(), np.full(N, 200))
    assert_array_equal(other.numpy(), np.full(N, 200))
