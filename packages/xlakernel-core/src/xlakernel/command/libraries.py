"""State of each library: it is missing, broken, too old, or works."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator

from .facts import Facts
from .findings import Finding
from .install import install_command
from .probes import NO_ANSWER, Answer

_PLATFORMS = ("cpu", "gpu", "tpu")
_OLDEST_DRIVER = (12, 4)  # the first that has cuFuncGetParamInfo


@dataclasses.dataclass(frozen=True)
class Library:
    """A library that kernels need.

    Attributes:
      name: of the finding.
      distribution: its distribution.
      oldest: the oldest supported release.
      stops: the backends and platforms that need it.
      users: our packages that need it.
      missing: what cannot be done without it.
      install: our package that brings it; None: the distribution itself.
      reinstall: the command that installs it anew; ``{cuda}`` stands for the CUDA of this machine, as in ``cu13``.
      works: makes the text of the finding from the answer of its probe; None: it is not asked.
    """

    name: str
    distribution: str
    oldest: str
    stops: tuple[str, ...]
    users: tuple[str, ...] = ()
    missing: str = ""
    install: str | None = None
    reinstall: str = ""
    works: Callable[[Answer], str] | None = None


def _jax_devices(answer: Answer) -> str:
    kinds = Counter((device["platform"], device["kind"]) for device in answer["devices"])
    return f"its devices are {', '.join(f'{platform}: {n} × {kind}' for (platform, kind), n in kinds.items())}"


LIBRARIES = (
    Library(
        *("jax", "jax", "0.7.2", _PLATFORMS, ("xlakernel-core",)),
        missing="nothing works",
        reinstall="pip install -U jax jaxlib",
        works=_jax_devices,
    ),
    Library(
        *("core", "xlakernel-core", "0", _PLATFORMS),
        reinstall="pip install -U xlakernel-core jax",
        works=lambda answer: f"it supports version {answer['ffi_major']} of the XLA FFI, which jaxlib has",
    ),
    Library(
        *("numba", "numba", "0.61", ("numba", "numba_cuda", "warp")),
        users=("xlakernel-numba", "xlakernel-cuda", "xlakernel-warp"),
        missing="no kernel written in Python can be compiled",
        install="numba",
        reinstall="pip install -U numba llvmlite",
        works=lambda answer: "it can be imported",
    ),
    Library(
        *("numba-cuda", "numba-cuda", "0.24", ("numba_cuda",), ("xlakernel-cuda",)),
        missing="there are no Numba kernels for the GPU",
        install="cuda",
        reinstall='pip install -U "numba-cuda[{cuda}]" numba "numpy<2.5"',
        works=lambda answer: "it can be imported, and finds its compiler",
    ),
    Library(
        *("warp", "warp-lang", "1.14", ("warp",), ("xlakernel-warp",)),
        missing="there are no kernels of NVIDIA Warp",
        install="warp",
        reinstall="pip install -U warp-lang",
        works=lambda answer: f"its devices are {', '.join(answer['devices'])}",
    ),
    Library("numpy", "numpy", "2.0", _PLATFORMS),
    Library("cuda-bindings", "cuda-bindings", "12.9", ("gpu",)),
)


def states(facts: Facts) -> Iterator[Finding]:
    """Yield a finding for each library, and for the NVIDIA driver."""
    for library in LIBRARIES:
        if library.works is not None:
            yield from _state(facts, library)
        if facts.is_older(library.distribution, library.oldest):
            name, version = library.distribution, facts.versions[library.distribution]
            text = f"{name} {version} is older than {library.oldest}, the oldest that xlakernel works with."
            fix = f'pip install -U "{name}>={library.oldest}"'
            yield Finding(f"{name}-too-old", "problem", text, fix, stops=library.stops)
    if "driver" in facts.answers:
        yield _driver(facts, facts.answers["driver"])


def _state(facts: Facts, library: Library) -> Iterator[Finding]:
    answer = facts.answers.get(library.name.replace("-", "_"))
    if library.name == "core" and (answer is None or facts.answered("jax") is None):
        return  # the finding about JAX says it
    if answer is None:
        used = any(facts.has(user) for user in library.users)
        text = f"{library.name} is not installed: {library.missing}."
        fix = f"pip install {library.distribution}"
        if library.install is not None:
            fix = install_command(library.install, facts.cuda_extra)
        yield Finding(library.name, "problem" if used else "note", text, fix, stops=library.stops)
    elif "error" in answer:
        fix = library.reinstall.format(cuda=f"cu{facts.cuda_extra[-2:]}")
        if NO_ANSWER in answer["error"]:  # as on a busy machine
            fix = "xlakernel doctor --timeout 120"
        elif "XLAKERNEL_DEBUG" in answer["error"]:
            fix = "unset XLAKERNEL_DEBUG"
        elif library.name == "jax" and (facts.has("jax-cuda12-plugin") or facts.has("jax-cuda13-plugin")):
            fix = f'pip install -U "jax[{facts.cuda_extra}]"'
        text = f"{library.name} cannot be used: {answer['error']}"
        yield Finding(library.name, "problem", text, fix, stops=library.stops)
    elif library.works is not None:
        yield Finding(library.name, "ok", library.works(answer))


def _driver(facts: Facts, answer: Answer) -> Finding:
    if "error" in answer:
        text = f"The NVIDIA driver does not answer: {answer['error']}. Run nvidia-smi for its own message."
        return Finding("driver", "problem", text, stops=("gpu",))
    if not answer["found"]:
        stops = () if "gpu" in facts.platforms else ("gpu",)  # one of another make
        return Finding("driver", "note", "There is no NVIDIA driver here, so no kernel runs on its GPUs.", stops=stops)
    if facts.driver is None or not facts.gpus:
        text = f"The NVIDIA driver finds no GPU (CUDA error {answer['status']}). Run nvidia-smi for its own message."
        hidden = "CUDA_VISIBLE_DEVICES" in facts.variables
        return Finding("driver", "problem", text, "unset CUDA_VISIBLE_DEVICES" if hidden else None, stops=("gpu",))
    version = "CUDA {}.{}".format(*facts.driver)
    if facts.driver < _OLDEST_DRIVER:
        text = f"The NVIDIA driver is for {version}; kernels need one for CUDA 12.4 (550 on Linux) or newer."
        return Finding("driver", "problem", text, link="https://www.nvidia.com/en-us/drivers/", stops=("gpu",))
    gpus = ", ".join(f"{count} × {name}" for name, count in Counter(facts.gpus).items())
    return Finding("driver", "ok", f"the NVIDIA driver is for {version}, and has {gpus}")
