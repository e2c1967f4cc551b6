"""`XLACustomKernel`: one operator, with a kernel for each platform and backend."""

from __future__ import annotations

import dataclasses
import itertools
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp

from . import auto, benchmark
from .benchmark import BenchmarkCase, BenchmarkResult, Progress
from .config import (
    AUTO,
    PLATFORMS,
    check_backend,
    check_platform,
    is_auto_possible,
    is_debugging,
    remember_default,
    remembered_default,
    requested_backends,
)
from .errors import ArgumentError, BackendNotFoundError, DuplicateNameError, KernelTypeError, XLAKernelError
from .primitive import Dispatch, OperatorPrimitive, Static
from .specs import Struct, check_callable, check_enabled, check_inputs, flatten_outs
from .transforms.rules import TransformRules

KernelGenerator = Callable[..., Callable[..., Any]]

_operators: dict[str, XLACustomKernel] = {}
_operators_lock = threading.Lock()
_numbers = itertools.count()  # a name may pass from one operator to another; a number does not


@dataclasses.dataclass(frozen=True)
class KernelEntry:
    """A kernel generator, with the backend and the platform that it is registered for.

    Attributes:
      backend: the backend's name.
      platform: ``"cpu"``, ``"gpu"`` or ``"tpu"``.
      kernel_generator: what `XLACustomKernel.def_kernel` was given.
    """

    backend: str
    platform: str
    kernel_generator: KernelGenerator


