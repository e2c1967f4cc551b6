"""Launches that may not be split, and why."""

import types

import numpy as np
import pytest
import warp as wp
from numpy.testing import assert_array_equal
from warp._src.context import builtin_functions

from xlakernel.core.errors import LaunchError
from xlakernel.warp import _sharing
from xlakernel.warp._range import range_entry

N = 1003


def array(values, dtype=wp.float32, **options):
    return wp.array(values, dtype=dtype, device="cpu", **options)


SHARING = """
@wp.func
def inner(out: wp.array(dtype=wp.float32), i: wp.int32):
    wp.atomic_max(out, i, 1.0)

@wp.func
def outer(out: wp.array(dtype=wp.float32), i: wp.int32):
    inner(out, i)

@wp.func
def atomic_tile(x: wp.float32):
    # atomic_add(x), wp::atomic_add(x)
    return x + 1.0

@wp.func
def squared(x: wp.float32):
    return x * x

@wp.func_native("return x + 1.0f;")
def native(x: wp.float32) -> wp.float32: ...

@wp.kernel
def adds(x: wp.array(dtype=wp.float32), out: wp.array(dtype=wp.float32)):
    i = wp.tid()
    wp.atomic_add(out, 0, x[i])

@wp.kernel
def accumulates(x: wp.array(dtype=wp.float32), out: wp.array(dtype=wp.float32)):
    i = wp.tid()
    out[i] += x[i]

@wp.kernel
def subtracts(x: wp.array(dtype=wp.float32), out: wp.array(dtype=wp.float32)):
    i = wp.tid()
    out[i] -= x[i]

@wp.kernel
def exchanges(x: wp.array(dtype=wp.float32), out: wp.array(dtype=wp.float32)):
    i = wp.tid()
    out[i] = wp.atomic_exch(x, 0, 1.0)

@wp.kernel
def calls(x: wp.array(dtype=wp.float32), out: wp.array(dtype=wp.float32)):
    outer(out, wp.tid())

@wp.kernel
def snippet(x: wp.array(dtype=wp.float32), out: wp.array(dtype=wp.float32)):
    i = wp.tid()
    out[i] = native(x[i])

@wp.kernel
def tiles(x: wp.array(dtype=wp.float32), out: wp.array(dtype=wp.float32)):
    i = wp.tid()
    t = wp.tile_load(x, shape=4, offset=0)
    out[i] = wp.tile_extract(wp.tile_sum(t), 0)

@wp.kernel
def fills(x: wp.array(dtype=wp.float32), out: wp.array(dtype=wp.float32)):
    wp.volume_store_f(wp.uint64(0), wp.tid(), 0, 0, 1.0)

@wp.kernel(enable_backward=False)
def differentiates(x: wp.array(dtype=wp.float32), out: wp.array(dtype=wp.float32)):
    i = wp.tid()
    out[i] = wp.grad(squared)(x[i])

# The name begins like that of a kernel that may not be split.
@wp.kernel
def adds_nothing(x: wp.array(dtype=wp.float32), out: wp.array(dtype=wp.float32)):
    i = wp.tid()
    atomic_add = x[i]
    if atomic_add > 1.0e6:
        wp.printf("wp::atomic_add(%f)\\n", atomic_add)
    assert atomic_add == atomic_add, "wp::tile_load(this)"
    out[i] = atomic_tile(atomic_add)
    out[i] *= 2.0

@wp.kernel
def add(x: wp.array(dtype=wp.float32), out: wp.array(dtype=wp.float32)):
    i = wp.tid()
    out[i] = x[i] + 1.0
"""


@pytest.fixture(scope="module")
def sharing(import_kernels):
    return import_kernels(SHARING)


REFUSED = {
    "adds": r"adds: .*wp::atomic_add \(line \d+: wp\.atomic_add\(out, 0, x\[i\]\)\) is an atomic.*Warp makes one",
    "accumulates": r"wp::atomic_add \(line \d+: out\[i\] \+= x\[i\]\) is an atomic.*write `out\[i\] = out\[i\] \+ x`",
    "subtracts": r"wp::atomic_sub \(line \d+: out\[i\] -= x\[i\]\)",
    "exchanges": r"wp::atomic_exch",
    "calls": r"wp::atomic_max \(in inner, line \d+: wp\.atomic_max\(out, i, 1\.0\)\)",
    "snippet": r"native is C\+\+ that Warp did not write.*\. Pass parallel=False",
    "tiles": r"wp::tile_\w+ .*is a tile operation.*Write the kernel without tiles, or pass parallel=False",
    "fills": r"wp::volume_store_f .*is a store into a volume.*Write to an array",
    "differentiates": r"wp::adj_\w+ \(in adj_squared.*is a derivative.*\. Pass parallel=False",
}


