"""Operator calls and operator primitives. The kernel of one backend computes a call."""

from __future__ import annotations

import dataclasses
import functools
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
from jax.extend.core import jaxpr_as_fun
from jax.interpreters import ad, batching

from .._compat import NativeCallEffect, clear_caches, is_tracing, vary_alike
from ..call.derivatives.declaration import Derivative
from ..call.levels import map_levels
from ..call.primitive import Call, CallPrimitive
from ..call.sharding.rule import ShardingRule
from ..config import AUTO, Settings
from ..errors import BackendNotFoundError, GeneratorError
from ..measure import auto
from ..structs import Struct
from ..warning import warn
from .backends import Backends
from .chosen import ChosenKernel
from .dispatch import Definition, Dispatch, Static

# JAX's name of a platform → the name in this package.
_PLATFORMS = {"cpu": "cpu", "cuda": "gpu", "rocm": "gpu", "tpu": "tpu"}


_IN_A_TRACE = (
    "{name}: a kernel, rule or default was replaced while JAX traces a function. This clears JAX's caches, so that the "
    "function is traced and the operator defined again in each call. Define operators when a module is imported."
)


@dataclasses.dataclass(frozen=True)
class OperatorCall(Call):
    """A call of an operator, computed by one of its backends.

    Attributes:
      primitive: the operator's primitive.
      outs: the results, without batch dimensions.
      dispatch: the choice among the backends.
      static: the static keywords.
    """

    primitive: OperatorPrimitive
    outs: tuple[Struct, ...]
    dispatch: Dispatch
    static: Static

    def __str__(self) -> str:
        return str(self.primitive.name)

    @property
    def has_side_effect(self) -> bool:  # type: ignore[override]  # the operator's
        """True if the operator has a side effect."""
        return self.dispatch.definition.has_side_effect

    @property
    def batch(self) -> tuple[Any, ...]:
        """The sizes of the leading dimensions of the results, outermost first."""
        return self.dispatch.batch

    def rule(self, inputs: Sequence[Any]) -> ShardingRule | None:
        """Return the sharding rule, batch dimensions included."""
        rule = self.dispatch.definition.sharding_rule(self.static)
        return None if rule is None else rule.under(self.dispatch.mapped)

    def part(self, outs: Sequence[Struct]) -> OperatorCall:
        """Return the call for one device's part, with the results *outs*, batch dimensions included."""
        mapped, sizes = self.dispatch.mapped, outs[0].shape[: len(self.dispatch.mapped)]
        levels = [dataclasses.replace(level, size=n) for level, n in zip(mapped, reversed(sizes), strict=True)]
        slices = tuple(Struct(out.shape[len(levels) :], out.dtype) for out in outs)
        dispatch = dataclasses.replace(self.dispatch, mapped=tuple(levels))
        return dataclasses.replace(self, outs=slices, dispatch=dispatch)

    def bind(self, inputs: Sequence[Any]) -> list[jax.Array]:
        """Trace the call."""
        return self.primitive.bind(*inputs, outs=self.outs, dispatch=self.dispatch, static=self.static)

    def mapped(self, inputs: Sequence[Any], axes: Sequence[int | None], size: Any) -> list[Any]:
        """Trace the call under one more ``jax.vmap``, which maps the kernel."""
        return dataclasses.replace(self, dispatch=self.dispatch.batched(axes, size)).bind(inputs)

    def on(self, platform: str, inputs: Sequence[Any]) -> OperatorCall:
        """Return the call with the backend for *platform*, one of JAX's names."""
        backends, platform = self.primitive.backends, _PLATFORMS[platform]
        traced = [name for where, name in self.dispatch.definition.generators if where == platform]
        first = traced[0] if traced else backends.first_backend(platform)
        backend = dict(self.dispatch.backends).get(platform) or first
        if backend == AUTO:
            mapped = self.dispatch.mapped
            choose = functools.partial(auto.known_choice, backends, platform, inputs, self.outs, self.static, mapped)
            backend = choose()
            if backend is None:
                self.primitive.latest_guess = object()
                backend = choose() or auto.default_of(backends, platform)  # another thread may just have measured
            if backend not in traced:  # it was added after the trace
                backend = first
        if backend is None:
            raise BackendNotFoundError(
                f"{self}: no kernel for platform {platform!r}; there are kernels for {sorted(backends.kernels)}. "
                f"Register one with def_kernel(backend, {platform!r}, generator), or move the inputs elsewhere."
            )
        return dataclasses.replace(self, dispatch=dataclasses.replace(self.dispatch, backends=((platform, backend),)))

    def run(self, platform: str, *inputs: Any) -> list[Any]:
        """Compute the call by the kernel of its backend."""
        ((platform, backend),) = self.dispatch.backends
        with self.dispatch.settings.applied():
            chosen = ChosenKernel(self.primitive.backends, platform, backend, self.outs, self.dispatch.definition)
            mapped = map_levels(chosen.generate(dict(self.static.items)), self.dispatch.mapped)
            if self.has_side_effect:
                return list(mapped(*inputs))
            traced = jax.make_jaxpr(mapped)(*inputs)
            _refuse_side_effects(str(self), traced.effects)
            return list(jaxpr_as_fun(traced)(*inputs))


