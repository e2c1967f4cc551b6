"""`jax_kernel`: arguments of the function and of its calls, and results."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import warp as wp
from numpy.testing import assert_allclose, assert_array_equal

from xlakernel.core.errors import (
    ArgumentError,
    ArityError,
    DifferentiationError,
    DtypeError,
    InputError,
    KernelTypeError,
    LaunchError,
    OutputSpecError,
    StaticArgumentError,
    VmapMethodError,
)
from xlakernel.warp import jax_kernel, warp_kernel

wp.set_module_options({"enable_backward": False})
pytestmark = pytest.mark.usefixtures("platform")

Struct = jax.ShapeDtypeStruct
X = np.arange(1, 4, dtype=np.float32)


@wp.kernel
def scale(x: wp.array(dtype=float), factor: float, out: wp.array(dtype=float)):
    i = wp.tid()
    out[i] = x[i] * factor


@wp.kernel
def add_to(x: wp.array(dtype=float), total: wp.array(dtype=float)):
    """Adds to as many elements as there are threads."""
    i = wp.tid()
    total[i] = total[i] + x[i]


@wp.kernel
def sine_and_cosine(x: wp.array(dtype=float), sine: wp.array(dtype=float), cosine: wp.array(dtype=float)):
    i = wp.tid()
    sine[i] = wp.sin(x[i])
    cosine[i] = wp.cos(x[i])


@wp.kernel
def diagonals(out: wp.array(dtype=wp.mat33)):
    i = wp.tid()
    out[i] = float(i) * wp.identity(n=3, dtype=float)


@wp.kernel
def add_up_to(count: int, out: wp.array(dtype=int)):
    for i in range(count):
        out[i] = i


@wp.kernel
def turned(
    points: wp.array(dtype=wp.vec3),
    turns: wp.array(dtype=wp.quat),
    places: wp.array(dtype=wp.transform),
    matrices: wp.array2d(dtype=wp.mat22),
    moved: wp.array(dtype=wp.vec3),
    columns: wp.array2d(dtype=wp.vec2),
):
    i = wp.tid()
    moved[i] = wp.transform_point(places[i], wp.quat_rotate(turns[i], points[i]))
    for j in range(matrices.shape[1]):
        columns[i, j] = wp.vec2(matrices[i, j][0, 0], matrices[i, j][1, 0])


@wp.kernel
def mixed_up(
    a: wp.array(dtype=float),
    late: wp.array(dtype=float),
    factor: float,
    c: wp.array(dtype=float),
    early: wp.array(dtype=float),
    out: wp.array(dtype=float),
):
    """In-out arguments between inputs and a scalar."""
    i = wp.tid()
    late[i] = late[i] + a[i]
    early[i] = early[i] * factor
    out[i] = a[i] + c[i]


@wp.kernel
def weigh_by_blocks(x: wp.array(dtype=float), out: wp.array(dtype=float)):
    i = wp.tid()
    out[i] = x[i] * float(wp.block_dim())


@wp.kernel(module="unique")
def scale_any(x: wp.array(dtype=Any), factor: Any, out: wp.array(dtype=Any)):
    i = wp.tid()
    out[i] = x[i] * factor


@wp.kernel(module="unique")
def double_any(x: wp.array(dtype=Any), out: wp.array(dtype=Any)):
    i = wp.tid()
    out[i] = x[i] + x[i]


@wp.kernel(module="unique")
def any_of_nothing(out: wp.array(dtype=Any)):
    i = wp.tid()
    out[i] = out.dtype(1)


# What comes back


def test_a_list_comes_back_however_many_outputs_there_are():
    one, two = jax_kernel(scale), jax_kernel(sine_and_cosine, num_outputs=2)
    for results, count in ((one(X, 2.0), 1), (jax.jit(lambda: one(X, 2.0))(), 1), (two(X), 2), (jax.jit(two)(X), 2)):
        assert type(results) is list and len(results) == count
    assert_array_equal(one(X, 2.0)[0], 2 * X)
    for result, expected in zip(two(X), (np.sin(X), np.cos(X)), strict=True):
        assert_allclose(result, expected, rtol=1e-6)


def test_a_call_is_traced_like_any_other():
    run = jax_kernel(sine_and_cosine, 2)
    assert jax.eval_shape(run, Struct((5,), jnp.float32)) == [Struct((5,), jnp.float32)] * 2
    assert "sine_and_cosine" in str(jax.make_jaxpr(run)(X))
    assert run.__name__ == "sine_and_cosine"


def test_arrays_of_numpy_of_no_elements_and_of_no_dimensions():
    run = jax_kernel(scale)
    assert_array_equal(run(np.arange(3, dtype=np.float32), 2)[0], [0, 2, 4])
    assert_array_equal(run(jnp.zeros(0), 2)[0], np.zeros(0))
    assert_array_equal(run(jnp.float32(3), 2)[0], [6])
    assert_array_equal(jax.vmap(lambda x: run(x, 2))(X)[0], 2 * X[:, None])


# How many threads, how long the outputs


@pytest.mark.parametrize("dims", [2, (2,), [2], np.int64(2), np.array([2])], ids=repr)
def test_launch_dims_say_how_many_threads_there_are(dims):
    expected = np.where(np.arange(3) < 2, 2 * X, X)
    (usual,) = jax_kernel(add_to, launch_dims=dims, in_out_argnames=["total"])(X, X)
    (chosen,) = jax_kernel(add_to, in_out_argnames=["total"])(X, X, launch_dims=dims)
    assert_array_equal(usual, expected)
    assert_array_equal(chosen, expected)


def test_launch_dims_of_a_call_come_before_those_of_the_function():
    run = jax_kernel(add_to, launch_dims=1, in_out_argnames=["total"])
    for dims, count in ((None, 1), (2, 2), (0, 0), (None, 1)):
        assert_array_equal(run(X, X, launch_dims=dims)[0], np.where(np.arange(3) < count, 2 * X, X))


def test_outputs_are_as_long_as_the_launch_unless_output_dims_say_otherwise():
    run = jax_kernel(add_up_to, launch_dims=3)
    assert_array_equal(run(3)[0], [0, 1, 2])
    assert_array_equal(run(5, output_dims=5)[0], np.arange(5))
    assert_array_equal(run(5, output_dims={"out": [5]})[0], np.arange(5))
    assert_array_equal(jax_kernel(add_up_to, launch_dims=1, output_dims=(4,))(4)[0], np.arange(4))
    assert_array_equal(jax_kernel(add_up_to, output_dims=(4,))(4, launch_dims=1)[0], np.arange(4))
    assert_array_equal(jax_kernel(add_up_to, launch_dims=1, output_dims=(4,))(2, output_dims=2)[0], np.arange(2))


def test_output_dims_by_name_are_each_output_s_own():
    points, turns = jnp.ones((2, 3)), jnp.array([[0.0, 0, 0, 1]] * 2)
    places = jnp.array([[1.0, 2, 3, 0, 0, 0, 1]] * 2)
    matrices = jnp.arange(24.0).reshape(2, 3, 2, 2)
    run = jax_kernel(turned, num_outputs=2)
    for dims in (
        {"moved": 2, "columns": (2, 3)},
        {"moved": (2,), "columns": [2, 3]},
        {"moved": (2, 3), "columns": (2, 3, 2)},  # with the dimensions of the vectors
        {"moved": points.shape, "columns": (2, 3), "other": 7},  # Warp ignores other names
    ):
        moved, columns = run(points, turns, places, matrices, output_dims=dims)
        assert_allclose(moved, [[2, 3, 4]] * 2)
        assert_array_equal(columns, matrices[..., 0])


def test_launch_dims_are_those_of_the_first_input_without_its_vectors():
    @wp.kernel(module="unique", enable_backward=False)
    def count(x: wp.array2d(dtype=wp.mat22), threads: wp.array(dtype=int)):
        wp.atomic_add(threads, 0, 1)

    run = jax_kernel(count, in_out_argnames=["threads"])
    assert_array_equal(run(jnp.ones((3, 5, 2, 2)), jnp.zeros(1, jnp.int32))[0], [15])


def test_a_kernel_without_inputs():
    expected = np.arange(4)[:, None, None] * np.eye(3)
    for options in ({"launch_dims": 4}, {"launch_dims": 4, "output_dims": (4, 3, 3)}):
        assert_array_equal(jax.jit(jax_kernel(diagonals, **options))()[0], expected)
    assert_array_equal(jax_kernel(diagonals)(launch_dims=4)[0], expected)


def test_a_launch_of_no_threads_gives_defined_outputs():
    assert_array_equal(jax_kernel(scale)(X, 2, launch_dims=0, output_dims=5)[0], np.zeros(5))


# In-out arguments


@pytest.mark.parametrize("names", [["early", "late"], ("late", "early")])
@pytest.mark.parametrize("jit", [jax.jit, lambda f: f], ids=["jit", "eager"])
def test_in_out_arguments_come_first_in_the_order_of_the_parameters(names, jit):
    run = jax_kernel(mixed_up, num_outputs=3, in_out_argnames=names)
    a, late, c, early = (jnp.asarray(X) + i for i in range(4))
    results = jit(lambda *arrays: run(*arrays[:2], 2.0, *arrays[2:]))(a, late, c, early)
    assert_array_equal(results, [X + X + 1, 2 * (X + 3), X + X + 2])
    assert_array_equal(late, X + 1)  # the caller's are as they were
    assert_array_equal(early, X + 3)


def test_one_array_for_all_parameters():
    run = jax_kernel(mixed_up, num_outputs=3, in_out_argnames=["early", "late"])
    x = jnp.asarray(X)
    assert_array_equal(run(x, x, 2.0, x, x), [2 * X, 2 * X, 2 * X])
    assert_array_equal(x, X)


def test_a_donated_buffer_becomes_the_output():
    run = jax_kernel(add_to, in_out_argnames=["total"])
    total = jnp.zeros(3)
    (result,) = jax.jit(run, donate_argnums=1)(X, total)
    assert_array_equal(result, X)
    assert total.is_deleted()


def test_in_out_arguments_under_vmap():
    run = jax_kernel(add_to, in_out_argnames=["total"])
    rows = np.stack([X, 2 * X])
    assert_array_equal(jax.vmap(run)(rows, rows)[0], 2 * rows)
    assert_array_equal(jax.vmap(run, (0, None))(rows, X)[0], rows + X)
    assert_array_equal(jax.vmap(run, (None, 0))(X, rows)[0], rows + X)


# Static scalars

SCALARS = [2, 2.5, True, np.float32(2.5), np.float64(2.5), np.int8(-2), np.float16(2.5), np.array(2.5), jnp.bfloat16(3)]


@pytest.mark.parametrize("factor", [*SCALARS, np.array(2)], ids=repr)
def test_a_scalar_is_any_number(factor):
    assert_allclose(jax_kernel(scale)(X, factor)[0], X * float(factor))
    assert_allclose(jax_kernel(scale)(X, jnp.asarray(factor))[0], X * float(factor))


def test_scalars_are_static():
    run = jax_kernel(scale)
    jitted = jax.jit(run, static_argnums=1)
    assert_array_equal(jitted(X, 2.0)[0] + jitted(X, 3.0)[0], 5 * X)
    with pytest.raises(StaticArgumentError, match=r"scale: Argument 'factor' must be a static value.*static_argnames"):
        jax.jit(run)(X, 2.0)
    with pytest.raises(StaticArgumentError, match="Argument 'factor' must be a static value"):
        jax.vmap(run)(X[None], jnp.ones(1))


def test_negative_zero_and_what_is_no_number():
    run = jax_kernel(scale)
    assert_array_equal(np.signbit(run(X, -0.0)[0]), [True] * 3)
    assert_array_equal(np.signbit(run(X, 0.0)[0]), [False] * 3)
    assert_array_equal(run(X, np.nan)[0], [np.nan] * 3)
    assert_array_equal(run(X, -np.inf)[0], [-np.inf] * 3)


@wp.kernel
def write_scalars(
    small: wp.uint8,
    flag: wp.bool,
    half: wp.float16,
    number: wp.int32,
    large: wp.int64,
    largest: wp.uint64,
    wide: wp.float64,
    floats: wp.array(dtype=float),
    integers: wp.array(dtype=int),
):
    floats[0] = float(half)
    floats[1] = float(wide * wp.float64(1e300))
    integers[0] = int(small)
    integers[1] = wp.where(flag, 1, 0)
    integers[2] = number
    integers[3] = int(large / wp.int64(4294967296))
    integers[4] = int(largest / wp.uint64(4294967296))


def test_scalars_of_every_width():
    run = jax_kernel(write_scalars, num_outputs=2, launch_dims=1, output_dims={"floats": 2, "integers": 5})
    floats, integers = run(255, True, -0.5, -(2**31), -(2**34), 2**62, 1e-300)
    assert_allclose(floats, [-0.5, 1], rtol=1e-6)
    assert_array_equal(integers, [255, 1, -(2**31), -4, 2**30])


@pytest.mark.parametrize(("position", "number"), [(0, 256), (0, -1), (1, 2), (3, 2**31), (3, 1.0), (3, 2.5), (5, -1)])
def test_a_scalar_that_its_type_does_not_have_is_not_wrapped_around(position, number):
    run = jax_kernel(write_scalars, num_outputs=2, launch_dims=1, output_dims={"floats": 2, "integers": 5})
    scalars = [1, True, 1.0, 1, 1, 1, 1.0]
    scalars[position] = number
    with pytest.raises(StaticArgumentError, match=r"write_scalars: the static scalar .* expected"):
        run(*scalars)


@pytest.mark.parametrize("wrong", ["2", None, 1j, [2.0], np.ones(1), 2**64], ids=repr)
def test_what_is_no_scalar(wrong):
    with pytest.raises(StaticArgumentError, match=r"scale: (the (static )?scalar )?'factor' is"):
        jax_kernel(scale)(X, wrong)


# Types


def test_vectors_matrices_quaternions_and_transformations():
    turn = [0.0, 0.0, np.sqrt(0.5), np.sqrt(0.5)]  # a quarter about z
    points = jnp.array([[1.0, 0, 0], [0, 1, 0]])
    places = jnp.array([[1.0, 2, 3, 0, 0, 0, 1], [0, 0, 0, *turn]])
    matrices = jnp.arange(24.0).reshape(2, 3, 2, 2)
    moved, columns = jax_kernel(turned, 2, output_dims={"moved": 2, "columns": (2, 3)})(
        points, jnp.array([turn, turn]), places, matrices
    )
    assert_allclose(moved, [[1, 3, 3], [0, -1, 0]], atol=1e-6)
    assert_array_equal(columns, matrices[..., 0])


def test_a_generic_kernel_is_compiled_for_the_types_of_each_call():
    run = jax_kernel(double_any)
    for dtype in ("float32", "int16", "float32"):
        (result,) = jax.jit(run)(X.astype(dtype))
        assert result.dtype == dtype
        assert_array_equal(result, 2 * X)
    both = jax.jit(lambda x: (run(x)[0], run(x.astype(jnp.int8))[0]))(X)
    assert [found.dtype for found in both] == [jnp.float32, jnp.int8]
    assert_array_equal(both, [2 * X, 2 * X])


def test_a_generic_scalar():
    run = jax_kernel(scale_any)
    assert_array_equal(run(X, 2.0)[0], 2 * X)
    assert_array_equal(run(X.astype(np.int32), 3)[0], 3 * X)
    assert_array_equal(run(X.astype(np.int32), np.int32(4))[0], 4 * X)


@pytest.mark.parametrize("number", [np.float64(0.1), np.int64(100_000), np.uint64(3)])
@pytest.mark.parametrize(
    "run", [jax_kernel(scale_any), lambda x, s: warp_kernel(scale_any, outs=lambda x: x)(x, factor=s)]
)
def test_a_generic_scalar_of_64_bits(run, number):
    kind = type(number.item()).__name__
    with pytest.raises(StaticArgumentError, match=rf"{kind}.*its parameter is generic.*expected {kind}\("):
        run(X, number)  # not converted to 32 bits


def test_vectors_of_a_generic_kernel_want_an_overload():
    vectors = wp.overload(double_any, [wp.array(dtype=wp.vec2), wp.array(dtype=wp.vec2)])
    numbers = wp.overload(double_any, [wp.array(dtype=float), wp.array(dtype=float)])
    run, other = jax_kernel(vectors), jax_kernel(numbers)
    assert run is not other
    x = jnp.arange(6.0).reshape(3, 2)
    found = jax.jit(lambda x: (*run(x), *other(x.ravel())))(x)
    assert_array_equal(found[0], 2 * x)
    assert_array_equal(found[1], 2 * x.ravel())


def test_a_generic_output_needs_a_generic_input():
    with pytest.raises(OutputSpecError, match=r"any_of_nothing: the output 'out' has a generic dtype.*overload"):
        jax_kernel(any_of_nothing, launch_dims=3)()


# The other arguments


@pytest.mark.parametrize("threads", [None, 1, 32, np.int64(64)])
def test_block_dim_is_what_the_kernel_sees_on_a_gpu(platform, threads):
    expected = 1 if platform == "cpu" else int(threads or 256)
    run = jax_kernel(weigh_by_blocks, block_dim=threads)
    assert run.block_dim == threads
    assert_array_equal(run(X)[0], expected * X)


def test_equal_arguments_give_the_same_object():
    usual = jax_kernel(scale)
    assert usual is jax_kernel(scale, 1, "broadcast_all", None, in_out_argnames=[])
    assert jax_kernel(scale, launch_dims=[3], output_dims={"out": 3}) is jax_kernel(
        scale, launch_dims=3, output_dims={"out": (3,)}
    )
    others = [{"launch_dims": 3}, {"output_dims": 3}, {"vmap_method": "sequential"}, {"block_dim": 32}]
    others += [{"has_side_effect": True}, {"enable_backward": True}, {"output_dims": {"out": 3}}]
    made = [usual, *(jax_kernel(scale, **options) for options in others)]
    assert len({id(function) for function in made}) == len(made)


def test_a_side_effect_keeps_a_call_with_unused_results():
    def unused(run):
        text = jax.jit(lambda x: (run(x, 2.0), x)[1]).lower(X).compile().as_text()
        return text.count("custom-call(")

    assert unused(jax_kernel(scale)) == 0
    assert unused(jax_kernel(scale, has_side_effect=True)) == 1


@pytest.mark.parametrize("method", ["native", "expand_dims", "broadcast_all", "sequential", "sequential_unrolled"])
def test_every_method_of_vmap_gives_the_same(method):
    rows = np.stack([X, X + 1])
    for run in (
        jax.vmap(lambda x: jax_kernel(scale, vmap_method=method)(x, 2.0)),
        jax.vmap(lambda x: jax_kernel(scale)(x, 2.0, vmap_method=method)),
    ):
        assert_array_equal(jax.jit(run)(rows)[0], 2 * rows)


def test_vmap_may_be_forbidden():
    forbidden = jax_kernel(scale, vmap_method=None)
    assert_array_equal(forbidden(X, 2.0)[0], 2 * X)
    with pytest.raises(VmapMethodError, match=r"scale: jax\.vmap is not allowed"):
        jax.vmap(lambda x: forbidden(x, 2.0))(X[None])
    assert_array_equal(jax.vmap(lambda x: forbidden(x, 2.0, vmap_method="native"))(X[None])[0], 2 * X[None])


@pytest.mark.parametrize("mode", [None, *range(3)])
def test_a_preload_mode_changes_nothing(mode):
    assert_array_equal(jax_kernel(scale, module_preload_mode=mode)(X, 2.0)[0], 2 * X)


# Errors


@wp.struct
class Pair:
    a: float
    b: float


@wp.kernel(module="unique")
def takes_a_struct(x: wp.array(dtype=float), pair: Pair, out: wp.array(dtype=float)):
    i = wp.tid()
    out[i] = x[i] * pair.a


@wp.kernel(module="unique")
def takes_structs(x: wp.array(dtype=Pair), out: wp.array(dtype=float)):
    i = wp.tid()
    out[i] = x[i].a


@wp.kernel(module="unique")
def takes_a_vector(x: wp.array(dtype=float), v: wp.vec3, out: wp.array(dtype=float)):
    i = wp.tid()
    out[i] = x[i] * v[0]


@wp.func
def helper(x: float):
    return x


def plain(x: wp.array(dtype=float), out: wp.array(dtype=float)):
    pass


MADE_WRONG = {
    "a plain function": (plain, {}, KernelTypeError, r"jax_kernel: plain is .*warp\.kernel\(plain\)"),
    "a function of Warp's": (helper, {}, KernelTypeError, r"warp\.func"),
    "wrapped already": (jax_kernel(scale), {}, KernelTypeError, "wrapped already"),
    "no kernel": (3, {}, KernelTypeError, "jax_kernel: 3 is of type int"),
    "a struct": (
        takes_a_struct,
        {},
        KernelTypeError,
        "takes_a_struct has the parameter pair: .*expected array or scalar",
    ),
    "structs": (takes_structs, {}, KernelTypeError, "takes_structs has the parameter x: .*expected scalar, vector"),
    "a vector": (takes_a_vector, {}, KernelTypeError, "takes_a_vector has the parameter v: .*expected array or scalar"),
    "an output that is a scalar": (scale, {"num_outputs": 2}, KernelTypeError, "must be arrays; factor is a scalar"),
    "an in-out scalar": (scale, {"in_out_argnames": ["factor"]}, KernelTypeError, "must be arrays; factor"),
    "no outputs": (scale, {"num_outputs": 0}, ArgumentError, "At least one output"),
    "a negative number": (scale, {"num_outputs": -1}, ArgumentError, "At least one output"),
    "too many outputs": (scale, {"num_outputs": 4}, ArgumentError, "greater than the number of kernel arguments"),
    "half an output": (scale, {"num_outputs": 1.5}, ArgumentError, "num_outputs is 1.5; expected an integer"),
    "fewer than in-out": (mixed_up, {"in_out_argnames": ["late", "early"]}, ArgumentError, "smaller than"),
    "twice the same": (scale, {"num_outputs": 2, "in_out_argnames": ["x", "x"]}, ArgumentError, "duplicate"),
    "an unknown name": (scale, {"in_out_argnames": ["y"]}, ArgumentError, "'y' did not match any"),
    "in-out behind": (
        sine_and_cosine,
        {"num_outputs": 2, "in_out_argnames": ["cosine"]},
        ArgumentError,
        "in_out arguments should be placed before output-only",
    ),
    "half a block": (scale, {"block_dim": 1.5}, StaticArgumentError, "block_dim must be an integer or None"),
    "a true block": (scale, {"block_dim": True}, StaticArgumentError, "block_dim must be an integer or None"),
    "an empty block": (scale, {"block_dim": 0}, LaunchError, "block_dim must be positive"),
    "negative threads": (scale, {"launch_dims": -1}, LaunchError, r"launch_dims is -1; expected a non-negative"),
    "half a thread": (scale, {"launch_dims": 1.5}, LaunchError, "launch_dims is 1.5"),
    "no dimensions": (scale, {"launch_dims": ()}, LaunchError, r"launch_dims is \(\)"),
    "five dimensions": (scale, {"launch_dims": (1,) * 5}, LaunchError, "of 5 dimensions; expected .* 1 to 4"),
    "a text": (scale, {"launch_dims": "3"}, LaunchError, "launch_dims is '3'"),
    "negative outputs": (scale, {"output_dims": (-1,)}, LaunchError, r"output_dims is \(-1,\)"),
    "a negative output": (scale, {"output_dims": {"out": -1}}, LaunchError, r"output_dims\['out'\] is -1"),
    "a method of vmap": (scale, {"vmap_method": "fast"}, VmapMethodError, "unknown vmap_method 'fast'"),
    "backward and in-out": (
        add_to,
        {"enable_backward": True, "in_out_argnames": ["total"]},
        DifferentiationError,
        "in_out_argnames is not supported when enable_backward=True",
    ),
    "backward and output_dims": (
        scale,
        {"enable_backward": True, "output_dims": 3},
        DifferentiationError,
        "output_dims is not supported when enable_backward=True",
    ),
    "a name as in/out": (
        scale,
        {"in_out_argnames": "out"},
        ArgumentError,
        r"in_out_argnames is 'out'; expected a sequence of names, such as \['out'\]",
    ),
}


@pytest.mark.parametrize(("kernel", "options", "error", "text"), MADE_WRONG.values(), ids=MADE_WRONG)
def test_a_function_that_cannot_be_made(kernel, options, error, text):
    with pytest.raises(error, match=text):
        jax_kernel(kernel, **options)


RUN = jax_kernel(scale)
CALLED_WRONG = {
    "too few": (lambda: RUN(X), ArgumentError, r"Expected 2 inputs \(x, factor\), but got 1"),
    "an output too": (lambda: RUN(X, 2.0, X), ArgumentError, "but got 3. Leave out the outputs"),
    "too few for one": (lambda: jax_kernel(sine_and_cosine, 2)(), ArgumentError, r"Expected 1 input \(x\), but got 0"),
    "a dtype": (
        lambda: RUN(X.astype(np.int32), 2.0),
        DtypeError,
        r"Invalid data type for array argument 'x' \(input 0\), expected float32, got int32.*astype\('float32'\)",
    ),
    "a dtype of any kernel": (lambda: jax_kernel(double_any)(X + 1j), DtypeError, "complex64"),
    "a rank": (
        lambda: RUN(X[None], 2.0),
        InputError,
        r"Invalid dimensionality.*expected 1 dimensions, got 2: \(1, 3\)",
    ),
    "a list": (lambda: RUN([1.0], 2.0), InputError, "scale: input 0 is .* of type list"),
    "None": (lambda: RUN(None, 2.0), InputError, "scale: input 0 is None"),
    "vectors": (
        lambda: jax_kernel(turned, 2)(X[None, :2], *[X] * 3),
        InputError,
        r"Invalid inner dimensions for array argument 'points' \(input 0\), expected \(3,\), got \(2,\): .* vec3f",
    ),
    "vectors' rank": (
        lambda: jax_kernel(turned, 2)(X[None, None], *[X] * 3),
        InputError,
        r"expected 2 dimensions \(1 of the array and 1 of its elements\), got 3",
    ),
    "no such output": (
        lambda: RUN(X, 2.0, output_dims={"o": 3}),
        OutputSpecError,
        r"Missing output dimensions .*'out'; output_dims has \['o'\]",
    ),
    "no outputs": (lambda: RUN(X, 2.0, output_dims={}), OutputSpecError, "Missing output dimensions .*'out'"),
    "the outputs' rank": (
        lambda: RUN(X, 2.0, output_dims=(2, 3)),
        OutputSpecError,
        r"argument 'out': \(2, 3\); expected 1 extent\.",
    ),
    "the launch's rank": (
        lambda: RUN(X, 2.0, launch_dims=(2, 3)),
        OutputSpecError,
        r"argument 'out': \(2, 3\); expected 1 extent\.",
    ),
    "outputs of matrices": (
        lambda: jax_kernel(diagonals, launch_dims=2, output_dims=(2, 2, 2))(),
        OutputSpecError,
        r"argument 'out': \(2, 2, 2\); .* optionally followed by the element shape \(3, 3\)",
    ),
    "no launch": (lambda: jax_kernel(diagonals)(), LaunchError, "Failed to determine launch dimensions.*launch_dims="),
    "a launch": (lambda: RUN(X, 2.0, launch_dims=1.0), LaunchError, "launch_dims is 1.0"),
    "too large a launch": (lambda: RUN(X, 2.0, launch_dims=2**33, output_dims=1), LaunchError, "scale: "),
    "a method of vmap": (lambda: RUN(X, 2.0, vmap_method="fast"), VmapMethodError, "unknown vmap_method 'fast'"),
    "a keyword": (
        lambda: RUN(X, factor=2.0),
        ArityError,
        r"scale: unknown option 'factor'.*by position: \(x, factor\)",
    ),
    "a keyword, with an adjoint": (
        lambda: jax_kernel(scale, enable_backward=True)(X, factor=2.0),
        ArityError,
        "unknown option 'factor'",
    ),
}


@pytest.mark.parametrize("jit", [lambda f: f, jax.jit], ids=["eager", "jit"])
@pytest.mark.parametrize(("call", "error", "text"), CALLED_WRONG.values(), ids=CALLED_WRONG)
def test_a_call_that_cannot_be(jit, call, error, text):
    with pytest.raises(error, match=text):
        jit(call)()


def test_the_error_of_a_missing_derivative_names_enable_backward():
    with pytest.raises(DifferentiationError, match="enable_backward=True"):
        jax.grad(lambda x: RUN(x, 2.0)[0].sum())(X)


@wp.kernel(enable_backward=True, module="unique")
def squared(x: wp.array(dtype=float), out: wp.array(dtype=float)):
    i = wp.tid()
    out[i] = x[i] * x[i]


def test_an_adjoint_has_no_adjoint():
    run = jax_kernel(squared, enable_backward=True)
    with pytest.raises(DifferentiationError, match="no derivative of its own") as caught:
        jax.grad(lambda x: jax.grad(lambda x: run(x)[0].sum())(x).sum())(X)
    assert "enable_backward" not in str(caught.value)


@pytest.mark.parametrize("outs", [wp.array(dtype=float), lambda *_: wp.array(dtype=float)], ids=["given", "returned"])
def test_an_annotation_is_no_description_of_an_output(outs):
    with pytest.raises(OutputSpecError, match=r"outs\[0\] is array.*no extents.*warpinfo_to_jaxinfo"):
        warp_kernel(scale, outs)(X, factor=2.0)


def test_an_output_of_another_dtype_is_asked_for_otherwise():
    with pytest.raises(DtypeError, match=r"\(output 0\), expected float32, got int32. Give outs the dtype float32"):
        warp_kernel(scale, jax.ShapeDtypeStruct((3,), np.int32))(X, factor=2.0)
