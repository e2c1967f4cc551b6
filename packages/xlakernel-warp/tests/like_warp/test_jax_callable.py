"""`jax_callable`: functions that launch Warp kernels, called by Python on the CPU and recorded on a GPU."""

import concurrent.futures
import functools
import gc
import runpy
import threading
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import warp as wp
from numpy.testing import assert_allclose, assert_array_equal

from xlakernel.core import debug_mode
from xlakernel.core.errors import (
    ArgumentError,
    DifferentiationError,
    DtypeError,
    InputError,
    KernelTypeError,
    LaunchError,
    OutputSpecError,
    PlatformError,
    RecordingWarning,
    StaticArgumentError,
    VmapMethodError,
)
from xlakernel.warp import jax_callable

wp.set_module_options({"enable_backward": False})
pytestmark = pytest.mark.usefixtures("platform")

N = 5
X = np.arange(1, N + 1, dtype=np.float32)
Floats = wp.array(dtype=float)


@wp.kernel
def double_kernel(x: wp.array(dtype=float), out: wp.array(dtype=float)):
    i = wp.tid()
    out[i] = 2.0 * x[i]


@wp.kernel
def add_kernel(x: wp.array(dtype=float), y: wp.array(dtype=float), out: wp.array(dtype=float)):
    i = wp.tid()
    out[i] = x[i] + y[i]


@wp.kernel
def scale_kernel(x: wp.array(dtype=float), factor: float, count: int, out: wp.array(dtype=float)):
    i = wp.tid()
    if i < count:
        out[i] = x[i] * factor
    else:
        out[i] = x[i]


@wp.kernel
def sum_kernel(x: wp.array(dtype=float), total: wp.array(dtype=float)):
    i = wp.tid()
    wp.atomic_add(total, 0, x[i])


@wp.kernel
def from_the_left_kernel(x: wp.array(dtype=float), out: wp.array(dtype=float)):
    """Each element depends on its neighbour, so that a mixed-up slice shows."""
    i = wp.tid()
    out[i] = x[i] - x[wp.max(i - 1, 0)]


def quadruple(x: Floats, out: Floats):
    between = wp.empty_like(x)
    wp.launch(double_kernel, dim=x.shape, inputs=[x], outputs=[between])
    wp.launch(double_kernel, dim=x.shape, inputs=[between], outputs=[out])


def add(x: Floats, y: Floats, out: Floats):
    wp.launch(add_kernel, dim=x.shape, inputs=[x, y], outputs=[out])


def normalised(x: Floats, out: Floats):
    """A copy, a buffer of zeros, and two kernels, of which one reads what the other sums up."""
    total = wp.zeros(1, dtype=float)
    kept = wp.clone(x)
    wp.launch(sum_kernel, dim=x.shape, inputs=[x], outputs=[total])
    wp.launch(double_kernel, dim=x.shape, inputs=[kept], outputs=[out])
    wp.launch(add_kernel, dim=1, inputs=[out, total], outputs=[out])


def normalised_in_numpy(x):
    out = 2 * x
    out[..., 0] += x.sum(-1)
    return out


def scaled(x: Floats, factor: float, count: int, out: Floats):
    wp.launch(scale_kernel, dim=x.shape, inputs=[x, factor, count], outputs=[out])


def accumulate(x: Floats, total: Floats, before: Floats):
    wp.copy(before, total)
    wp.launch(add_kernel, dim=x.shape, inputs=[x, total], outputs=[total])


def differences(x: Floats, out: Floats):
    wp.launch(from_the_left_kernel, dim=x.shape, inputs=[x], outputs=[out])


def differences_in_numpy(x):
    return np.diff(x, prepend=x[..., :1], axis=-1)


# What a function does; on a GPU it is recorded, or there is a warning, which is an error in these tests.


