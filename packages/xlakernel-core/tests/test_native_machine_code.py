"""Machine code that is kept on disk: taken for the same text alone, with the addresses of this process."""

import ctypes
from pathlib import Path

import numba
import pytest
from llvmlite import ir
from numba.core.codegen import JITCPUCodegen
from numba.core.compiler_lock import global_compiler_lock

from xlakernel.core.native import machine_code
from xlakernel.core.native.frame import I64, i64
from xlakernel.core.native.machine_code import NAME, load_module, pointer_to

_kept = []


@pytest.fixture
def compiled(monkeypatch):
    """The names of the modules that LLVM compiled."""
    names, compile_ = [], machine_code._compile

    def take_note(codegen, text, symbol, **options):
        names.append(symbol)
        return compile_(codegen, text, symbol, **options)

    monkeypatch.setattr(machine_code, "_compile", take_note)
    return names


@pytest.fixture(autouse=True)
def in_a_new_process():
    """Return what makes the next module the first one of its text."""
    machine_code._loaded.clear()
    yield machine_code._loaded.clear
    machine_code._loaded.clear()


@global_compiler_lock
def load(folder, *values, plus=0, codegen=None, comment=""):
    """Return what a function says that adds *plus* and the numbers that it finds at the addresses of *values*.

    Each has an engine of its own, as it would in a process of its own.
    """
    codegen = codegen or JITCPUCodegen("test")
    module = codegen._create_empty_module(NAME)
    function = ir.Function(module, ir.FunctionType(I64, []), NAME)
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    builder.comment(comment)
    total = i64(plus)
    for value in values:
        total = builder.add(total, builder.load(pointer_to(builder, ctypes.addressof(value), I64.as_pointer())))
    builder.ret(total)
    code = load_module(codegen, module, folder)
    _kept.append(code)
    return ctypes.CFUNCTYPE(ctypes.c_int64)(code.address_of(NAME))()


def numbers(*values):
    return [ctypes.c_int64(value) for value in values]


def test_code_on_disk_is_read_and_finds_other_addresses(compiled, in_a_new_process, tmp_path):
    assert load(tmp_path, *numbers(3, 4)) == 7
    in_a_new_process()
    assert load(tmp_path, *numbers(30, 40)) == 70
    assert len(compiled) == 1
    (file,) = tmp_path.iterdir()
    assert file.name.startswith(f"{compiled[0]}.") and file.name.endswith(".xlakernel.nbc")


def test_modules_of_one_text_in_one_process_have_addresses_of_their_own(compiled, in_a_new_process, tmp_path):
    for _ in range(2):
        in_a_new_process()
        codegen = JITCPUCodegen("test")
        assert [load(tmp_path, *numbers(value), codegen=codegen) for value in (5, 6, 7)] == [5, 6, 7]
    assert len(compiled) == len(set(compiled)) == len(list(tmp_path.iterdir())) == 3


def test_an_address_is_passed_once_however_often_it_is_used(tmp_path):
    (one,) = numbers(5)
    assert load(tmp_path, one, one, one) == 15
    assert load(tmp_path, *numbers(1, 2, 3)) == 6  # which is another text


def test_without_a_folder_nothing_is_written(compiled, tmp_path):
    for _ in range(2):
        assert load(None, *numbers(1)) == 1
    assert len(compiled) == 2 and not list(tmp_path.iterdir())


def test_another_text_has_another_file(compiled, in_a_new_process, tmp_path):
    for plus in (1, 2, 2, 1):
        in_a_new_process()
        assert load(tmp_path, plus=plus) == plus
    assert len(compiled) == 2 and len(list(tmp_path.iterdir())) == 2


def test_the_name_in_a_comment_does_no_harm(tmp_path):
    assert load(tmp_path, plus=3, comment=f"{NAME} is called {NAME}_bind") == 3


def test_a_file_of_another_text_is_not_taken(compiled, tmp_path, monkeypatch):
    """As if two texts had one digest."""
    monkeypatch.setattr(machine_code, "_new_name", lambda text: f"{NAME}_same")
    for plus in (1, 2, 2):
        assert load(tmp_path, plus=plus) == plus
    assert len(compiled) == 2 and len(list(tmp_path.iterdir())) == 1


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
def test_a_damaged_file_is_written_again(compiled, in_a_new_process, tmp_path, damage):
    load(tmp_path, plus=3)
    (file,) = tmp_path.iterdir()
    whole = file.read_bytes()
    file.write_bytes(damage(whole))
    for _ in range(2):
        in_a_new_process()
        assert load(tmp_path, plus=3) == 3
        assert len(compiled) == 2


def test_code_for_another_processor_is_not_taken(compiled, in_a_new_process, tmp_path, monkeypatch):
    load(tmp_path, plus=3)
    in_a_new_process()
    monkeypatch.setattr(JITCPUCodegen, "magic_tuple", lambda self: ("another", "processor"))
    assert load(tmp_path, plus=3) == 3
    assert len(compiled) == 2 and len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize(
    ("option", "value"), [("OPT", numba.core.config._OptLevel(1)), ("LOOP_VECTORIZE", 7), ("SLP_VECTORIZE", 7)]
)
def test_code_of_other_options_is_not_taken(compiled, in_a_new_process, tmp_path, monkeypatch, option, value):
    load(tmp_path, plus=3)
    in_a_new_process()
    monkeypatch.setattr(numba.config, option, value)
    assert load(tmp_path, plus=3) == 3
    assert len(compiled) == 2 and len(list(tmp_path.iterdir())) == 2


def test_a_folder_is_made(compiled, in_a_new_process, tmp_path):
    for _ in range(2):
        in_a_new_process()
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
