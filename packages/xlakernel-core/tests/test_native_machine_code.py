"""Machine code on disk: used for the same text only, with the addresses of this process."""

import ctypes
from types import SimpleNamespace

import numba
import pytest
from llvmlite import ir
from numba.core.codegen import JITCPUCodegen
from numba.core.compiler_lock import global_compiler_lock

from xlakernel.core.code_files import code_folder
from xlakernel.core.native.machine import machine_code
from xlakernel.core.native.machine.frame import I64, i64
from xlakernel.core.native.machine.machine_code import NAME, load_module, new_module, pointer_to

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


@pytest.fixture
def folder(monkeypatch, tmp_path):
    """The folder for machine code, which does not exist yet."""
    monkeypatch.setenv("XLAKERNEL_CACHE_DIR", str(tmp_path / "cache"))
    return code_folder()


@pytest.fixture(autouse=True)
def in_a_new_process():
    """Return a function that makes the next module the first one with its text."""
    machine_code._loaded.clear()
    yield machine_code._loaded.clear
    machine_code._loaded.clear()


@global_compiler_lock
def load(*values, keep=True, plus=0, codegen=None, comment=""):
    """Return the result of a function that adds *plus* and the numbers at the addresses of *values*.

    Each has its own engine, as in a process of its own.
    """
    codegen = codegen or JITCPUCodegen("test")
    module = new_module(SimpleNamespace(create_module=codegen._create_empty_module))
    function = ir.Function(module, ir.FunctionType(I64, []), NAME)
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    builder.comment(comment)
    total = i64(plus)
    for value in values:
        total = builder.add(total, builder.load(pointer_to(builder, ctypes.addressof(value), I64.as_pointer())))
    builder.ret(total)
    code = load_module(codegen, module, keep=keep)
    _kept.append(code)
    return ctypes.CFUNCTYPE(ctypes.c_int64)(code.address_of(NAME))()


def numbers(*values):
    return [ctypes.c_int64(value) for value in values]


def test_code_on_disk_is_read_and_finds_other_addresses(compiled, in_a_new_process, folder):
    assert load(*numbers(3, 4)) == 7
    in_a_new_process()
    assert load(*numbers(30, 40)) == 70
    assert len(compiled) == 1
    (file,) = folder.iterdir()
    assert file.suffix == ".code" and len(file.stem) == 64


def test_modules_with_one_text_in_one_process_have_their_own_addresses(compiled, in_a_new_process, folder):
    for _ in range(2):
        in_a_new_process()
        codegen = JITCPUCodegen("test")
        assert [load(*numbers(value), codegen=codegen) for value in (5, 6, 7)] == [5, 6, 7]
    assert len(compiled) == len(set(compiled)) == len(list(folder.iterdir())) == 3


def test_an_address_is_passed_once_however_often_it_is_used(folder):
    (one,) = numbers(5)
    assert load(one, one, one) == 15
    assert load(*numbers(1, 2, 3)) == 6  # another text


def test_code_without_keep_is_not_written(compiled, folder):
    for _ in range(2):
        assert load(*numbers(1), keep=False) == 1
    assert len(compiled) == 2 and not folder.exists()


def test_another_text_has_another_file(compiled, in_a_new_process, folder):
    for plus in (1, 2, 2, 1):
        in_a_new_process()
        assert load(plus=plus) == plus
    assert len(compiled) == 2 and len(list(folder.iterdir())) == 2


def test_the_name_in_a_comment_is_harmless(folder):
    assert load(plus=3, comment=f"{NAME} is called {NAME}_bind") == 3


def test_a_file_of_another_text_is_not_used(compiled, in_a_new_process, folder):
    load(plus=1)
    (one,) = folder.iterdir()
    load(plus=2)
    (two,) = set(folder.iterdir()) - {one}
    one.replace(two)
    in_a_new_process()
    assert load(plus=2) == 2
    assert len(compiled) == 3


def test_code_for_another_processor_is_not_used(compiled, in_a_new_process, folder, monkeypatch):
    load(plus=3)
    in_a_new_process()
    monkeypatch.setattr(JITCPUCodegen, "magic_tuple", lambda self: ("another", "processor"))
    assert load(plus=3) == 3
    assert len(compiled) == 2 and len(list(folder.iterdir())) == 2


@pytest.mark.parametrize(
    ("option", "value"), [("OPT", numba.core.config._OptLevel(2)), ("LOOP_VECTORIZE", 7), ("SLP_VECTORIZE", 7)]
)
def test_code_of_other_options_is_not_used(compiled, in_a_new_process, folder, monkeypatch, option, value):
    load(plus=3)
    in_a_new_process()
    monkeypatch.setattr(numba.config, option, value)
    assert load(plus=3) == 3
    assert len(compiled) == 2 and len(list(folder.iterdir())) == 2
