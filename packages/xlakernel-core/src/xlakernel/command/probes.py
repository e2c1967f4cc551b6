"""Probes of the libraries. Each has its own process, ``python -P probes.py NAME``, since a library may crash or hang.

The process prints its answer as a line of JSON on stdout; output of the libraries goes to stderr.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from typing import Any

Answer = dict[str, Any]

#: Part of the error about a process that took too long.
NO_ANSWER = "gave no answer within"


def ask(names: Collection[str], timeout: float) -> dict[str, Answer]:
    """Run probes at the same time, and return their answers; the answer of a failed probe has the key ``error``.

    Args:
      names: the names of the probes, keys of `PROBES`.
      timeout: seconds that each process may take.
    """
    with ThreadPoolExecutor(max_workers=len(PROBES)) as pool:
        return dict(zip(names, pool.map(lambda name: _ask(name, timeout), names), strict=True))


def _ask(name: str, timeout: float) -> Answer:
    # -P: the libraries must not import the files beside this one.
    command = [sys.executable, "-P", __file__, name]
    # Without the setting JAX would take most of the GPU's memory from other processes.
    environment = os.environ | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, encoding="utf-8", errors="replace", timeout=timeout
        )
    except subprocess.TimeoutExpired:
        return {"error": f"its process {NO_ANSWER} {timeout:g} s (--timeout lets it take longer)"}
    message = done.stderr.strip().rpartition("\n")[2]
    if done.returncode:
        status = f"exit status {done.returncode}" if done.returncode > 0 else signal.strsignal(-done.returncode)
        return {"error": f"its process ended with {status}" + f"; its last line: {message}" * bool(message)}
    answer: Answer = json.loads(done.stdout)
    return answer | ({"message": message} if message else {})


def _jax() -> Answer:
    """Start JAX, and return its devices."""
    import jax

    return {"devices": [{"platform": device.platform, "kind": device.device_kind} for device in jax.local_devices()]}


def _core() -> Answer:
    """Import `xlakernel.core` with its settings, and compare its version of the XLA FFI with jaxlib's."""
    from xlakernel.core.config import is_debugging
    from xlakernel.core.ffi import abi

    abi.check_api_version()
    is_debugging()
    return {"ffi_major": abi.API_MAJOR}


def _numba() -> Answer:
    """Import Numba."""
    import numba  # noqa: F401  # the import is the test

    return {}


def _numba_cuda() -> Answer:
    """Import Numba CUDA, and load its compiler."""
    import numba.cuda  # noqa: F401  # the import is part of the test

    try:
        from numba.cuda.cudadrv.nvvm import NVVM
    except ImportError:  # a release that has NVVM in another module
        return {}
    NVVM()
    return {}


def _warp() -> Answer:
    """Start Warp, and return its devices."""
    import warp

    warp.config.quiet = True
    warp.init()
    return {"devices": [device.alias for device in warp.get_devices()]}


def _driver() -> Answer:
    """Return the CUDA version of the NVIDIA driver, and the names of its GPUs."""
    try:
        cuda = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return {"found": False}
    version, count = ctypes.c_int(), ctypes.c_int()
    status = (
        cuda.cuDriverGetVersion(ctypes.byref(version)) or cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count))
    )
    names = []
    for ordinal in range(count.value):
        device, name = ctypes.c_int(), ctypes.create_string_buffer(256)
        if not cuda.cuDeviceGet(ctypes.byref(device), ordinal) and not cuda.cuDeviceGetName(name, 256, device):
            names.append(name.value.decode(errors="replace"))
    return {"found": True, "version": version.value, "status": status, "devices": names}


PROBES: dict[str, Callable[[], Answer]] = {
    "jax": _jax,
    "core": _core,
    "numba": _numba,
    "numba_cuda": _numba_cuda,
    "warp": _warp,
    "driver": _driver,
}


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    if not text and error.__traceback__:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        text = f"{frame.line} ({frame.filename}:{frame.lineno})"
    return f"{type(error).__name__}: {text[:300]}{'…' * (len(text) > 300)}"


if __name__ == "__main__":
    out = os.dup(1)
    os.dup2(2, 1)
    try:
        found = PROBES[sys.argv[1]]()
    except Exception as error:  # noqa: BLE001  # the answer of a failed probe is its error
        found = {"error": _one_line(error)}
    os.write(out, json.dumps(found).encode())
    sys.stderr.flush()
    os._exit(0)  # threads and exit handlers of libraries would take time
