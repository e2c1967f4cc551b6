"""Calls on several CPU devices: split by a rule under `jax.jit`, and one for each device in `jax.shard_map`."""

import functools
import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import warp as wp
from jax.experimental.compilation_cache import compilation_cache
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from numpy.testing import assert_allclose, assert_array_equal

from xlakernel.core.errors import GatheredOperandsWarning, ShardingRuleError
from xlakernel.warp import jax_callable, jax_kernel, warp_kernel

wp.set_module_options({"enable_backward": False})

Struct = jax.ShapeDtypeStruct
RANDOM = np.random.default_rng(0)
V = RANDOM.normal(size=16).astype(np.float32)
A, B = (RANDOM.normal(size=shape).astype(np.float32) for shape in ((8, 12), (12, 8)))
POINTS = RANDOM.normal(size=(8, 3)).astype(np.float32)
close = functools.partial(assert_allclose, rtol=1e-4, atol=1e-4)


@wp.kernel
def multiply(x: wp.array2d(dtype=float), y: wp.array2d(dtype=float), out: wp.array2d(dtype=float)):
    i, j = wp.tid()
    out[i, j] = x[i, j] * y[i, j]


@wp.kernel(enable_backward=True)
def weigh(x: wp.array(dtype=float), w: wp.array(dtype=float), out: wp.array(dtype=float)):
    """Whole, this is out[i] = x[i] * w[i]; in parts of another size it repeats w."""
    i = wp.tid()
    out[i] = x[i] * w[i % w.shape[0]]


@wp.kernel
def matmul(a: wp.array2d(dtype=float), b: wp.array2d(dtype=float), out: wp.array2d(dtype=float)):
    i, j = wp.tid()
    total = float(0)  # one that changes, to Warp
    for k in range(a.shape[1]):
        total += a[i, k] * b[k, j]
    out[i, j] = total


@wp.kernel
def sums(x: wp.array2d(dtype=float), rows: wp.array(dtype=float), total: wp.array(dtype=float)):
    i, j = wp.tid()
    wp.atomic_add(rows, i, x[i, j])
    wp.atomic_add(total, 0, x[i, j])


@wp.kernel
def move(points: wp.array(dtype=wp.vec3), matrix: wp.array(dtype=wp.mat33), out: wp.array(dtype=wp.vec3)):
    i = wp.tid()
    out[i] = matrix[0] * points[i]


@wp.kernel
def own_size(x: wp.array(dtype=float), out: wp.array(dtype=float)):
    """How large the part is that a device is given."""
    i = wp.tid()
    out[i] = float(x.shape[0])


@wp.kernel
def add_into(acc: wp.array(dtype=float), x: wp.array(dtype=float), out: wp.array(dtype=float)):
    i = wp.tid()
    out[i] = out[i] + x[i]


def same(x, *_):
    return x


run_multiply = warp_kernel(multiply, same, sharding_rule="i j, i j -> i j", reference=jnp.multiply)
run_matmul = warp_kernel(
    matmul,
    lambda a, b: Struct((a.shape[0], b.shape[1]), a.dtype),
    launch_dims=lambda a, b: (a.shape[0], b.shape[1]),
    sharding_rule="m k, k n -> m n",
    reference=jnp.matmul,
)
run_move = warp_kernel(move, same, sharding_rule="i [c], [o] [r] [s] -> i [c]")
run_own_size = warp_kernel(own_size, same, sharding_rule="i -> i")

ONE = [P(), P("a"), P(None, "a")]
TWO = [P(*spec) for spec in itertools.product([None, "a", "b"], repeat=2) if spec[0] != spec[1] or spec[0] is None]
TWO += [P(("a", "b")), P(None, ("b", "a"))]


def mesh_of(kind="Auto", **axes):
    """Return a mesh of CPU devices: ``mesh_of(a=2, b=2)``, with the type of its axes."""
    devices = jax.devices("cpu")[: np.prod(list(axes.values()))]
    types = (getattr(AxisType, kind),) * len(axes)
    return jax.make_mesh(tuple(axes.values()), tuple(axes), types, devices=devices)


def put(mesh, x, *spec):
    return jax.device_put(x, NamedSharding(mesh, P(*spec)))


