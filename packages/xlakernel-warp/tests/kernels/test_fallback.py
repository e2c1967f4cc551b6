"""A Warp with unrecognised launches: kernels run through Python on the CPU, with one warning."""

import ctypes
import threading
import types
import warnings
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import warp as wp
from numpy.testing import assert_array_equal

from xlakernel.core import debug_mode
from xlakernel.core.errors import RecordingWarning
from xlakernel.core.ffi.registry import registered_targets
from xlakernel.warp import warp_kernel
from xlakernel.warp._internals import code, launches
from xlakernel.warp._internals.recognition import Unrecognised
from xlakernel.warp._kernels import cpu, kernel

wp.set_module_options({"enable_backward": False})

RAISED = (jax.errors.JaxRuntimeError, ValueError)
Struct = jax.ShapeDtypeStruct
X = np.arange(6, dtype="f4").reshape(2, 3)


def same(x, *_):
    return x


@wp.kernel
def scaled(x: wp.array2d(dtype=float), scale: float, out: wp.array2d(dtype=float)):
    i, j = wp.tid()
    out[i, j] = scale * x[i, j]


@wp.kernel
def running_sums(x: wp.array(dtype=float), total: wp.array(dtype=float), sums: wp.array(dtype=float)):
    for i in range(x.shape[0]):
        total[0] += x[i]
        sums[i] = total[0]


@wp.kernel
def turned(v: wp.array(dtype=wp.vec2), m: wp.array(dtype=wp.mat22), out: wp.array(dtype=wp.vec2)):
    i = wp.tid()
    out[i] = m[0] * v[i]


@wp.kernel
def increment(acc: wp.array(dtype=float), by: wp.array(dtype=float), out: wp.array(dtype=float)):
    i = wp.tid()
    out[i] += by[0]


def check_values():
    """Run kernels of many kinds, by themselves, in batches and in loops."""
    run = warp_kernel(scaled, same)
    assert_array_equal(run(X, scale=2), 2 * X)
    assert_array_equal(jax.jit(lambda x: run(run(x, scale=2), scale=1.5))(X), 3 * X)
    assert_array_equal(
        warp_kernel(scaled, same, launch_dims=(1, 2), output_init=-1)(X + 1, scale=1), [[1, 2, -1], [-1] * 3]
    )
    assert run(X[:0], scale=2).shape == (0, 3)
    assert_array_equal(warp_kernel(scaled, lambda x: Struct((2, 2), x.dtype))(X[:0], scale=2), np.zeros((2, 2)))

    outs = (Struct((), jnp.float32), Struct((3,), jnp.float32))
    run = warp_kernel(running_sums, outs, launch_dims=1, output_init=(5, None))
    for call, x in ((run, X[0]), (jax.vmap(run), X), (jax.vmap(jax.vmap(run)), np.stack([X, -X]))):
        total, sums = jax.jit(call)(x)
        assert_array_equal(sums, 5 + np.cumsum(x, -1))
        assert_array_equal(total, 5 + x.sum(-1))
    assert jax.vmap(run)(X[:0])[1].shape == (0, 3)

    v, m = np.float32([[1, 2], [3, 4], [5, 6]]), np.float32([[0, 1], [2, 3]])
    assert_array_equal(jax.vmap(warp_kernel(turned, same), (0, None))(np.stack([v, -v]), m), [v @ m.T, -v @ m.T])

    run, acc = warp_kernel(increment, same, input_output_aliases={0: 0}), jnp.zeros(3)
    assert_array_equal(jax.lax.fori_loop(0, 10, lambda _, acc: run(acc, jnp.float32(2)), acc), [20] * 3)
    assert_array_equal(jax.vmap(run, (None, 0))(acc, np.float32([1, 2])), [[1] * 3, [2] * 3])
    assert_array_equal(acc, np.zeros(3))


# Differences of an unknown Warp, each as a function of pytest's monkeypatch


def launch_class():
    array = wp.zeros((1, 1), dtype=float, device="cpu")
    return type(wp.launch(scaled, dim=1, inputs=[array, 1.0, array], device="cpu", record_cmd=True))


def raising(module, name):
    def patch(monkeypatch):
        def unrecognised(*_):
            raise Unrecognised(f"{name} in a test")

        monkeypatch.setattr(module, name, unrecognised)

    return patch


def changed_launch(change):
    """Return a patch by which recorded launches are changed."""

    def patch(monkeypatch):
        cls = launch_class()
        original = cls.__init__

        def init(self, *args, **options):
            original(self, *args, **options)
            change(self)

        monkeypatch.setattr(cls, "__init__", init)

    return patch


count = [0]


def add_a_counter(launch):
    """A word that differs from launch to launch, and is no pointer."""
    count[0] += 1
    launch.params = [*launch.params[:-1], (ctypes.c_int64 * 8)(*[count[0]] * 8)]


def with_attribute(name, make):
    return changed_launch(lambda launch: setattr(launch, name, make(launch)))


def without(name):
    return changed_launch(lambda launch: delattr(launch, name))


FUNCTIONS = ("native_entry", "structs", "block_dim", "uses_shared_memory")
UNKNOWN = {
    **{f"unrecognised {name}": raising(launches, name) for name in FUNCTIONS},
    "unrecognised content": raising(code, "content"),
    **{f"no {name}": without(name) for name in ("hooks", "params", "block_dim", "module_exec")},
    "an empty hook": with_attribute("hooks", lambda launch: types.SimpleNamespace(forward=None)),
    "a hook of another kind": with_attribute("hooks", lambda launch: types.SimpleNamespace(forward=object())),
    "a parameter more": with_attribute("params", lambda launch: [*launch.params, ctypes.c_int64(0)]),
    "a parameter less": with_attribute("params", lambda launch: launch.params[:-1]),
    "a parameter of another kind": with_attribute("params", lambda launch: [*launch.params[:-1], "array"]),
    "a counter": changed_launch(add_a_counter),
    "a module without metadata": with_attribute("module_exec", lambda launch: object()),
}


