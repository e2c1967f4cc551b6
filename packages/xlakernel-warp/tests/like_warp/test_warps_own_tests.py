"""Warp's own tests of its JAX calls, run through ours.

They ship in Warp's wheel, and look up ``warp.jax_kernel`` and ``warp.jax_callable`` where they call them: these are
replaced here. A test of a newer Warp runs of itself; whatever is left out is in a table, with the reason.
"""

import ast
import functools
import importlib
import inspect
import itertools
import os
import subprocess
import sys
import unittest
import weakref
from pathlib import Path
from typing import NamedTuple

import jax
import pytest
import warp

import xlakernel.warp
from xlakernel.warp._kernels import kernel

pytestmark = pytest.mark.slow

WARP = Path(warp.__file__).parent
TWO_DEVICES = "--xla_force_host_platform_device_count=2"
VERSION = tuple(map(int, warp.__version__.split(".")[:2]))
REPLACED = ("jax_kernel", "jax_callable")

# Why a test is not run. Every name must be that of a test.
CONVERSION = "converts a dtype, an array or a device: nothing of ours"
PRIVATE = "calls a private function of Warp's, or replaces one and counts its calls"
LEFT_OUT = {
    "test_bf16_interop_jax": CONVERSION,
    "test_device_conversion": CONVERSION,
    "test_dtype_from_jax": CONVERSION,
    "test_dtype_to_jax": CONVERSION,
    "test_ffi_callback": "register_ffi_callback, by which a user writes the handler: nothing of ours",
    "test_ffi_jax_callable_graph_cache": "counts the CUDA graphs that Warp's handler caches; a recorded call has none",
}
# What came with the Warp that has JAX calls on the CPU.
LEFT_OUT_SINCE_1_16 = {
    "test_device_from_jax_uses_process_local_ordinal": CONVERSION,
    "test_device_lookup_jax_distributed_cpu": CONVERSION,
    "test_device_lookup_jax_distributed_cuda": CONVERSION,
    "test_device_to_jax_returns_process_local_devices": CONVERSION,
    "test_ffi_jax_callable_graph_replay_skips_module_load": PRIVATE,
    "test_ffi_jax_cpu_subprocess": "runs other processes, with Warp's functions: what they run is run below with ours",
    "test_ffi_jax_cuda_requires_cuda_support": "sets a private flag, which warp.is_cuda_available does not look at",
    "test_ffi_jax_kernel_validates_all_target_block_dims_during_tracing": PRIVATE,
    "test_ffi_module_preload_all_devices_block_dim": PRIVATE,
    "test_ffi_module_preload_load_error": PRIVATE,
    "test_ffi_module_preload_modes": PRIVATE,
}
LEFT_OUT_BEFORE_1_16 = {
    "test_jax_experimental_custom_call_import_deprecation": "the warning that a module of Warp's goes",
    "test_jax_experimental_ffi_import_deprecation": "the warning that a module of Warp's goes",
    "test_jax_experimental_import_deprecation": "the warning that a module of Warp's goes",
}
LEFT_OUT_HERE = LEFT_OUT | (LEFT_OUT_SINCE_1_16 if VERSION >= (1, 16) else LEFT_OUT_BEFORE_1_16)

# Where a test runs, unless on the CPU and on a GPU, each by itself.
ONLY_ON_GPU = {"test_ffi_jax_mixed_devices"}
ONLY_ON_CPU = {
    "test_ffi_shard_map_aggregates_input_vma",
    "test_ffi_shard_map_preserves_vma",
    "test_ffi_shard_map_vma_rank_change",
}
# The values of enable_cpu_blocks that these run with; they are those of Warp's own registration.
CPU_BLOCKS = {
    "test_ffi_jax_kernel_block_dim_autodiff": (False, True),
    "test_ffi_jax_kernel_block_dim_tile": (True,),
}
# Arguments besides the test case and the device.
EXTRA = {"vmap_method": ("broadcast_all", "sequential"), "use_ffi": (True,)}


class Case(NamedTuple):
    """One run of a test of Warp's."""

    name: str
    on_gpu: bool
    cpu_blocks: bool
    extra: tuple[tuple[str, object], ...]

    def __str__(self):
        words = [self.name, "gpu" if self.on_gpu else "cpu", *(value for _, value in self.extra if value is not True)]
        return "-".join(words + ["blocks"] * self.cpu_blocks)


def find_tests():
    """Return the tests' names, with the arguments of each, and whether it chooses its device; without importing."""
    tree = ast.parse((WARP / "tests" / "interop" / "test_jax.py").read_text(encoding="utf-8"))
    (case,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "TestJax")
    return {
        node.name: ([a.arg for a in node.args.args], body is case.body)
        for body in (tree.body, case.body)
        for node in body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }


def cases_of(name, arguments, is_method):
    """Yield the runs of a test."""
    platforms = {False} if is_method or name in ONLY_ON_CPU else {True} if name in ONLY_ON_GPU else {False, True}
    options = [[(key, value) for value in EXTRA[key]] for key in arguments if key in EXTRA]
    for on_gpu, cpu_blocks, extra in itertools.product(
        sorted(platforms), CPU_BLOCKS.get(name, (False,)), itertools.product(*options)
    ):
        if not (on_gpu and cpu_blocks and False in CPU_BLOCKS[name]):  # the same twice
            yield Case(name, on_gpu, cpu_blocks, extra)


TESTS = find_tests()
CASES = [
    pytest.param(case, id=str(case), marks=[pytest.mark.gpu] * case.on_gpu)
    for name, found in TESTS.items()
    if name not in LEFT_OUT_HERE
    for case in cases_of(name, *found)
]


@pytest.fixture(scope="module")
def warps():
    """Warp's module of tests, whose import changes settings."""
    environment, x64 = dict(os.environ), jax.config.jax_enable_x64
    module = importlib.import_module("warp.tests.interop.test_jax")
    jax.config.update("jax_enable_x64", x64)
    for name in set(os.environ) - set(environment):
        del os.environ[name]
    os.environ.update(environment)
    return module


@pytest.fixture
def replaced(monkeypatch):
    """Put our functions in place of Warp's; return the names of those that are called."""
    called = []

    def counted(name, *args, **options):
        called.append(name)
        return getattr(xlakernel.warp, name)(*args, **options)

    for name in REPLACED:
        monkeypatch.setattr(warp, name, functools.partial(counted, name))
    return called


@pytest.fixture
def nothing_recorded(monkeypatch):
    """Forget what other tests recorded: it would not be compiled again, with whatever goes wrong then."""
    monkeypatch.setattr(kernel, "_targets", weakref.WeakKeyDictionary())


@pytest.fixture
def enable_x64():
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", before)


@pytest.mark.usefixtures("enable_x64", "nothing_recorded")
@pytest.mark.parametrize("case", CASES)
def test_through_ours(case, warps, replaced, monkeypatch):
    if hasattr(warp.config, "enable_cpu_blocks"):
        monkeypatch.setattr(warp.config, "enable_cpu_blocks", case.cpu_blocks)
    test = warps.TestJax()
    _, is_method = TESTS[case.name]
    # Not as decorated: some are skipped for races of Warp's handlers, which are none of ours.
    function = inspect.unwrap(getattr(warps.TestJax if is_method else warps, case.name))
    device = () if is_method else (warp.get_device("cuda:0" if case.on_gpu else "cpu"),)
    try:
        function(test, *device, **dict(case.extra))
    except unittest.SkipTest as reason:
        pytest.fail(f"it skipped itself: {reason}")
    assert replaced, "it called none of our functions"


@pytest.mark.skipif(VERSION < (1, 16), reason="the script came with Warp's calls on the CPU")
def test_warps_script_for_two_devices():
    run_script("xlakernel.warp", WARP / "tests" / "interop" / "aux_test_jax_cpu_ffi.py", XLA_FLAGS=TWO_DEVICES)


@pytest.mark.parametrize("platform", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("name", ["example_jax_kernel", "example_jax_callable"])
def test_warps_examples_print_the_same(name, platform):
    script = WARP / "examples" / "interop" / f"{name}.py"
    ours = run_script("xlakernel.warp", script, JAX_PLATFORMS=platform)
    assert "example3:" in ours
    if platform == "cuda" or VERSION >= (1, 16):  # where Warp's own run
        assert ours == run_script("warp", script, JAX_PLATFORMS=platform)


def run_script(functions, script, **environment):
    """Run a script of Warp's in a process of its own, with the functions of a module; return what it prints."""
    code = f"import runpy, sys, warp, {functions} as functions\n"
    code += "".join(f"warp.{name} = functions.{name}\n" for name in REPLACED)
    code += "runpy.run_path(sys.argv[1], run_name='__main__')"
    env = os.environ | {"JAX_PLATFORMS": "cpu"} | environment
    if env["JAX_PLATFORMS"] == "cpu":
        env["CUDA_VISIBLE_DEVICES"] = ""
    done = subprocess.run(
        [sys.executable, "-c", code, str(script)], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    printed = done.stdout[done.stdout.find("\n===") :]
    return [line for line in printed.splitlines() if not line.startswith("Module ")]  # how long Warp compiled it


def test_the_tables_name_tests_that_exist():
    named = set(LEFT_OUT_HERE)
    if VERSION >= (1, 16):
        named |= CPU_BLOCKS.keys() | ONLY_ON_CPU | ONLY_ON_GPU
    assert sorted(named - TESTS.keys()) == []
    assert len(CASES) > 60  # they were found