def collectives(program, *args):
    """Name the collectives in a program: those between devices, without their counts."""
    kinds = "all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter|collective-broadcast"
    text = jax.jit(program).lower(*args).compile().as_text()
    return set(re.findall(rf" ({kinds})(?:-start)?\(", text))


def sharded_like(array, mesh, *spec):
    return array.sharding.is_equivalent_to(NamedSharding(mesh, P(*spec)), array.ndim)


# A rule


@pytest.mark.parametrize("spec", TWO, ids=str)
def test_an_elementwise_call_stays_where_its_arrays_are(spec):
    mesh = mesh_of(a=2, b=2)
    x, y = put(mesh, A, *spec), put(mesh, A + 1, *spec)
    out = jax.jit(run_multiply)(x, y)
    assert_array_equal(out, A * (A + 1))
    assert sharded_like(out, mesh, *spec)
    assert collectives(run_multiply, x, y) == set()


def test_operands_that_are_split_otherwise_are_brought_together():
    mesh = mesh_of(a=2, b=2)
    for first, second in itertools.product(TWO[::2], TWO[1::2]):
        assert_array_equal(jax.jit(run_multiply)(put(mesh, A, *first), put(mesh, A + 1, *second)), A * (A + 1))


def test_each_device_is_given_its_part():
    mesh = mesh_of(a=4)
    for run in (jax.jit(run_own_size), run_own_size):
        assert_array_equal(run(put(mesh, V, "a")), [4] * 16)
        assert_array_equal(run(put(mesh, V)), [16] * 16)
    assert_array_equal(run_own_size(put(mesh_of(a=2), V, "a")), [8] * 16)
    rows = put(mesh, np.stack([V, V]), None, "a")
    assert_array_equal(jax.jit(jax.vmap(run_own_size))(rows), np.full((2, 16), 4))


@pytest.mark.parametrize(
    ("left", "right", "result", "expected"),
    [
        (("a",), (), ("a",), set()),
        ((), (None, "a"), (None, "a"), set()),
        (("a",), (None, "b"), ("a", "b"), set()),
        ((None, "a"), ("a",), (), {"all-reduce"}),
        (("a", "b"), ("b",), ("a",), {"all-reduce"}),
    ],
)
def test_a_product_uses_an_all_reduce_for_what_is_contracted(left, right, result, expected):
    mesh = mesh_of(a=2, b=2)
    a, b = put(mesh, A, *left), put(mesh, B, *right)
    out = jax.jit(run_matmul)(a, b)
    close(out, A @ B)
    assert sharded_like(out, mesh, *result)
    assert collectives(run_matmul, a, b) == expected


@pytest.mark.parametrize("left", ONE, ids=str)
@pytest.mark.parametrize("right", ONE, ids=str)
def test_gradients_of_a_product_are_split_too(left, right):
    mesh = mesh_of(a=4)

    def loss(run):
        return lambda a, b: (run(a, b) ** 2).sum()

    found = jax.jit(jax.grad(loss(run_matmul), (0, 1)))(put(mesh, A, *left), put(mesh, B, *right))
    for one, other in zip(found, jax.grad(loss(jnp.matmul), (0, 1))(A, B), strict=True):
        close(one, other)


def test_vectors_stay_whole():
    mesh, matrix = mesh_of(a=4), RANDOM.normal(size=(1, 3, 3)).astype(np.float32)
    points = put(mesh, POINTS, "a")
    out = jax.jit(run_move)(points, matrix)
    close(out, POINTS @ matrix[0].T)
    assert sharded_like(out, mesh, "a")
    close(jax.jit(run_move)(put(mesh_of(a=2, b=2), POINTS, "a"), matrix), POINTS @ matrix[0].T)