@pytest.mark.parametrize("name", REFUSED)
def test_kernels_whose_threads_share_are_refused(sharing, record, name):
    launch = record(getattr(sharing, name), 4, array(range(4)), array(range(4)))
    with pytest.raises(LaunchError, match=REFUSED[name]):
        range_entry(launch)


@pytest.mark.parametrize("name", ["adds_nothing", "add"])
def test_kernels_beside_them_are_not(sharing, record, pieces_of, name):
    out = array(np.zeros(N))
    launch = record(getattr(sharing, name), N, array(np.linspace(-1, 1, N)), out)
    launch.launch()
    expected = out.numpy().copy()
    out.zero_()
    pieces = pieces_of(launch)
    pieces(500, N)
    pieces(0, 500)
    assert_array_equal(out.numpy(), expected)


# The groups of Warp's functions of which none writes but to its own variables and to the arrays that it is given.
PURE = {"Operators", "Scalar Math", "Vector Math", "Quaternion Math", "Spatial Math", "Transformations", "Random"}
PURE |= {"Geometry", "Textures", "Code Generation", "Other"}
# What else there is.
HARMLESS = """
address array array_store assign assign_copy assign_inplace add_inplace sub_inplace bit_and_inplace bit_or_inplace
bit_xor_inplace transform_add_inplace transform_sub_inplace block_dim breakpoint cast copy dense_chol dense_chol_batched
dense_gemm dense_gemm_batched dense_solve dense_solve_batched dense_subs expect_eq expect_near expect_neq extract index
indexref iter_next len lerp load print printf range reversed select slice smoothstep store tid tuple view where zeros
volume_index_to_world volume_index_to_world_dir volume_lookup volume_lookup_f volume_lookup_i volume_lookup_index
volume_lookup_v volume_sample volume_sample_f volume_sample_grad volume_sample_grad_f volume_sample_grad_index
volume_sample_i volume_sample_index volume_sample_v volume_voxel_count volume_world_to_index volume_world_to_index_dir
"""


def test_all_functions_of_this_warp_are_known():
    """A newer Warp has new ones: read what they do, then add them here or to what threads share."""
    functions = [
        f for function in builtin_functions.values() for f in getattr(function, "overloads", None) or [function]
    ]
    assert len(functions) > 1000
    # A tile's operators and scalars' have the same names: what makes a tile is what is found.
    others = {f.key for f in functions if f.group not in PURE | {"Tile Primitives"} or "tile" in f.key}

    def shares(name):
        return _sharing._judge(f"wp::{name}", frozenset(), called=True) is not None

    assert {name for name in others - set(HARMLESS.split()) if not shares(name)} == set()
    assert {name for name in HARMLESS.split() if shares(name)} == set()


CODE = """
struct Pair
{
    Pair(const wp::float32& a) { wp::atomic_add(a); }
};
static wp::float32 helper_0(
    wp::float32 var_x)
{
    // primal vars
    return wp::add(var_x, BODY);
}
template <bool wp_linear_contiguous>
static void k_cpu_kernel_forward(
    wp::launch_bounds_t<1> dim,
    wp_args_k *_wp_args)
{
    // primal vars
    var_0 = helper_0(_wp_args->x);
}
static void other_0(
    )
{
    // primal vars
    wp::atomic_add(var_0);
}
"""


