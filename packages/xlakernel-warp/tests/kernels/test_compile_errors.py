"""Kernels that Warp does not compile: each call raises its message, and other kernels still run."""

from typing import Any

import jax
import numpy as np
import pytest
import warp as wp
from numpy.testing import assert_array_equal
from warp._src import build, codegen

from xlakernel.core.errors import CompileError
from xlakernel.warp import warp_kernel

wp.set_module_options({"enable_backward": False})

X = np.ones(3, "f4")


def same(x):
    return x


@wp.kernel
def copy(x: wp.array(dtype=float), out: wp.array(dtype=float)):
    i = wp.tid()
    out[i] = x[i]


@wp.func
def unchanged(x: float):
    return x


@wp.kernel(module="unique")
def undefined(x: wp.array(dtype=float), out: wp.array(dtype=float)):
    i = wp.tid()
    out[i] = nothing(x[i])  # noqa: F821


@wp.kernel(module="unique")
def other_types(x: wp.array(dtype=float), out: wp.array(dtype=float)):
    i = wp.tid()
    out[i] = i


@wp.func
def calls_nothing(x: float):
    return nothing(x)  # noqa: F821


@wp.kernel(module="unique")
def calls_a_function(x: wp.array(dtype=float), out: wp.array(dtype=float)):
    i = wp.tid()
    out[i] = calls_nothing(x[i])


VALUES = (1.0, 2.0)


@wp.kernel(module=wp.get_module(f"{__name__}.deferred"))
def deferred(x: wp.array(dtype=float), out: wp.array(dtype=float)):
    i = wp.tid()
    total = x[i] + nothing(x[i])  # noqa: F821
    for j in range(2):
        total += wp.static(VALUES[j])  # which makes Warp parse the kernel before it is compiled
    out[i] = total


@wp.func_native("this is no C++;")
def no_cpp(x: float) -> float: ...


@wp.kernel(module="unique")
def native(x: wp.array(dtype=float), out: wp.array(dtype=float)):
    i = wp.tid()
    out[i] = no_cpp(x[i])


@wp.kernel(module="unique")
def any_undefined(x: wp.array(dtype=Any), out: wp.array(dtype=Any)):
    i = wp.tid()
    out[i] = nothing(x[i])  # noqa: F821


@pytest.mark.parametrize(
    ("kernel", "text"),
    [
        (undefined, "Referencing undefined symbol: nothing"),
        (other_types, "must be of the same type as the array"),
        (calls_a_function, "Referencing undefined symbol: nothing"),
        (deferred, "Referencing undefined symbol: nothing"),
        (native, "CPU kernel build failed"),
        (any_undefined, "Referencing undefined symbol: nothing"),
    ],
    ids=lambda value: getattr(value, "key", "")[:20],
)
def test_each_call_raises_warps_message(kernel, text):
    """With Warp 1.14 a second launch ran a kernel without a body."""
    run = warp_kernel(kernel, same)
    for call, x in ((run, X), (run, X), (jax.vmap(run), X[None]), (warp_kernel(kernel, same, launch_dims=2), X)):
        with pytest.raises(CompileError, match=f"(?s)^{kernel.key}: Warp {wp.__version__} does not compile .*{text}"):
            call(x)
    assert_array_equal(warp_kernel(copy, same)(X), X)


def test_the_exception_of_a_time_limit_is_no_error_of_the_kernel(monkeypatch):
    """As a handler of SIGALRM raises it, which may run at any line of Warp's compiler."""

    @wp.kernel(module="unique")
    def late(x: wp.array(dtype=float), out: wp.array(dtype=float)):
        i = wp.tid()
        out[i] = x[i] + 0.75

    def interrupted(*args, **kwargs):
        raise TimeoutError("time limit")

    run = warp_kernel(late, same)
    with monkeypatch.context() as patch:
        patch.setattr(build, "build_cpu", interrupted)
        patch.setattr(wp.config, "cache_kernels", False)
        with pytest.raises(TimeoutError, match="time limit"):
            run(X)
    assert_array_equal(run(X), X + 0.75)


def test_a_time_limit_while_the_code_is_generated(monkeypatch):
    @wp.kernel(module="unique")
    def late(x: wp.array(dtype=float), out: wp.array(dtype=float)):
        i = wp.tid()
        for j in range(2):
            out[i] = x[i] + wp.static(float(j)) + wp.where(x[i] > 0.0, 0.0, 0.0)

    def interrupted(*args, **kwargs):
        raise TimeoutError("time limit")

    run = warp_kernel(late, same)
    with monkeypatch.context() as patch:
        patch.setattr(codegen.Adjoint, "eval", interrupted)
        with pytest.raises(TimeoutError, match="time limit"):
            run(X)
    assert_array_equal(run(X), X + 1.0)


