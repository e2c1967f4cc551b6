"""Launch arithmetic, and launches that no device takes."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from xlakernel.core.errors import ArityError, LaunchError
from xlakernel.core.structs import Struct
from xlakernel.cuda._kernels.geometry import MAX_GRID, LaunchForm

extents = st.integers(0, 10**5)


def launch(*inputs, **said):
    geometry = LaunchForm("k", **said).checked().geometry(inputs)
    return geometry.grid, geometry.block


@given(n=st.integers(0, 10**11), threads=st.integers(1, 1024))
def test_one_dimension_is_covered_by_blocks_of_threads_per_block(n, threads):
    blocks = math.ceil(n / threads)
    if blocks <= MAX_GRID[0]:
        assert launch(launch_dims=n, threads_per_block=threads) == ((blocks, 1, 1), (threads, 1, 1))
        assert launch(launch_dims=(n,), threads_per_block=threads) == ((blocks, 1, 1), (threads, 1, 1))


@given(m=extents, n=extents, threads=st.integers(1, 1024))
def test_two_dimensions_are_covered_by_blocks_of_16_by_16(m, n, threads):
    expected = (math.ceil(m / 16), math.ceil(n / 16), 1), (16, 16, 1)
    assert launch(launch_dims=(m, n), threads_per_block=threads) == expected


@given(m=extents, n=extents, k=extents)
def test_three_dimensions_are_covered_by_blocks_of_8_by_8_by_4(m, n, k):
    assert launch(launch_dims=(m, n, k)) == ((math.ceil(m / 8), math.ceil(n / 8), math.ceil(k / 4)), (8, 8, 4))


@given(
    grid=st.one_of(extents, st.lists(st.integers(0, 65535), min_size=1, max_size=3).map(tuple)),
    block=st.one_of(st.integers(0, 1024), st.lists(st.integers(0, 10), min_size=1, max_size=3).map(tuple)),
)
def test_a_grid_and_a_block_are_filled_up_with_ones(grid, block):
    def three(value):
        return (*(value if isinstance(value, tuple) else (value,)), 1, 1)[:3]

    assert launch(grid=grid, block=block) == (three(grid), three(block))


@pytest.mark.parametrize("integer", [int, np.int32, np.uint64])
def test_integers_of_numpy_and_lists_are_fine(integer):
    assert launch(launch_dims=[integer(33), integer(17)]) == ((3, 2, 1), (16, 16, 1))
    assert launch(launch_dims=np.array([33, 17])) == ((3, 2, 1), (16, 16, 1))


def test_each_may_be_a_function_of_the_inputs():
    x, y = Struct((3, 5), jnp.float32), Struct((7,), jnp.int8)
    assert launch(x, y, launch_dims=lambda x, y: (x.shape[1], y.size))[0] == (1, 1, 1)
    assert launch(x, y, grid=lambda x, y: x.size, block=32) == ((15, 1, 1), (32, 1, 1))
    assert launch(x, y, grid=2, block=lambda x, y: (y.size, x.dtype.itemsize)) == ((2, 1, 1), (7, 4, 1))


@pytest.mark.parametrize("empty", [{"launch_dims": 0}, {"launch_dims": (3, 0)}, {"grid": 0, "block": 3}])
def test_a_launch_of_no_threads_is_known_for_one(empty):
    form = LaunchForm("k", **empty).checked()
    assert form.geometry(()).is_empty


WRONG = [
    ({}, "neither"),
    ({"grid": 1}, "got grid; give"),
    ({"block": 1}, "got block; give"),
    ({"grid": 1, "block": 1, "launch_dims": 1}, "grid and block and launch_dims"),
    ({"grid": 1, "launch_dims": 1}, "grid and launch_dims"),
    ({"launch_dims": 2.0}, r"launch_dims is 2\.0.*Write //"),
    ({"launch_dims": True}, "launch_dims is True"),
    ({"launch_dims": "12"}, "launch_dims is '12'"),
    ({"launch_dims": ()}, "of 0 dimensions.*0-d array: give 1"),
    ({"launch_dims": (1, 2, 3, 4)}, "of 4 dimensions"),
    ({"launch_dims": -1}, "launch_dims is -1"),
    ({"grid": (1, -1), "block": 1}, r"grid is \(1, -1\)"),
    ({"grid": 1, "block": (1, 1.5)}, "block is"),
    ({"launch_dims": 1, "threads_per_block": 0}, "threads_per_block is 0"),
    ({"launch_dims": (1, 1), "threads_per_block": 1025}, "threads_per_block is 1025"),
    ({"launch_dims": 1, "threads_per_block": (1, 1)}, "threads_per_block"),
    ({"grid": 1, "block": 1025}, "1025 threads along x; CUDA allows 1024"),
    ({"grid": 1, "block": (1, 1, 65)}, "65 threads along z; CUDA allows 64"),
    ({"grid": 1, "block": (32, 33)}, "1056 threads; CUDA allows 1024"),
    ({"grid": lambda: 1, "block": (32, 33)}, "1056 threads; CUDA allows 1024"),
    ({"grid": 2**31, "block": 1}, "along x; CUDA allows 2147483647"),
    ({"grid": (1, 65536), "block": 1}, "along y; CUDA allows 65535"),
    ({"launch_dims": (1, 1, 65535 * 4 + 1)}, "along z; CUDA allows 65535"),
    ({"launch_dims": 1, "batch_axis": "w"}, "batch_axis is 'w'"),
    ({"launch_dims": 1, "batch_axis": "x"}, "Choose 'y'"),
    ({"launch_dims": (1, 1, 1), "batch_axis": "z"}, "must be free.*Give grid="),
    ({"grid": (1, 2), "block": 1, "batch_axis": "y"}, "2 blocks along y"),
]


@pytest.mark.parametrize(("said", "message"), WRONG)
def test_nonsense_is_refused_when_wrapping(make_axpy, said, message):
    with pytest.raises(LaunchError, match=f"(?s)axpy: .*{message}"):
        make_axpy(**{"launch_dims": None, **said})


def test_a_launch_error_is_a_value_error():
    with pytest.raises(ValueError, match="neither"):
        LaunchForm("k").checked()


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"launch_dims": lambda x, y: x.size / 2}, r"launch_dims returned 1\.5.*Write //"),
        ({"grid": lambda x, y: 1, "block": lambda x, y: x.size * 400}, "1200 threads"),
        ({"grid": lambda x, y: (1, -x.size), "block": 1}, "grid returned"),
        ({"grid": lambda x, y: None, "block": 1}, "grid returned None"),
    ],
)
def test_functions_are_checked_when_tracing(make_axpy, said, message):
    run = make_axpy(**{"launch_dims": None, **said})
    with pytest.raises(LaunchError, match=message):
        jax.eval_shape(run, jnp.ones(3), jnp.ones(3))


def test_a_function_of_another_number_of_inputs_is_refused(make_axpy):
    run = make_axpy(launch_dims=lambda x: x.size)
    with pytest.raises(ArityError, match="launch_dims is a function, called with the 2 inputs"):
        jax.eval_shape(run, jnp.ones(3), jnp.ones(3))


@pytest.mark.parametrize(("shared_mem", "message"), [(-1, "is -1"), (1.5, "Write //"), ((1, 2), r"is \(1, 2\)")])
def test_shared_memory_is_a_number_of_bytes(make_axpy, shared_mem, message):
    with pytest.raises(LaunchError, match=f"shared_mem {message}|{message}"):
        make_axpy(shared_mem=shared_mem)


@pytest.mark.parametrize(("axis", "grid"), [("x", (7, 3, 2)), ("y", (3, 7, 2)), ("z", (3, 2, 7))])
def test_a_batch_multiplies_its_axis(axis, grid):
    form = LaunchForm("k", grid=tuple(1 if n == 7 else n for n in grid), block=4, batch_axis=axis).checked()
    assert form.batched(form.geometry(()), 7).grid == grid


def test_a_batch_that_its_axis_cannot_hold_is_refused():
    form = LaunchForm("k", grid=(3, 1, 2), block=4, batch_axis="y").checked()
    with pytest.raises(LaunchError, match=r"batch of 65536 slices.*jax.lax.map"):
        form.batched(form.geometry(()), 65536)


def test_functions_that_are_equal_are_told_apart():
    class Extents:
        def __eq__(self, other):
            return isinstance(other, Extents)

        def __hash__(self):
            return 1

        def __call__(self, x):
            return x.size

    one, other = Extents(), Extents()
    for name in ("grid", "block", "launch_dims"):
        forms = [LaunchForm("k", **{name: function}) for function in (one, one, other)]
        assert forms[0] == forms[1] != forms[2]
        assert hash(forms[0]) == hash(forms[1])