class XLACustomKernel(TransformRules):
    """An operator of JAX arrays with one kernel for each platform and backend.

    Register kernel generators with ``def_kernel`` and its shorthands, then call the operator. A generator is called
    with ``outs``, a flat list of `jax.ShapeDtypeStruct`, and the call's static keywords, when a program is lowered; it
    returns a function of the inputs that returns one array or a sequence of them. The ``def_`` methods that take one
    function return it, so that they can be decorators.

    The backend of a call is its ``backend=``, else what the innermost `use_backend` context asks for, else the default
    of the platform: what `set_default` chose, else the first one registered. A backend that is asked for and missing
    is an error, never a fallback. Switching reaches functions that are already jitted.

    In all three places ``"auto"`` stands for the backend that was measured to be the fastest for calls like this one,
    of the same static keywords, dtypes, and sizes up to the next power of two, on the same kind of device. The first
    such call with arrays measures it, which takes as long as all backends take to compile and a second or two; it is
    remembered on disk (`auto_choices`). A call inside ``jax.jit`` or another transformation is never measured: it takes
    what is remembered (`tune`), else the default, with an `AutoBackendWarning`, and a program that is compiled keeps
    what it has. A backend that fails, or whose results differ, is not chosen.

    ``jax.vmap`` maps the kernel itself. Derivatives are declared: by `def_reference`, by `def_jvp` and `def_vjp`, by
    `def_transpose`, or by rules of JAX's own kind.

    Args:
      name: the operator's name, unique in the process.
      doc: its documentation.
      replace: whether to take over the name from an operator that has it, as when a notebook's cell runs again.
      has_side_effect: whether to run the kernel even if its results are not used. The operator must say it, also where
        its kernels say it of themselves: the kernel is not chosen yet when JAX drops what is unused.

    Raises:
      DuplicateNameError: if the name is taken and *replace* is false.
      KernelTypeError: if *name* is not a name.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from xlakernel.core import XLACustomKernel
      >>> double = XLACustomKernel("double")
      >>> @double.def_jax_kernel
      ... def double_in_jax(outs):
      ...     return lambda x: x * 2
      >>> double(jnp.arange(3), outs=jax.ShapeDtypeStruct((3,), jnp.int32))
      Array([0, 2, 4], dtype=int32)
    """

    def __init__(
        self, name: str, doc: str | None = None, *, replace: bool = False, has_side_effect: bool = False
    ) -> None:
        if not isinstance(name, str) or not name:
            raise KernelTypeError(f"XLACustomKernel: the name is {name!r}; expected a non-empty string.")
        with _operators_lock:
            if name in _operators and not replace:
                raise DuplicateNameError(
                    f"XLACustomKernel: an operator named {name!r} exists. Use that one, xlakernel.core.operators()"
                    f"[{name!r}], choose another name, or pass replace=True to take the name over."
                )
            _operators[name] = self
        self.name = name
        if doc is not None:
            self.__doc__ = doc
        self.has_side_effect = bool(has_side_effect)
        self._number = next(_numbers)
        self.primitive = OperatorPrimitive(self)
        self._kernels: dict[str, dict[str, KernelEntry]] = {}
        self._initial: dict[str, str] = {}
        self._leader: XLACustomKernel | None = None
        self._call: Callable[..., Any] | None = None
        self._tags: frozenset[str] = frozenset()
        self._benchmark_data: Callable[..., Any] | None = None
        self._auto_choices = 0  # that were made in this process
        self._apply = lru_cache(maxsize=1024)(self._make_apply)
        self._start_rules()

    def __repr__(self) -> str:
        backends = {platform: list(entries) for platform, entries in self._kernels.items()}
        return f"XLACustomKernel({self.name!r}, {backends})"

    # Calling.

    def __call__(self, *ins: Any, outs: Any, backend: str | None = None, **static: Any) -> Any:
        """Apply the operator.

        Args:
          *ins: the input arrays.
          outs: shapes and dtypes of the results, a pytree of objects with ``shape`` and ``dtype``.
          backend: the backend to use, or ``"auto"``, instead of the one chosen by context and defaults.
          **static: passed to the kernel generator; hashable, and part of the compiled program.

        Returns:
          The results, in the tree of *outs*.

        Raises:
          InputError: if an input is not an array.
          OutputSpecError: if *outs* has leaves without shape and dtype.
          StaticArgumentError: if a static keyword is traced or unhashable.
          BackendNotFoundError: if no kernel, or not the one asked for, is registered for the platform.
          GeneratorError: if the generator, or the kernel that it made, raises.
          ResultError: if the kernel's results differ from *outs* in number, shape or dtype.
        """
        structs, tree = flatten_outs(outs, self.name)
        check_enabled(structs, self.name)
        if backend is not None:
            check_backend(backend, self.name)
        keywords = Static.of(self.name, static)
        known = 0  # choices that a program may depend on
        if backend == AUTO or (backend is None and is_auto_possible()):
            backend = auto.backend_of_call(self, ins, structs, backend, keywords)
            known = self._auto_choices if backend in (AUTO, None) else 0
        apply = self._apply(structs, backend, keywords, known)
        try:
            return jax.tree.unflatten(tree, apply(*ins))
        except (TypeError, ValueError) as error:
            if not isinstance(error, XLAKernelError):
                check_inputs(ins, self.name)
            raise

    def _make_apply(
        self, outs: tuple[Struct, ...], backend: str | None, static: Static, known: int
    ) -> Callable[..., list[Any]]:
        """Return the jitted call for one set of static arguments; JAX caches it by shapes and by backend contexts.

        It is another one for each number of choices *known*: a call that is mapped outside of ``jax.jit`` is compiled
        once, and must follow what is measured later.
        """

        def apply(*ins: Any) -> list[Any]:
            check_inputs(ins, self.name)
            if self._declared is not None:
                self._declared.check_arity(len(ins))
            rule = self.sharding_rule(dict(static.items))
            if rule is not None:
                rule.check(self.name, [Struct(jnp.shape(x), jnp.result_type(x)) for x in ins], outs)
            dispatch = Dispatch(tuple(self.asked_for(backend).items()), is_debugging())
            return self.primitive.bind(*ins, outs=outs, dispatch=dispatch, static=static)

        apply.__name__ = apply.__qualname__ = self.name
        return jax.jit(apply)

    def asked_for(self, backend: str | None) -> dict[str, str]:
        """Return the backend for each platform that one is asked for, here, by a call with this ``backend=``."""
        requested = dict.fromkeys(PLATFORMS, backend) if backend is not None else requested_backends()
        chosen = {p: requested.get(p) or self._chosen_default(p) for p in PLATFORMS}
        return {platform: name for platform, name in chosen.items() if name is not None}

    def first_backend(self, platform: str) -> str | None:
        """Return the backend that was registered first for a platform; None if there is none.

        Args:
          platform: ``"cpu"``, ``"gpu"`` or ``"tpu"``.
        """
        return self._initial.get(platform)

    def default_beside_auto(self, platform: str) -> str | None:
        """Return what runs on *platform* where ``"auto"`` knows nothing; None if there is no kernel."""
        default = self._chosen_default(platform)
        return self.first_backend(platform) if default in (AUTO, None) else default

    def follow_new_choice(self) -> None:
        """Let what is called outside of any program follow a choice that was just made for ``"auto"``."""
        self._auto_choices += 1
        self.primitive.forget()

    def def_call(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """Set the function that users call: it prepares arguments, calls the operator, and is returned unchanged.

        Args:
          fn: the function; `call` calls it, and so does `benchmark`.

        Raises:
          KernelTypeError: if *fn* cannot be called.
        """
        self._call = check_callable(self.name, "def_call", fn)
        return fn

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function given to `def_call`.

        Args:
          *args: its arguments.
          **kwargs: its keywords.

        Raises:
          XLAKernelError: if there is no such function.
        """
        if self._call is None:
            raise XLAKernelError(
                f"{self.name}: no function to call; set one with def_call, or call the operator itself."
            )
        return self._call(*args, **kwargs)

    # Kernels.

    def def_kernel(
        self, backend: str, platform: str, generator: KernelGenerator, asdefault: bool = False
    ) -> KernelGenerator:
        """Register a kernel generator.

        Args:
          backend: a name for the way it computes, such as ``"numba"``. One that is registered already is replaced, in
            calls of the operator from now on; a function that users have jitted themselves keeps the old kernel until
            it is traced again.
          platform: ``"cpu"``, ``"gpu"`` or ``"tpu"``.
          generator: called with ``outs`` and the static keywords, returns the kernel.
          asdefault: whether to make it the platform's default.

        Raises:
          UnknownPlatformError: if there is no such platform.
          KernelTypeError: if *generator* cannot be called, or *backend* is not a name.
          ArgumentError: if *backend* is ``"auto"``, which stands for the fastest of the others.
        """
        check_platform(platform, self.name)
        check_backend(backend, self.name)
        if backend == AUTO:
            raise ArgumentError(
                f"{self.name}: no backend can be named {AUTO!r}, which asks for the fastest of those that are "
                "registered. Choose another name."
            )
        check_callable(self.name, f"the generator of backend {backend!r}", generator)
        if hasattr(generator, "py_func"):  # one of Numba's
            raise KernelTypeError(
                f"{self.name}: the generator of backend {backend!r} is itself a kernel, {generator!r}; expected a "
                "function of outs and the static keywords that returns one wrapped, such as "
                f"lambda outs: {backend}_kernel(kernel, outs[0], ...)."
            )
        entries = self._kernels.setdefault(platform, {})
        replaced = entries.get(backend)
        entries[backend] = KernelEntry(backend, platform, generator)
        if replaced is not None and replaced.kernel_generator is not generator:
            self._forget_traces()
        self._initial.setdefault(platform, backend)
        if asdefault:
            self.set_default(platform, backend)
        return generator

    def def_numba_kernel(self, generator: KernelGenerator, asdefault: bool = False) -> KernelGenerator:
        """Register a generator of Numba kernels for the CPU (``xlakernel-numba``).

        Args:
          generator: called with ``outs`` and the static keywords, returns the kernel; see `def_kernel`.
          asdefault: whether to make it the platform's default.
        """
        return self.def_kernel("numba", "cpu", generator, asdefault)

    def def_numba_cuda_kernel(self, generator: KernelGenerator, asdefault: bool = False) -> KernelGenerator:
        """Register a generator of Numba CUDA kernels (``xlakernel-cuda``).

        Args:
          generator: called with ``outs`` and the static keywords, returns the kernel; see `def_kernel`.
          asdefault: whether to make it the platform's default.
        """
        return self.def_kernel("numba_cuda", "gpu", generator, asdefault)

    def def_warp_kernel(self, generator: KernelGenerator, asdefault: bool = False, *, platform: str = "gpu") -> Any:
        """Register a generator of Warp kernels (``xlakernel-warp``).

        Args:
          generator: called with ``outs`` and the static keywords, returns the kernel; see `def_kernel`.
          asdefault: whether to make it the platform's default.
          platform: ``"gpu"`` or ``"cpu"``.
        """
        return self.def_kernel("warp", platform, generator, asdefault)

    def def_pallas_kernel(self, platform: str, generator: KernelGenerator, asdefault: bool = False) -> KernelGenerator:
        """Register a generator of Pallas kernels (``jax.experimental.pallas``).

        Args:
          platform: ``"cpu"``, ``"gpu"`` or ``"tpu"``.
          generator: called with ``outs`` and the static keywords, returns the kernel; see `def_kernel`.
          asdefault: whether to make it the platform's default.
        """
        return self.def_kernel("pallas", platform, generator, asdefault)

    def def_triton_kernel(self, generator: KernelGenerator, asdefault: bool = False) -> KernelGenerator:
        """Register a generator of Triton kernels for the GPU (``jax-triton``).

        Args:
          generator: called with ``outs`` and the static keywords, returns the kernel; see `def_kernel`.
          asdefault: whether to make it the platform's default.
        """
        return self.def_kernel("triton", "gpu", generator, asdefault)

    def def_jax_kernel(self, generator: KernelGenerator, asdefault: bool = False) -> KernelGenerator:
        """Register a generator of plain JAX functions, for every platform.

        Args:
          generator: called with ``outs`` and the static keywords, returns the function; see `def_kernel`.
          asdefault: whether to make it the default of every platform.
        """
        for platform in PLATFORMS:
            self.def_kernel("jax", platform, generator, asdefault)
        return generator

    def set_default(self, platform: str, backend: str) -> None:
        """Choose the backend of *platform* for calls that ask for none, also in functions that are already jitted.

        It may be ``"auto"``, for the one that was measured to be the fastest. It is for setting up: each new choice
        makes JAX trace its jitted functions once more, others too.

        Args:
          platform: ``"cpu"``, ``"gpu"`` or ``"tpu"``.
          backend: one that is registered for it.

        Raises:
          UnknownPlatformError: if there is no such platform.
          BackendNotFoundError: if the backend is not registered for it.
        """
        check_platform(platform, self.name)
        if backend != AUTO:
            self.entry(platform, backend)
        # Where another operator's choice would count, the first backend is a choice too.
        is_initial = backend == self.first_backend(platform) and self._leader is None
        remember_default(self._number, platform, None if is_initial else backend)

    def def_default_of(self, other: XLACustomKernel) -> None:
        """Let the default that is set for *other* count here too, until one is set for this operator itself.

        It is for operators that users know as one. A backend that is set for *other* and not registered here is an
        error of the calls of this operator.

        Args:
          other: the operator whose default counts.
        """
        self._leader = other

    def _chosen_default(self, platform: str) -> str | None:
        own = remembered_default(self._number, platform)
        return own if own or self._leader is None else self._leader._chosen_default(platform)

    def get_default(self, platform: str) -> str | None:
        """Return the default backend of a platform, or ``"auto"`` if that was set; None if it has no kernel.

        Args:
          platform: ``"cpu"``, ``"gpu"`` or ``"tpu"``.

        Raises:
          UnknownPlatformError: if there is no such platform.
        """
        check_platform(platform, self.name)
        return self._chosen_default(platform) or self.first_backend(platform)

    @property
    def defaults(self) -> dict[str, str]:
        """The default backend of each platform that has a kernel."""
        return {platform: str(self.get_default(platform)) for platform in self._kernels}

    def available_backends(self, platform: str) -> list[str]:
        """Return the backends registered for a platform, in the order of registration.

        Args:
          platform: ``"cpu"``, ``"gpu"`` or ``"tpu"``.

        Raises:
          UnknownPlatformError: if there is no such platform.
        """
        check_platform(platform, self.name)
        return list(self._kernels.get(platform, {}))

    def entry(self, platform: str, backend: str) -> KernelEntry:
        """Return what is registered for a backend on a platform.

        Args:
          platform: ``"cpu"``, ``"gpu"`` or ``"tpu"``.
          backend: the backend's name.

        Raises:
          BackendNotFoundError: if nothing is; the message lists what is.
        """
        found = self._kernels.get(platform, {})
        if backend not in found:
            # The operator may be inside of a function of its name, which has no set_default.
            choice = (
                "choose one of them with backend=, use_backend or "
                f"xlakernel.core.operators()[{self.name!r}].set_default({platform!r}, ...)"
            )
            advice = choice if found else f"register one with def_kernel({backend!r}, {platform!r}, ...)"
            elsewhere = sorted(other for other, kernels in self._kernels.items() if backend in kernels)
            there = f"It has one for {elsewhere}; jax.devices() lists what JAX runs on"
            where = there if elsewhere else "Import the package that registers it"
            raise BackendNotFoundError(
                f"{self.name}: no {backend!r} kernel for platform {platform!r}; registered: {sorted(found)}. "
                f"{where}, or {advice}."
            )
        return found[backend]

    # What tools read.

    def def_tags(self, *tags: str) -> None:
        """Set the tags by which `operators` finds this operator.

        Args:
          *tags: any words; they replace those set before.
        """
        self._tags = frozenset(tags)

    @property
    def tags(self) -> frozenset[str]:
        """The operator's tags."""
        return self._tags

    def def_benchmark_data(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """Set the function that makes benchmark cases; it is returned unchanged.

        Args:
          fn: ``fn(*, platform)`` returns or yields a `BenchmarkCase` for each call that `benchmark` is to time, of
            several sizes usually.

        Raises:
          KernelTypeError: if *fn* cannot be called.
        """
        self._benchmark_data = check_callable(self.name, "def_benchmark_data", fn)
        return fn

    @property
    def benchmark_data(self) -> Callable[..., Any] | None:
        """The function given to `def_benchmark_data`."""
        return self._benchmark_data

    def benchmark(
        self,
        cases: Iterable[BenchmarkCase] | None = None,
        *,
        platform: str | None = None,
        backends: Sequence[str] | None = None,
        rounds: int = 20,
        seconds: float = 0.02,
        rtol: float | None = None,
        progress: Progress | None = None,
    ) -> BenchmarkResult:
        """Compare the backends: compile each case for each of them, compare the results, and time them.

        What is timed is a call of the jitted program, so some microseconds of each are JAX's own. Backends are timed in
        turn, round by round. One that raises an error, or whose results differ, is not timed; the result says why.

        Args:
          cases: the calls; those of `def_benchmark_data` unless given. They are calls of the function of `def_call`,
            else of the operator itself, and then need ``outs`` among their keywords.
          platform: ``"cpu"``, ``"gpu"`` or ``"tpu"``; that of JAX's default device unless given.
          backends: the backends to compare; all that are registered unless given.
          rounds: how many measurements of each.
          seconds: how long a measurement is at least, over as many calls as fit.
          rtol: by how much results may differ from those of plain JAX, or of the first backend, in terms of the largest
            value among them. The square root of the dtype's precision unless given; integers must be equal.
          progress: ``progress(done, total, what)`` is called before each step and at the end.

        Returns:
          The measurements: ``print`` shows a table, and `BenchmarkResult.save` and `BenchmarkResult.plot` write them.

        Raises:
          ArgumentError: if there are no cases, or not of different names; if *rounds* is less than 1; if JAX has no
            device of the platform.
          UnknownPlatformError: if there is no such platform.
          BackendNotFoundError: if a backend is not registered for the platform, or none is.

        Example:
          >>> import jax, numpy as np
          >>> from xlakernel.core import BenchmarkCase, XLACustomKernel
          >>> op = XLACustomKernel("benchmarked", replace=True)
          >>> _ = op.def_kernel("multiplied", "cpu", lambda outs: lambda x: 2 * x)
          >>> _ = op.def_kernel("added", "cpu", lambda outs: lambda x: x + x)
          >>> x = np.ones(1000, np.float32)
          >>> result = op.benchmark([BenchmarkCase("n=1000", (x,), {"outs": x})], platform="cpu", rounds=3)
          >>> result.backends
          ['multiplied', 'added']
        """
        return benchmark.measure(
            self,
            self._call or self,
            cases,
            platform=platform,
            backends=backends,
            rounds=rounds,
            seconds=seconds,
            rtol=rtol,
            progress=progress,
        )


def operators(*tags: str) -> Mapping[str, XLACustomKernel]:
    """Return the operators of this process, by name.

    Args:
      *tags: only operators that have all of these (`XLACustomKernel.def_tags`).
    """
    wanted = frozenset(tags)
    return MappingProxyType({name: op for name, op in _operators.items() if wanted <= op.tags})
