"""Layout of the CUDA driver's structs, compared with an installed cuda.h."""

import ctypes
import importlib.metadata
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from xlakernel.core.gpu.replaying import cuda_abi


def headers():
    """Paths of every cuda.h of a toolkit, or of a wheel of NVIDIA's."""
    for distribution in importlib.metadata.distributions():
        if (distribution.name or "").startswith("nvidia-cuda-runtime"):
            yield from (Path(distribution.locate_file(f)) for f in distribution.files or () if f.name == "cuda.h")
    for folder in filter(None, (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda")):
        yield Path(folder) / "include" / "cuda.h"


@pytest.fixture(scope="session")
def header():
    found = next((path for path in headers() if path.exists()), None)
    if found is None:
        pytest.skip("no cuda.h: neither a CUDA toolkit nor a nvidia-cuda-runtime wheel is installed")
    return found


@pytest.fixture(scope="session")
def evaluate(header, tmp_path_factory):
    """Return a function that evaluates C expressions where cuda.h is included."""
    compiler = next(filter(None, map(shutil.which, filter(None, [os.environ.get("CC"), "cc", "gcc", "clang"]))), None)
    if compiler is None:
        pytest.skip("no C compiler (CC, cc, gcc, clang) to read cuda.h with")

    def evaluate_(expressions):
        folder = tmp_path_factory.mktemp("cuda_abi")
        lines = "\n".join(f'  printf("%lld\\n", (long long)({expression}));' for expression in expressions)
        source, program = folder / "layout.c", folder / "layout"
        source.write_text(
            f"#include <stddef.h>\n#include <stdio.h>\n#include <cuda.h>\nint main(void) {{\n{lines}\n}}\n"
        )
        subprocess.run([compiler, "-w", f"-I{header.parent}", source, "-o", program], check=True)
        printed = subprocess.run([program], check=True, capture_output=True, text=True).stdout.split()
        return dict(zip(expressions, map(int, printed), strict=True))

    return evaluate_


def test_every_field_is_where_the_header_has_it_and_as_wide(evaluate):
    expected = {}
    for struct in cuda_abi.STRUCTS:
        name = struct.__name__
        expected[f"sizeof({name})"] = ctypes.sizeof(struct)
        for field, kind in struct._fields_:
            expected[f"offsetof({name}, {field})"] = getattr(struct, field).offset
            if (name, field) != ("CUlaunchAttribute", "pad"):
                expected[f"sizeof((({name}*)0)->{field})"] = ctypes.sizeof(kind)
    assert evaluate(list(expected)) == expected


def test_the_layout_for_machine_code_is_that_of_the_structs():
    config = cuda_abi.layout(cuda_abi.CUlaunchConfig)
    assert (config.name, config["hStream"], config["attrs"], config["numAttrs"]) == ("CUlaunchConfig", 32, 40, 48)
    assert config.nbytes == 56
    assert cuda_abi.layout(cuda_abi.CUDA_MEMCPY3D).nbytes == 200


CODES = {
    "CUDA_ERROR_OUT_OF_MEMORY": 2,
    "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES": 701,
    "CUDA_ERROR_ECC_UNCORRECTABLE": 214,
    "CUDA_ERROR_NVLINK_UNCORRECTABLE": 220,
    "CUDA_ERROR_ILLEGAL_ADDRESS": 700,
    "CUDA_ERROR_LAUNCH_TIMEOUT": 702,
    "CUDA_ERROR_CONTEXT_IS_DESTROYED": 709,
    "CUDA_ERROR_ASSERT": 710,
    "CUDA_ERROR_HARDWARE_STACK_ERROR": 714,
    "CUDA_ERROR_ILLEGAL_INSTRUCTION": 715,
    "CUDA_ERROR_MISALIGNED_ADDRESS": 716,
    "CUDA_ERROR_INVALID_ADDRESS_SPACE": 717,
    "CUDA_ERROR_INVALID_PC": 718,
    "CUDA_ERROR_LAUNCH_FAILED": 719,
}


def test_every_number_is_the_headers(evaluate):
    expected = {**CODES, "CU_MEMORYTYPE_DEVICE": cuda_abi.MEMORY_TYPE_DEVICE}
    assert evaluate(list(expected)) == expected
    assert set(CODES.values()) == {*cuda_abi.EXHAUSTED, *cuda_abi.STICKY}


@pytest.mark.parametrize("name", cuda_abi.FUNCTIONS)
def test_every_function_is_the_one_that_the_header_declares(header, name):
    """Programs call what the header's macros make of a name; `_v2` is the newest, per-thread streams left aside."""
    text, plain = header.read_text("utf-8"), name.removesuffix("_v2")
    assert re.search(rf"CUresult CUDAAPI {plain}\(", text)
    # For streams of their own the macro adds a suffix; else the name is the macro's argument.
    macro = re.search(rf"#\s*define {plain}\s+(?:__CUDA_API_PTSZ\((\w+)\)|__CUDA_API_PTDS\((\w+)\)|(\w+))", text)
    exported = next(filter(None, macro.groups())) if macro else plain
    assert exported.removesuffix("_ptsz") == name
