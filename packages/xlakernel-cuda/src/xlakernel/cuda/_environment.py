"""The installed Numba CUDA, checked when a kernel is wrapped."""

from __future__ import annotations

import functools
import importlib
import re
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from xlakernel.core.backend import install_command
from xlakernel.core.errors import MissingDependencyError, SettingError

#: The oldest numba-cuda that these wrappers work with.
OLDEST = "0.24"
# With NumPy 2.5, numba-cuda up to 0.30.4 can be imported, but cannot compile kernels.
_BREAKS_ON_NUMPY = "2.5"
_KNOWN_TO_BREAK = "0.30.4"


@functools.cache
def numba_cuda() -> Any:
    """Return the module ``numba.cuda`` of the distribution numba-cuda.

    Raises:
      MissingDependencyError: if numba-cuda is missing, too old, or does not work with the installed NumPy or Numba.
      SettingError: if Numba is set to simulate a GPU.
    """
    found = _version("numba-cuda")
    if found is None:
        built_in = _version("numba") is not None
        raise MissingDependencyError(
            "xlakernel.cuda needs numba-cuda, which is not installed"
            + (": the installed numba.cuda is Numba's own, which is no longer developed. " * built_in or ". ")
            + f"Install it with {install_command('cuda', 'cuda13')} (or [cuda12], for an older driver)."
        )
    if _numbers(found) < _numbers(OLDEST):
        raise MissingDependencyError(
            f"xlakernel.cuda needs numba-cuda {OLDEST} or newer; this is {found}. "
            'Install a newer one with pip install -U "numba-cuda[cu13]" (or [cu12]).'
        )
    numpy = _version("numpy") or "0"
    if _numbers(numpy) >= _numbers(_BREAKS_ON_NUMPY) and _numbers(found) <= _numbers(_KNOWN_TO_BREAK):
        raise MissingDependencyError(
            f"numba-cuda {found} imports with NumPy {numpy}, but cannot compile with it. "
            f'Install an older NumPy with pip install "numpy<{_BREAKS_ON_NUMPY}".'
        )
    try:
        module = importlib.import_module("numba.cuda")
        simulated = importlib.import_module("numba").config.ENABLE_CUDASIM
    except Exception as error:  # modules of numba-cuda raise any kind of exception if versions do not match
        raise MissingDependencyError(
            f"numba-cuda {found} cannot be imported with numba {_version('numba')}, NumPy {numpy} and cuda-bindings "
            f"{_version('cuda-bindings')}: {type(error).__name__}: {error}. "
            'Install versions that go together with pip install -U "numba-cuda[cu13]" (or [cu12]) numba "numpy<2.5".'
        ) from error
    if simulated:
        raise SettingError(
            "NUMBA_ENABLE_CUDASIM is set, which makes numba.cuda simulate a GPU in Python: no kernel can be compiled. "
            "Unset it before Numba is imported."
        )
    return module


def has_bfloat16_arrays() -> bool:
    """Return True if Numba takes device arrays of ml_dtypes' bfloat16, as numba-cuda does since 0.29."""
    return _numbers(_version("numba-cuda") or "0") >= (0, 29)


@functools.cache
def versions() -> dict[str, str | None]:
    """Return the versions of the packages that the machine code of a kernel depends on."""
    names = ("numba-cuda", "numba", "numpy", "llvmlite", "cuda-bindings", "cuda-core", "cuda-toolkit")
    return {name: _version(name) for name in names}


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", text)[:3]))
