"""Kernels in threads of Python and of XLA, and modules that Warp loads again meanwhile."""

import functools
import gc
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import warp as wp
from numpy.testing import assert_array_equal
from warp._src import build, context

from xlakernel.core.ffi.registry import registered_targets
from xlakernel.warp import jax_callable, warp_kernel
from xlakernel.warp._internals import threads
from xlakernel.warp._internals.lock import lock

wp.set_module_options({"enable_backward": False})

Struct = jax.ShapeDtypeStruct
SIZE = 16


def same(x, *_):
    return x


def in_threads(count, work):
    """Run ``work(number)`` in *count* threads at once; raise what any of them raised."""
    failures, barrier = [], threading.Barrier(count)

    def guarded(number):
        try:
            barrier.wait(timeout=60)
            work(number)
        except BaseException as error:  # noqa: BLE001 - raised again below
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    assert not any(thread.is_alive() for thread in threads)
    if failures:
        raise failures[0]


# Kernels with tiles, which use the static memory of their module, and kernels without


def make_product(module):
    @wp.kernel(module=module)
    def product(x: wp.array2d(dtype=float), y: wp.array2d(dtype=float), out: wp.array2d(dtype=float)):
        a = wp.tile_load(x, shape=(SIZE, SIZE), storage="shared")
        b = wp.tile_load(y, shape=(SIZE, SIZE), storage="shared")
        wp.tile_store(out, wp.tile_matmul(a, b))

    return warp_kernel(product, same, launch_dims=(1, 64), block_dim=64)


@wp.kernel
def transposed(x: wp.array2d(dtype=float), out: wp.array2d(dtype=float)):
    tile = wp.tile_load(x, shape=(SIZE, SIZE), storage="shared")
    wp.tile_store(out, wp.tile_transpose(tile))


@wp.kernel
def plain_product(x: wp.array2d(dtype=float), y: wp.array2d(dtype=float), out: wp.array2d(dtype=float)):
    i, j = wp.tid()
    total = wp.float32(0.0)
    for k in range(SIZE):
        total += x[i, k] * y[k, j]
    out[i, j] = total


@wp.kernel(module=wp.get_module(f"{__name__}.plain"), enable_backward=False)
def plus(x: wp.array2d(dtype=float), y: wp.array2d(dtype=float), out: wp.array2d(dtype=float)):
    i, j = wp.tid()
    out[i, j] = x[i, j] + y[i, j]


run_transposed = warp_kernel(transposed, same, launch_dims=(1, 64), block_dim=64)
RUNS = {
    "tiles": (make_product(None), np.matmul),
    "tiles of another module": (make_product(wp.get_module(f"{__name__}.other")), np.matmul),
    "other tiles": (lambda x, y: run_transposed(x), lambda x, y: x.T),
    "no tiles": (warp_kernel(plain_product, same), np.matmul),
    "no tiles, in another module": (warp_kernel(plus, same), np.add),
}
RNG = np.random.default_rng(0)
MATRICES = [RNG.integers(-4, 5, (SIZE, SIZE)).astype("f4") for _ in range(8)]


@pytest.mark.usefixtures("platform")
def test_many_calls_from_six_threads():
    def work(number):
        for i in range(150):
            run, expected = list(RUNS.values())[(i + number) % len(RUNS)]
            x, y = MATRICES[(number + i) % 8], MATRICES[number]
            assert_array_equal(run(x, y), expected(x, y))

    for run, _ in RUNS.values():
        run(*MATRICES[:2])
    in_threads(6, work)


@pytest.mark.usefixtures("platform")
def test_many_calls_within_one_program():
    """XLA runs those that do not depend on each other in several threads."""
    program = jax.jit(lambda xs: [[run(x, xs[0]) for x in xs] for run, _ in RUNS.values()])
    for _ in range(20):
        for results, (_, expected) in zip(program(MATRICES), RUNS.values(), strict=True):
            assert_array_equal(results, [expected(x, MATRICES[0]) for x in MATRICES])


