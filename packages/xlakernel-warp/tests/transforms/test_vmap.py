"""`jax.vmap`: a launch for each slice, in one call; on the CPU in several threads where that pays."""

import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import warp as wp
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from xlakernel.core.errors import VmapMethodError
from xlakernel.warp import jax_kernel, warp_kernel

wp.set_module_options({"enable_backward": False})

pytestmark = pytest.mark.usefixtures("platform")
on_the_cpu = pytest.mark.parametrize("platform", ["cpu"], indirect=True)
TWO_CORES = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="XLA's pool has one thread on one core")

Struct = jax.ShapeDtypeStruct


def same(x, *_):
    return x


@wp.kernel
def plus_sum(x: wp.array(dtype=float), y: wp.array(dtype=float), out: wp.array(dtype=float)):
    """Each element depends on all of y, so that a mixed-up slice shows."""
    i = wp.tid()
    total = x[i]
    for j in range(y.shape[0]):
        total += y[j]
    out[i] = total


def expected(x, y):
    return x + np.sum(y, axis=-1, keepdims=True)


X, Y = np.arange(300, dtype="f4"), np.arange(4, dtype="f4")
XS, YS = (np.stack([v * (k + 1) for k in range(5)]) for v in (X, Y))


@pytest.mark.parametrize(("axes", "inputs"), [((0, 0), (XS, YS)), ((0, None), (XS, Y)), ((None, 0), (X, YS))])
@pytest.mark.parametrize("method", ["native", "expand_dims", "broadcast_all", "sequential", "sequential_unrolled"])
def test_each_input_alone_or_shared(method, axes, inputs):
    run = warp_kernel(plus_sum, same, vmap_method=method)
    assert_array_equal(jax.jit(jax.vmap(run, axes))(*inputs), expected(*inputs))


def test_no_method_is_an_error():
    run = warp_kernel(plus_sum, same, vmap_method=None)
    assert_array_equal(run(X, Y), expected(X, Y))
    with pytest.raises(VmapMethodError, match="plus_sum"):
        jax.vmap(run)(XS, YS)


@wp.kernel
def plus_sums(x: wp.array2d(dtype=float), y: wp.array2d(dtype=float), out: wp.array2d(dtype=float)):
    """The same for a whole batch."""
    b, i = wp.tid()
    total = x[b, i]
    for j in range(y.shape[1]):
        total += y[b, j]
    out[b, i] = total


run_plus_sums = warp_kernel(plus_sums, same, launch_dims=lambda x, y: x.shape)


@pytest.mark.parametrize(("axes", "inputs"), [((0, 0), (XS, YS)), ((0, None), (XS, Y)), ((None, 0), (X, YS))])
def test_a_function_computes_the_whole_batch(axes, inputs):
    for run in (warp_kernel(plus_sum, same, vmap_method=run_plus_sums), jax_kernel_of_a_batch):
        program = jax.jit(jax.vmap(run, axes))
        assert_array_equal(program(*inputs), expected(*inputs))
        assert "plus_sums" in program.lower(*inputs).as_text()


def jax_kernel_of_a_batch(x, y):
    (found,) = jax_kernel(plus_sum, vmap_method=run_plus_sums)(x, y)
    return found


@on_the_cpu
def test_the_adjoint_of_a_kernel_is_mapped_by_itself():
    """The function computes the kernel's batch only, not that of Warp's adjoint."""
    run = jax_kernel(squares, vmap_method=lambda x: [x * x], enable_backward=True)
    x = jnp.asarray(XS)
    assert_array_equal(jax.vmap(jax.grad(lambda x: run(x)[0].sum()))(x), 2 * x)
    assert_array_equal(jax.grad(lambda x: jax.vmap(run)(x)[0].sum())(x), 2 * x)


@wp.kernel(enable_backward=True)
def squares(x: wp.array(dtype=float), out: wp.array(dtype=float)):
    i = wp.tid()
    out[i] = x[i] * x[i]


run_plus_sum = warp_kernel(plus_sum, same)


def test_inner_axes_are_moved():
    assert_array_equal(jax.vmap(run_plus_sum, (1, 0))(XS.T, YS), expected(XS, YS))
    assert_array_equal(jax.vmap(run_plus_sum, (0, -1), 1)(XS, YS.T), expected(XS, YS).T)


def test_a_batch_is_one_call():
    text = jax.jit(jax.vmap(run_plus_sum)).lower(XS, YS).as_text()
    assert text.count("custom_call @") == 1


