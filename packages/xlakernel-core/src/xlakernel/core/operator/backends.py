"""The backends of an operator: their kernels, and the choice among them."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from typing import Any

from ..config import (
    AUTO,
    PLATFORMS,
    check_backend,
    check_platform,
    requested_backends,
    set_automatic,
)
from ..errors import ArgumentError, BackendNotFoundError, KernelTypeError
from ..structs import check_callable
from .names import did_you_mean

KernelGenerator = Callable[..., Callable[..., Any]]

_following = threading.RLock()  # held while operators begin or cease to follow others


@dataclasses.dataclass(frozen=True)
class KernelEntry:
    """A kernel generator, with the backend and the platform that it is registered for.

    Attributes:
      backend: the backend's name.
      platform: ``"cpu"``, ``"gpu"`` or ``"tpu"``.
      kernel_generator: the generator given to `XLACustomKernel.def_kernel`.
    """

    backend: str
    platform: str
    kernel_generator: KernelGenerator


class Backends:
    """The kernels of an operator, and the default backend of each platform.

    Args:
      name: the operator's name.
      changed: called after a change, with the keywords of `OperatorPrimitive.define_anew`.

    Attributes:
      kernels: platform → backend → its entry, in the order of registration.
      leader: the backends of the operator given to `XLACustomKernel.def_default_of`, or None. The defaults of that
        operator apply on the platforms for which this operator has no default.
    """

    def __init__(self, name: str, changed: Callable[..., None]) -> None:
        self.name = name
        self.kernels: dict[str, dict[str, KernelEntry]] = {}
        self._changed = changed
        self._lock = threading.RLock()
        self._defaults: dict[str, str] = {}  # platform → the backend that was set
        self._announced: dict[str, str] | None = {}  # the defaults with which programs are traced; None: unknown
        self.leader: Backends | None = None
        self._followers: list[Backends] = []

    # Kernels.

    def def_kernel(
        self, backend: str, platform: str, generator: KernelGenerator, asdefault: bool = False
    ) -> KernelGenerator:
        """Register a kernel generator.

        Args:
          backend: a name, such as ``"numba"``. A generator already registered for this backend and platform is
            replaced, also in functions that are already jitted: JAX traces and compiles all functions once more.
          platform: ``"cpu"``, ``"gpu"`` or ``"tpu"``.
          generator: called with ``outs`` and the static keywords, returns the kernel.
          asdefault: make the backend the platform's default.

        Raises:
          UnknownPlatformError: if there is no such platform.
          KernelTypeError: if *generator* cannot be called, or *backend* is not a name.
          ArgumentError: if *backend* is ``"auto"``, which stands for the fastest of the other backends.
        """
        check_platform(platform, self.name)
        check_backend(backend, self.name)
        if backend == AUTO:
            raise ArgumentError(
                f"{self.name}: no backend can be named {AUTO!r}, which requests the fastest of those that are "
                "registered. Choose another name."
            )
        check_callable(self.name, f"the generator of backend {backend!r}", generator)
        if hasattr(generator, "py_func"):  # a function that Numba compiles
            raise KernelTypeError(
                f"{self.name}: the generator of backend {backend!r} is itself a kernel, {generator!r}; expected a "
                "function of outs and the static keywords that returns a wrapped kernel, such as "
                f"lambda outs: {backend}_kernel(kernel, outs[0], ...)."
            )
        entry = KernelEntry(backend, platform, generator)
        with self._lock:
            entries = self.kernels.get(platform, {})
            replaced = backend in entries  # also by the same generator: what it refers to may have changed
            self.kernels = {**self.kernels, platform: {**entries, backend: entry}}  # new: other threads may be reading
        self._changed(replaced=replaced)
        if asdefault:
            self.set_default(platform, backend)
        return generator

    def def_numba_kernel(self, generator: KernelGenerator, asdefault: bool = False) -> KernelGenerator:
        """Register a generator of Numba kernels for the CPU: ``def_kernel("numba", "cpu", ...)``.

        The arguments are those of `def_kernel`.
        """
        return self.def_kernel("numba", "cpu", generator, asdefault)

    def def_numba_cuda_kernel(self, generator: KernelGenerator, asdefault: bool = False) -> KernelGenerator:
        """Register a generator of Numba CUDA kernels: ``def_kernel("numba_cuda", "gpu", ...)``.

        The arguments are those of `def_kernel`.
        """
        return self.def_kernel("numba_cuda", "gpu", generator, asdefault)

    def def_warp_kernel(self, generator: KernelGenerator, asdefault: bool = False, *, platform: str = "gpu") -> Any:
        """Register a generator of Warp kernels: ``def_kernel("warp", platform, ...)``.

        The arguments are those of `def_kernel`.
        """
        return self.def_kernel("warp", platform, generator, asdefault)

    def def_pallas_kernel(self, platform: str, generator: KernelGenerator, asdefault: bool = False) -> KernelGenerator:
        """Register a generator of Pallas kernels: ``def_kernel("pallas", platform, ...)``.

        The arguments are those of `def_kernel`.
        """
        return self.def_kernel("pallas", platform, generator, asdefault)

    def def_jax_kernel(self, generator: KernelGenerator, asdefault: bool = False) -> KernelGenerator:
        """Register a generator of plain JAX functions for every platform, as backend ``"jax"``.

        The arguments are those of `def_kernel`.
        """
        for platform in PLATFORMS:
            self.def_kernel("jax", platform, generator, asdefault)
        return generator

    # The choice of a backend.

    def first_backend(self, platform: str) -> str | None:
        """Return the backend that was registered first for a platform; None if there is none."""
        return next(iter(self.kernels.get(platform, ())), None)

    def set_default(self, platform: str, backend: str) -> None:
        """Choose the backend of *platform* for calls that request none, also in functions that are already jitted.

        ``"auto"`` chooses the backend that was measured to be the fastest. Set defaults once, at the start: each new
        choice makes JAX trace all jitted functions once more.

        Args:
          platform: ``"cpu"``, ``"gpu"`` or ``"tpu"``.
          backend: a backend that is registered for the platform, or ``"auto"``.

        Raises:
          UnknownPlatformError: if there is no such platform.
          BackendNotFoundError: if the backend is not registered for the platform.
        """
        check_platform(platform, self.name)
        if backend != AUTO:
            self.entry(platform, backend)
        with _following, self._lock:
            defaults = {**self._defaults, platform: backend}  # new: other threads may be reading
            if defaults == self._announced:
                self._changed(replaced=False)
                return
            self._announced, self._defaults = None, defaults
            set_automatic(self.name, AUTO in defaults.values())
            self._announce_default()
            self._announced = defaults  # last: the announcement may be interrupted

    def follow(self, leader: Backends) -> None:
        """Use the defaults of *leader*; see `XLACustomKernel.def_default_of`."""
        with _following:
            self._follow(leader)

    def _follow(self, leader: Backends) -> None:
        above: Backends | None = leader
        while above is not None:
            if above is self:
                raise ArgumentError(
                    f"{self.name}: def_default_of was given {leader.name}, whose defaults are those of {self.name}; "
                    "give the operator whose defaults are set."
                )
            above = above.leader
        self._leave()
        self.leader = leader
        leader._followers = [*leader._followers, self]  # new: other threads may be reading
        self._announce_default()

    def _leave(self) -> None:
        """Follow no operator."""
        if self.leader is not None:
            self.leader._followers = [one for one in self.leader._followers if one is not self]
            self.leader = None

    def _announce_default(self) -> None:
        self._changed()
        for follower in self._followers:
            follower._announce_default()

    def _chosen_default(self, platform: str) -> str | None:
        own = self._defaults.get(platform)
        return own if own or self.leader is None else self.leader._chosen_default(platform)

    def reset(self, heir: Backends) -> None:
        """Forget all kernels and defaults; operators that follow this one then have the defaults of *heir*."""
        with _following, self._lock:
            self._leave()
            self.kernels, self._defaults, self._announced = {}, {}, None
            set_automatic(self.name, False)
            if heir is not self:
                self._follow(heir)
            else:
                self._announce_default()

    def defaults(self) -> dict[str, str]:
        """Return platform → the default that was set, here or for the leader."""
        chosen = {platform: self._chosen_default(platform) for platform in PLATFORMS}
        return {platform: backend for platform, backend in chosen.items() if backend is not None}

    def get_default(self, platform: str) -> str | None:
        """Return the default backend of a platform, or ``"auto"`` if that is set; None if there is no kernel."""
        check_platform(platform, self.name)
        return self._chosen_default(platform) or self.first_backend(platform)

    def requested(self, backend: str | None) -> dict[str, str]:
        """Return platform → backend for a call with the argument ``backend=backend``.

        The backend is this argument, else the backend of a `use_backend` context, else the default that was set.
        Platforms without a backend are left out.
        """
        requested = dict.fromkeys(PLATFORMS, backend) if backend is not None else requested_backends()
        return {**self.defaults(), **requested}

    def available_backends(self, platform: str) -> list[str]:
        """Return the backends registered for a platform, in the order of registration."""
        check_platform(platform, self.name)
        return list(self.kernels.get(platform, {}))

    def entry(self, platform: str, backend: str) -> KernelEntry:
        """Return the entry of a backend on a platform; raise `BackendNotFoundError` if there is none."""
        found = self.kernels.get(platform, {})
        if backend not in found:
            # The message looks the operator up by name: the user may only know a function that calls the operator.
            choice = (
                "choose one of them with backend=, use_backend or "
                f"xlakernel.core.operators()[{self.name!r}].set_default({platform!r}, ...)"
            )
            advice = choice if found else f"register one with def_kernel({backend!r}, {platform!r}, ...)"
            elsewhere = sorted(other for other, kernels in self.kernels.items() if backend in kernels)
            there = f"It has one for {elsewhere}; jax.devices() lists JAX's devices"
            where = there if elsewhere else "Import the package that registers it, if there is one"
            near = did_you_mean(backend, found)
            raise BackendNotFoundError(
                f"{self.name}: no {backend!r} kernel for platform {platform!r}; registered: {sorted(found)}. "
                f"{near}{' ' * bool(near)}{where}, or {advice}."
            )
        return found[backend]
