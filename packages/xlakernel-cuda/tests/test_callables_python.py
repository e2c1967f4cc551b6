"""Functions that cannot be recorded, on a GPU: the warning, and the results of calls through Python."""

import warnings

import jax
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
    # NumPy on what was not copied to the host, as nothing runs while a function is recorded
    pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered:RuntimeWarning"),
]

X = np.arange(1.0, 1001.0, dtype=np.float32)


@cuda.jit
def axpy(a, x, y, out):
    """out = a x + y"""
    i = cuda.grid(1)
    if i < out.size:
        out[i] = a * x[i] + y[i]


def launch(a, x, y, out, *stream):
    axpy[-(-x.size // 256), 256, *stream](np.float32(a), x, y, out)


def as_the_input(x):
    return x


def double(x, out, stream):
    launch(1, x, x, out, stream)


def reads_back(x, out, stream):
    total = x.copy_to_host(stream=stream).sum()
    launch(total, x, x, out, stream)


def complains_of_what_it_reads(x, out, stream):
    if np.any(np.diff(x.copy_to_host(stream=stream)) <= 0):  # it has not been copied while the function is recorded
        raise ValueError("x does not increase")
    launch(1, x, x, out, stream)


def launches_as_many_as_it_reads(x, out, stream):
    blocks = int(np.nan_to_num(x.copy_to_host(stream=stream)[-1] // 100))
    axpy[blocks, 256, stream](np.float32(1), x, x, out)


def reads_an_element(x, out, stream):
    launch(x[3], x, x, out, stream)


def waits(x, out, stream):
    double(x, out, stream)
    stream.synchronize()


def copies_from_the_host(x, out, stream):
    offset = cuda.to_device(np.full(x.shape, 3, np.float32), stream=stream)
    launch(1, x, offset, out, stream)


def launches_elsewhere(x, out, stream):
    launch(1, x, x, out)


UNRECORDABLE = [
    (reads_back, "host", lambda x: x * (x.sum() + 1)),
    (complains_of_what_it_reads, "host", lambda x: 2 * x),
    (launches_as_many_as_it_reads, "host", lambda x: 2 * x),
    (reads_an_element, "host", lambda x: x * (x[3] + 1)),
    (waits, "[Ss]ynchroni", lambda x: 2 * x),
    (copies_from_the_host, "host", lambda x: x + 3),
    (launches_elsewhere, "default stream|[Ll]egacy", lambda x: 2 * x),
]


@pytest.mark.parametrize(("func", "reason", "_"), UNRECORDABLE, ids=lambda value: getattr(value, "__name__", ""))
def test_what_cannot_be_recorded_is_named(func, reason, _):
    with pytest.raises(RecordingError, match=f"(?s){func.__name__}.*({reason})"):
        numba_cuda_callable(func, as_the_input, record=True)(X)
    assert_array_equal(numba_cuda_callable(double, as_the_input, record=True)(X), 2 * X)  # nothing is left behind


@pytest.mark.parametrize(("func", "reason", "expected"), UNRECORDABLE, ids=lambda value: getattr(value, "__name__", ""))
def test_what_cannot_be_recorded_is_run_by_python(func, reason, expected):
    x = X
    run = jax.jit(numba_cuda_callable(func, as_the_input))
    with pytest.warns(Warning, match=f"(?s){func.__name__}.*({reason})"):
        assert_allclose(run(x), expected(x), rtol=1e-6)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", ".*Grid size")
        for i in range(3):  # it says so once
            assert_allclose(run(x + i), expected(x + i), rtol=1e-6)
    chained = jax.jit(lambda x: run(run(x + 1)) - 1)
    assert_allclose(chained(x), expected(expected(x + 1)) - 1, rtol=1e-5)


def test_record_false_gives_no_warning():
    calls = []

    def counted(x, out, stream):
        calls.append(x.size)
        double(x, out, stream)

    run, x = jax.jit(numba_cuda_callable(counted, as_the_input, record=False)), X
    for _ in range(3):
        assert_array_equal(run(x), 2 * x)
    assert len(calls) == 3


def changing():
    calls = []

    def different(x, out, stream):
        calls.append(None)
        launch(len(calls), x, x, out, stream)

    return different, calls


def test_what_differs_each_time():
    different, _ = changing()
    with pytest.raises(RecordingError, match=r"(?s)different.*not do the same each time"):
        numba_cuda_callable(different, as_the_input, record=True)(X)
    different, calls = changing()
    x = X
    run = jax.jit(numba_cuda_callable(different, as_the_input))
    with pytest.warns(Warning, match=r"(?s)different.*not do the same each time"):
        jax.block_until_ready(run(x))
    for _ in range(3):
        assert_array_equal(run(x).block_until_ready(), x * (len(calls) + 1))


def test_python_runs_every_slice():
    x = np.stack([X * (i + 1) for i in range(4)])
    run = numba_cuda_callable(reads_back, as_the_input, record=False)
    assert_allclose(jax.vmap(run)(x), x * (x.sum(1, keepdims=True) + 1), rtol=1e-6)
    looped = jax.jit(lambda x: jax.lax.fori_loop(0, 3, lambda _, x: run(x) / (x.sum() + 1), x))
    assert_allclose(looped(x[0]), x[0], rtol=1e-5)
