"""State of each library: missing, broken, or working."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Callable, Iterator

from .facts import Facts
from .findings import Finding
from .install import install_command, pip_arguments
from .probes import NO_ANSWER, Answer

_PLATFORMS = ("cpu", "gpu", "tpu")
_OLDEST_DRIVER = (12, 4)  # the CUDA version of the first driver that has cuFuncGetParamInfo
# An environment variable that an error names.
_VARIABLE = re.compile(r"\b(?:XLA_FLAGS|(?:JAX|NUMBA|XLAKERNEL)_[A-Z0-9_]*[A-Z0-9])\b")


@dataclasses.dataclass(frozen=True)
class Library:
    """A library that kernels need.

    Attributes:
      name: the name of the finding.
      stops: the backends and platforms that need the library.
      reinstall: the command that reinstalls it; ``{generation}`` stands for the major version of CUDA, such as 13,
        and ``{core}`` for the arguments of pip that install xlakernel-core.
      works: a function of the answer of the library's probe that returns the text of the finding.
      users: our packages that need the library.
      missing: the consequence if the library is missing.
      install: the command that installs the library; empty: the command that installs *package*.
      package: our package that requires the library, by its name in the namespace.
    """

    name: str
    stops: tuple[str, ...]
    reinstall: str
    works: Callable[[Answer], str]
    users: tuple[str, ...] = ()
    missing: str = ""
    install: str = ""
    package: str = ""


def _jax_devices(answer: Answer) -> str:
    kinds = Counter((device["platform"], device["kind"]) for device in answer["devices"])
    return f"its devices are {', '.join(f'{platform}: {n} × {kind}' for (platform, kind), n in kinds.items())}"


LIBRARIES = (
    Library(
        "jax",
        stops=_PLATFORMS,
        users=("xlakernel-core",),
        missing="nothing works",
        install="pip install jax",
        reinstall="pip install -U jax jaxlib",
        works=_jax_devices,
    ),
    Library(
        "core",
        stops=_PLATFORMS,
        reinstall="pip install -U {core} jax",
        works=lambda answer: f"it supports version {answer['ffi_major']} of the XLA FFI, which jaxlib has",
    ),
    Library(
        "numba",
        stops=("numba", "numba_cuda", "warp"),
        users=("xlakernel-numba", "xlakernel-cuda", "xlakernel-warp"),
        missing="no kernel written in Python can be compiled",
        package="numba",
        reinstall="pip install -U numba llvmlite",
        works=lambda answer: "it can be imported",
    ),
    Library(
        "numba-cuda",
        stops=("numba_cuda",),
        users=("xlakernel-cuda",),
        missing="there are no Numba kernels for the GPU",
        package="cuda",
        reinstall='pip install -U "numba-cuda[cu{generation}]" numba "numpy<2.5"',
        works=lambda answer: "it can be imported, and finds its compiler",
    ),
    Library(
        "warp",
        stops=("warp",),
        users=("xlakernel-warp",),
        missing="there are no kernels of NVIDIA Warp",
        package="warp",
        reinstall="pip install -U warp-lang",
        works=lambda answer: f"its devices are {', '.join(answer['devices'])}",
    ),
)


def states(facts: Facts) -> Iterator[Finding]:
    """Yield a finding for each library, and for the NVIDIA driver."""
    for library in LIBRARIES:
        # If JAX does not work, neither does xlakernel.core, and one finding is enough.
        if library.name != "core" or ("core" in facts.answers and facts.answered("jax")):
            yield _state(facts, library)
    if "driver" in facts.answers:
        yield _driver(facts, facts.answers["driver"])


def _state(facts: Facts, library: Library) -> Finding:
    name, answer = library.name, facts.answers.get(library.name.replace("-", "_"))
    generation = facts.cuda_extra.removeprefix("cuda")
    if answer is None:
        is_used = any(user in facts.versions for user in library.users)
        extra = facts.cuda_extra if library.package == "cuda" else ""
        text, fix = (
            f"{name} is not installed: {library.missing}.",
            library.install or install_command(library.package, extra),
        )
        return Finding(name, "problem" if is_used else "note", text, fix, stops=library.stops)
    if "error" not in answer:
        return Finding(name, "ok", library.works(answer))
    fix = library.reinstall.format(generation=generation, core=pip_arguments("core"))
    if NO_ANSWER in answer["error"]:  # the machine may be busy
        fix = "xlakernel doctor --timeout 120"
    elif variable := next((found for found in _VARIABLE.findall(answer["error"]) if found in facts.variables), None):
        fix = f"unset {variable}"
    elif (
        name == "jax"
        and "backend" in answer["error"]
        and facts.variables.get("JAX_PLATFORMS", "cpu") not in ("", "cpu")
    ):
        fix = "unset JAX_PLATFORMS"
    elif name == "jax" and not facts.versions.keys().isdisjoint({"jax-cuda12-plugin", "jax-cuda13-plugin"}):
        fix = f'pip install -U "jax[{facts.cuda_extra}]"'
    return Finding(name, "problem", f"{name} cannot be used: {answer['error']}", fix, stops=library.stops)


def _driver(facts: Facts, answer: Answer) -> Finding:
    if "error" in answer:
        text = f"The NVIDIA driver does not answer: {answer['error']}. Run nvidia-smi for its own message."
        return Finding("driver", "problem", text, stops=("gpu",))
    if not answer["found"]:
        stops = () if "gpu" in facts.platforms else ("gpu",)  # JAX may have a GPU of another vendor
        text = "There is no NVIDIA driver here, so no kernel runs on NVIDIA GPUs."
        return Finding("driver", "note", text, stops=stops)
    if facts.driver is None or not facts.gpus:
        text = f"The NVIDIA driver finds no GPU (CUDA error {answer['status']}). Run nvidia-smi for its own message."
        is_hidden = "CUDA_VISIBLE_DEVICES" in facts.variables
        return Finding("driver", "problem", text, "unset CUDA_VISIBLE_DEVICES" if is_hidden else None, stops=("gpu",))
    version = "CUDA {}.{}".format(*facts.driver)
    if facts.driver < _OLDEST_DRIVER:
        text = f"The NVIDIA driver is for {version}; kernels need one for CUDA 12.4 (550 on Linux) or newer."
        return Finding("driver", "problem", text, link="https://www.nvidia.com/en-us/drivers/", stops=("gpu",))
    gpus = ", ".join(f"{count} × {name}" for name, count in Counter(facts.gpus).items())
    return Finding("driver", "ok", f"the NVIDIA driver is for {version}, and has {gpus}")
