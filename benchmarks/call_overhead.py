"""What one call of a kernel costs, beside its peers and a C++ handler made from JAX's own header.

    python benchmarks/call_overhead.py [--kernels numba|warp] [--platform cpu|cuda] [--size 16] [--rounds 15]
                                       [--out benchmarks/results] [--quick]

On the CPU every case adds two float32 vectors. "loop" is one iteration of a 1000-step ``fori_loop``, "call" a call of a
jitted function, "eager" a call of the wrapper itself, warm. Where JAX has a CUDA device, `_cuda_calls.py` says what is
measured on it, and `_warp_calls.py` says it of Warp's kernels. All cases are timed in turn, round by round; a ratio is
the median of the rounds' ratios. The exit status is 1 if a mark does not hold.
"""

from __future__ import annotations

import ctypes
import functools
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numba
import numpy as np
from _harness import (
    OURS,
    Mark,
    Part,
    arguments,
    gpu_devices,
    machine,
    parse,
    plot,
    print_marks,
    print_table,
    ratio,
    slug,
    summary,
    time_beside,
    write_json,
)
from _kernels import add_kernel
from _programs import BRAINEVENT, EAGER, LOOP, XLA, Binary, collect, looped, one

from xlakernel.numba import _compile, numba_kernel

CPP, CALLBACK = "C++ handler", "jax.pure_callback"


def add_constant_kernel(constant: int) -> Any:
    """Return a kernel that was never compiled before: another constant makes other code."""

    @numba.njit
    def kernel(x, y, out):
        for i in range(out.size):
            out[i] = x[i] + y[i] + constant

    return kernel


def cpp_add(size: int) -> Binary | None:
    """Build the same handler in C++; None without a compiler."""
    compiler = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        print("No C++ compiler is found: the C++ handler is not measured, and its mark cannot hold.")
        return None
    source = r"""
#include "xla/ffi/api/ffi.h"
namespace ffi = xla::ffi;
static ffi::Error Add(ffi::Buffer<ffi::F32> x, ffi::Buffer<ffi::F32> y, ffi::ResultBuffer<ffi::F32> out) {
  const size_t n = out->element_count();
  for (size_t i = 0; i < n; ++i) out->typed_data()[i] = x.typed_data()[i] + y.typed_data()[i];
  return ffi::Error::Success();
}
XLA_FFI_DEFINE_HANDLER_SYMBOL(
    add, Add,
    ffi::Ffi::Bind().Arg<ffi::Buffer<ffi::F32>>().Arg<ffi::Buffer<ffi::F32>>().Ret<ffi::Buffer<ffi::F32>>());
"""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        (path / "add.cc").write_text(source)
        command = [compiler, "-O3", "-w", "-std=c++17", "-shared", "-fPIC", f"-I{jax.ffi.include_dir()}"]
        subprocess.run([*command, str(path / "add.cc"), "-o", str(path / "add.so")], check=True)
        library = ctypes.CDLL(str(path / "add.so"))
    jax.ffi.register_ffi_target("call_overhead_cpp", jax.ffi.pycapsule(library.add), platform="cpu")
    _kept.append(library)
    return lambda x, y: jax.ffi.ffi_call("call_overhead_cpp", jax.ShapeDtypeStruct((size,), jnp.float32))(x, y)


_kept: list[Any] = []


def brainevent_add(size: int) -> Binary | None:
    """Return brainevent's wrapper of the same kernel; None where it is not installed."""
    try:
        import brainevent
    except ImportError:
        print("brainevent is not installed (it needs Python 3.12): not measured, and its mark cannot hold.")
        return None
    return one(brainevent.numba_kernel(add_kernel, outs=jax.ShapeDtypeStruct((size,), jnp.float32)))


def cases(size: int) -> dict[str, Binary]:
    """Return every way of adding that is to be measured."""
    struct = jax.ShapeDtypeStruct((size,), jnp.float32)
    found = {
        OURS: numba_kernel(add_kernel, outs=struct),
        CPP: cpp_add(size),
        XLA: jnp.add,
        BRAINEVENT: brainevent_add(size),
        CALLBACK: lambda x, y: jax.pure_callback(lambda a, b: np.asarray(a) + np.asarray(b), struct, x, y),
    }
    return {name: add for name, add in found.items() if add is not None}