@pytest.mark.parametrize("jit", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_two_kernels_and_a_temporary(jit):
    run = jit(jax_callable(quadruple))
    for i in range(3):
        results = run(X + i)
        assert type(results) is list and len(results) == 1
        assert_array_equal(results[0], 4 * (X + i))


def test_zeros_clones_and_sums():
    run = jax.jit(jax_callable(normalised))
    for _ in range(3):
        assert_array_equal(run(X)[0], normalised_in_numpy(X))


def test_copies_fills_and_parts_of_arrays():
    def pieces(x: Floats, whole: Floats, part: Floats):
        wp.copy(whole, x)
        part.fill_(7.0)
        wp.copy(part, x, dest_offset=1, src_offset=2, count=2)
        wp.launch(double_kernel, dim=2, inputs=[x[3:]], outputs=[whole[:2]])

    whole, part = jax.jit(jax_callable(pieces, num_outputs=2))(X)
    assert_array_equal(whole, [8, 10, 3, 4, 5])
    assert_array_equal(part, [7, 3, 4, 7, 7])


def test_several_temporaries_one_after_the_other():
    def powers(x: Floats, out: Floats):
        last = x
        for _ in range(6):
            following = wp.empty_like(x)
            wp.launch(double_kernel, dim=x.shape, inputs=[last], outputs=[following])
            last = following
        wp.copy(out, last)

    assert_array_equal(jax.jit(jax_callable(powers))(X)[0], 64 * X)


def test_arrays_that_are_closed_over_are_kept_alive(platform):
    def closing(number):
        table = wp.full(N, float(number), dtype=float, device=f"{platform}:0" if platform == "cuda" else platform)

        def offset(x: Floats, out: Floats):
            wp.launch(add_kernel, dim=N, inputs=[x, table], outputs=[out])

        return jax.jit(jax_callable(offset))

    runs = [closing(number) for number in range(3)]
    for _ in range(2):
        for number, run in enumerate(runs):
            assert_array_equal(run(X)[0], X + number)
        gc.collect()


def test_functions_of_one_text_are_different_targets():
    def closing(number, kernel):
        def function(x: Floats, out: Floats):
            wp.launch(kernel, dim=x.shape, inputs=[x], outputs=[out])
            wp.launch(scale_kernel, dim=x.shape, inputs=[out, number, N], outputs=[out])

        return jax_callable(function)

    doubled, differing = (closing(3.0, kernel) for kernel in (double_kernel, from_the_left_kernel))
    other = closing(5.0, double_kernel)
    assert_array_equal(doubled(X)[0], 6 * X)
    assert_array_equal(differing(X)[0], 3 * differences_in_numpy(X))
    assert_array_equal(other(X)[0], 10 * X)


def test_equal_functions_whose_variables_are_their_own(platform):
    """On a GPU a recorded function has the values that they had when it was recorded."""

    def closing(factor):
        numbers = [factor]

        def function(x: Floats, out: Floats):
            wp.launch(scale_kernel, dim=x.shape, inputs=[x, factor + numbers[0], N], outputs=[out])

        def change(to):
            nonlocal factor
            factor = numbers[0] = to

        return jax_callable(function), change

    (first, change), (second, _) = closing(2.0), closing(2.0)
    assert_array_equal([first(X)[0], second(X)[0]], [4 * X, 4 * X])
    change(3.0)
    assert_array_equal([first(X)[0], second(X)[0]], [(6 if platform == "cpu" else 4) * X, 4 * X])


def test_kernels_that_are_made_anew():
    def of(number):
        @wp.kernel(module="unique", enable_backward=False)
        def kernel(x: wp.array(dtype=float), out: wp.array(dtype=float)):
            i = wp.tid()
            out[i] = x[i] + wp.static(float(number))

        def function(x: Floats, out: Floats):
            wp.launch(kernel, dim=x.shape, inputs=[x], outputs=[out])

        return jax.jit(jax_callable(function))

    runs = [of(number) for number in range(2)]
    for _ in range(2):
        for number, run in enumerate(runs):
            assert_array_equal(run(X)[0], X + number)


def test_arrays_have_the_types_and_extents_of_their_annotations():
    seen = []

    def looking(
        points: wp.array(dtype=wp.vec3),
        matrices: wp.array2d(dtype=wp.mat22),
        moved: wp.array(dtype=wp.vec3),
        copied: wp.array2d(dtype=wp.mat22),
    ):
        seen.extend((a.shape, a.dtype, a.device.is_cpu) for a in (points, matrices, moved, copied))
        wp.copy(moved, points)
        wp.copy(copied, matrices)

    points, matrices = jnp.arange(6.0).reshape(2, 3), jnp.arange(24.0).reshape(2, 3, 2, 2)
    run = jax_callable(looking, num_outputs=2, output_dims={"moved": 2, "copied": (2, 3)})
    moved, copied = run(points, matrices)
    assert_array_equal(moved, points)
    assert_array_equal(copied, matrices)
    on_cpu = jax.config.jax_default_device.platform == "cpu"
    assert set(seen) == {((2,), wp.vec3, on_cpu), ((2, 3), wp.mat22, on_cpu)}


def test_arrays_of_no_elements_and_of_no_dimensions():
    def copy(x: Floats, out: Floats):
        if x.size:
            wp.copy(out, x)

    run = jax_callable(copy)
    assert_array_equal(run(jnp.zeros(0))[0], np.zeros(0))
    assert_array_equal(run(jnp.float32(3))[0], [3])


# Arguments


@pytest.mark.parametrize("jit", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_in_out_arguments(jit):
    run = jit(jax_callable(accumulate, num_outputs=2, in_out_argnames=["total"]))
    x, total = jnp.asarray(X), jnp.asarray(10 * X)
    for _ in range(2):
        after, before = run(x, total)
        assert_array_equal(after, 11 * X)
        assert_array_equal(before, 10 * X)
        assert_array_equal(total, 10 * X)
    assert_array_equal(run(x, x)[0], 2 * X)
    assert_array_equal(x, X)


@pytest.mark.parametrize("names", [["first", "second"], ["second", "first"]])
def test_in_out_arguments_come_in_the_order_of_the_parameters(names):
    def two(first: Floats, x: Floats, second: Floats, out: Floats):
        wp.copy(out, second)
        wp.launch(add_kernel, dim=x.shape, inputs=[x, first], outputs=[first])
        wp.launch(double_kernel, dim=x.shape, inputs=[x], outputs=[second])

    run = jax_callable(two, num_outputs=3, in_out_argnames=names)
    for results in (run(10 * X, X, 5 * X), jax.vmap(run)(*(v[None] for v in (10 * X, X, 5 * X)))):
        assert_array_equal(np.reshape(results, (3, N)), [11 * X, 2 * X, 5 * X])


def test_a_donated_buffer_becomes_the_output():
    run = jax.jit(jax_callable(accumulate, num_outputs=2, in_out_argnames=["total"]), donate_argnums=1)
    total = jnp.asarray(X)
    assert_array_equal(run(X, total)[0], 2 * X)
    assert total.is_deleted()


def test_scalars_are_static():
    run = jax_callable(scaled)
    expected = np.where(np.arange(N) < 3, 2.5 * X, X)
    for factor, count in ((2.5, 3), (np.float32(2.5), np.int64(3)), (jnp.float16(2.5), np.array(3))):
        assert_array_equal(run(X, factor, count)[0], expected)
    jitted = jax.jit(run, static_argnums=(1, 2))
    assert_array_equal(jitted(X, 2.5, 3)[0], expected)
    assert_array_equal(jitted(X, 3, N)[0], 3 * X)
    with pytest.raises(StaticArgumentError, match="scaled: Argument 'factor' must be a static value"):
        jax.jit(run)(X, 2.5, 3)
    for wrong in (2**31, 2.5, True + 0j):
        with pytest.raises(StaticArgumentError, match=r"scaled: the (static )?scalar 'count' is"):
            run(X, 2.5, wrong)


def test_a_scalar_of_half_precision_is_rounded_as_numpy_does():
    seen = []

    def keeps(x: Floats, half: wp.float16, out: Floats):
        seen.append(half)
        wp.copy(out, x)

    jax_callable(keeps)(X, 2049)
    assert set(seen) == {2048.0}


def test_output_dims():
    def fill(x: Floats, first: Floats, second: Floats):
        first.fill_(1.0)
        second.fill_(2.0)

    run = jax_callable(fill, num_outputs=2)
    for dims, extents in ((None, (N, N)), (3, (3, 3)), ([2], (2, 2)), ({"first": 4, "second": (1,)}, (4, 1))):
        for results in (run(X, output_dims=dims), jax_callable(fill, num_outputs=2, output_dims=dims)(X)):
            assert_array_equal(results[0], np.ones(extents[0]))
            assert_array_equal(results[1], 2 * np.ones(extents[1]))


def test_a_function_without_inputs():
    def ones(out: Floats):
        out.fill_(1.0)

    assert_array_equal(jax.jit(jax_callable(ones, output_dims=3))()[0], np.ones(3))
    with pytest.raises(OutputSpecError, match="ones: Unable to determine output dimensions"):
        jax_callable(ones)()


@pytest.mark.parametrize("mode", list(wp.JaxCallableGraphMode), ids=lambda mode: mode.name)
def test_graph_modes(platform, mode):
    run = jax_callable(quadruple, graph_mode=mode)
    assert run.graph_mode is mode
    assert jax_callable(quadruple, graph_mode=int(mode)) is run
    if platform == "cuda" or mode.name in ("NONE", "JAX"):
        assert_array_equal(jax.jit(run)(X)[0], 4 * X)
        return
    with pytest.raises(PlatformError, match=rf"quadruple: JaxCallableGraphMode\.{mode.name} .*CPU"):
        run(X)


def test_what_warps_graphs_would_need_changes_nothing():
    run = jax_callable(
        accumulate,
        num_outputs=2,
        in_out_argnames=["total"],
        stage_in_argnames=["x"],
        stage_out_argnames=["before"],
        graph_cache_max=3,
        module_preload_mode=0,
    )
    assert (run.stage_in_argnames, run.stage_out_argnames) == ({"x"}, {"before"})
    assert_array_equal(run(X, X)[0], 2 * X)


def test_equal_arguments_give_the_same_object():
    usual = jax_callable(accumulate)
    assert usual is jax_callable(accumulate, 1, in_out_argnames=[], stage_in_argnames=(), vmap_method="broadcast_all")
    others = [{"output_dims": 3}, {"vmap_method": "native"}, {"has_side_effect": True}, {"graph_mode": 0}]
    others += [{"in_out_argnames": ["total"], "num_outputs": 2}, {"stage_in_argnames": ["x"]}]
    made = [usual, *(jax_callable(accumulate, **options) for options in others)]
    assert len({id(function) for function in made}) == len(made)


class Weighted:
    """A function with a state."""

    def __init__(self, weight):
        self.weight = weight

    def run(self, x: Floats, out: Floats):
        wp.launch(scale_kernel, dim=x.shape, inputs=[x, self.weight, N], outputs=[out])

    __call__ = run


def test_methods_and_objects_are_functions():
    two, three = Weighted(2.0), Weighted(3.0)
    assert jax_callable(two.run) is jax_callable(two.run)
    for made in (lambda weighted: weighted.run, lambda weighted: weighted):
        assert_array_equal(jax_callable(made(two))(X)[0], 2 * X)
        assert_array_equal(jax_callable(made(three))(X)[0], 3 * X)


def test_annotations_may_be_texts():
    def doubled(x: "wp.array(dtype=float)", out: "Floats"):
        wp.launch(double_kernel, dim=x.shape, inputs=[x], outputs=[out])

    assert_array_equal(jax_callable(doubled)(X)[0], 2 * X)


# JAX


@pytest.mark.parametrize("method", ["native", "broadcast_all", "sequential"])
@pytest.mark.parametrize("size", [0, 1, 3])
def test_vmap_runs_it_for_each_slice(method, size):
    rows = np.random.default_rng(0).integers(1, 9, (size, N)).astype(np.float32)
    for function, expected in ((normalised, normalised_in_numpy), (differences, differences_in_numpy)):
        run = jax.vmap(jax_callable(function, vmap_method=method))
        assert_allclose(jax.jit(run)(rows)[0], expected(rows.copy()) if size else rows, rtol=1e-6)


def test_vmap_over_other_axes_and_of_some_arguments():
    rows = np.stack([X, X * X, -X])
    run = jax_callable(add)
    assert_array_equal(jax.vmap(run, (0, None))(rows, X)[0], rows + X)
    assert_array_equal(jax.vmap(run, (1, None), 1)(rows.T, X)[0], (rows + X).T)
    nested = jax.vmap(jax.vmap(run, (None, 0)), (0, None))
    assert_array_equal(nested(rows, 2 * rows)[0], rows[:, None] + 2 * rows)
    in_place = jax.vmap(jax_callable(accumulate, 2, in_out_argnames=["total"]), (0, None))
    after, before = in_place(rows, X)
    assert_array_equal(after, rows + X)
    assert_array_equal(before, np.stack([X] * 3))


def test_vmap_may_be_forbidden():
    run = jax_callable(quadruple, vmap_method=None)
    with pytest.raises(VmapMethodError, match="quadruple: "):
        jax.vmap(run)(X[None])
    assert_array_equal(jax.vmap(functools.partial(run, vmap_method="sequential"))(X[None])[0], 4 * X[None])


def test_loops_and_branches():
    run = jax_callable(quadruple)
    looped = jax.jit(lambda x: jax.lax.fori_loop(0, 5, lambda _, x: run(x)[0] / 2, x))
    assert_array_equal(looped(X), 32 * X)
    _, every = jax.lax.scan(lambda c, x: (run(c)[0] + x, c), X, jnp.ones(3))
    assert_array_equal(every[2], 4 * (4 * X + 1) + 1)
    chosen = jax.jit(lambda choice, x: jax.lax.cond(choice, lambda x: run(x)[0], jnp.negative, x))
    assert_array_equal(chosen(True, X), 4 * X)
    assert_array_equal(chosen(False, X), -X)


def test_a_side_effect_keeps_a_call_with_unused_results():
    def unused(run):
        return jax.jit(lambda x: (run(x), x)[1]).lower(X).compile().as_text().count("custom-call(")

    assert unused(jax_callable(quadruple)) == 0
    assert unused(jax_callable(quadruple, has_side_effect=True)) == 1


def test_a_function_has_no_derivative():
    with pytest.raises(DifferentiationError, match=r"quadruple: a kernel has no derivative.*wrap .* in jax.custom_jvp"):
        jax.grad(lambda x: jax_callable(quadruple)(x)[0].sum())(X)


def test_several_threads():
    run = jax.jit(jax_callable(normalised))
    inputs = [X + i for i in range(32)]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for x, (result,) in zip(inputs, pool.map(run, inputs), strict=True):
            assert_allclose(result, normalised_in_numpy(x))


# What reads on the host


def read_on_the_host(x: Floats, out: Floats):
    """Which kernels it launches depends on what is in its arrays."""
    times = int(x.numpy()[0])
    wp.copy(out, x)
    for _ in range(times):
        wp.launch(double_kernel, dim=x.shape, inputs=[out], outputs=[out])


def test_a_function_that_reads_on_the_host_is_right_and_warns_once(platform):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run = jax.jit(jax_callable(read_on_the_host))
        for first in (1, 3, 0):
            x = X.copy()
            x[0] = first
            assert_array_equal(run(x)[0], x * 2**first)
        rows = np.stack([X, X + 1])
        assert_array_equal(jax.vmap(jax_callable(read_on_the_host))(rows)[0], rows * [[2], [4]])
    found = [w for w in caught if issubclass(w.category, RecordingWarning)]
    if platform == "cpu":
        assert not found
    else:
        assert len({str(w.message) for w in found}) == len(found) >= 1
        assert "read_on_the_host" in str(found[0].message)
        assert found[0].filename == __file__


@pytest.mark.parametrize("platform", [pytest.param("cuda", marks=pytest.mark.gpu)], indirect=True)
def test_a_recording_that_another_thread_spoils_is_made_again(platform):
    """As XLA may, which waits for the device in its own threads: here another thread copies on the default stream.

    The driver refuses that copy while the function is recorded, and ends the recording.
    """
    from cuda.bindings import driver

    from xlakernel.core.gpu.driver import context_of, usual_device

    refused, runs = [], []

    def doubled_beside_a_copy(x: Floats, out: Floats):
        def copy():
            with context_of(usual_device()):
                refused.extend(driver.cuMemcpyDtoH(np.zeros(N, np.float32).ctypes.data, x.ptr, x.size * 4))

        if not refused:
            thread = threading.Thread(target=copy)
            thread.start()
            thread.join()
        runs.append(len(runs))
        wp.launch(double_kernel, dim=x.shape, inputs=[x], outputs=[out])

    assert_array_equal(jax_callable(doubled_beside_a_copy)(X)[0], 2 * X)
    assert refused == [driver.CUresult.CUDA_ERROR_STREAM_CAPTURE_IMPLICIT]
    assert len(runs) >= 3  # the one that was spoilt, and two that agree, for each device


# Errors


def returning(x: Floats, out: Floats):
    wp.copy(out, x)
    return x


def failing(x: Floats, out: Floats):
    raise KeyError("nowhere")


class TestWhenItRuns:
    """On a GPU a function runs first where it is recorded, and its errors are raised there."""

    ERRORS = (jax.errors.JaxRuntimeError, ValueError, KeyError)

    def test_a_function_that_returns_something(self):
        with pytest.raises(self.ERRORS, match="returning: Function must not return a value, and returned array"):
            jax.block_until_ready(jax_callable(returning)(X))

    def test_a_function_that_raises(self):
        with pytest.raises(self.ERRORS, match="nowhere"):
            jax.block_until_ready(jax_callable(failing)(X))
        assert_array_equal(jax_callable(quadruple)(X)[0], 4 * X)

    def test_a_function_that_changes_its_input_in_debug_mode(self):
        def careless(x: Floats, out: Floats):
            wp.copy(out, x)
            x.fill_(0.0)

        x = jnp.asarray(X)
        with (
            debug_mode(),
            pytest.raises(self.ERRORS, match=r"'careless' .*changed element \(0,\) of input 0"),
        ):
            jax.block_until_ready(jax_callable(careless)(x))
        assert_array_equal(x, X)

    def test_a_function_that_leaves_an_output_in_debug_mode(self):
        def lazy(x: Floats, out: Floats):
            wp.copy(out, x, count=3)

        with debug_mode(), pytest.raises(self.ERRORS, match=r"'lazy' .*did not write element \(3,\) of output 0"):
            jax.block_until_ready(jax_callable(lazy)(X))

    def test_what_is_right_in_debug_mode(self):
        with debug_mode():
            assert_array_equal(jax_callable(quadruple)(X)[0], 4 * X)
            rows = jax.vmap(jax_callable(accumulate, 2, in_out_argnames=["total"]), (0, None))
            assert_array_equal(rows(np.stack([X, -X]), X)[0], [2 * X, 0 * X])


def without_annotations(x, out: Floats):
    pass


def annotated_to_return(x: Floats, out: Floats) -> int:
    pass


def with_a_vector(x: Floats, v: wp.vec3, out: Floats):
    pass


def with_more(x: Floats, *outs: Floats):
    pass


MADE_WRONG = {
    "no annotation": (
        without_annotations,
        {},
        KernelTypeError,
        "Incomplete argument annotations .*without_annotations",
    ),
    "a return value": (annotated_to_return, {}, KernelTypeError, "Function must not return a value"),
    "a vector": (with_a_vector, {}, KernelTypeError, "with_a_vector has the parameter v: .*array or scalar"),
    "any number": (with_more, {}, KernelTypeError, r"Incomplete argument annotations .*\*outs"),
    "a kernel": (double_kernel, {}, KernelTypeError, "This is a kernel, which jax_kernel takes"),
    "a class": (Weighted, {}, KernelTypeError, "expected a function"),
    "no function": (3, {}, KernelTypeError, "jax_callable: 3 is of type int"),
    "a partial function": (functools.partial(scaled, count=2), {}, KernelTypeError, "Incomplete argument annotations"),
    "no outputs": (quadruple, {"num_outputs": 0}, ArgumentError, "At least one output"),
    "too many outputs": (quadruple, {"num_outputs": 3}, ArgumentError, "greater than the number"),
    "an unknown name": (quadruple, {"in_out_argnames": ["y"]}, ArgumentError, "'y' did not match any"),
    "twice the same": (quadruple, {"num_outputs": 2, "in_out_argnames": ["x"] * 2}, ArgumentError, "duplicate"),
    "an in-out output": (
        accumulate,
        {"num_outputs": 2, "in_out_argnames": ["before"]},
        ArgumentError,
        "placed before output-only",
    ),
    "an output that is a scalar": (scaled, {"num_outputs": 2}, KernelTypeError, "must be arrays; count is a scalar"),
    "negative extents": (quadruple, {"output_dims": -1}, LaunchError, "output_dims is -1"),
    "a mode": (quadruple, {"graph_mode": 17}, ValueError, "17"),
}


@pytest.mark.parametrize(("function", "options", "error", "text"), MADE_WRONG.values(), ids=MADE_WRONG)
def test_a_function_that_cannot_be_made(function, options, error, text):
    with pytest.raises(error, match=text):
        jax_callable(function, **options)


RUN = jax_callable(quadruple)
CALLED_WRONG = {
    "too few": (lambda: RUN(), ArgumentError, r"Expected 1 input \(x\), but got 0"),
    "an output too": (lambda: RUN(X, X), ArgumentError, "but got 2. Leave out the outputs"),
    "a dtype": (lambda: RUN(X.astype(np.int32)), DtypeError, r"argument 'x' \(input 0\), expected float32, got int32"),
    "a rank": (lambda: RUN(X[None]), InputError, r"Invalid dimensionality for array argument 'x'"),
    "a list": (lambda: RUN([1.0]), InputError, "quadruple: input 0 is .* of type list"),
    "no such output": (lambda: RUN(X, output_dims={"o": 3}), OutputSpecError, "Missing output dimensions .*'out'"),
    "the outputs' rank": (lambda: RUN(X, output_dims=(1, 2)), OutputSpecError, "Invalid output dimensions"),
}


@pytest.mark.parametrize("jit", [lambda f: f, jax.jit], ids=["eager", "jit"])
@pytest.mark.parametrize(("call", "error", "text"), CALLED_WRONG.values(), ids=CALLED_WRONG)
def test_a_call_that_cannot_be(jit, call, error, text):
    with pytest.raises(error, match=text):
        jit(call)()


def counting(state, x: Floats, out: Floats):
    state.append(1.0)
    out.fill_(float(len(state)))


def calls_of(f, x):
    """Return the results of two calls, each of them one number."""
    return [float(np.asarray(f(x)[0])[0]) for _ in range(2)]


def test_functions_of_equal_code_and_state_have_variables_of_their_own(platform):
    if platform != "cpu":
        pytest.skip("a function that is recorded does not run in each call")
    x = jnp.ones(1)
    one, other = [], []
    assert calls_of(jax_callable(functools.partial(counting, one)), x) == [1, 2]
    assert calls_of(jax_callable(functools.partial(counting, other)), x) == [1, 2]
    assert len(one) == len(other) == 2


SCRIPT = """
import numpy as np, warp as wp
from xlakernel.warp import jax_callable

Floats = wp.array(dtype=float)
log = []

def count(x: Floats, out: Floats):
    log.append(1.0)
    out.fill_(float(len(log)))

f = jax_callable(count)
results = [float(f(np.ones(1, np.float32))[0][0]) for _ in range(2)]
"""


def test_a_script_that_runs_twice_in_a_process(tmp_path, platform):
    if platform != "cpu":
        pytest.skip("a function that is recorded does not run in each call")
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    for _ in range(2):
        space = runpy.run_path(str(script))
        assert (space["results"], space["log"]) == ([1, 2], [1, 1])
