"""`XLACustomKernel`: one operator, with a kernel for each platform and backend."""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from ..call.derivatives import multilinear
from ..call.derivatives.differentiable import Differentiable
from ..call.outs import check_enabled, check_has_effect, check_has_order, flatten_outs
from ..call.pickling import MissingKernel, callers_module, find, name_in_module
from ..config import AUTO, Settings, check_backend, is_auto_possible
from ..errors import XLAKernelError
from ..measure import auto
from ..measure.benchmark import BenchmarkCase, benchmark
from ..measure.result import BenchmarkResult
from ..structs import Struct, check_callable, check_inputs
from .backends import Backends
from .dispatch import Dispatch, Static, key_of
from .names import check_name, holder, register, same_named
from .primitive import OperatorPrimitive
from .rules import TransformRules

_Params = ParamSpec("_Params")
_Result = TypeVar("_Result")
_MOST_CALLS = 1024  # the largest number of jitted calls in the cache of one operator


def _of(
    component: str, method: Callable[Concatenate[Any, _Params], _Result]
) -> Callable[Concatenate[Any, _Params], _Result]:
    """Return a method of the operator that calls *method* of its *component*."""

    @functools.wraps(method)
    def call(self: Any, /, *args: _Params.args, **keywords: _Params.kwargs) -> _Result:
        return method(getattr(self, component), *args, **keywords)

    return call


def _find(module: str, name: str, operator: str) -> Any:
    """Return the operator that was pickled under these names."""
    found = find(module, name)
    if isinstance(found, XLACustomKernel) and found.name == operator:
        return found
    return MissingKernel(
        f"operator {operator!r}",
        f"{module}.{name}",
        "nothing" if found is None else f"{found!r:.80}",
        f'Make it at the top level of {module}, not below if __name__ == "__main__", and bind it once.',
    )