def measure_calls(size: int, rounds: int) -> tuple[dict[str, dict[str, dict[str, float]]], list[Mark]]:
    """Time the cases; return the summaries and the marks."""
    x, y = jnp.arange(size, dtype=jnp.float32), jnp.ones(size, jnp.float32)
    adders = cases(size)
    slow = {BRAINEVENT, CALLBACK}
    jitted = {name: jax.jit(add) for name, add in adders.items()}
    for name, add in jitted.items():
        np.testing.assert_array_equal(add(x, y), x + y, err_msg=name)

    loops = {name: functools.partial(jax.jit(looped(add)), x, y) for name, add in adders.items()}
    loop = time_beside(loops, calls={name: 1 if name in slow else 20 for name in loops}, rounds=rounds)
    loop = {name: [value / LOOP for value in values] for name, values in loop.items()}

    calls = {name: functools.partial(add, x, y) for name, add in jitted.items()}
    calls[OURS + EAGER] = functools.partial(adders[OURS], x, y)
    call = time_beside(calls, calls={name: 200 if name in slow else 5000 for name in calls}, rounds=rounds)

    marks = [
        Mark(f"a jitted call of {OURS}, over a jitted jnp.add", ratio(call, OURS, XLA), 1.15),
        Mark(f"a warm eager call of {OURS}, over a jitted jnp.add", ratio(call, OURS + EAGER, XLA), 1.15),
    ]
    if CPP in loop:
        marks.append(Mark(f"an iteration of {OURS}, over the C++ handler", ratio(loop, OURS, CPP), 1.2))
    marks += [
        Mark(f"an iteration of {OURS}, over {peer}", ratio(loop, OURS, peer), 1 / 50)
        for peer in (BRAINEVENT, CALLBACK)
        if peer in loop
    ]
    return {"loop": summary(loop), "call": summary(call)}, marks


def measure_build(rounds: int) -> list[float]:
    """Return the seconds that the handler of a two-input kernel takes to build, the kernel itself not counted."""
    spent: list[float] = []
    build = _compile.build_handler

    def timed(*args: Any, **kwargs: Any) -> Any:
        start = time.perf_counter()
        handler = build(*args, **kwargs)
        spent.append(time.perf_counter() - start)
        return handler

    _compile.build_handler = timed
    try:
        for constant in range(rounds):
            kernel = numba_kernel(add_constant_kernel(constant), outs=lambda x, y: x)
            kernel(jnp.ones(4), jnp.ones(4))
    finally:
        _compile.build_handler = build
    return spent


def measure_import(rounds: int) -> list[float]:
    """Return the seconds that ``import xlakernel.core`` takes in a fresh process that has imported JAX."""
    script = (
        "import jax, jax.numpy, sys, time; start = time.perf_counter(); import xlakernel.core; "
        "print(time.perf_counter() - start); assert 'numba' not in sys.modules"
    )
    command = [sys.executable, "-c", script]
    return [float(subprocess.run(command, check=True, capture_output=True, text=True).stdout) for _ in range(rounds)]


def measure_concurrency(seconds: float = 0.4) -> float:
    """Return how fast another Python thread counts while a kernel runs, over how fast it counts alone."""

    @numba.njit
    def spin(x, out):
        total = np.float32(0)
        for k in range(x.size * 1_000_000):
            total = total * np.float32(0.999) + np.float32(k % 3)
        out[0] = total

    step = jax.jit(numba_kernel(spin, outs=jax.ShapeDtypeStruct((1,), jnp.float32)))
    million = jnp.ones(1)
    jax.block_until_ready(step(million))
    start = time.perf_counter()
    jax.block_until_ready(step(million))
    work = jnp.ones(max(1, int(seconds / (time.perf_counter() - start))))
    jax.block_until_ready(step(work))

    def count_during(wait: Callable[[], Any]) -> float:
        count, stop = 0, threading.Event()

        def run() -> None:
            nonlocal count
            while not stop.is_set():
                count += 1

        thread = threading.Thread(target=run)
        thread.start()
        start = time.perf_counter()
        wait()
        elapsed = time.perf_counter() - start
        stop.set()
        thread.join()
        return count / elapsed

    alone = count_during(lambda: time.sleep(seconds))
    return count_during(lambda: jax.block_until_ready(step(work))) / alone


