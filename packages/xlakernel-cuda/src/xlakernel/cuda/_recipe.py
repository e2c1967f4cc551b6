"""What Numba's dispatchers for CUDA are made of."""

from __future__ import annotations

import hashlib
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from numba import cuda
from numba.cuda.dispatcher import CUDADispatcher

from xlakernel.core.native import Compiler, implementations_in

from ._cache import KernelCache


def _parts(dispatcher: Any) -> tuple[Any, ...]:
    return dispatcher.py_func, dict(dispatcher.targetoptions)


def _dispatcher(function: Any, options: Any) -> Any:
    return cuda.jit(function, **options)


def linked_files(dispatcher: Any) -> dict[str, list[str]]:
    """Return hashes of the files that ``cuda.jit(link=...)`` names, so that another content is another kernel."""
    paths = [Path(item) for item in dispatcher.targetoptions.get("link") or () if isinstance(item, str)]
    return {"link": [hashlib.sha256(path.read_bytes()).hexdigest() for path in paths if path.is_file()]}


# Numba CUDA locks its compiler itself; there is no lock to be held around it that others take too.
COMPILER = Compiler(
    "xlakernel-cuda",
    "xlakernel.cuda._export",
    CUDADispatcher,
    _parts,
    _dispatcher,
    implementations_in(CUDADispatcher.targetdescr.typing_context),
    nullcontext(),
    linked_files,
)


def fresh(dispatcher: Any, content: str | None = None) -> Any:
    """Return a dispatcher of the same function and options that has compiled nothing and may compile anything.

    Args:
      dispatcher: the user's.
      content: the fingerprint of its code, if that is to be kept on disk, as ``cuda.jit(cache=True)`` does.
    """
    function, options = _parts(dispatcher)
    made = _dispatcher(function, options)
    if content is not None:
        made._cache = KernelCache(function, content)
    return made


def fresh_checked(dispatcher: Any) -> Any:
    """Return one whose kernels report the exceptions that they raise."""
    function, options = _parts(dispatcher)
    return _dispatcher(function, options | {"debug": True, "opt": False, "lineinfo": False, "lto": False})