def test_a_kernel_that_is_fixed_and_defined_anew_runs_and_so_do_others():
    """As in a notebook, whose kernels are all in one module, and where the last error is kept."""

    @wp.kernel(module=wp.get_module(f"{__name__}.notebook"))
    def other(x: wp.array(dtype=float), out: wp.array(dtype=float)):
        i = wp.tid()
        out[i] = 2.0 * x[i]

    @wp.func
    def missing(x: float):
        return nothing(x)  # noqa: F821

    def define(called):
        @wp.kernel(module=wp.get_module(f"{__name__}.notebook"))
        def kernel(x: wp.array(dtype=float), out: wp.array(dtype=float)):
            i = wp.tid()
            out[i] = called(x[i])

        return warp_kernel(kernel, same)

    broken, last = define(missing), []
    for _ in range(2):
        with pytest.raises(CompileError, match="Referencing undefined symbol") as caught:
            broken(X)
        last.append(caught.value)
    assert_array_equal(define(unchanged)(X), X)
    assert_array_equal(warp_kernel(other, same)(X), 2 * X)
    with pytest.raises(CompileError, match="Referencing undefined symbol"):
        jax.jit(broken)(X)


def test_an_overload_that_does_not_compile_does_not_affect_others():
    module = wp.get_module(f"{__name__}.overloads")

    @wp.kernel(module=module)
    def pair(x: wp.array(dtype=Any), y: wp.array(dtype=Any), out: wp.array(dtype=Any), also: wp.array(dtype=Any)):
        i = wp.tid()
        out[i] = x[i]
        also[i] = y[i]

    @wp.kernel(module=module)
    def other(x: wp.array(dtype=float), out: wp.array(dtype=float)):
        i = wp.tid()
        out[i] = x[i]

    y = X.astype("i4")
    for _ in range(2):
        with pytest.raises(CompileError, match=r"pair: (.|\n)*must be of the same type as the array"):
            warp_kernel(pair, lambda x, y: (x, x))(X, y)
        assert_array_equal(warp_kernel(pair, lambda x, y: (x, y))(X, y)[1], y)
        assert_array_equal(warp_kernel(other, same)(X), X)


edited = wp.get_module(f"{__name__}.edited")


def edit_a_constant():
    part = 2.0

    @wp.kernel(module=edited)
    def kernel(x: wp.array(dtype=float), out: wp.array(dtype=float)):
        i = wp.tid()
        out[i] = part * x[i]

    yield kernel
    part = wp.vec2(3.0, 1.0)

    @wp.kernel(module=edited)
    def kernel(x: wp.array(dtype=float), out: wp.array(dtype=float)):
        i = wp.tid()
        out[i] = part[0] * x[i]

    yield kernel


def edit_a_constant_of_a_generic_kernel():
    part = 2.0

    @wp.kernel(module=edited)
    def kernel(x: wp.array(dtype=Any), out: wp.array(dtype=Any)):
        i = wp.tid()
        out[i] = part * x[i]

    yield kernel
    part = wp.vec2(3.0, 1.0)

    @wp.kernel(module=edited)
    def kernel(x: wp.array(dtype=Any), out: wp.array(dtype=Any)):
        i = wp.tid()
        out[i] = part[0] * x[i]

    yield kernel


def edit_a_function():
    @wp.func
    def multiple(x: float):
        return 2.0 * x

    @wp.kernel(module=edited)
    def kernel(x: wp.array(dtype=float), out: wp.array(dtype=float)):
        i = wp.tid()
        out[i] = multiple(x[i])

    yield kernel

    @wp.func
    def multiple(x: float):  # noqa: F811  # replaced, as in a notebook
        return wp.vec2(3.0 * x, x)

    @wp.kernel(module=edited)
    def kernel(x: wp.array(dtype=float), out: wp.array(dtype=float)):
        i = wp.tid()
        out[i] = multiple(x[i])[0]

    yield kernel


def edit_a_struct():
    @wp.struct
    class Pair:
        first: float

    @wp.kernel(module=edited)
    def kernel(x: wp.array(dtype=float), out: wp.array(dtype=float)):
        i = wp.tid()
        pair = Pair()
        pair.first = x[i]
        out[i] = 2.0 * pair.first

    yield kernel

    @wp.struct
    class Pair:  # noqa: F811  # replaced, as in a notebook
        second: float

    @wp.kernel(module=edited)
    def kernel(x: wp.array(dtype=float), out: wp.array(dtype=float)):
        i = wp.tid()
        pair = Pair()
        pair.second = x[i]
        out[i] = 3.0 * pair.second

    yield kernel


