"""What is asked of a library in a process of its own, which may crash or hang: ``python -P probes.py NAME...``.

It is run by its path, imports nothing of ours but what it asks about, and answers with one line of JSON for each name.
Whatever the libraries print goes to stderr.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

Answer = dict[str, Any]


def ask_jax() -> Answer:
    """Start JAX, and return its devices."""
    import jax

    devices = [
        {"platform": device.platform, "kind": device.device_kind, "id": device.id} for device in jax.local_devices()
    ]
    return {"version": jax.__version__, "devices": devices}


def ask_core() -> Answer:
    """Import `xlakernel.core`, and compare what it knows of the XLA FFI with what jaxlib speaks."""
    from xlakernel.core.config import is_debugging
    from xlakernel.core.ffi import abi

    abi.check_api_version()
    return {"ffi_major": abi.API_MAJOR, "debug": is_debugging()}


def ask_numba() -> Answer:
    """Start Numba's threads as its first parallel function would, and return the layer that they run on."""
    import numba

    layers = {}
    for layer, module in (("tbb", "tbbpool"), ("omp", "omppool"), ("workqueue", "workqueue")):
        try:
            importlib.import_module(f"numba.np.ufunc.{module}")
            layers[layer] = ""
        except ImportError as error:
            layers[layer] = _one_line(error)
    answer: Answer = {"version": numba.__version__, "layers": layers, "threads": None, "layer": None}
    try:
        answer |= {"threads": numba.get_num_threads(), "layer": numba.threading_layer()}
    except Exception as error:  # noqa: BLE001  # whatever it is, it is what a parallel kernel would meet
        answer["layer_error"] = _one_line(error)
    return answer


def ask_numba_cuda() -> Answer:
    """Import Numba CUDA, and load the library that it compiles with."""
    import numba.cuda  # noqa: F401  # whether that works is what is asked

    answer: Answer = {"compiler_error": ""}
    try:
        from numba.cuda.cudadrv.nvvm import NVVM
    except ImportError:  # a release that keeps it elsewhere
        return answer
    try:
        NVVM()
    except Exception as error:  # noqa: BLE001  # what is missing is told in various classes
        answer["compiler_error"] = _one_line(error)
    return answer


def ask_warp() -> Answer:
    """Start Warp, and return its devices and where it keeps its functions for JAX."""
    import warp

    warp.config.quiet = True
    warp.init()
    return {
        "version": warp.config.version,
        "devices": [{"name": device.name, "alias": device.alias} for device in warp.get_devices()],
        "jax_kernel": hasattr(warp, "jax_kernel"),
        "jax_experimental": importlib.util.find_spec("warp.jax_experimental") is not None,
    }


def ask_driver() -> Answer:
    """Ask the CUDA driver for its version and the names of its GPUs."""
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
    "jax": ask_jax,
    "core": ask_core,
    "numba": ask_numba,
    "numba_cuda": ask_numba_cuda,
    "warp": ask_warp,
    "driver": ask_driver,
}


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}{'…' * (len(text) > 300)}"


def answer_all(names: list[str]) -> None:
    """Write the answers, each as soon as it is there: the next probe may end the process."""
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as out:
        os.dup2(2, 1)
        for name in names:
            try:
                answer = PROBES[name]()
            except Exception as error:  # noqa: BLE001  # the parent says what it means
                answer = {"error": _one_line(error)}
            out.write(json.dumps({name: answer}) + "\n")
            out.flush()


if __name__ == "__main__":
    answer_all(sys.argv[1:])
    # Libraries have threads and handlers that run at exit, which nobody needs here and which take time.
    sys.stderr.flush()
    os._exit(0)
else:
    PATH = Path(__file__)
