"""The JAX primitive of an operator: its abstract evaluation, and its lowering to the chosen kernel."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax.extend.core import Primitive, jaxpr_as_fun
from jax.interpreters import mlir
from jax.sharding import AxisType

from . import auto
from ._compat import NativeCallEffect, jit_alone, require_devices, result_aval, vary_alike
from .config import AUTO, debug_mode, is_debugging
from .errors import BackendNotFoundError, GeneratorError, ResultError, StaticArgumentError, XLAKernelError
from .sharding import ShardingRule, may_split, partitioned
from .specs import Mapped, Struct, counted
from .transforms.multilinear import map_levels

if TYPE_CHECKING:
    from .kernel import XLACustomKernel

# JAX's name of a platform → ours.
_PLATFORMS = {"cpu": "cpu", "cuda": "gpu", "rocm": "gpu", "tpu": "tpu"}


@dataclasses.dataclass(frozen=True)
class Dispatch:
    """How to run a call: the parameter ``dispatch`` of an operator's primitive.

    Attributes:
      backends: (platform, backend) pairs, as they were asked for where the call was traced. For other platforms it is
        the first backend registered when the call is lowered. ``"auto"`` is replaced then, too (`auto`).
      debug: whether to check what the kernel does (`config.debug_mode`), as it was where the call was traced; None: as
        it is where the call is lowered.
      mapped: the levels of ``jax.vmap`` around the kernel, innermost first.
    """

    backends: tuple[tuple[str, str], ...] = ()
    debug: bool | None = None
    mapped: tuple[Mapped, ...] = ()

    def batched(self, axes: Sequence[int | None], size: Any) -> Dispatch:
        """Return the same under one more ``jax.vmap``."""
        return dataclasses.replace(self, mapped=(*self.mapped, Mapped(tuple(axes), size)))

    def unbatched(self) -> Dispatch:
        """Return the same without the outermost ``jax.vmap``."""
        return dataclasses.replace(self, mapped=self.mapped[:-1])

    @property
    def batch(self) -> tuple[Any, ...]:
        """The leading dimensions that the results have, outermost first."""
        return tuple(level.size for level in reversed(self.mapped))


@dataclasses.dataclass(frozen=True)
class Static:
    """The static keywords of a call: the parameter ``static`` of an operator's primitive.

    JAX compares parameters by ``==``, for which 1, 1.0 and True are equal, and so are 0.0 and -0.0. *kinds* tells them
    apart.
    """

    items: tuple[tuple[str, Any], ...]
    kinds: Hashable

    @classmethod
    def of(cls, operator: str, keywords: Mapping[str, Any]) -> Static:
        """Check the keywords of a call of *operator*.

        Raises:
          StaticArgumentError: if one is traced or cannot be hashed.
        """
        for name, value in keywords.items():
            _check_static(operator, name, value)
        items = tuple(sorted(keywords.items()))
        return cls(items, tuple(kinds(value) for _, value in items))


def _check_static(operator: str, name: str, value: Any) -> None:
    if name == "dispatch":
        raise StaticArgumentError(f"{operator}: the keyword 'dispatch' is the primitive's own; use another name.")
    if _is_plain(value):
        return
    if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(value)):
        raise StaticArgumentError(
            f"{operator}: the static keyword {name!r} is traced ({value}), but kernels are generated from its "
            f"value. Name it in jax.jit(..., static_argnames={name!r}), or pass it as an input array."
        )
    try:
        hash(value)
    except TypeError as error:
        raise StaticArgumentError(
            f"{operator}: the static keyword {name!r} is {value!r} of the unhashable type {type(value).__name__}; "
            "pass a tuple instead of a list, and an array as an input."
        ) from error


_PLAIN = frozenset({bool, int, str, type(None)})


def _is_plain(value: Any) -> bool:
    """Return True for most keywords: numbers, texts and tuples of them are neither traced nor unhashable."""
    return type(value) in _PLAIN or (type(value) is tuple and _PLAIN.issuperset(map(type, value)))


def kinds(value: Any) -> Any:
    """Return what tells *value* from others that are equal to it."""
    if type(value) in _PLAIN:
        return type(value)
    if isinstance(value, (tuple, frozenset)):
        return type(value), tuple(map(kinds, value))
    if isinstance(value, (float, complex, np.inexact)):
        return type(value), repr(value)
    if dataclasses.is_dataclass(value):
        return type(value), tuple(kinds(getattr(value, field.name)) for field in dataclasses.fields(value))
    return type(value)


#: A call as a rule makes it that knows nothing of dispatching.
DIRECT = Dispatch()


class OperatorPrimitive(Primitive):
    """The primitive of an operator, with the parameters ``outs``, ``dispatch`` and ``static``.

    ``outs`` describes the results without batch dimensions.
    """

    multiple_results = True
    #: How often what was compiled was forgotten, of all operators: a rule may pass a call on to another one.
    generation = 0

    def __init__(self, op: XLACustomKernel) -> None:
        super().__init__(op.name)
        self.def_impl(self._run_alone)  # type: ignore[no-untyped-call]  # JAX has no types there
        self._effects = {NativeCallEffect(op.name)} if op.has_side_effect else set()
        self._rule = op.sharding_rule
        self.def_effectful_abstract_eval(self._abstract_eval)  # type: ignore[no-untyped-call]
        require_devices(self)  # its kernel may be split, which JAX does not see
        self._jitted = functools.lru_cache(maxsize=1024)(self._make_jitted)
        for jax_name, platform in _PLATFORMS.items():
            mlir.register_lowering(self, _lowering_rule(op, platform), platform=jax_name)

    def bind(
        self, /, *ins: Any, outs: Sequence[Any], dispatch: Dispatch = DIRECT, static: Any = None, **keywords: Any
    ) -> list[Any]:
        """Call the operator; rules give its static keywords one by one, as they are given to rules."""
        if not isinstance(static, Static):
            if static is not None:
                keywords["static"] = static  # a keyword of the user's, of that name
            static = Static.of(self.name, keywords)
        structs = tuple(Struct(out.shape, out.dtype) for out in outs)
        results = super().bind(*vary_alike(ins), outs=structs, dispatch=dispatch, static=static)  # type: ignore[no-untyped-call]
        return list(results)

    def rule_of(self, params: Mapping[str, Any]) -> ShardingRule | None:
        """Return the sharding rule of a call with these parameters, batch dimensions included; None if it has none."""
        rule = self._rule(dict(params["static"].items))
        return None if rule is None else rule.under(params["dispatch"].mapped)

    def forget(self) -> None:
        """Compile anew what was compiled for calls outside of any program."""
        self._jitted.cache_clear()
        OperatorPrimitive.generation += 1

    def _abstract_eval(self, *ins: Any, outs: tuple[Struct, ...], dispatch: Dispatch, static: Static) -> Any:
        rule = self.rule_of({"static": static, "dispatch": dispatch})
        specs = [None] * len(outs) if rule is None else rule.result_specs(ins)
        shapes = [(*dispatch.batch, *out.shape) for out in outs]
        avals = [result_aval(s, out.dtype, ins, spec) for s, out, spec in zip(shapes, outs, specs, strict=True)]
        return avals, self._effects

    def _run_alone(self, *ins: Any, outs: tuple[Struct, ...], dispatch: Dispatch, static: Static) -> list[Any]:
        with jax.disable_jit(False):  # one primitive is compiled also where the user asks for no jit
            return self._jitted(outs, dispatch, static)(*ins)

    def _make_jitted(self, outs: tuple[Struct, ...], dispatch: Dispatch, static: Static) -> Callable[..., list[Any]]:
        return jit_alone(functools.partial(self.bind, outs=outs, dispatch=dispatch, static=static), self.name)


def _lowering_rule(op: XLACustomKernel, platform: str) -> Callable[..., Any]:
    def rule(context: Any, *operands: Any, outs: tuple[Struct, ...], dispatch: Dispatch, static: Static) -> Any:
        backend = dict(dispatch.backends).get(platform) or op.first_backend(platform)
        if backend == AUTO:
            backend = auto.backend_of_lowering(op, platform, context.avals_in, outs, static, dispatch.mapped)
        if backend is None:
            raise BackendNotFoundError(
                f"{op.name}: no kernel for platform {platform!r}; there are kernels for {sorted(op._kernels)}. "
                f"Register one with def_kernel(backend, {platform!r}, generator), or move the inputs elsewhere."
            )

        def run(outs: Sequence[Struct], levels: Sequence[Mapped], *ins: Any) -> list[Any]:
            debug = is_debugging() if dispatch.debug is None else dispatch.debug
            with debug_mode(debug):
                kernel: Callable[..., Any] = _Checked(op, platform, backend, list(outs)).generate(dict(static.items))
                mapped = map_levels(kernel, levels)
                if op.has_side_effect:
                    return list(mapped(*ins))
                traced = jax.make_jaxpr(mapped)(*ins)
            _refuse_side_effects(op.name, traced.effects)
            return list(jaxpr_as_fun(traced)(*ins))

        split = op.sharding_rule(dict(static.items))
        # Inside `jax.shard_map` each device makes a call of its own.
        meshes = [aval.sharding.mesh for aval in (*context.avals_in, *context.avals_out)]
        by_hand = any(AxisType.Manual in mesh.axis_types for mesh in meshes)
        if split is None or by_hand or not may_split():
            whole: Callable[..., Any] = functools.partial(run, outs, dispatch.mapped)
        else:
            whole = _partitioned(split, run, outs, dispatch.mapped)
        return mlir.lower_fun(whole, multiple_results=True)(context, *operands)

    return rule


def _refuse_side_effects(operator: str, effects: Iterable[Any]) -> None:
    owner = next((effect.owner for effect in effects if isinstance(effect, NativeCallEffect)), None)
    if owner is not None:
        raise GeneratorError(
            f"{operator}: its kernel {owner} has has_side_effect=True and the operator has not, so that JAX would "
            f"drop, merge or repeat its calls. Make it with XLACustomKernel({operator!r}, has_side_effect=True)."
        )


def _partitioned(
    rule: ShardingRule,
    run: Callable[..., list[Any]],
    outs: Sequence[Struct],
    levels: Sequence[Mapped],
) -> Callable[..., Any]:
    """Return a call under ``jax.vmap`` as a function that XLA splits by *rule*."""
    batch = tuple(level.size for level in reversed(levels))

    def part(outs: Sequence[Struct], *ins: Any) -> list[Any]:
        sizes = outs[0].shape[: len(levels)]
        local = [dataclasses.replace(level, size=n) for level, n in zip(levels, reversed(sizes), strict=True)]
        return run([Struct(out.shape[len(levels) :], out.dtype) for out in outs], local, *ins)

    return partitioned(rule.under(levels), part, [Struct((*batch, *out.shape), out.dtype) for out in outs])


# By the module and the name of the kernel's class, which is not imported for that.
_WRAPPERS = {
    ("numba.core.registry", "CPUDispatcher"): "xlakernel.numba.numba_kernel",
    ("numba.cuda.dispatcher", "CUDADispatcher"): "xlakernel.cuda.numba_cuda_kernel",
    ("warp._src.context", "Kernel"): "xlakernel.warp.warp_kernel",
}


@dataclasses.dataclass(frozen=True)
class _Checked:
    """A chosen kernel, whose failures say whose they are and what else there is."""

    op: XLACustomKernel
    platform: str
    backend: str
    outs: list[Struct]

    def generate(self, static: Mapping[str, Any]) -> Callable[..., list[Any]]:
        """Return the kernel as a function that returns a list of results as ``outs`` describes them."""
        generator = self.op.entry(self.platform, self.backend).kernel_generator
        kernel = self._guard(f"the generator of {self}", generator, outs=list(self.outs), **static)
        if not callable(kernel):
            raise GeneratorError(
                f"{self.op.name}: the generator of {self} returned {kernel!r}; expected a function of the inputs."
            )
        if (wrapper := _wrapper_of(kernel)) is not None:
            raise GeneratorError(
                f"{self.op.name}: the generator of {self} returned {kernel!r}, which takes arrays of its own library, "
                f"outputs among them; expected a function of the inputs. {wrapper} makes one."
            )

        def run(*ins: Any) -> list[Any]:
            results = self._guard(str(self), kernel, *ins)
            flat = list(results) if isinstance(results, (tuple, list)) else [results]
            self._check(flat)
            return flat

        return run

    def __str__(self) -> str:
        return f"the {self.backend!r} kernel for {self.platform!r}"

    def _guard(self, who: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except XLAKernelError:
            raise  # says what is wrong already
        except Exception as error:
            others = [name for name in self.op.available_backends(self.platform) if name != self.backend]
            raise GeneratorError(
                f"{self.op.name}: {who} failed with {type(error).__name__}: {error}. "
                + (f"Other backends for {self.platform!r}: {others}." if others else "There is no other backend.")
            ) from error

    def _check(self, results: list[Any]) -> None:
        unordered = any(isinstance(result, Mapping) for result in results)
        hint = " A dictionary has no order: return its values, in the order of outs." * unordered
        if len(results) != len(self.outs):
            raise ResultError(
                f"{self.op.name}: {self} returned {counted(len(results), 'result')}; outs describes {len(self.outs)}."
                f"{hint}"
            )
        for i, (result, out) in enumerate(zip(results, self.outs, strict=True)):
            found = (getattr(result, "shape", None), getattr(result, "dtype", None))
            if found != (out.shape, out.dtype):
                raise ResultError(
                    f"{self.op.name}: result {i} of {self} is {_text(*found) if found[1] else repr(result)}; "
                    f"outs[{i}] is {_text(out.shape, out.dtype)}. The kernel must return what outs describes.{hint}"
                )


def _wrapper_of(kernel: Any) -> str | None:
    """Return what makes a JAX function of a compiled kernel, by the library that compiled it; None: it is none."""
    bases = ((base.__module__, base.__qualname__) for base in type(kernel).__mro__)
    return next((_WRAPPERS[base] for base in bases if base in _WRAPPERS), None)


def _text(shape: Any, dtype: Any) -> str:
    return f"{dtype}[{','.join(map(str, shape))}]"