def test_sums_over_devices_begin_with_zero():
    outs = [Struct((8,), jnp.float32), Struct((1,), jnp.float32)]
    run = warp_kernel(sums, outs=lambda x: [Struct(x.shape[:1], x.dtype), outs[1]], output_init=0)
    by_rule = warp_kernel(sums, outs=lambda x: outs, output_init=0, sharding_rule="[i] j -> [i], [o]")
    mesh = mesh_of(a=4)
    for rows, total in (run(A), jax.jit(by_rule)(put(mesh, A, None, "a")), jax.jit(by_rule)(A)):
        close(rows, A.sum(1))
        close(total, [A.sum()])
    for init in (1, (0, 1), (2.0, None)):
        with pytest.raises(
            ShardingRuleError, match=r"sums: .* sums output \d over \['j'\], and output_init .* once for"
        ):
            warp_kernel(sums, outs, output_init=init, sharding_rule="[i] j -> [i], [o]")
    warp_kernel(sums, outs, output_init=1, sharding_rule="[i] [j] -> [i], [o]")


def test_an_alias_is_split_like_its_input():
    mesh = mesh_of(a=4)
    run = warp_kernel(add_into, same, input_output_aliases={0: 0}, sharding_rule="i, i -> i")
    acc = put(mesh, V, "a")
    out = jax.jit(run)(acc, put(mesh, V, "a"))
    assert_array_equal(out, 2 * V)
    assert_array_equal(acc, V)
    assert sharded_like(out, mesh, "a")


@wp.kernel
def also_own_size(x: wp.array(dtype=float), out: wp.array(dtype=float)):
    i = wp.tid()
    out[i] = float(x.shape[0])


@pytest.fixture
def compiled_anew():
    """Programs found in JAX's persistent cache, which the tests use, are not partitioned again."""
    before = jax.config.jax_enable_compilation_cache
    jax.config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()  # JAX asks only once whether there is one
    yield
    jax.config.update("jax_enable_compilation_cache", before)
    compilation_cache.reset_cache()


@pytest.mark.usefixtures("compiled_anew")
def test_without_a_rule_a_call_gathers_its_inputs_and_warns_once():
    mesh = mesh_of(a=4)
    run = {"own_size": warp_kernel(own_size, same), "also_own_size": lambda x: jax_kernel(also_own_size)(x)[0]}
    for name, call in run.items():
        with pytest.warns(GatheredOperandsWarning, match=rf"\b{name}: its operands are split over devices") as found:
            assert_array_equal(jax.jit(call)(put(mesh, V, "a")), [16] * 16)
        assert [warning.filename for warning in found] == [__file__]
        assert_array_equal(jax.jit(lambda x, call=call: call(x) + 1)(put(mesh, V, "a")), [17] * 16)


# Each device by hand


def copied(x: wp.array(dtype=float), w: wp.array(dtype=float), out: wp.array(dtype=float)):
    between = wp.clone(x)
    wp.launch(weigh, dim=x.shape, inputs=[between, w], outputs=[out])