@pytest.mark.parametrize("edit", [edit_a_constant, edit_a_constant_of_a_generic_kernel, edit_a_function, edit_a_struct])
def test_a_replaced_kernel_that_no_longer_compiles_does_not_affect_others(edit):
    """As in a notebook, of which all cells are run again: JAX's caches refer to the replaced kernel."""
    kernels = edit()
    old = warp_kernel(next(kernels), same)
    program = jax.jit(lambda x: old(x))
    assert_array_equal(program(X), 2 * X)
    new = warp_kernel(next(kernels), same)
    for n in range(4, 7):
        assert_array_equal(new(np.ones(n, "f4")), np.full(n, 3))
        assert_array_equal(program(X), 2 * X)
        with pytest.raises(CompileError, match=f"^kernel: Warp {wp.__version__} does not compile"):
            old(np.ones(n, "f4"))
    assert_array_equal(new(X), 3 * X)


def test_replaced_kernels_that_compile_stay_or_return():
    module, part = wp.get_module(f"{__name__}.returning"), 2.0

    def scaled(factor):
        @wp.kernel(module=module)
        def kernel(x: wp.array(dtype=float), out: wp.array(dtype=float)):
            i = wp.tid()
            out[i] = factor * x[i]

        return kernel

    def product():
        @wp.kernel(module=module)
        def kernel(x: wp.array(dtype=float), out: wp.array(dtype=float)):
            i = wp.tid()
            out[i] = part * x[i]

        return kernel

    thrice, four_times, twice, _ = scaled(3.0), scaled(4.0), product(), product()
    old = warp_kernel(twice, same)
    assert_array_equal(old(X), 2 * X)
    part = wp.vec2(2.0, 2.0)
    latest = product()
    with pytest.raises(CompileError, match="must be of the same type as the array"):
        warp_kernel(latest, same)(X)
    part = 2.0
    for n in range(4, 6):
        assert_array_equal(old(np.ones(n, "f4")), np.full(n, 2))
        assert_array_equal(warp_kernel(four_times, same)(np.ones(n, "f4")), np.full(n, 4))
    out = wp.zeros(3, dtype=float, device="cpu")
    wp.launch(thrice, dim=3, inputs=[wp.array(X, dtype=float, device="cpu")], outputs=[out], device="cpu")
    assert_array_equal(out.numpy(), 3 * X)


def test_a_damaged_file_in_warps_cache(monkeypatch, tmp_path):
    monkeypatch.setattr(wp.config, "kernel_cache_dir", str(tmp_path))
    module = wp.get_module(f"{__name__}.damaged")

    @wp.kernel(module=module)
    def kernel(x: wp.array(dtype=float), out: wp.array(dtype=float)):
        i = wp.tid()
        out[i] = x[i]

    run = warp_kernel(kernel, same)
    assert_array_equal(run(X), X)
    (stored,) = tmp_path.rglob("*.o")
    stored.write_bytes(stored.read_bytes()[:-500])
    module.unload()
    with pytest.raises(CompileError, match=r"Failed to load CPU module .* may be damaged: .*clear_kernel_cache\(\)"):
        run(X[:2])


beside = wp.get_module(f"{__name__}.beside")


@wp.kernel(module=beside)
def draft(x: wp.array(dtype=float), out: wp.array(dtype=float)):
    i = wp.tid()
    out[i] = x[i] * 2


@wp.kernel(module=beside)
def good(x: wp.array(dtype=float), out: wp.array(dtype=float)):
    i = wp.tid()
    out[i] = x[i] * 2.0


LEAVES_OUT = tuple(map(int, wp.__version__.split(".")[:2])) < (1, 15)


@pytest.mark.skipif(not LEAVES_OUT, reason="a newer Warp compiles no kernel beside one that fails")
def test_warp_1_14_compiles_a_kernel_beside_one_that_it_has_given_up():
    assert_array_equal(warp_kernel(good, same)(X), 2 * X)
    with pytest.raises(CompileError, match=r"draft: Warp .* failed to compile the kernel, here or together"):
        warp_kernel(draft, same)(X)


@pytest.mark.skipif(LEAVES_OUT, reason="Warp 1.14 leaves out the kernels that fail")
def test_the_message_names_another_kernel_of_the_module():
    with pytest.raises(CompileError, match=r"good: (.|\n)*Fix draft even if it is not part of this one, or give"):
        warp_kernel(good, same)(X)
    with pytest.raises(CompileError, match='Error while parsing function "draft"') as caught:
        warp_kernel(draft, same)(X)
    assert "not part of this one" not in str(caught.value)


def test_the_c_compiler_fails_for_another_kernel_of_the_module():
    module = wp.get_module(f"{__name__}.keyword")

    @wp.kernel(module=module)
    def right(x: wp.array(dtype=float), out: wp.array(dtype=float)):
        i = wp.tid()
        out[i] = x[i]

    @wp.kernel(module=module)
    def wrong(x: wp.array(dtype=float), static: float, out: wp.array(dtype=float)):
        i = wp.tid()
        out[i] = x[i] * static

    with pytest.raises(CompileError, match=r"right: .*may be that of another one.*compiler has printed the place"):
        warp_kernel(right, same)(X)