@pytest.mark.parametrize("size", [0, 1, 2])
def test_batches_of_none_and_of_one(size):
    assert_array_equal(jax.vmap(run_plus_sum)(XS[:size], YS[:size]), expected(XS[:size], YS[:size]))
    assert jax.vmap(run_plus_sum, (0, None))(XS[:size, :0], Y).shape == (size, 0)


def mapped_in_numpy(function, axes, size):
    """Return what `jax.vmap` means."""

    def mapped(*xs):
        taken = [[x if a is None else np.take(x, k, a) for x, a in zip(xs, axes, strict=True)] for k in range(size)]
        return np.stack([function(*slices) for slices in taken])

    return mapped


@wp.kernel
def running_sums(
    x: wp.array2d(dtype=wp.int32),
    by: wp.array(dtype=wp.int32),
    scale: int,
    total: wp.array(dtype=wp.int32),
    sums: wp.array2d(dtype=wp.int32),
):
    """Rows and columns are coupled, and an output begins with a value."""
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            total[0] += x[i, j] * by[0] * scale
            sums[i, j] = total[0]


def running_sums_in_numpy(x, by):
    sums = 5 + np.cumsum(x.reshape(-1) * by * 3, dtype=np.int32).reshape(x.shape)
    return np.concatenate([sums.reshape(-1), sums.reshape(-1)[-1:] if sums.size else np.int32([5])])


run_running_sums = warp_kernel(
    running_sums, lambda x, by: (Struct((), jnp.int32), x), launch_dims=1, output_init=(5, None)
)


def run_and_join(x, by):
    total, sums = run_running_sums(x, by, scale=3)
    return jnp.concatenate([sums.reshape(-1), total[None]])


@given(
    shape=st.tuples(st.integers(0, 3), st.integers(0, 3)),
    levels=st.lists(st.tuples(st.integers(1, 3), st.integers(0, 8), st.integers(0, 8)), min_size=1, max_size=3),
    jit=st.booleans(),
    seed=st.integers(0, 99),
)
def test_any_nested_batch(shape, levels, jit, seed):
    """Each level maps over any axis of either input, or of both."""
    run, reference, shapes = run_and_join, running_sums_in_numpy, [shape, ()]
    for size, first, second in levels:  # from the innermost
        axes = [a % (len(s) + 2) for a, s in zip((first, second), shapes, strict=True)]
        axes = [None if a == len(s) + 1 else a for a, s in zip(axes, shapes, strict=True)]
        axes = [0, None] if axes == [None, None] else axes
        shapes = [s if a is None else (*s[:a], size, *s[a:]) for a, s in zip(axes, shapes, strict=True)]
        run, reference = jax.vmap(run, tuple(axes)), mapped_in_numpy(reference, axes, size)
    rng = np.random.default_rng(seed)
    inputs = [rng.integers(-5, 6, s).astype("i4") for s in shapes]
    assert_array_equal((jax.jit(run) if jit else run)(*inputs), reference(*inputs))


# What outputs begin with, and what is updated in place


@wp.kernel
def count_up(before: wp.array(dtype=int), by: wp.array(dtype=int), after: wp.array(dtype=int), seen: wp.array[int]):
    """For an alias of before and after: a slice that runs twice shows."""
    i = wp.tid()
    after[i] += by[0]
    wp.atomic_add(seen, 0, by[0])


run_count_up = warp_kernel(
    count_up,
    lambda before, by: (before, Struct((2,), jnp.int32)),
    input_output_aliases={0: 0},
    output_init=(None, 7),
)


@pytest.mark.parametrize(
    ("axes", "shapes"), [((0, 0), ((6, 4), (6,))), ((None, 0), ((4,), (6,))), ((0, None), ((6, 4), ()))]
)
def test_aliases_and_values_to_begin_with_belong_to_a_slice(axes, shapes):
    before, by = (jnp.arange(np.prod(shape, dtype=int), dtype=jnp.int32).reshape(shape) for shape in shapes)
    kept = np.asarray(before).copy()
    for program in (jax.vmap(run_count_up, axes), jax.jit(jax.vmap(run_count_up, axes))):
        after, seen = program(before, by)
        by_slice = np.broadcast_to(by, 6)
        assert_array_equal(after, np.broadcast_to(before, (6, 4)) + by_slice[:, None])
        assert_array_equal(seen, np.stack([7 + 4 * by_slice, np.full(6, 7)], 1))
        assert_array_equal(before, kept)


def test_a_donated_batch_keeps_its_memory():
    before, by = jnp.zeros((10, 100), jnp.int32), jnp.ones(10, jnp.int32)
    pointer = before.unsafe_buffer_pointer()
    after, _ = jax.jit(jax.vmap(run_count_up), donate_argnums=0)(before, by)
    assert after.unsafe_buffer_pointer() == pointer
    assert_array_equal(after, np.ones((10, 100)))


