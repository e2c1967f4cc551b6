"""The layout of the XLA FFI in `abi`, compared with the C header of the installed jaxlib."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import jax
import pytest

from xlakernel.core.errors import AbiError
from xlakernel.core.ffi import abi
from xlakernel.core.ffi.registry import ensure_registered

pytestmark = pytest.mark.versions

#: XLA's names where they are not NumPy's with another letter.
XLA_NAMES = {"bool": "PRED", "bfloat16": "BF16"}
LETTERS = {"int": "S", "uint": "U", "float": "F", "complex": "C"}


def xla_name(dtype):
    letters, bits = re.fullmatch(r"([a-z]+)(\d*)", dtype).groups()
    return XLA_NAMES.get(dtype) or LETTERS[letters] + bits


def described():
    """C expression → the value that `abi` gives for it."""
    expressions = {}
    for struct in abi.STRUCTS:
        expressions |= {f"offsetof({struct.name}, {field})": value for field, value in struct.fields.items()}
        if struct.nbytes is not None:
            expressions[f"{struct.name}_STRUCT_SIZE"] = struct.nbytes
    expressions |= {f"XLA_FFI_DataType_{xla_name(dtype)}": value for dtype, value in abi.DATA_TYPES.items()}
    expressions |= {f"XLA_FFI_Error_Code_{name}": value for name, value in abi.ERROR_CODES.items()}
    expressions |= {f"XLA_FFI_AttrType_{name.upper()}": code for name, code in abi.ATTR_TYPES.items()}
    expressions["XLA_FFI_API_MAJOR"] = abi.API_MAJOR
    return expressions


@pytest.fixture(scope="session")
def evaluate(tmp_path_factory):
    """Return a function that evaluates C expressions with jaxlib's header included."""
    compiler = next(filter(None, map(shutil.which, filter(None, [os.environ.get("CC"), "cc", "gcc", "clang"]))), None)
    if compiler is None:
        pytest.skip("no C compiler (CC, cc, gcc, clang) to read jaxlib's header with")

    def evaluate_(expressions):
        folder = tmp_path_factory.mktemp("abi")
        lines = "\n".join(f'  printf("%lld\\n", (long long)({expression}));' for expression in expressions)
        source = folder / "layout.c"
        source.write_text(
            f'#include <stddef.h>\n#include <stdio.h>\n#include "xla/ffi/api/c_api.h"\nint main(void) {{\n{lines}\n}}\n'
        )
        program = folder / "layout"
        subprocess.run([compiler, "-w", f"-I{jax.ffi.include_dir()}", source, "-o", program], check=True)
        printed = subprocess.run([program], check=True, capture_output=True, text=True).stdout.split()
        return dict(zip(expressions, map(int, printed), strict=True))

    return evaluate_


def test_every_number_equals_the_headers(evaluate):
    assert evaluate(described()) == described()


def test_the_comparison_covers_every_entry():
    listed = [struct for struct in vars(abi).values() if isinstance(struct, abi.Struct)]
    assert {struct.name for struct in listed} == {struct.name for struct in abi.STRUCTS}
    fields = sum(len(struct.fields) + (struct.nbytes is not None) for struct in listed)
    assert len(described()) == fields + len(abi.DATA_TYPES) + len(abi.ERROR_CODES) + len(abi.ATTR_TYPES) + 1


def test_the_oldest_minor_version_is_not_newer_than_the_runtime(evaluate):
    (found,) = evaluate(["XLA_FFI_API_MINOR"]).values()
    assert found >= abi.OLDEST_API_MINOR


@pytest.mark.parametrize(
    ("kind", "c_type"),
    [
        ("XLA_FFI_DataType", "int32_t"),
        ("XLA_FFI_AttrType", "int32_t"),
        ("XLA_FFI_Error_Code", "int32_t"),
        ("XLA_FFI_Handler_Traits", "uint32_t"),
        ("((XLA_FFI_Api_Version*)0)->minor_version", "int32_t"),
        ("((XLA_FFI_Args*)0)->size", "int64_t"),
        ("((XLA_FFI_Buffer*)0)->rank", "int64_t"),
        ("*((XLA_FFI_Buffer*)0)->dims", "int64_t"),
        ("((XLA_FFI_Scalar*)0)->value", "void*"),
    ],
)
def test_fields_are_as_wide_as_the_handler_reads_them(evaluate, kind, c_type):
    wide, read = evaluate([f"sizeof({kind})", f"sizeof({c_type})"]).values()
    assert wide == read


@pytest.fixture
def fake_header(tmp_path, monkeypatch):
    """Return a function that makes jaxlib's header another text; None: no header at all."""

    def use(text):
        if text is not None:
            folder = tmp_path / "xla" / "ffi" / "api"
            folder.mkdir(parents=True)
            (folder / "c_api.h").write_text(text)
        monkeypatch.setattr(jax.ffi, "include_dir", lambda: str(tmp_path))
        abi.check_api_version.cache_clear()

    yield use
    abi.check_api_version.cache_clear()


def test_the_installed_version_is_supported():
    abi.check_api_version.cache_clear()
    header = Path(jax.ffi.include_dir()) / "xla" / "ffi" / "api" / "c_api.h"
    assert re.search(r"#define XLA_FFI_API_MAJOR \d+\n", header.read_text()), "the pattern that the check relies on"
    abi.check_api_version()


def test_an_unknown_major_version_is_refused(fake_header):
    fake_header("#define XLA_FFI_API_MAJOR 1\n#define XLA_FFI_API_MINOR 0\n")
    with pytest.raises(AbiError, match=r"has version 1 of the XLA FFI.* supports version 0.*Upgrade xlakernel-core"):
        abi.check_api_version()


def test_nothing_is_built_for_an_unknown_major_version(fake_header, new_name):
    fake_header("#define XLA_FFI_API_MAJOR 7\n")
    with pytest.raises(AbiError):
        ensure_registered(new_name(), "cpu", lambda: pytest.fail("built"))


@pytest.mark.parametrize("text", [None, "#define XLA_FFI_API_MAJOR 0\n#define XLA_FFI_API_MINOR 99\n"])
def test_a_missing_header_or_a_new_minor_version_is_left_to_xla(fake_header, text):
    fake_header(text)
    abi.check_api_version()