def in_jax(x, w):
    return x * jnp.tile(w, x.size // w.size)


CALLS = {
    "warp_kernel": warp_kernel(weigh, same, reference=in_jax),
    "with a rule": warp_kernel(weigh, same, reference=in_jax, sharding_rule="i, i -> i"),
    "jax_kernel": lambda x, w: jax_kernel(weigh)(x, w)[0],
    "with its adjoint": lambda x, w: jax_kernel(weigh, enable_backward=True)(x, w)[0],
    "jax_callable": lambda x, w: jax_callable(copied)(x, w)[0],
}
WITH_GRADIENTS = ["warp_kernel", "with a rule", "with its adjoint"]
KINDS = pytest.mark.parametrize("kind", ["Auto", "Explicit"])


def over(mesh, f, ins, out):
    return jax.jit(jax.shard_map(f, mesh=mesh, in_specs=ins, out_specs=out, check_vma=True))


def in_mesh(mesh, kind):
    """Return the context that arrays on a mesh of explicit axes need."""
    return jax.set_mesh(mesh) if kind == "Explicit" else jax.sharding.set_mesh(mesh)


def varying(x):
    aval = jax.typeof(x)
    return set(aval.manual_axis_type.varying if hasattr(aval, "manual_axis_type") else aval.vma)


@KINDS
@pytest.mark.parametrize("way", CALLS)
def test_each_device_makes_a_call_of_its_own(kind, way):
    mesh, run = mesh_of(kind, a=4), CALLS[way]
    with in_mesh(mesh, kind):
        x, w = put(mesh, V, "a"), put(mesh, V + 1, "a")
        close(over(mesh, run, (P("a"), P("a")), P("a"))(x, w), V * (V + 1))
        close(over(mesh, run, (P("a"), P()), P("a"))(x, put(mesh, V[:4])), V * np.tile(V[:4], 4))


@pytest.mark.parametrize("way", CALLS)
def test_a_result_varies_as_any_operand_does(way):
    mesh, seen = mesh_of(a=2, b=2), []

    def program(x, w):
        out = CALLS[way](x, w)
        seen.append(varying(out))
        return out

    for specs, expected in (((P("a"), P("b")), {"a", "b"}), ((P(), P("a")), {"a"}), ((P(), P()), set())):
        shape = [V[: 4 if spec == P() else 8] for spec in specs]
        arrays = [put(mesh, v, *spec) for v, spec in zip(shape, specs, strict=True)]
        over(mesh, program, specs, P(tuple(sorted(expected)) or None))(*arrays)
        assert seen[-1] == expected


@KINDS
@pytest.mark.parametrize("way", WITH_GRADIENTS)
def test_gradients_inside_and_outside(kind, way):
    mesh, run = mesh_of(kind, a=4), CALLS[way]

    def loss(x, w):
        return jax.lax.psum((run(x, w) ** 2).sum(), "a")

    expected = jax.grad(lambda x, w: (in_jax(x, w) ** 2).sum(), (0, 1))(V, V[:4])
    with in_mesh(mesh, kind):
        x, w = put(mesh, V, "a"), put(mesh, V[:4])
        for found in (
            jax.jit(jax.grad(over(mesh, loss, (P("a"), P()), P()), (0, 1)))(x, w),
            over(mesh, jax.grad(loss, (0, 1)), (P("a"), P()), (P("a"), P()))(x, w),
        ):
            for one, other in zip(found, expected, strict=True):
                close(one, other)


@pytest.mark.parametrize("way", CALLS)
def test_vmap_and_loops_inside_and_outside(way):
    mesh, run = mesh_of(a=4), CALLS[way]
    rows, w = np.stack([V, 2 * V]), V[:4]
    tiled = np.tile(w, 4)
    inside = over(mesh, jax.vmap(run, (0, None)), (P(None, "a"), P()), P(None, "a"))
    close(inside(put(mesh, rows, None, "a"), put(mesh, w)), rows * tiled)
    outside = jax.vmap(over(mesh, run, (P("a"), P()), P("a")), (0, None))
    close(outside(put(mesh, rows, None, "a"), put(mesh, w)), rows * tiled)

    def steps(x, w):
        return jax.lax.fori_loop(0, 3, lambda _, c: run(c, w), x)

    close(over(mesh, steps, (P("a"), P()), P("a"))(put(mesh, V, "a"), put(mesh, w)), V * tiled**3)


def test_in_out_arguments_inside():
    mesh = mesh_of(a=4)

    @wp.kernel(module="unique", enable_backward=False)
    def add(x: wp.array(dtype=float), total: wp.array(dtype=float)):
        i = wp.tid()
        total[i] = total[i] + x[i]

    run = jax_kernel(add, in_out_argnames=["total"])
    x, total = put(mesh, V, "a"), put(mesh, V[:4])
    close(over(mesh, lambda x, t: run(x, t)[0], (P("a"), P()), P("a"))(x, total), V + np.tile(V[:4], 4))
    assert_array_equal(total, V[:4])


def test_one_call_for_each_device_by_pmap():
    rows, devices = V.reshape(4, 4), jax.devices("cpu")[:4]
    for way in CALLS:
        close(jax.pmap(CALLS[way], devices=devices)(rows, rows + 1), rows * (rows + 1))
    gradient = jax.grad(lambda x: jax_kernel(weigh, enable_backward=True)(x, x)[0].sum())
    close(jax.pmap(gradient, devices=devices)(rows), 2 * rows)


def test_a_call_runs_on_the_device_of_its_arrays():
    for device in jax.devices("cpu"):
        x = jax.device_put(V, device)
        for way in CALLS:
            out = CALLS[way](x, x)
            assert out.devices() == {device}
            close(out, V * V)
