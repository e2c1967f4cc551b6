"""Machine code that is kept on disk: taken for the same text alone, with the addresses of this process."""

import ctypes
from pathlib import Path

import pytest
from llvmlite import ir
from numba.core.codegen import JITCPUCodegen
from numba.core.compiler_lock import global_compiler_lock

from xlakernel.core.native import machine_code
from xlakernel.core.native.frame import I64, i64
from xlakernel.core.native.machine_code import load_module, pointer_to


@pytest.fixture
def compiled(monkeypatch):
    """The names of the modules that LLVM compiled."""
    names, compile_ = [], machine_code._compile

    def take_note(codegen, text, symbol):
        names.append(symbol)
        return compile_(codegen, text, symbol)

    monkeypatch.setattr(machine_code, "_compile", take_note)
    return names


@global_compiler_lock
def load(folder, *values, plus=0, symbol="total"):
    """Return what a function says that adds *plus* and the numbers that it finds at the addresses of *values*.

    Each has an engine of its own, as it would in a process of its own.
    """
    codegen = JITCPUCodegen("test")
    module = codegen._create_empty_module(symbol)
    function = ir.Function(module, ir.FunctionType(I64, []), symbol)
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    total = i64(plus)
    for value in values:
        total = builder.add(total, builder.load(pointer_to(builder, ctypes.addressof(value), I64.as_pointer())))
    builder.ret(total)
    library = load_module(codegen, module, symbol, folder)
    return ctypes.CFUNCTYPE(ctypes.c_int64)(library.get_pointer_to_function(symbol))()


def numbers(*values):
    return [ctypes.c_int64(value) for value in values]


def test_code_on_disk_is_read_and_finds_other_addresses(compiled, tmp_path):
    assert load(tmp_path, *numbers(3, 4)) == 7
    assert load(tmp_path, *numbers(30, 40)) == 70
    assert compiled == ["total"]
    (file,) = tmp_path.iterdir()
    assert file.name.startswith("total.") and file.name.endswith(".xlakernel.nbc")


def test_an_address_is_passed_once_however_often_it_is_used(tmp_path):
    (one,) = numbers(5)
    assert load(tmp_path, one, one, one) == 15
    assert load(tmp_path, *numbers(1, 2, 3)) == 6  # which is another text


def test_without_a_folder_nothing_is_written(compiled, tmp_path):
    for _ in range(2):
        assert load(None, *numbers(1)) == 1
    assert len(compiled) == 2 and not list(tmp_path.iterdir())


def test_another_text_of_the_same_name_replaces_what_is_there(compiled, tmp_path):
    for plus in (1, 2, 2, 1):
        assert load(tmp_path, plus=plus) == plus
    assert len(compiled) == 3 and len(list(tmp_path.iterdir())) == 1


def test_modules_of_other_names_have_files_of_their_own(compiled, tmp_path):
    for symbol in ("one", "two", "one", "two"):
        assert load(tmp_path, symbol=symbol, plus=7) == 7
    assert compiled == ["one", "two"] and len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: b"",
        lambda content: content[:40],
        lambda content: content[:-1],
        lambda content: content + b"\0",
        lambda content: content[:200] + bytes([content[200] ^ 1]) + content[201:],
    ],
    ids=["empty", "header", "short", "long", "a bit"],
)
def test_a_damaged_file_is_written_again(compiled, tmp_path, damage):
    load(tmp_path, plus=3)
    (file,) = tmp_path.iterdir()
    whole = file.read_bytes()
    file.write_bytes(damage(whole))
    assert load(tmp_path, plus=3) == 3
    assert len(compiled) == 2
    assert load(tmp_path, plus=3) == 3
    assert len(compiled) == 2


def test_code_for_another_processor_is_not_taken(compiled, tmp_path, monkeypatch):
    load(tmp_path, plus=3)
    monkeypatch.setattr(JITCPUCodegen, "magic_tuple", lambda self: ("another", "processor"))
    assert load(tmp_path, plus=3) == 3
    assert len(compiled) == 2 and len(list(tmp_path.iterdir())) == 2


def test_a_folder_is_made(compiled, tmp_path):
    for _ in range(2):
        assert load(tmp_path / "a" / "b", plus=8) == 8
    assert len(compiled) == 1


def test_a_folder_that_cannot_be_written_is_none(compiled, tmp_path):
    (tmp_path / "file").touch()
    for _ in range(2):
        assert load(tmp_path / "file", *numbers(8)) == 8
    assert len(compiled) == 2 and [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_disk_that_is_full_leaves_nothing_behind(tmp_path, monkeypatch):
    def fail(self, target):
        raise OSError("no space left")

    monkeypatch.setattr(Path, "replace", fail)
    assert load(tmp_path, plus=8) == 8
    assert not list(tmp_path.iterdir())
