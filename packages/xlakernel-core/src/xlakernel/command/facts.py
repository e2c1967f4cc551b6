"""What there is to judge: versions, settings, and what the libraries say of themselves."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.metadata
import importlib.util
import os
import pkgutil
import platform
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from .ask import ask
from .probes import Answer
from .versions import release

#: The distributions whose versions matter, in the order in which they are listed, after our own.
DISTRIBUTIONS = (
    *("jax", "jaxlib", "jax-cuda12-plugin", "jax-cuda13-plugin"),
    *("numpy", "scipy", "numba", "llvmlite", "tbb"),
    *("numba-cuda", "cuda-bindings", "cuda-core", "cuda-toolkit", "warp-lang"),
)
#: The environment variables that change what is found, in the order in which they are listed.
VARIABLES = (
    *("JAX_PLATFORMS", "CUDA_VISIBLE_DEVICES", "XLAKERNEL_DEBUG", "XLAKERNEL_CACHE_DIR"),
    *("NUMBA_THREADING_LAYER", "NUMBA_THREADING_LAYER_PRIORITY", "NUMBA_NUM_THREADS"),
    *("NUMBA_DISABLE_JIT", "NUMBA_ENABLE_CUDASIM"),
)
# Which probe needs which module, or distribution.
_MODULES = {"jax": "jax", "core": "jax", "numba": "numba", "warp": "warp"}


@dataclasses.dataclass(frozen=True)
class Facts:
    """What was found, before anything is concluded from it.

    Attributes:
      python: version and machine.
      prefix: where Python's environment is.
      versions: those of the installed distributions that matter.
      variables: the environment variables that are set.
      answers: what each probe answered, by its name (`probes.PROBES`); those that have nobody to ask are left out.
    """

    python: str = ""
    prefix: str = ""
    versions: Mapping[str, str] = dataclasses.field(default_factory=dict)
    variables: Mapping[str, str] = dataclasses.field(default_factory=dict)
    answers: Mapping[str, Answer] = dataclasses.field(default_factory=dict)

    def has(self, *distributions: str) -> bool:
        """Whether all of these are installed."""
        return all(name in self.versions for name in distributions)

    def release(self, distribution: str) -> tuple[int, ...]:
        """Return the numbers of an installed distribution's version."""
        return release(self.versions[distribution])

    def answered(self, probe: str) -> Answer | None:
        """Return a probe's answer if it has one and did not fail."""
        answer = self.answers.get(probe)
        return None if answer is None or "error" in answer else answer

    @property
    def driver(self) -> tuple[int, int] | None:
        """The newest CUDA that the NVIDIA driver is for, as ``(major, minor)``; None without a driver."""
        answer = self.answered("driver")
        if answer is None or not answer["found"] or not answer["version"]:
            return None
        return answer["version"] // 1000, answer["version"] % 1000 // 10

    @property
    def gpus(self) -> list[str]:
        """The names of the GPUs that the NVIDIA driver finds."""
        answer = self.answered("driver")
        return list(answer["devices"]) if answer and answer["found"] else []

    @property
    def platforms(self) -> set[str]:
        """The platforms of JAX's default devices, and the CPU."""
        answer = self.answered("jax")
        return {"cpu", *(device["platform"] for device in answer["devices"])} if answer else set()

    @property
    def cuda_extra(self) -> str:
        """The extra of our packages that suits the driver."""
        return "cuda12" if self.driver is not None and self.driver[0] == 12 else "cuda13"


def collect(timeout: float) -> Facts:
    """Find out all there is to know; each library may take *timeout* seconds to answer."""
    versions = own_versions()
    for name in DISTRIBUTIONS:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions.setdefault(name, importlib.metadata.version(name))
    present = {module: is_present(module) for module in set(_MODULES.values())}
    probes = ["driver", *(probe for probe, module in _MODULES.items() if present[module])]
    if present["numba"] and "numba-cuda" in versions:
        probes.append("numba_cuda")
    return Facts(
        python=f"{platform.python_version()}, {platform.system()} {platform.machine()}",
        prefix=sys.prefix,
        versions=versions,
        variables={name: os.environ[name] for name in VARIABLES if name in os.environ},
        answers=ask(probes, timeout),
    )


def own_packages() -> list[str]:
    """Return the names of the packages of the namespace that are installed, such as ``xlakernel.numba``."""
    namespace = sys.modules["xlakernel"]
    return sorted(found.name for found in pkgutil.iter_modules(namespace.__path__, "xlakernel.") if found.ispkg)


def own_versions() -> dict[str, str]:
    """Return the versions of our own distributions, as their sources say: they may be used without being installed."""
    found = {}
    for package in own_packages():
        spec = importlib.util.find_spec(package)
        about = Path(str(spec.origin)).with_name("__about__.py") if spec else Path()
        if about.is_file():
            version = re.search(r'^__version__ = "(.+)"', about.read_text("utf-8"), re.MULTILINE)
            found[package.replace(".", "-")] = version[1] if version else "unknown"
    return found


def is_present(module: str) -> bool:
    """Whether a module could be imported, as far as that is known without doing so."""
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):  # where something stands in for the module
        return False