@pytest.mark.parametrize("dims", [0, lambda x, y: (2, 0)])
def test_a_batch_of_launches_without_threads(dims):
    run = warp_kernel(plus_sum, same, launch_dims=dims, output_init=3)
    assert_array_equal(jax.vmap(run)(XS, YS), np.full(XS.shape, 3))


def test_derivatives_of_a_batch():
    run = warp_kernel(plus_sum, same, reference=lambda x, y: x + jnp.sum(y))
    gradient = jax.vmap(jax.grad(lambda x, y: jnp.sum(run(x, y) ** 2), (0, 1)))(XS, YS)
    wanted = 2 * expected(XS, YS)
    assert_allclose(gradient[0], wanted, rtol=1e-5)
    assert_allclose(gradient[1], np.broadcast_to(wanted.sum(1, keepdims=True), YS.shape), rtol=1e-5)


@wp.kernel
def vector_sums(x: wp.array(dtype=wp.vec3), m: wp.array(dtype=wp.mat33), out: wp.array(dtype=wp.vec3)):
    i = wp.tid()
    out[i] = m[0] * x[i]


def test_a_batch_of_vectors_has_their_dimension_last():
    x = np.random.default_rng(0).integers(-3, 4, (4, 7, 3)).astype("f4")
    m = np.random.default_rng(1).integers(-3, 4, (3, 3)).astype("f4")
    run = warp_kernel(vector_sums, same)
    assert_array_equal(jax.vmap(run, (0, None))(x, m), x @ m.T)  # m alone is a 0-d array of matrices
    assert_array_equal(jax.vmap(run, (1, None), 1)(x, m[None]), x @ m.T)


# Many slices, which run in XLA's threads where that pays


@wp.kernel
def slow_sums(x: wp.array(dtype=float), steps: wp.array(dtype=int), out: wp.array(dtype=float)):
    value = wp.float32(0.5)
    for _ in range(steps[0]):
        value = 3.9 * value * (1.0 - value)  # chaotic: no compiler can shorten it
    total = wp.where(value >= 0.0, 0.0, 1.0)
    for i in range(x.shape[0]):
        total += x[i]
        out[i] = total


STEPS = {
    "light": np.zeros(300, "i4"),
    "heavy": np.full(300, 20_000, "i4"),
    "of unequal cost": np.where(np.arange(300) % 40, 0, 200_000).astype("i4"),
    "heavy at last": np.where(np.arange(300) < 200, 0, 20_000).astype("i4"),
}


@pytest.mark.parametrize("kind", STEPS)
def test_many_slices(kind):
    run = jax.jit(jax.vmap(warp_kernel(slow_sums, same, launch_dims=1)))
    x = np.random.default_rng(3).integers(-9, 9, (300, 5)).astype("f4")
    for scale in (1, 2, 3):
        assert_array_equal(run(x * np.float32(scale), STEPS[kind]), np.cumsum(x, 1) * scale)


@wp.func_native("return (wp::uint64)__builtin_frame_address(0);")
def stack_address() -> wp.uint64: ...


@wp.kernel(module="unique", enable_backward=False)  # no GPU compiles it
def which_stack(x: wp.array(dtype=float), steps: wp.array(dtype=int), out: wp.array(dtype=wp.uint32)):
    value = wp.float32(0.5)
    for _ in range(steps[0]):
        value = 3.9 * value * (1.0 - value)
    if value >= 0.0:
        out[0] = wp.uint32(stack_address() >> wp.uint64(16))


def count_stacks(**options):
    """Return in how many threads the slices of a heavy batch ran, for each of several calls."""
    run = warp_kernel(which_stack, Struct((), jnp.uint32), launch_dims=1, **options)
    program = jax.jit(jax.vmap(run))
    while True:
        pages = np.sort(np.asarray(program(np.ones(99, "f4"), np.full(99, 100_000, "i4"))).astype("i8"))
        yield 1 + int((np.diff(pages) > 4).sum())  # stacks are further apart than 256 KiB


@TWO_CORES
@on_the_cpu
def test_a_heavy_batch_runs_in_several_threads():
    counts = count_stacks()
    assert any(next(counts) > 1 for _ in range(50))


@on_the_cpu
def test_the_slices_of_a_kernel_with_a_side_effect_run_in_order_in_one_thread():
    counts = count_stacks(has_side_effect=True)
    assert [next(counts) for _ in range(3)] == [1] * 3
