"""Functions that cannot be recorded, on a GPU: what is said of them, and that Python runs them right."""

import functools
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from xlakernel.core.errors import RecordingError
from xlakernel.cuda import numba_cuda_callable

cuda = pytest.importorskip("numba.cuda", reason="numba-cuda is not installed")
pytest.importorskip("numba_cuda", reason="numba-cuda is not installed")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore:.*Grid size"),  # Numba thinks that small launches are not worth it
]

THREADS = 128
N = 1000
#: A function that is recorded, or an error.
recorded = functools.partial(numba_cuda_callable, record=True)


def like_first(x, *_):
    return x


def blocks(n):
    return -(-n // THREADS)


def numbers(*shape, dtype=np.float32):
    return jnp.asarray(np.random.default_rng(0).integers(1, 100, shape), dtype)


@cuda.jit
def add_kernel(x, y, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = x[i] + y[i]


@cuda.jit
def scale_kernel(x, factor, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = x[i] * factor


def double(x, out, stream):
    add_kernel[blocks(x.size), THREADS, stream](x, x, out)


def reads_back(x, out, stream):
    total = x.copy_to_host(stream=stream).sum()
    scale_kernel[blocks(x.size), THREADS, stream](x, total, out)


def reads_an_element(x, out, stream):
    scale_kernel[blocks(x.size), THREADS, stream](x, float(x[3]), out)


def waits(x, out, stream):
    double(x, out, stream)
    stream.synchronize()


def copies_from_the_host(x, out, stream):
    offset = cuda.to_device(np.full(x.shape, 3, np.float32), stream=stream)
    add_kernel[blocks(x.size), THREADS, stream](x, offset, out)


def launches_elsewhere(x, out, stream):
    add_kernel[blocks(x.size), THREADS](x, x, out)


UNRECORDABLE = [
    (reads_back, "host", lambda x: x * x.sum()),
    (reads_an_element, "host", lambda x: x * x[3]),
    (waits, "[Ss]ynchroni", lambda x: 2 * x),
    (copies_from_the_host, "host", lambda x: x + 3),
    (launches_elsewhere, "default stream|[Ll]egacy", lambda x: 2 * x),
]


@pytest.mark.parametrize(("func", "reason", "_"), UNRECORDABLE, ids=lambda value: getattr(value, "__name__", ""))
def test_what_cannot_be_recorded_is_named(func, reason, _):
    with pytest.raises(RecordingError, match=f"(?s){func.__name__}.*({reason})"):
        recorded(func, like_first)(numbers(N))
    assert_array_equal(recorded(double, like_first)(numbers(N)), 2 * numbers(N))  # nothing is left behind


@pytest.mark.parametrize(("func", "reason", "expected"), UNRECORDABLE, ids=lambda value: getattr(value, "__name__", ""))
def test_what_cannot_be_recorded_is_run_by_python(func, reason, expected):
    x = numbers(N)
    run = jax.jit(numba_cuda_callable(func, like_first))
    with pytest.warns(Warning, match=f"(?s){func.__name__}.*({reason})"):
        assert_allclose(run(x), expected(x), rtol=1e-6)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", ".*Grid size")
        for i in range(3):  # it says so once
            assert_allclose(run(x + i), expected(x + i), rtol=1e-6)
    chained = jax.jit(lambda x: run(run(x + 1)) - 1)
    assert_allclose(chained(x), expected(expected(x + 1)) - 1, rtol=1e-5)


def test_what_is_not_to_be_recorded_says_nothing():
    calls = []

    def counted(x, out, stream):
        calls.append(x.size)
        double(x, out, stream)

    run, x = jax.jit(numba_cuda_callable(counted, like_first, record=False)), numbers(N)
    for _ in range(3):
        assert_array_equal(run(x), 2 * x)
    assert len(calls) == 3


def changing():
    calls = []

    def different(x, out, stream):
        calls.append(None)
        scale_kernel[blocks(x.size), THREADS, stream](x, float(len(calls)), out)

    return different, calls


def test_what_differs_each_time():
    different, _ = changing()
    with pytest.raises(RecordingError, match=r"(?s)different.*not do the same each time"):
        recorded(different, like_first)(numbers(N))
    different, calls = changing()
    x = numbers(N)
    run = jax.jit(numba_cuda_callable(different, like_first))
    with pytest.warns(Warning, match=r"(?s)different.*not do the same each time"):
        jax.block_until_ready(run(x))
    for _ in range(3):
        assert_array_equal(run(x).block_until_ready(), x * len(calls))


def test_python_runs_every_slice():
    def reads_its_slice(x, out, stream):
        total = x.copy_to_host(stream=stream).sum()
        scale_kernel[blocks(x.size), THREADS, stream](x, total, out)

    x = numbers(4, N)
    run = numba_cuda_callable(reads_its_slice, like_first, record=False)
    assert_allclose(jax.vmap(run)(x), x * x.sum(1, keepdims=True), rtol=1e-6)
    looped = jax.jit(lambda x: jax.lax.fori_loop(0, 3, lambda _, x: run(x) / x.sum(), x))
    assert_allclose(looped(x[0]), x[0], rtol=1e-5)