@pytest.mark.parametrize(
    "body",
    [
        "wp::sin(var_x)",
        "Pair(var_x)",
        'wp::str("other_0(1)")',
        "var_x.atomic_add(1)",
        "var_x->tile",
        "wp::determinant(var_x)",
        "::wp::sin(var_x)",
        "var_x); // wp::atomic_add(var_x, \n (1",
        "atomic_add",
    ],
)
def test_what_no_threads_share(body):
    assert _sharing.shared_effect(CODE.replace("BODY", body), "k_cpu_kernel_forward") is None


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("wp::atomic_add(var_x)", "wp::atomic_add (in helper) is an atomic operation"),
        ("other_0()", "wp::atomic_add (in other) is an atomic operation"),
        ("apply(other_0)", "apply (in helper) is C++ that Warp did not write"),
        ("wp::apply(other_0, 1)", "wp::atomic_add (in other) is an atomic operation"),
        ("wp::tile_t<4>::size", "wp::tile_t (in helper) is a tile operation"),
        ("wp::deterministic::scatter(var_x)", "wp::deterministic::scatter (in helper) is an atomic operation in"),
        ("std::rand()", "std::rand (in helper) is C++ that Warp did not write"),
        ("rand()", "rand (in helper) is C++ that Warp did not write"),
        ("::rand()", "rand (in helper) is C++ that Warp did not write"),
        ("other::value", "other::value (in helper) is C++ that Warp did not write"),
        ("::other::value", "other::value (in helper) is C++ that Warp did not write"),
        ("other<int>::value()", "value (in helper) is C++ that Warp did not write"),
        ("::other_0()", "wp::atomic_add (in other) is an atomic operation"),
        ("var_x->value()", "value (in helper) is C++ that Warp did not write"),
    ],
)
def test_what_threads_share(body, found):
    effect = _sharing.shared_effect(CODE.replace("BODY", body), "k_cpu_kernel_forward")
    assert effect is not None and effect.text.startswith(found)


def test_all_functions_of_one_name_count():
    again = CODE + CODE[CODE.index("static wp::float32 helper") : CODE.index("template")]
    assert _sharing.shared_effect(again.replace("BODY", "1", 1).replace("BODY", "rand()"), "k_cpu_kernel_forward")


DEBUG = """
wp.set_module_options({"mode": "debug"})

@wp.kernel
def add(x: wp.array(dtype=wp.float32), out: wp.array(dtype=wp.float32)):
    i = wp.tid()
    out[i] = x[i] + 1.0
"""

PLAIN = """
@wp.kernel
def scaled(x: wp.array(dtype=wp.float32), out: wp.array(dtype=wp.float32), a: wp.float32):
    i = wp.tid()
    out[i] = a * x[i]

@wp.kernel
def two(out: wp.array2d(dtype=wp.float32)):
    i, j = wp.tid()
    out[i, j] = 1.0
"""


@pytest.fixture(scope="module")
def plain(import_kernels):
    return import_kernels(PLAIN)


def test_kernels_compiled_for_debugging_are_refused(import_kernels, record):
    launch = record(import_kernels(DEBUG).add, 4, array(range(4)), array(range(4)))
    with pytest.raises(LaunchError, match=r"mode='debug'.*mode=\"release\", or pass parallel=False"):
        range_entry(launch)


def test_launches_of_derivatives_are_refused(plain, record):
    x, out = (array(range(4), requires_grad=True) for _ in range(2))
    launch = record(plain.scaled, 4, x, out, 2.0, adj_inputs=[x.grad, out.grad, 2.0], adjoint=True)
    with pytest.raises(LaunchError, match="scaled: a launch of derivatives"):
        range_entry(launch)


def test_threads_with_equal_coordinates_are_refused(plain, record):
    launch = record(plain.scaled, (4, 6), array(range(4)), array(range(4)), 2.0)
    with pytest.raises(LaunchError, match=r"each 6 of this launch.*wp.tid\(\) for 1,"):
        range_entry(launch)
    range_entry(record(plain.scaled, (4, 1), array(range(4)), array(range(4)), 2.0))


@pytest.mark.skipif(not hasattr(wp.config, "enable_cpu_blocks"), reason="this Warp has no blocks on the CPU")
def test_launches_with_blocks_are_refused(plain, record, monkeypatch):
    monkeypatch.setattr(wp.config, "enable_cpu_blocks", True)
    launch = record(plain.scaled, 8, array(range(8)), array(range(8)), 2.0, block_dim=4)
    with pytest.raises(LaunchError, match=r"blocks of 4\. Leave block_dim out"):
        range_entry(launch)


def test_launches_of_more_threads_than_an_int_counts_are_refused(plain, record):
    out = wp.zeros((1, 1), dtype=wp.float32, device="cpu")
    with pytest.raises(LaunchError, match=r"up to 2147483647 threads; this one has 2147483648"):
        range_entry(record(plain.two, (2**17, 2**14), out))


def test_launches_elsewhere_are_refused(plain, record):
    launch = record(plain.scaled, 4, array(range(4)), array(range(4)), 2.0)
    launch.device = types.SimpleNamespace(is_cpu=False)
    with pytest.raises(LaunchError, match="only a launch on the CPU"):
        range_entry(launch)
