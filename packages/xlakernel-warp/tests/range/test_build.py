"""How an entry for ranges is compiled and kept."""

import inspect
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import warp as wp
from numpy.testing import assert_array_equal
from warp._src import build as warp_build

from xlakernel.warp import _clang, _range
from xlakernel.warp._range import range_entry

PAIR = """
@wp.kernel
def one(out: wp.array(dtype=wp.float32)):
    out[wp.tid()] = 1.0

@wp.kernel
def one_more(out: wp.array(dtype=wp.float32)):
    out[wp.tid()] = 2.0
"""


def test_no_entry_hangs_its_stack_on_a_variable_of_the_module(import_kernels, record, out):
    kernels = import_kernels('wp.set_module_options({"enable_backward": False})\n' + PAIR)
    source = _clang.loaded_kernel(record(kernels.one, 4, out)).source
    assert source.count("shared_tile_storage") == 2
    assert "tile_storage" not in _range.with_ranges(source)


@pytest.fixture
def launch(import_kernels, record, out):
    return record(import_kernels(PAIR).one, 4, out)


@pytest.fixture
def out():
    return wp.zeros(4, dtype=wp.float32, device="cpu")


def test_a_module_is_compiled_once(import_kernels, record, pieces_of, builds, out):
    kernels = import_kernels(PAIR)
    launches = [record(kernel, 4, out) for kernel in (kernels.one, kernels.one_more, kernels.one)]
    with ThreadPoolExecutor(6) as pool:
        first, other, again, *_ = pool.map(range_entry, launches * 2)
    assert first == again != other
    assert len(builds) == 1
    for launch, value in zip(launches, (1, 2), strict=False):
        out.zero_()
        pieces_of(launch)(1, 3)
        assert_array_equal(out.numpy(), [0, value, value, 0])


# All in one, as Warp's compiler makes its headers anew for each set.
OPTIONS = {"optimization_level": 1, "fuse_fp": False, "cpu_compiler_flags": "-O1"}


def test_options_change_the_code(import_kernels, record, builds, out):
    entries = set()
    for options in ({}, OPTIONS):
        kernels = import_kernels(f"wp.set_module_options({options})\n{PAIR}", "xlakernel_options")
        entries.add(range_entry(record(kernels.one, 4, out)))
    assert len(entries) == 2
    first, second = (sorted(kernel.source.splitlines()) for kernel in builds)
    assert first == second  # kernels come in any order, as Warp 1.14 keeps them in a set of addresses
    assert [kernel.options["optimization_level"] for kernel in builds] == [None, 1]


@pytest.mark.parametrize("options", [{}, OPTIONS])
def test_warp_compiles_both_alike(import_kernels, record, builds, out, monkeypatch, options):
    told, build_cpu = [], warp_build.build_cpu
    signature = inspect.signature(build_cpu)

    def listen(*paths, **options):
        told.append(signature.bind(*paths, **options))
        return build_cpu(*paths, **options)

    listen.__signature__ = signature
    monkeypatch.setattr(warp_build, "build_cpu", listen)
    range_entry(record(import_kernels(f"wp.set_module_options({options})\n{PAIR}").one, 4, out))
    for call in told:
        call.apply_defaults()
        for other in ("obj_path", "cpp_path", "verbose"):
            del call.arguments[other]
    warps, ours = told
    assert warps.arguments == ours.arguments


CHILD = """
import sys
import warp as wp

wp.config.log_level = wp.LOG_WARNING
wp.init()
folder, name, wp.config.kernel_cache_dir = sys.argv[1:]
sys.path.insert(0, folder)
from xlakernel.warp import _range

_range.build = None
out = wp.zeros(4, dtype=wp.float32, device="cpu")
kernel = __import__(name).one
assert _range.range_entry(wp.launch(kernel, dim=4, inputs=[out], device="cpu", record_cmd=True))
"""


def test_another_process_finds_it_compiled(import_kernels, record, builds, out, kernel_cache):
    kernels = import_kernels(PAIR)
    range_entry(record(kernels.one, 4, out))
    assert len(builds) == 1
    command = [sys.executable, "-c", CHILD, str(Path(kernels.__file__).parent), kernels.__name__, kernel_cache]
    child = subprocess.run(command, capture_output=True, text=True, check=False)
    assert child.returncode == 0, child.stderr


@pytest.fixture(params=["empty", "cut", "other"])
def damage(request):
    """Return a function that replaces the content of a file by another one, in a way that may be met."""

    def damage(path):
        (warps,) = set(path.parent.glob("*.o")) - {path}
        content = {"empty": b"", "cut": path.read_bytes()[:1000], "other": warps.read_bytes()}
        path.write_bytes(content[request.param])

    return damage


def test_a_damaged_file_is_made_again(launch, out, pieces_of, builds, monkeypatch, damage):
    range_entry(launch)
    (path,) = _clang.loaded_kernel(launch).folder.glob("xlakernel_*.o")
    good = path.read_bytes()
    damage(path)
    monkeypatch.setattr(_range, "_loaded", {})
    pieces_of(launch)(0, 4)
    assert_array_equal(out.numpy(), np.ones(4))
    assert len(builds) == 2
    assert len(path.read_bytes()) == len(good)


def test_a_file_without_one_of_its_entries_is_made_again(import_kernels, record, pieces_of, builds, monkeypatch, out):
    kernels = import_kernels(PAIR)
    one, one_more = (record(kernel, 4, out) for kernel in (kernels.one, kernels.one_more))
    range_entry(one)
    kernel = _clang.loaded_kernel(one_more)
    (path,) = kernel.folder.glob("xlakernel_*.o")
    symbol = f"{kernel.name}_xlakernel_range".encode()
    good = path.read_bytes()
    assert symbol in good
    path.write_bytes(good.replace(symbol, symbol.replace(b"range", b"other")))
    monkeypatch.setattr(_range, "_loaded", {})
    range_entry(one)
    assert len(builds) == 1
    assert range_entry(one_more)
    assert len(builds) == 2
    pieces_of(one_more)(0, 4)
    assert_array_equal(out.numpy(), np.full(4, 2))


def test_a_file_without_the_function_is_not_loaded(launch, builds):
    entry = range_entry(launch)
    kernel = _clang.loaded_kernel(launch)
    (path,) = kernel.folder.glob("xlakernel_*.o")
    handle = _clang.load(kernel, path, f"{kernel.name}_xlakernel_range")
    assert _clang.look_up(handle, f"{kernel.name}_xlakernel_range") not in (0, entry)
    assert _clang.load(kernel, path, "no_such_function") is None


def test_nothing_else_is_left_behind(launch, kernel_cache):
    before = set(Path(kernel_cache).rglob("*"))
    range_entry(launch)
    assert len(set(Path(kernel_cache).rglob("*")) - before) == 1


def test_a_cache_that_cannot_be_written_costs_time_only(launch, builds, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(_range.shutil, "copy", lambda *_: os.stat("/nowhere"))
        assert range_entry(launch)
    monkeypatch.setattr(_range, "_loaded", {})
    assert range_entry(launch)
    assert len(builds) == 2


def test_a_cache_that_is_off_is_not_read(launch, builds, monkeypatch):
    assert range_entry(launch)
    monkeypatch.setattr(_range, "_loaded", {})
    monkeypatch.setattr(wp.config, "cache_kernels", False)
    assert range_entry(launch)
    assert len(builds) == 2
