"""The base of conformance tests: a backend and a platform."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import ClassVar

import jax
import pytest


class OnBackend:
    """The backend and the platform of the tests of a subclass.

    Attributes:
      generators: the backend's module of generators.
      platform: the JAX platform that its kernels run on.
      unsupported: generator, dtype, or ``"generator/dtype"`` → the reason why the backend cannot.
    """

    generators: ClassVar[ModuleType]
    platform: ClassVar[str] = "cpu"
    unsupported: ClassVar[Mapping[str, str]] = {}

    @pytest.fixture(autouse=True)
    def _on_the_platform_with_64_bits(self):
        before = jax.config.jax_default_device
        jax.config.update("jax_default_device", jax.devices(self.platform)[0])
        with jax.enable_x64(True) if hasattr(jax, "enable_x64") else jax.experimental.enable_x64():
            yield
        jax.config.update("jax_default_device", before)

    def generator(self, name, dtype="float32"):
        for key in (name, str(dtype), f"{name}/{dtype}"):
            if key in self.unsupported:
                pytest.skip(f"{key}: {self.unsupported[key]}")
        return getattr(self.generators, name)