class XLACustomKernel:
    """An operator of JAX arrays with one kernel for each platform and backend.

    Register kernel generators with ``def_kernel`` and its shorthands, then call the operator. A generator is called
    when a program is lowered, with ``outs``, a flat list of `jax.ShapeDtypeStruct`, and the call's static keywords. The
    generator returns the kernel: a function of the inputs that returns one array or a sequence of arrays. The ``def_``
    methods that take one function return it, so that they can be decorators.

    The backend of a call is its argument ``backend=``, else the backend of the innermost `use_backend` context, else
    the platform's default. The default is the backend that `set_default` chose, else the first one registered. A
    requested backend that is missing is an error, never a fallback.

    In all three places ``"auto"`` means the backend that was measured to be the fastest for calls with the same static
    keywords, the same dtypes, and sizes up to the next power of two, on the same kind of device. The first such call
    with arrays compiles all backends and times them for a second or two; the choice is kept on disk (`auto_choices`). A
    call inside ``jax.jit`` or another transformation is never measured: it uses the choice kept on disk (`tune`), else
    the default, with an `AutoBackendWarning`. A backend that fails, or returns other results, is not chosen.

    A kernel, rule or default that replaces another applies to functions that are already jitted, too: JAX traces and
    compiles all functions once more. What was traced and kept (a jaxpr, a program compiled ahead of time or exported)
    keeps its generators and rules, but not the operators and other objects that these find by a global name.

    ``jax.vmap`` maps the kernel itself. Derivatives are declared: by `def_reference`, by `def_jvp` and `def_vjp`, by
    `def_transpose`, or by rules of the JAX primitive (`def_jvp_rule`, `def_transpose_rule`).

    Args:
      name: the operator's name, unique in the process. It consists of printable characters other than slash,
        backslash, ``*`` and ``?``, does not start with ``-``, and has no spaces at its ends: these have a meaning in
        paths or for the command ``xlakernel``.
      doc: the operator's documentation.
      replace: if there is an operator of this name, return it without its kernels, rules and defaults, to be defined
        again, as when a notebook's cell runs again.
      has_side_effect: run the kernel even if its results are not used. It is required if a kernel of the operator has
        side effects, since JAX drops unused calls before a kernel is chosen.

    Attributes:
      primitive: the JAX primitive, to which rules can be added with JAX's own functions.
      tags: the tags given to `def_tags`.
      benchmark_data: the function given to `def_benchmark_data`, or None.

    Raises:
      DuplicateNameError: if the name is taken and *replace* is false.
      KernelTypeError: if *name* is not a string, or empty.
      ArgumentError: if *name* has characters that a name cannot have.

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

    def __new__(cls, name: str, doc: str | None = None, *, replace: bool = False, **_: Any) -> Self:
        """Return the operator of this name and class, to be defined again, if *replace* is true."""
        found: Self | None = same_named(cls, name) if replace else None
        return super().__new__(cls) if found is None else found

    def __init__(
        self, name: str, doc: str | None = None, *, replace: bool = False, has_side_effect: bool = False
    ) -> None:
        check_name(name)
        self.name = name
        self.__module__ = callers_module()
        self.__doc__ = type(self).__doc__ if doc is None else doc
        self.has_side_effect = bool(has_side_effect)
        self._call: Callable[..., Any] | None = None
        self.tags: frozenset[str] = frozenset()
        self.benchmark_data: Callable[..., Any] | None = None
        earlier = holder(name, replace=replace)
        if earlier is not self:
            self._backends = Backends(name, lambda **change: self.primitive.define_anew(**change))
            self.primitive = OperatorPrimitive(self._backends, self.has_side_effect)
        self._rules = TransformRules(self.primitive)
        if earlier is not None:  # before the name is taken over: this may be interrupted, and is then repeated
            earlier.primitive.reset(self.has_side_effect, self.primitive)
        latest = register(self, name, replace=replace)
        if latest not in (None, self, earlier):  # of another thread
            latest.primitive.reset(latest.has_side_effect, self.primitive)

    def __repr__(self) -> str:
        backends = {platform: list(entries) for platform, entries in self._backends.kernels.items()}
        return f"XLACustomKernel({self.name!r}, {backends})"

    def __reduce__(self) -> Any:
        """Return a reference by module and name; a pickle contains neither rules nor kernels."""
        name = name_in_module(self)
        if name is None:
            raise pickle.PicklingError(
                f"{self.name}: an operator is pickled by its name in a module, as a function is, and it has no name in "
                f"{self.__module__}, the module that created it. Bind it to a name at the top level of that module, or "
                "pass a function that a module defines and that calls the operator."
            )
        return _find, (self.__module__, name, self.name)

    def __copy__(self) -> XLACustomKernel:
        """Return itself, as for a function: a copy's rules would be unknown to JAX."""
        return self

    def __deepcopy__(self, memo: Any) -> XLACustomKernel:
        """Return itself, as for a function: a copy's rules would be unknown to JAX."""
        return self

    # Calling.

    def __call__(self, /, *ins: Any, outs: Any, backend: str | None = None, **static: Any) -> Any:
        """Apply the operator.

        Args:
          *ins: the input arrays.
          outs: shapes and dtypes of the results, a pytree of objects with ``shape`` and ``dtype``. Generators get the
            structs, and kernels return the results, in the order of the tuple, list or named tuple; a dictionary has no
            such order, and is an error.
          backend: the backend to use, or ``"auto"``, instead of the backend that context and defaults choose.
          **static: passed to the kernel generator; hashable, and part of the compiled program.

        Returns:
          The results, in the tree of *outs*.

        Raises:
          InputError: if an input is not an array.
          OutputSpecError: if *outs* has leaves without shape and dtype, or dictionaries; or if *outs* describes no
            result and the operator has no side effect.
          StaticArgumentError: if a static keyword is traced or unhashable.
          BackendNotFoundError: if the platform has no kernel, or no kernel of the requested backend.
          GeneratorError: if the generator, or the kernel that it made, raises.
          ResultError: if the kernel's results differ from *outs* in number, shape or dtype.
        """
        if backend == AUTO or (backend is None and is_auto_possible()):
            structs, keywords = flatten_outs(outs, self.name)[0], Static.of(self.name, static)
            backend = auto.backend_of_call(self, ins, structs, backend, keywords)
        key = key_of(backend, outs, static)
        calls = self.primitive.calls
        apply = None if key is None else calls.get(key)
        if apply is None:
            apply = self._checked_call(outs, backend, static)
            if key is not None:
                if len(calls) >= _MOST_CALLS:
                    calls.clear()
                calls[key] = apply
        # JAX refuses an array in another byte order only as long as there is no compiled program for the native dtype.
        # Such a program would read the bytes in native order.
        for x in ins:
            if isinstance(x, np.ndarray) and not x.dtype.isnative:
                check_inputs(ins, self.name)
        try:
            return apply(*ins)
        except (TypeError, ValueError) as error:
            if not isinstance(error, XLAKernelError):
                check_inputs(ins, self.name)
            raise

    def _checked_call(self, outs: Any, backend: str | None, keywords: Mapping[str, Any]) -> Callable[..., Any]:
        """Return the jitted call for one set of static arguments."""
        structs, tree = flatten_outs(outs, self.name)
        check_has_effect(structs, self.has_side_effect, self.name)
        check_has_order(tree, self.name)
        if backend is not None:
            check_backend(backend, self.name)
        static = Static.of(self.name, keywords)

        def apply(*ins: Any) -> Any:
            self.primitive.latest_trace = object()  # first: the definition is read after it
            check_inputs(ins, self.name)
            check_enabled(structs, self.name)
            definition = self.primitive.definition
            rule = definition.sharding_rule(static)
            if rule is not None:
                rule.check(self.name, [Struct(jnp.shape(x), jnp.result_type(x)) for x in ins], structs)
            requested = tuple(self._backends.requested(backend).items())
            dispatch = Dispatch(requested, Settings.present(), definition)
            run = functools.partial(self.primitive.bind, outs=structs, dispatch=dispatch, static=static)
            if definition.derivative is None:
                return jax.tree.unflatten(tree, run(*ins))
            # The functions that an author declares return one result, or a list of results.
            results = jax.tree.structure(list(structs) if len(structs) != 1 else structs[0])
            offered = {"outs": list(structs)}
            has_effect = definition.has_side_effect
            call = Differentiable(definition.derivative, run, structs, results, dict(static.items), has_effect, offered)
            return jax.tree.unflatten(tree, multilinear.apply(call.described(ins), ins))

        apply.__name__ = apply.__qualname__ = self.name
        return jax.jit(apply)

    def def_call(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """Set the function that users call, which prepares arguments and calls the operator. It is returned unchanged.

        Functions that are already jitted keep the function that they were traced with.

        Args:
          fn: the function, which `call` and `benchmark` call.

        Raises:
          KernelTypeError: if *fn* cannot be called.
        """
        self._call = check_callable(self.name, "def_call", fn)
        return fn

    def call(self, /, *args: Any, **kwargs: Any) -> Any:
        """Call the function given to `def_call`.

        Args:
          *args: the function's arguments.
          **kwargs: the function's keywords.

        Raises:
          XLAKernelError: if there is no such function.
        """
        if self._call is None:
            raise XLAKernelError(
                f"{self.name}: no function to call; set one with def_call, or call the operator itself."
            )
        return self._call(*args, **kwargs)

    # Kernels.

    def_kernel = _of("_backends", Backends.def_kernel)
    def_numba_kernel = _of("_backends", Backends.def_numba_kernel)
    def_numba_cuda_kernel = _of("_backends", Backends.def_numba_cuda_kernel)
    def_warp_kernel = _of("_backends", Backends.def_warp_kernel)
    def_pallas_kernel = _of("_backends", Backends.def_pallas_kernel)
    def_jax_kernel = _of("_backends", Backends.def_jax_kernel)
    first_backend = _of("_backends", Backends.first_backend)
    set_default = _of("_backends", Backends.set_default)
    get_default = _of("_backends", Backends.get_default)
    available_backends = _of("_backends", Backends.available_backends)
    entry = _of("_backends", Backends.entry)

    def def_default_of(self, other: XLACustomKernel) -> None:
        """Use the defaults that are set for *other*, unless a default is set for this operator itself.

        Two operators then behave as one for users. If a backend that is set for *other* is not registered here, calls
        of this operator raise an error.

        Args:
          other: the operator that provides the defaults.

        Raises:
          ArgumentError: if *other* is this operator, or has the defaults of this operator.
        """
        self._backends.follow(other._backends)

    @property
    def defaults(self) -> dict[str, str]:
        """The default backend of each platform that has a kernel."""
        return {platform: str(self.get_default(platform)) for platform in self._backends.kernels}

    # Transformations.

    def_reference = _of("_rules", TransformRules.def_reference)
    def_jvp = _of("_rules", TransformRules.def_jvp)
    def_vjp = _of("_rules", TransformRules.def_vjp)
    def_transpose = _of("_rules", TransformRules.def_transpose)
    def_jvp_rule = _of("_rules", TransformRules.def_jvp_rule)
    def_jvp_rule2 = _of("_rules", TransformRules.def_jvp_rule2)
    def_transpose_rule = _of("_rules", TransformRules.def_transpose_rule)
    def_batching_rule = _of("_rules", TransformRules.def_batching_rule)
    def_sharding_rule = _of("_rules", TransformRules.def_sharding_rule)

    # Tags and benchmarks.

    def def_tags(self, *tags: str) -> None:
        """Set the tags by which `operators` finds this operator.

        Args:
          *tags: any words; they replace the earlier ones.
        """
        self.tags = frozenset(tags)

    def def_benchmark_data(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """Set the function that makes benchmark cases; it is returned unchanged.

        Args:
          fn: ``fn(*, platform)`` returns or yields a `BenchmarkCase` for each call that `benchmark` times, usually of
            several sizes.

        Raises:
          KernelTypeError: if *fn* cannot be called.
        """
        self.benchmark_data = check_callable(self.name, "def_benchmark_data", fn)
        return fn

    def benchmark(
        self,
        cases: Iterable[BenchmarkCase] | None = None,
        *,
        platform: str | None = None,
        backends: Sequence[str] | None = None,
        rounds: int = 20,
        seconds: float = 0.02,
        rtol: float | None = None,
    ) -> BenchmarkResult:
        """Compare the backends: compile each case for each of them, compare the results, and time them.

        A time is the duration of one call of the jitted program, including the few microseconds of JAX's dispatch.
        Backends are timed in turn, round by round. A backend that raises an error, or returns different results, is not
        timed; the result contains the reason.

        Args:
          cases: the calls; the cases of `def_benchmark_data` unless given. A case calls the function given to
            `def_call`, or else the operator itself, with the required keyword ``outs``.
          platform: ``"cpu"``, ``"gpu"`` or ``"tpu"``; the platform of JAX's default device unless given.
          backends: the backends to compare; all that are registered unless given.
          rounds: the number of measurements of each backend.
          seconds: duration of a measurement, in seconds; the call is repeated for that long.
          rtol: the largest allowed difference from the results of backend ``"jax"`` (or else of the first backend),
            relative to the largest of these results; the square root of the dtype's precision unless given. Integers
            must be equal.

        Returns:
          The measurements: ``print`` shows a table, and `BenchmarkResult.save` and `BenchmarkResult.plot` write them.

        Raises:
          ArgumentError: if there are no cases, two cases of equal names, or a case without a required ``outs``; if
            *backends* is a string; if JAX has no device of the platform; or if called inside a transformation of JAX.
          UnknownPlatformError: if there is no such platform.
          BackendNotFoundError: if the platform has no kernel, or no kernel of a requested backend.

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
        return benchmark(
            self,
            self._call or self,
            cases,
            platform=platform,
            backends=backends,
            rounds=rounds,
            seconds=seconds,
            rtol=rtol,
        )