def measure_cpu(size: int, rounds: int) -> tuple[dict[str, Any], list[Mark]]:
    """Measure on the CPU, and print what the calls cost; return what is to be written, and the marks."""
    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        results, marks = measure_calls(size, rounds)
        build = measure_build(rounds)
        concurrency = measure_concurrency()
    imports = measure_import(5)
    marks += [
        Mark("building the handler of a two-input kernel", statistics.median(build) * 1e3, 100, "ms"),
        Mark("import xlakernel.core, beyond jax and without numba", statistics.median(imports), 0.15, "s"),
        # With the GIL held the count would stand still; with two busy cores it is about 1.
        Mark("time another thread loses while a kernel runs", 1 - concurrency, 0.5, ""),
    ]
    print_table(f"one iteration of a fori_loop, {size} floats, µs", results["loop"])
    print_table(f"one call, {size} floats, µs", results["call"])
    content = {
        "size": size,
        "microseconds": results,
        "handler_build_ms": [value * 1e3 for value in build],
        "import_s": imports,
        "thread_speed_during_kernel": concurrency,
    }
    return content, marks


def run_numba_cpu(size: int, rounds: int, out: Path | None) -> bool:
    """Measure and write what calls cost on the CPU; return whether the marks hold."""
    content, marks = measure_cpu(size, rounds)
    holds = print_marks(marks)
    if out is not None:
        described = machine()
        content = {"machine": described, **content, "marks": [mark.as_dict() for mark in marks]}
        path = write_json(out, f"call_overhead-{slug(described)}", content)
        results = content["microseconds"]
        charts = {"one iteration of a loop": results["loop"], "one call": results["call"]}
        plot(path.with_suffix(".png"), charts, described)
        print(f"\nwritten: {path} and .png")
    return holds


def run_numba_cuda(rounds: int, out: Path | None) -> bool:
    """Measure and write what calls of Numba CUDA kernels cost on the GPU; return whether the marks hold."""
    import _cuda_calls

    parts = collect(_cuda_calls.MEASUREMENTS, gpu_devices()[0], rounds)
    return report(parts, "call_overhead_cuda", "cuda", "numba-cuda", out)


def run_warp_cpu(size: int, rounds: int, out: Path | None) -> bool:
    """Measure and write what calls of Warp kernels cost on the CPU; return whether the marks hold."""
    import _warp_calls

    parts = collect(_warp_calls.on_cpu(size), jax.local_devices(backend="cpu")[0], rounds)
    return report(parts, "call_overhead_warp", "cpu", "warp-lang", out)


def run_warp_cuda(rounds: int, out: Path | None) -> bool:
    """Measure and write what calls of Warp kernels cost on the GPU; return whether the marks hold."""
    import _warp_calls

    parts = collect(_warp_calls.ON_GPU, gpu_devices()[0], rounds)
    return report(parts, "call_overhead_warp", "cuda", "warp-lang", out)


def report(parts: list[Part], name: str, platform: str, compiler: str, out: Path | None) -> bool:
    """Print the parts, and write them as *name* with the machine's; return whether the marks hold."""
    results = {part.title: summary(part.seconds) for part in parts if part.seconds}
    for title, rows in results.items():
        print_table(f"{title}, µs", rows)
    marks = [mark for part in parts for mark in part.marks]
    holds = print_marks(marks)
    if out is not None:
        described = machine()
        content = {"machine": described, "microseconds": results, "marks": [mark.as_dict() for mark in marks]}
        path = write_json(out, f"{name}-{slug(described, platform)}", content)
        if results:
            plot(path.with_suffix(".png"), results, described, platform, compiler)
        print(f"\nwritten: {path} and .png")
    return holds


def main() -> int:
    """Measure, print, write; return the exit status."""
    parser = arguments(__doc__)
    parser.add_argument("--kernels", choices=["numba", "warp"], help="whose kernels to measure (both)")
    parser.add_argument("--size", type=int, default=16, help="floats in a vector on the CPU (16)")
    options = parse(parser)
    if options.size < 1:
        parser.error(f"--size must be at least 1; got {options.size}")

    size, rounds, out, holds = options.size, options.rounds, options.out, True
    if "cpu" in options.platforms:
        if options.kernels != "warp":
            holds &= run_numba_cpu(size, rounds, out)
        if options.kernels != "numba":
            holds &= run_warp_cpu(size, rounds, out)
    if "cuda" in options.platforms:
        if options.kernels != "warp":
            holds &= run_numba_cuda(rounds, out)
        if options.kernels != "numba":
            holds &= run_warp_cuda(rounds, out)
    else:
        print("\nCalls on a GPU are not measured.")
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