class OperatorPrimitive(CallPrimitive):
    """The primitive of an operator, with the parameters ``outs``, ``dispatch`` and ``static``.

    ``outs`` describes the results without batch dimensions.

    Args:
      backends: the operator's backends.
      has_side_effect: run the kernel even if its results are not used.
    """

    def __init__(self, backends: Backends, has_side_effect: bool) -> None:
        super().__init__(backends.name, splits=True)  # a kernel may have a sharding rule
        self.backends = backends
        self.has_side_effect = has_side_effect
        #: The rule that splits the operator's calls, or a function of the static keywords that returns it.
        self.sharding: Callable[..., str] | str | None = None
        #: The rules of the JAX primitive and the derivative that the author has set; see `Definition`.
        self.rules: dict[str, Callable[..., Any]] = {}
        self.derivative: Derivative | None = None
        #: Held while kernels, rules and derivatives change.
        self.lock = threading.RLock()
        self.renew()
        #: The jitted calls of the operator, by their static arguments.
        self.calls: dict[Any, Callable[..., Any]] = {}
        # Marks of the latest trace of a call, and of the latest when JAX's caches were last cleared. If they differ,
        # programs may contain a call. The same for calls for which "auto" found no measurement.
        self.latest_trace = self._cleared_trace = object()
        self.latest_guess = self._cleared_guess = object()
        self._is_interrupted = False  # True: the clearing after a definition is not complete

    def bind(
        self, /, *ins: Any, outs: Sequence[Any], dispatch: Dispatch | None = None, static: Any = None, **keywords: Any
    ) -> list[Any]:
        """Call the operator.

        A user's rule of the JAX primitive passes the static keywords as *keywords*; other callers pass them as
        *static*.
        """
        if not isinstance(static, Static):
            if static is not None:
                keywords["static"] = static  # the user's keyword of that name
            static = Static.of(self.name, keywords)
        structs = tuple(Struct(out.shape, out.dtype) for out in outs)
        self.latest_trace = object()
        if dispatch is None:
            requested = tuple(self.backends.requested(None).items())
            dispatch = Dispatch(requested, Settings.present(), self.definition)
        elif dispatch.definition.operator is not self:  # the choices of a call of another operator
            backends = tuple({**self.backends.defaults(), **dict(dispatch.backends)}.items())
            dispatch = dataclasses.replace(dispatch, backends=backends, definition=self.definition)
        results = super().bind(*vary_alike(ins), outs=structs, dispatch=dispatch, static=static)  # type: ignore[no-untyped-call]
        return list(results)

    def call_of(self, **params: Any) -> OperatorCall:
        """Return the call that has these parameters."""
        return OperatorCall(self, **params)

    # Rules of the primitive: those of the call's definition, if the author has set them. The settings of the call also
    # apply to the operators that the rules call.

    def batch(self, inputs: Sequence[Any], axes: Sequence[int | None], **params: Any) -> tuple[list[Any], list[int]]:
        """Map the call; the rule of ``jax.vmap``."""
        # The author's rule is for an unmapped call. A call mapped before the rule was set gets one more level.
        rule = super().batch if params["dispatch"].mapped else _rule(params, "batch", super().batch)
        with params["dispatch"].settings.resumed():
            results: tuple[list[Any], list[int]] = rule(inputs, axes, **params)
        return results

    def _jvp(self, *arguments: Any, **params: Any) -> Any:
        with params["dispatch"].settings.resumed():
            return _rule(params, "jvp", super()._jvp)(*arguments, **params)

    def _transpose(self, *arguments: Any, **params: Any) -> Any:
        with params["dispatch"].settings.resumed():
            return _rule(params, "transpose", super()._transpose)(*arguments, **params)

    def set_rule(self, name: str, rule: Callable[..., Any]) -> None:
        """Set a rule of `Definition.rules`, also in place of one that the author has put in JAX's own table."""
        self.rules[name] = rule
        tables: dict[str, tuple[Any, Callable[..., Any]]] = {
            "jvp": (ad.primitive_jvps, self._jvp),
            "transpose": (ad.primitive_transposes, self._transpose),
            "batch": (batching.primitive_batchers, self.batch),
        }
        table, own = tables[name]
        table[self] = own

    def define_anew(self, *, replaced: bool = True) -> None:
        """Use the present kernels and rules from now on.

        If a kernel, a rule or a default was *replaced*, and a program may contain a call of the operator, JAX traces
        and compiles all functions again.
        """
        self.renew()
        if not replaced and not self._is_interrupted:
            return
        self.calls.clear()
        self._jitted.cache_clear()
        latest = self.latest_trace  # another thread may trace a call at any time
        is_used = latest is not self._cleared_trace
        if is_used:
            self._is_interrupted = True
            clear_caches()
            self._cleared_trace = latest  # last: if the clearing is interrupted, the next definition repeats it
        self._is_interrupted = False
        if is_used and is_tracing():
            warn(_IN_A_TRACE.format(name=self.name))

    def renew(self) -> None:
        """Make a definition of the present kernels and rules."""
        with self.lock:  # a definition that is read later is stored later
            entries = [entry for kernels in self.backends.kernels.values() for entry in kernels.values()]
            generators = {(entry.platform, entry.backend): entry.kernel_generator for entry in entries}
            #: The present definition.
            self.definition = Definition(
                self, generators, self.sharding, dict(self.rules), self.derivative, self.has_side_effect
            )

    def reset(self, has_side_effect: bool, heir: OperatorPrimitive) -> None:
        """Forget all kernels, rules and derivatives: the operator of the primitive *heir* takes over the name."""
        with self.lock:
            self.sharding, self.rules, self.derivative = None, {}, None
            self.register_rules()
            self.has_side_effect = has_side_effect
        self.backends.reset(heir.backends)

    def measured(self) -> None:
        """Make JAX trace all functions again if a program has a backend that ``"auto"`` took without a measurement."""
        latest = self.latest_guess
        if latest is not self._cleared_guess:
            clear_caches()
            self._cleared_guess = latest


def _rule(params: Mapping[str, Any], name: str, default: Callable[..., Any]) -> Callable[..., Any]:
    """Return the rule *name* of the definition of the call that has these parameters."""
    rules: Mapping[str, Callable[..., Any]] = params["dispatch"].definition.rules
    return rules.get(name, default)


def _refuse_side_effects(operator: str, effects: Iterable[Any]) -> None:
    owner = next((effect.owner for effect in effects if isinstance(effect, NativeCallEffect)), None)
    if owner is not None:
        raise GeneratorError(
            f"{operator}: its kernel {owner} has has_side_effect=True, but the operator does not, so JAX might drop, "
            f"merge or repeat its calls. Create the operator with XLACustomKernel({operator!r}, has_side_effect=True)."
        )
