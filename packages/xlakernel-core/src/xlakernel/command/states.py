"""How each library is here: one function for each, which returns one finding, whatever it finds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from .facts import Facts
from .findings import Finding, State
from .install import install_command

_THREADING_LAYERS = "https://numba.readthedocs.io/en/stable/user/threading-layer.html"
_WARP_CHANGES = "https://github.com/NVIDIA/warp/blob/main/CHANGELOG.md"


def jax(facts: Facts) -> Finding:
    """Whether JAX starts, and on which devices."""
    every = ("cpu", "gpu", "tpu")
    answer = facts.answers.get("jax")
    if answer is None:
        return Finding("jax", "problem", "JAX is not installed.", 'pip install "jax>=0.7.2"', stops=every)
    if "error" in answer:
        mend = "pip install -U jax jaxlib"
        plugins = [name for name in ("jax-cuda12-plugin", "jax-cuda13-plugin") if facts.has(name)]
        if plugins:
            mend = f'pip install -U "jax[{plugins[-1][4:10]}]"'
        return Finding("jax", "problem", f"JAX does not start: {answer['error']}", mend, stops=every)
    kinds = Counter((device["platform"], device["kind"]) for device in answer["devices"])
    listed = [f"{platform}: {count} × {kind}" for (platform, kind), count in kinds.items()]
    return Finding("jax", "ok", f"its devices are {', '.join(listed)}")


def core(facts: Facts) -> Finding | None:
    """Whether xlakernel.core can be imported, and its settings are good."""
    answer = facts.answers.get("core")
    if answer is None or "error" in facts.answers["jax"]:
        return None  # which jax() says
    if "error" in answer:
        mend = "pip install -U xlakernel-core jax"
        if "XLAKERNEL_DEBUG" in answer["error"]:
            mend = "unset XLAKERNEL_DEBUG"
        elif facts.has("jax") and facts.release("jax") < (0, 7, 2):
            mend = 'pip install -U "jax>=0.7.2"'
        text = f"xlakernel.core cannot be used: {answer['error']}"
        return Finding("core", "problem", text, mend, stops=("cpu", "gpu", "tpu"))
    if answer["debug"]:
        text = "XLAKERNEL_DEBUG is set: kernels are checked each time that they run, which is slow."
        return Finding("core", "note", text, "unset XLAKERNEL_DEBUG")
    return Finding("core", "ok", f"it knows version {answer['ffi_major']} of the XLA FFI, which jaxlib speaks")


def numba(facts: Facts) -> Finding:
    """Whether Numba can be imported."""
    answer = facts.answers.get("numba")
    stops = ("numba", "numba_cuda", "warp")
    if answer is None:
        text = "Numba is not installed: no kernel written in Python can be compiled"
        users = [name for name in ("xlakernel-numba", "xlakernel-cuda", "xlakernel-warp") if facts.has(name)]
        if users:
            text += f", and {', '.join(users)} cannot be imported"
        mend = f"pip install {users[0]}" if users else install_command("numba")
        if users and facts.has("numba"):  # what its metadata says is not there
            mend = "pip install --force-reinstall numba"
        return Finding("numba", "problem" if users else "note", f"{text}.", mend, stops=stops)
    if "error" in answer:
        text = f"Numba {facts.versions.get('numba', '')} cannot be imported: {answer['error']}"
        return Finding("numba", "problem", text, "pip install -U numba llvmlite", stops=stops)
    return Finding("numba", "ok", f"Numba {answer['version']} can be imported")


def threads(facts: Facts) -> Finding | None:
    """Which threading layer Numba's parallel loops run on."""
    answer = facts.answered("numba")
    if answer is None:
        return None  # which numba() says
    others = [name for name in ("tbb", "omp") if not answer["layers"][name]]
    chosen = [name for name in facts.variables if name.startswith("NUMBA_THREADING_LAYER")]
    steps = [f"unset {' '.join(chosen)}"] * bool(chosen)
    if not others:
        steps += _steps_to_a_layer(facts, answer["layers"]["omp"])
    mend = " && ".join(steps) or None
    if "layer_error" in answer:
        text = f"Numba cannot start its threads: {answer['layer_error']} Parallel functions fail."
        return Finding("threads", "problem", text, mend, _THREADING_LAYERS)
    if answer["layer"] != "workqueue":
        return Finding(
            "threads", "ok", f"Numba's threading layer is {answer['layer']}, with {answer['threads']} threads"
        )
    why = f"{', '.join(chosen)} asks for it" if others else "the others, tbb and omp, cannot be loaded"
    text = (
        f"Numba's threading layer is workqueue ({why}). It ends the process when two threads use it at once. "
        "Kernels of xlakernel do not use it when JAX runs them; parallel functions that you call yourself do."
    )
    return Finding("threads", "problem", text, mend, _THREADING_LAYERS)