@pytest.mark.usefixtures("platform")
@pytest.mark.parametrize("name", ["tiles", "no tiles"])
def test_batches_from_several_threads(name):
    run, expected = RUNS[name]
    program = jax.jit(jax.vmap(run, (0, None)))
    xs = np.stack(MATRICES * 40)
    program(xs, MATRICES[0])

    def work(number):
        for _ in range(10):
            assert_array_equal(program(xs, MATRICES[number]), expected(xs, MATRICES[number]))

    in_threads(4, work)


@wp.kernel
def spin(steps: wp.array(dtype=int), out: wp.array(dtype=float)):
    value = wp.float32(0.5)
    for _ in range(steps[0]):
        value = 3.9 * value * (1.0 - value)  # chaotic: no compiler can shorten it
    out[0] = value


def test_a_running_kernel_does_not_stop_other_python_threads():
    """Another thread notes the time every millisecond; with the GIL held there would be no note inside the call."""
    run = warp_kernel(spin, Struct((), jnp.float32))
    steps, elapsed = 0, 0.0
    while elapsed < 0.3:
        start = time.perf_counter()
        run(np.int32(steps)).block_until_ready()
        elapsed = time.perf_counter() - start if steps else 0.0  # the first call compiles
        steps = 2 * steps or 1_000_000
    notes, stop = [], threading.Event()

    def note():
        while not stop.is_set():
            notes.append(time.perf_counter())
            time.sleep(0.001)

    thread = threading.Thread(target=note)
    thread.start()
    while not notes:
        time.sleep(0.001)
    start = time.perf_counter()
    run(np.int32(steps)).block_until_ready()
    end = time.perf_counter()
    stop.set()
    thread.join()
    margin = 0.1 * (end - start)
    assert sum(start + margin < moment < end - margin for moment in notes) > 10


# Compiling


def make_scaled(factor, module):
    @wp.kernel(module=module, enable_backward=False)
    def scaled(x: wp.array(dtype=float), out: wp.array(dtype=float)):
        i = wp.tid()
        out[i] = x[i] * factor

    return scaled


def test_four_threads_that_meet_a_new_kernel_at_once():
    before, results = len(registered_targets()), {}
    kernel = make_scaled(3.0, "unique")

    def work(number):
        results[number] = np.asarray(warp_kernel(kernel, same)(np.full(3 + number % 2, number, "f4")))

    in_threads(4, work)
    assert {number: set(out.tolist()) for number, out in results.items()} == {n: {3.0 * n} for n in range(4)}
    assert len(registered_targets()) == before + 1


def test_threads_that_each_define_kernels_of_one_module():
    module = wp.get_module(f"{__name__}.defined")

    def work(number):
        for i in range(2):
            factor = float(10 * number + i)
            run = warp_kernel(make_scaled(factor, module), same)
            assert_array_equal(run(np.ones(4, "f4")), np.full(4, factor))

    in_threads(3, work)


def test_a_kernel_that_is_defined_while_another_thread_hashes_its_module(monkeypatch):
    """Warp keeps the hashes, which lack the kernel, as those of the module with the kernel."""
    module, made = wp.get_module(f"{__name__}.hashed"), []
    hasher = context.ModuleHasher

    def hash_beside_a_definition(*args):
        hashes = hasher(*args)
        if not made:
            made.append(make_scaled(3.0, module))
        return hashes

    first = warp_kernel(make_scaled(2.0, module), same)
    with monkeypatch.context() as patched:
        patched.setattr(context, "ModuleHasher", hash_beside_a_definition)
        assert_array_equal(first(np.ones(4, "f4")), np.full(4, 2))
    assert_array_equal(warp_kernel(made[0], same)(np.ones(4, "f4")), np.full(4, 3))


def test_a_tape_that_another_thread_begins_while_a_kernel_compiles(monkeypatch):
    """Warp's timers would open a scope on one tape and close it on another."""
    build_cpu, tape = build.build_cpu, wp.Tape()

    def build_beside_a_tape(*args, **options):
        in_threads(1, lambda _: tape.__enter__())
        return build_cpu(*args, **options)

    threads.guard()
    monkeypatch.setattr(build, "build_cpu", build_beside_a_tape)
    monkeypatch.setattr(wp.config, "cache_kernels", False)
    try:
        assert_array_equal(warp_kernel(make_scaled(6.0, "unique"), same)(np.ones(3, "f4")), [6] * 3)
        assert wp.get_device().runtime.tape is tape
    finally:
        tape.__exit__(None, None, None)
    assert not tape.scopes


