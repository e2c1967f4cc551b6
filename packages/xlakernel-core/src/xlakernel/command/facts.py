"""Facts about the environment: versions, settings, and the answers of the libraries."""

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

from .probes import Answer, ask

#: The distributions whose versions are listed, in this order, after our own.
DISTRIBUTIONS = (
    *("jax", "jaxlib", "jax-cuda12-plugin", "jax-cuda13-plugin"),
    *("numpy", "scipy", "numba", "llvmlite"),
    *("numba-cuda", "cuda-bindings", "cuda-core", "cuda-toolkit", "warp-lang"),
)
#: Prefixes of the names of the environment variables that are listed.
SETTINGS = ("CUDA_VISIBLE_DEVICES", "JAX_", "NUMBA_", "WARP_CACHE_PATH", "XLAKERNEL_", "XLA_")
# Probe → the module that it needs.
_MODULES = {"jax": "jax", "core": "jax", "numba": "numba", "numba_cuda": "numba_cuda", "warp": "warp"}


@dataclasses.dataclass(frozen=True)
class Facts:
    """The facts about the environment.

    Attributes:
      python: the version of Python and the machine.
      versions: the versions of the installed distributions.
      variables: the environment variables that are set and concern these libraries.
      answers: the answers of the probes, by name (`probes.PROBES`). Libraries that are not installed are not probed.
    """

    python: str = ""
    versions: Mapping[str, str] = dataclasses.field(default_factory=dict)
    variables: Mapping[str, str] = dataclasses.field(default_factory=dict)
    answers: Mapping[str, Answer] = dataclasses.field(default_factory=dict)

    def answered(self, probe: str) -> Answer:
        """Return the answer of a probe; an empty answer if the probe did not run, or failed."""
        answer = self.answers.get(probe, {})
        return {} if "error" in answer else answer

    @property
    def driver(self) -> tuple[int, int] | None:
        """The newest CUDA version that the NVIDIA driver runs, as ``(major, minor)``; None without a driver."""
        version = self.answered("driver").get("version")
        return (version // 1000, version % 1000 // 10) if version else None

    @property
    def gpus(self) -> list[str]:
        """The names of the GPUs that the NVIDIA driver finds."""
        return list(self.answered("driver").get("devices", ()))

    @property
    def platforms(self) -> set[str]:
        """The platforms of JAX's default devices, and the CPU; empty if JAX does not work."""
        answer = self.answered("jax")
        return {"cpu", *(device["platform"] for device in answer["devices"])} if answer else set()

    @property
    def cuda_extra(self) -> str:
        """The extra of our packages for the driver's major version of CUDA; ``"cuda13"`` without a driver."""
        return "cuda12" if self.driver is not None and self.driver[0] == 12 else "cuda13"


def collect(timeout: float) -> Facts:
    """Return the facts; each library may take *timeout* seconds to answer."""
    versions = own_versions()
    for name in DISTRIBUTIONS:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions.setdefault(name, importlib.metadata.version(name))
    probes = ["driver", *(probe for probe, module in _MODULES.items() if _is_present(module))]
    return Facts(
        python=f"{platform.python_version()}, {platform.system()} {platform.machine()}",
        versions=versions,
        variables={name: os.environ[name] for name in sorted(os.environ) if name.startswith(SETTINGS)},
        answers=ask(probes, timeout),
    )


def own_packages() -> list[str]:
    """Return the installed packages of the namespace, such as ``xlakernel.numba``, except ``xlakernel.command``."""
    found = pkgutil.iter_modules(sys.modules["xlakernel"].__path__, "xlakernel.")
    return sorted(module.name for module in found if module.ispkg and module.name != "xlakernel.command")


def own_versions() -> dict[str, str]:
    """Return the versions of our own distributions; ``"unknown"`` for a checkout that is on the path."""
    found = {}
    for name in (package.replace(".", "-") for package in own_packages()):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "unknown"
    return found


def _is_present(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):  # from an import hook that hides the module
        return False


def release(version: str) -> tuple[int, ...]:
    """Return the numbers of a version, without zeros at the end.

    The usual library for that, `packaging`, may not be installed.

    Example:
      >>> release("2.5.0rc1") == release("2.5") < release("2.10")
      True
    """
    found = re.match(r"\d+(\.\d+)*", version)
    numbers = found[0].split(".") if found else []
    while numbers and not int(numbers[-1]):
        numbers.pop()
    return tuple(map(int, numbers))