@pytest.fixture
def unknown(monkeypatch, request):
    """A Warp that is not known, for kernels that nothing is remembered of."""
    monkeypatch.setattr(kernel, "_targets", weakref.WeakKeyDictionary())
    cpu._warn_once.cache_clear()
    UNKNOWN[getattr(request, "param", "no params")](monkeypatch)


@pytest.mark.parametrize("unknown", UNKNOWN, indirect=True)
@pytest.mark.usefixtures("unknown")
def test_kernels_run_through_python_with_one_warning():
    known = len(registered_targets())
    with pytest.warns(RecordingWarning) as caught:
        check_values()
    (warning,) = caught
    assert warning.filename == __file__
    assert str(warning.message).startswith(f"Warp {wp.__version__} is not known to xlakernel-warp: ")
    assert "Kernels run through Python on the CPU" in str(warning.message)
    assert "Look for a newer xlakernel-warp, or an older Warp." in str(warning.message)
    # Those of launches without threads call nothing of Warp's.
    names = [name for name in registered_targets()[known:] if not name.rpartition(")#")[0].endswith("d]")]
    assert all("; Python)#" in name for name in names), names
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_values()


def test_a_known_warp_does_not_go_through_python():
    known = len(registered_targets())
    check_values()
    assert not [name for name in registered_targets()[known:] if "Python" in name]


@pytest.mark.filterwarnings("ignore::xlakernel.core.errors.RecordingWarning")
@pytest.mark.usefixtures("unknown")
class TestThroughPython:
    def test_debug_mode(self):
        run, kept = warp_kernel(scaled, same, launch_dims=(2, 2)), jnp.asarray(X)
        with debug_mode():
            with pytest.raises(RAISED, match=r"kernel 'scaled' of .*did not write element \(0, 2\) of output 0"):
                jax.block_until_ready(run(kept, scale=1))
            with pytest.raises(RAISED, match=r"element \(0, 2\) .* in slice \(0,\) of a batch of \(2,\)"):
                jax.block_until_ready(jax.vmap(lambda x: run(x, scale=1))(np.stack([X, X])))
            check_values()
        assert_array_equal(run(kept, scale=1)[:, :2], X[:, :2])

    def test_an_error_of_the_launch_is_one_of_the_call(self, monkeypatch):
        run = jax.jit(lambda x: warp_kernel(scaled, same)(x, scale=7))
        assert_array_equal(run(X), 7 * X)

        def refuse(*args, **options):
            raise RuntimeError("not today")

        with monkeypatch.context() as patch:
            patch.setattr(wp, "launch", refuse)
            with pytest.raises(RAISED, match=r"scaled: Warp does not launch the kernel with dim=\(2, 3\): not today"):
                jax.block_until_ready(run(X))
        assert_array_equal(run(X), 7 * X)

    def test_kernels_with_tiles_in_several_threads(self):
        size = 16

        @wp.kernel(module="unique", enable_backward=False)
        def product(x: wp.array2d(dtype=float), out: wp.array2d(dtype=float)):
            tile = wp.tile_load(x, shape=(size, size), storage="shared")
            wp.tile_store(out, wp.tile_matmul(tile, tile))

        run = jax.jit(warp_kernel(product, same, launch_dims=1))
        matrices = np.random.default_rng(0).integers(-3, 4, (4, size, size)).astype("f4")
        failures = []

        def work(x):
            try:
                for _ in range(50):
                    assert_array_equal(run(x), x @ x)
            except BaseException as error:  # noqa: BLE001 - raised again below
                failures.append(error)

        run(matrices[0])
        threads = [threading.Thread(target=work, args=(x,)) for x in matrices]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=60)
        assert not failures and not any(thread.is_alive() for thread in threads)

    def test_a_side_effect_happens_once_and_in_order(self, capfd):
        @wp.kernel(module="unique", enable_backward=False)
        def prints(x: wp.array(dtype=float)):
            wp.printf("printed %f\n", x[0])

        run = warp_kernel(prints, (), launch_dims=1, has_side_effect=True)
        jax.vmap(run)(np.float32([[1], [2], [3]]))
        jax.effects_barrier()
        printed = [line for line in capfd.readouterr().out.splitlines() if "printed" in line]
        assert printed == [f"printed {i}.000000" for i in (1, 2, 3)]


@pytest.mark.skipif(not hasattr(wp.config, "enable_cpu_blocks"), reason="Warp has no blocks on the CPU")
def test_blocks_on_the_cpu_go_through_python_without_a_warning(monkeypatch):
    @wp.kernel(module="unique", enable_backward=False)
    def block_sums(x: wp.array(dtype=float), out: wp.array(dtype=float)):
        i = wp.tid()
        tile = wp.tile(float(x[i]))
        wp.tile_store(out, wp.tile_sum(tile), offset=i // 32)

    monkeypatch.setattr(wp.config, "enable_cpu_blocks", True)
    x = np.arange(64, dtype="f4")
    known = len(registered_targets())
    run = warp_kernel(block_sums, Struct((2,), jnp.float32), block_dim=32)
    assert_array_equal(run(x), x.reshape(2, 32).sum(1))
    assert_array_equal(jax.vmap(run)(np.stack([x, -x])), [x.reshape(2, 32).sum(1), -x.reshape(2, 32).sum(1)])
    assert all("Python" in name for name in registered_targets()[known:])