def test_a_module_that_is_loaded_again_while_its_kernels_run():
    """Warp unloads the binary that a program has been calling, unless it is held."""
    module = wp.get_module(f"{__name__}.reloaded")
    first = jax.jit(jax.vmap(warp_kernel(make_scaled(2.0, module), same)))
    x = np.arange(64, dtype="f4").reshape(16, 4)
    assert_array_equal(first(x), 2 * x)
    stop = threading.Event()

    def work(number):
        if number == 0:
            try:
                for factor in (3.0, 4.0, 5.0):
                    run = warp_kernel(make_scaled(factor, module), same)
                    assert_array_equal(run(x[0]), factor * x[0])
                    del run
                    gc.collect()
                module.unload()
            finally:
                stop.set()
        while not stop.is_set():
            assert_array_equal(first(x), 2 * x)

    in_threads(3, work)
    assert_array_equal(first(x), 2 * x)
    assert_array_equal(first(x[:3]), 2 * x[:3])  # lowered again


def test_a_program_outlives_its_kernel():
    def program():
        return jax.jit(warp_kernel(make_scaled(7.0, "unique"), same)).lower(np.ones(3, "f4")).compile()

    runs = [program() for _ in range(2)]
    gc.collect()
    for run in runs:
        in_threads(3, functools.partial(lambda run, _: assert_array_equal(run(np.ones(3, "f4")), [7] * 3), run))


# Functions that launch kernels


def launch_plus(x, out):
    wp.launch(plus, dim=x.shape, inputs=[x, x], outputs=[out])


@pytest.mark.gpu
@pytest.mark.skipif(not wp.is_cpu_available(), reason="this build of Warp does not include CPU support")
def test_a_function_on_the_cpu_launches_there_whatever_runs_on_a_gpu_meanwhile():
    cpu, cuda = jax.devices("cpu")[0], jax.devices("cuda")[0]
    rows = wp.array2d(dtype=float)

    def on_the_gpu(x: rows, out: rows):
        launch_plus(x, out)

    def on_the_cpu(x: rows, out: rows):
        found = []
        run = jax.jit(jax_callable(on_the_gpu))
        thread = threading.Thread(target=lambda: found.append(run(jax.device_put(MATRICES[0], cuda))[0]))
        thread.start()
        thread.join(60)
        assert_array_equal(found[0], 2 * MATRICES[0])
        assert wp.get_device().is_cpu
        launch_plus(x, out)

    assert_array_equal(jax_callable(on_the_cpu)(jax.device_put(MATRICES[1], cpu))[0], 2 * MATRICES[1])


def test_a_thread_that_launches_has_its_own_default_device_and_tape():
    threads.guard()
    before, tape = wp.get_device(), wp.Tape()
    runtime = before.runtime
    with threads.launching(), threads.launching():
        runtime.default_device = "mine"
        with tape:
            assert runtime.tape is tape
            in_threads(2, lambda _: assert_array_equal([runtime.default_device, runtime.tape], [before, None]))
    assert (wp.get_device(), runtime.tape) == (before, None)


def test_an_unknown_warp_launches_with_all_locks_held(monkeypatch):
    rows = wp.array2d(dtype=float)
    seen = []

    def inner(x: rows, out: rows):
        launch_plus(x, out)

    def outer(x: rows, out: rows):
        seen.append(lock._is_owned())
        with threads.launching():  # as a function within, in the same thread
            launch_plus(x, out)

    monkeypatch.setattr(threads, "guard", lambda: False)
    assert_array_equal(jax_callable(outer)(MATRICES[0])[0], 2 * MATRICES[0])
    assert_array_equal(jax_callable(inner)(MATRICES[0])[0], 2 * MATRICES[0])
    assert seen == [True]
