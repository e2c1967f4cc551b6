"""Warps, modules and caches that are not as they should be."""

import pytest
import warp as wp
from warp._src import build as warp_build
from warp._src import context as warp_context

from xlakernel.core.errors import CompileError
from xlakernel.warp import _clang, _range
from xlakernel.warp._range import range_entry

ONE = """
@wp.kernel
def one(out: wp.array(dtype=wp.float32)):
    out[wp.tid()] = 1.0
"""


@pytest.fixture
def out():
    return wp.zeros(4, dtype=wp.float32, device="cpu")


@pytest.fixture
def launch(import_kernels, record, out, builds):
    return record(import_kernels(ONE).one, 4, out)


def not_known(what=""):
    """Expect an error that says that this Warp is none that is known, and *what* of it."""
    return pytest.raises(CompileError, match=rf"one: .*Warp {wp.__version__}.*{what}.*Pass parallel=False")


def test_an_entry_of_another_form_is_refused(launch, monkeypatch):
    monkeypatch.setattr(_range, "FORMS", {"0.0": "nothing like it"})
    with not_known("none of the forms of 0.0"):
        range_entry(launch)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("++task_index)", "task_index += 2)"),
        ("_cpu_forward_tasks<false>(dim, _wp_args);", "_cpu_forward_tasks<false>(dim, _wp_args); more();"),
        ("wp::tile_shared_storage_t tile_mem;", "wp::tile_shared_storage_t tile_mem; more();"),
        ("_cpu_kernel_forward", "_cpu_kernel_backward"),
    ],
)
def test_an_entry_that_does_anything_else_is_left_alone(launch, ours, theirs):
    source = _clang.loaded_kernel(launch).source
    assert _range.with_ranges(source) != source
    assert "_xlakernel_range" not in _range.with_ranges(source.replace(ours, theirs)) or ours not in source


def test_an_option_of_the_compiler_that_is_not_known_is_refused(launch, monkeypatch):
    def build_cpu(obj_path, cpp_path, mode="release", new_option=1, **_):
        raise AssertionError("called")

    monkeypatch.setattr(warp_build, "build_cpu", build_cpu)
    with not_known("new_option"):
        range_entry(launch)


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (lambda launch: type(launch.kernel.module), "get_module_hash"),
        (lambda launch: type(launch.kernel.module), "get_module_identifier"),
        (lambda launch: launch.kernel.module, "resolved_options"),
        (lambda launch: launch, "block_dim"),
        (lambda launch: launch.module_exec, "module_hash"),
        (lambda launch: warp_build, "build_cpu"),
        (lambda launch: type(warp_context.runtime), "get_clang_pch_dir"),
    ],
)
def test_a_warp_without_what_is_used_of_it_is_refused(launch, monkeypatch, owner, name):
    monkeypatch.delattr(owner(launch), name)
    with not_known(name):
        range_entry(launch)


def test_code_that_the_compiler_refuses_is_an_error(launch, monkeypatch, capfd):
    edits = _range.EDITS | {"size_t begin": "no_such_type begin"}
    monkeypatch.setattr(_range, "EDITS", edits)
    # Without headers, which Warp's compiler would make anew after an error.
    monkeypatch.setattr(warp_context.runtime, "get_clang_pch_dir", lambda: None)
    with pytest.raises(CompileError, match=r"one: Warp .* does not compile"):
        range_entry(launch)
    assert "no_such_type" in capfd.readouterr().err


def test_code_that_is_not_loaded_is_an_error(launch, monkeypatch):
    monkeypatch.setattr(_range, "load", lambda *_: None)
    with not_known("does not load"):
        range_entry(launch)


def test_a_module_that_changed_after_the_launch_was_recorded_is_refused(launch, record, out):
    kernel = launch.kernel
    kernel.module.options["max_unroll"] = 3
    kernel.module.mark_modified()
    with pytest.raises(CompileError, match=r"has changed since the launch was recorded.*Record the launch again"):
        range_entry(launch)
    range_entry(record(kernel, 4, out))


def test_a_module_whose_source_may_be_another_one_is_refused(import_kernels, record, out):
    launch = record(import_kernels('wp.set_module_options({"strip_hash": True})\n' + ONE).one, 4, out)
    with pytest.raises(CompileError, match="has the option strip_hash"):
        range_entry(launch)


def test_a_module_whose_source_is_gone_is_refused(launch):
    kernel = _clang.loaded_kernel(launch)
    for path in kernel.folder.glob("*.cpp"):
        path.unlink()
    with pytest.raises(CompileError, match=r"\.cpp is not there"):
        range_entry(launch)


def test_an_entry_that_is_not_the_function_of_its_name_is_refused(launch, import_kernels, record, out):
    launch.hooks = record(import_kernels(ONE).one, 4, out).hooks
    with not_known("its entry is not one_"):
        range_entry(launch)