def _steps_to_a_layer(facts: Facts, against_omp: str) -> list[str]:
    if "libgomp" in against_omp:  # GCC's library, which every distribution of Linux has
        return ["apt-get install libgomp1"]
    # pip puts it where the loader does not look by itself.
    path = f"export LD_LIBRARY_PATH={facts.prefix}/lib:$LD_LIBRARY_PATH"
    return [*["pip install tbb"] * (not facts.has("tbb")), path]


def driver(facts: Facts) -> Finding | None:
    """Whether there is an NVIDIA driver, with a GPU."""
    answer = facts.answers.get("driver")
    if answer is None:
        return None
    if "error" in answer:
        text = f"The NVIDIA driver cannot be asked: {answer['error']}. Run nvidia-smi to see what it says."
        return Finding("driver", "problem", text, stops=("gpu",))
    if not answer["found"]:
        stops = () if "gpu" in facts.platforms else ("gpu",)  # one of another make
        return Finding("driver", "note", "There is no NVIDIA driver here, so no kernel runs on its GPUs.", stops=stops)
    if facts.driver is None or not facts.gpus:
        text = f"The NVIDIA driver finds no GPU (CUDA error {answer['status']})"
        hidden = "CUDA_VISIBLE_DEVICES" in facts.variables
        text += "; CUDA_VISIBLE_DEVICES may hide it." if hidden else ". Run nvidia-smi to see what it says."
        mend = "unset CUDA_VISIBLE_DEVICES" if hidden else None
        return Finding("driver", "problem", text, mend, stops=("gpu",))
    major, minor = facts.driver
    gpus = ", ".join(f"{count} × {name}" for name, count in Counter(facts.gpus).items())
    return Finding("driver", "ok", f"the NVIDIA driver is for CUDA {major}.{minor}, and has {gpus}")


def numba_cuda(facts: Facts) -> Finding:
    """Whether Numba CUDA can be imported, and finds its compiler."""
    stops, extra = ("numba_cuda",), facts.cuda_extra
    if not facts.has("numba-cuda"):
        state: State = "problem" if facts.has("xlakernel-cuda") else "note"
        text = "numba-cuda is not installed: there are no Numba kernels for the GPU."
        return Finding("numba-cuda", state, text, install_command("cuda", extra), stops=stops)
    answer = facts.answers.get("numba_cuda", {"error": "Numba is not installed"})
    name = f"numba-cuda {facts.versions['numba-cuda']}"
    if "error" in answer:
        text = f"{name} cannot be imported: {answer['error']}"
        mend = f'pip install -U "numba-cuda[cu{extra[-2:]}]" numba "numpy<2.5"'
        return Finding("numba-cuda", "problem", text, mend, stops=stops)
    if answer["compiler_error"]:
        text = f"{name} does not find the compiler of CUDA: {answer['compiler_error']}"
        return Finding("numba-cuda", "problem", text, f'pip install "numba-cuda[cu{extra[-2:]}]"', stops=stops)
    return Finding("numba-cuda", "ok", f"{name} can be imported, and finds its compiler")


def warp(facts: Facts) -> Finding:
    """Whether Warp starts, and where its functions for JAX are."""
    answer = facts.answers.get("warp")
    if answer is None:
        state: State = "problem" if facts.has("xlakernel-warp") else "note"
        text = "Warp is not installed: there are no kernels of NVIDIA Warp."
        return Finding("warp", state, text, install_command("warp"), stops=("warp",))
    if "error" in answer:
        text = f"Warp {facts.versions.get('warp-lang', '')} does not start: {answer['error']}"
        return Finding("warp", "problem", text, "pip install -U warp-lang", stops=("warp",))
    devices = ", ".join(device["alias"] for device in answer["devices"])
    if answer["jax_experimental"]:
        return Finding("warp", "ok", f"Warp {answer['version']} starts; its devices are {devices}")
    text = (
        f"Warp {answer['version']} starts; its devices are {devices}. It has no warp.jax_experimental, which older "
        "code imports jax_kernel from; `from xlakernel.warp import jax_kernel` stands in for it."
    )
    mend = None if facts.has("xlakernel-warp") else install_command("warp")
    return Finding("warp", "note", text, mend, _WARP_CHANGES)


STATES: tuple[Callable[[Facts], Finding | None], ...] = (jax, core, numba, threads, driver, numba_cuda, warp)
