"""What a backend's wrapper returns: a kernel as a function of JAX arrays."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from ._compat import vary_alike
from .call import VMAP_METHODS, Kernel, NativeCall, native_call
from .config import is_debugging
from .errors import AliasError, ArgumentError, ArityError, ShardingRuleError, StaticArgumentError, VmapMethodError
from .kernel_object import KernelFunction
from .sharding import ShardingRule
from .specs import Struct, check_enabled, check_inputs, check_plain, flatten_outs
from .transforms.declaration import Derivative, Transpose, declare
from .transforms.derivative import Differentiable

# What XLA passes as a scalar attribute.
_SCALARS = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32", "float64")

_Attributes = tuple[tuple[str, str, bytes], ...]


def kernel_function(
    kernel: Kernel,
    parameters: Mapping[str, Any],
    outs: Any,
    *,
    vmap_method: str | None,
    input_output_aliases: Mapping[int, int] | None,
    has_side_effect: bool,
    reference: Callable[..., Any] | None = None,
    jvp: Callable[..., Any] | None = None,
    vjp: Callable[..., Any] | None = None,
    transpose: Transpose | None = None,
    sharding_rule: str | None = None,
) -> Callable[..., Any]:
    """Return *kernel* as a function of JAX arrays; backends build their wrappers on this.

    Args:
      kernel: what to run.
      parameters: the kernel's parameters, inputs, then outputs, with static scalars anywhere: their names and the
        defaults of static scalars, `inspect.Parameter.empty` for those that have none.
      outs: structs, a pytree of them, or a function of the inputs' structs that returns either.
      vmap_method: see `call.VMAP_METHODS`.
      input_output_aliases: input → output that takes its memory.
      has_side_effect: whether to run the kernel even if nobody uses its results.
      reference: a plain JAX function of the inputs that computes the same; derivatives are taken from it.
      jvp: ``jvp(primals, tangents, **static)``, the tangents of the results.
      vjp: ``vjp(primals, results, cotangents, **static)``, the cotangents of the inputs.
      transpose: {input: ``transpose(inputs, cotangents, **static)``} for inputs that the kernel is linear in.
      sharding_rule: how to split a call over devices, such as ``"i j, j -> i"``; see `sharding`.

    Returns:
      A `KernelFunction`. It traces into JAX like a function of `jax.numpy`, and outside any transformation it runs
      through a `jax.jit` of its own, so that a second call with the same shapes costs what a jitted call costs.
    """
    made_of = dict(locals())
    wrapped = _Wrapped(
        kernel,
        tuple(parameters),
        tuple(
            (name, *_freeze_scalar(kernel.name, name, default))
            for name, default in sorted(parameters.items())
            if default is not inspect.Parameter.empty
        ),
        outs if callable(outs) and not hasattr(outs, "dtype") else flatten_outs(outs, kernel.name),
        _check_vmap_method(kernel.name, vmap_method),
        _check_aliases(kernel.name, input_output_aliases),
        _check_flag(kernel.name, "has_side_effect", has_side_effect),
        declare(kernel.name, reference=reference, jvp=jvp, vjp=vjp, transpose=transpose),
        _check_rule(kernel.name, sharding_rule, has_side_effect),
    )
    with_static = jax.jit(wrapped.trace, static_argnums=0)
    without_static = jax.jit(_named(lambda *inputs: wrapped.trace((), *inputs), kernel.name))

    # Not an object with a `__call__` of Python's: calling that costs as much as a tenth of the jitted call.
    def call(*inputs: Any, **static: Any) -> Any:
        try:
            if static:
                return with_static(wrapped.freeze(static), *inputs)
            return without_static(*inputs)
        except (TypeError, ValueError):  # JAX's own message names neither the kernel nor what to do
            check_inputs(inputs, kernel.name)
            raise

    call.__doc__ = f"Run the kernel {kernel.name}({', '.join(parameters)}); inputs by position, static scalars by name."
    return KernelFunction.of(_named(call, kernel.name), kernel_function, made_of, parameters)


@dataclasses.dataclass(frozen=True)
class _Wrapped:
    """A kernel with what its user said about it, checked."""

    kernel: Kernel
    parameters: tuple[str, ...]
    defaults: _Attributes
    outs: Any  # (structs, tree), or the user's function
    vmap_method: str | None
    aliases: tuple[tuple[int, int], ...]
    has_side_effect: bool
    derivative: Derivative | None
    sharding_rule: ShardingRule | None

    @property
    def name(self) -> str:
        return self.kernel.name

    def freeze(self, static: Mapping[str, Any]) -> _Attributes:
        for name in static:
            if name not in self.parameters:
                hint = " A generator of an operator is a function of outs that returns this one." * (name == "outs")
                raise ArityError(
                    f"{self.name}: no parameter {name!r}; the kernel has ({', '.join(self.parameters)}). "
                    f"Arrays are passed by position, and only static scalars by keyword.{hint}"
                )
        return tuple((name, *_freeze_scalar(self.name, name, static[name])) for name in sorted(static))

    def trace(self, attributes: _Attributes, *inputs: Any) -> Any:
        check_inputs(inputs, self.name)
        inputs = tuple(jax.numpy.asarray(x) for x in inputs)
        structs = [check_plain(x, f"{self.name}: input {i}") for i, x in enumerate(inputs)]
        flat, tree = self._resolve_outs(structs)
        check_enabled(flat, self.name)
        attributes = self._with_defaults(attributes, len(inputs) + len(flat))
        self._check_arity(len(inputs), len(flat), [name for name, *_ in attributes])
        _check_alias_types(self.name, self.aliases, structs, flat)
        if self.sharding_rule is not None:
            self.sharding_rule.check(self.name, structs, flat)
            _check_alias_sums(self.name, self.aliases, self.sharding_rule)
        call = NativeCall(
            self.kernel,
            flat,
            attributes=attributes,
            aliases=self.aliases,
            vmap_method=self.vmap_method,
            has_side_effect=self.has_side_effect,
            sharding_rule=self.sharding_rule,
            debug=is_debugging(),
        )
        return jax.tree.unflatten(tree, self._differentiable(call, tree)(*vary_alike(inputs)))

    def _differentiable(self, call: NativeCall, tree: Any) -> Callable[..., list[Any]]:
        def run(*inputs: Any) -> list[Any]:
            return native_call(call, inputs)

        if self.derivative is None:
            return run
        static = {name: _plain(value) for name, value in call.static_values().items()}
        return Differentiable(self.derivative, run, call.outs, tree, static, call.has_side_effect).function()

    def _resolve_outs(self, inputs: list[Struct]) -> tuple[tuple[Struct, ...], Any]:
        if not callable(self.outs):
            structs, tree = self.outs
            return structs, tree
        try:
            inspect.signature(self.outs).bind(*inputs)
        except TypeError as error:
            raise ArityError(
                f"{self.name}: outs is a function, called with the {len(inputs)} inputs' shape/dtype structs: {error}. "
                f"The kernel is {self.name}({', '.join(self.parameters)}); static scalars are passed by keyword."
            ) from error
        except ValueError:  # a builtin without a signature
            pass
        try:
            found = self.outs(*inputs)
        except (AttributeError, TypeError) as error:
            error.add_note(
                f"{self.name}: outs is called with jax.ShapeDtypeStruct objects, which have a shape and a dtype and no "
                "elements. Have it return such ones: jax.ShapeDtypeStruct(shape, dtype)."
            )
            raise
        return flatten_outs(found, self.name)

    def _with_defaults(self, attributes: _Attributes, buffers: int) -> _Attributes:
        """Add the defaults of static scalars that were not given, unless arrays fill their parameters."""
        if buffers + len(attributes) >= len(self.parameters):
            return attributes
        return tuple(
            sorted({**{default[0]: default for default in self.defaults}, **{a[0]: a for a in attributes}}.values())
        )

    def _check_arity(self, inputs: int, outs: int, static: list[str]) -> None:
        if inputs + outs + len(static) != len(self.parameters):
            raise ArityError(
                f"{self.name}: the kernel has {len(self.parameters)} parameters "
                f"({', '.join(self.parameters)}); the call fills {inputs + outs + len(static)}: {inputs} inputs, "
                f"{outs} outputs and {len(static)} static scalars {static}. A kernel takes its inputs first, then its "
                "outputs; static scalars are passed by keyword, under the name of their parameter."
                f"{self.kernel.arity_advice}"
            )


def _plain(value: np.generic) -> Any:
    """Return a number as the user most likely gave it: Python's own do not widen the arrays that they meet."""
    return value.item() if value.dtype in (np.bool_, np.int64, np.float64) else value


def _named(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    function.__name__ = function.__qualname__ = name
    return function


def _check_vmap_method(kernel: str, method: str | None) -> str | None:
    if method is not None and method not in VMAP_METHODS:
        raise VmapMethodError(f"{kernel}: unknown vmap_method {method!r}; allowed: {VMAP_METHODS} or None.")
    return method


def _check_flag(kernel: str, name: str, value: bool) -> bool:
    if not isinstance(value, bool):
        raise ArgumentError(f"{kernel}: {name} is {value!r}; allowed: True or False.")
    return value


def _check_rule(kernel: str, rule: str | None, has_side_effect: bool) -> ShardingRule | None:
    if rule is None:
        return None
    if has_side_effect:
        raise ShardingRuleError(
            f"{kernel}: sharding_rule and has_side_effect=True exclude each other: XLA may drop or repeat a call that "
            "it splits. Call the kernel inside jax.shard_map instead."
        )
    return ShardingRule.parse(rule, kernel)


def _freeze_scalar(kernel: str, name: str, value: Any) -> tuple[str, bytes]:
    """Return a static scalar as its dtype and bytes."""
    # What is remembered is found by == and type, which does not tell the zeros apart.
    if isinstance(value, (bool, int, float)) and value != 0:
        return _freeze_remembered(kernel, name, value)
    return _freeze_anew(kernel, name, value)


def _freeze_anew(kernel: str, name: str, value: Any) -> tuple[str, bytes]:
    if isinstance(value, jax.core.Tracer):
        raise StaticArgumentError(
            f"{kernel}: the static scalar {name!r} is traced ({value}); it must be a number while tracing. Name it in "
            f"jax.jit(..., static_argnames={name!r}), or pass it by position, as a 0-d array, to a "
            "parameter that is an array, and read its one element."
        )
    if isinstance(value, (bool, int, float, np.generic)):
        scalar = np.asarray(value)
        # JAX writes an integer attribute as a signed one of 64 bits.
        if scalar.dtype.name in _SCALARS and not (scalar.dtype.kind == "u" and scalar > np.iinfo(np.int64).max):
            return scalar.dtype.name, scalar.tobytes()
    raise StaticArgumentError(
        f"{kernel}: the static scalar {name!r} is {value!r} of type {type(value).__name__}; allowed: bool, int (below "
        f"2**63), float, or a NumPy scalar of the dtypes {', '.join(_SCALARS)}. Pass anything else by position, as an "
        "array."
    )


_freeze_remembered = functools.lru_cache(maxsize=4096, typed=True)(_freeze_anew)


def _check_aliases(kernel: str, aliases: Mapping[int, int] | None) -> tuple[tuple[int, int], ...]:
    if aliases is None:
        return ()
    pairs = list(aliases.items()) if isinstance(aliases, Mapping) else [(aliases, None)]
    for pair in pairs:
        if not all(isinstance(index, (int, np.integer)) and index >= 0 for index in pair):
            raise AliasError(
                f"{kernel}: input_output_aliases is {aliases!r}; expected {{input: output, ...}}, indices from 0."
            )
    if len({output for _, output in pairs}) != len(pairs):
        raise AliasError(f"{kernel}: input_output_aliases {dict(pairs)} gives two inputs the memory of one output.")
    return tuple(sorted((int(i), int(o)) for i, o in pairs))


def _check_alias_types(
    kernel: str, aliases: Sequence[tuple[int, int]], inputs: Sequence[Struct], outs: Sequence[Struct]
) -> None:
    for i, o in aliases:
        for kind, index, known in (("input", i, inputs), ("output", o, outs)):
            if index >= len(known):
                raise AliasError(
                    f"{kernel}: input_output_aliases has {i}: {o}, but there is no {kind} {index}; "
                    f"the call has {len(known)} {kind}s, counted from 0."
                )
        if inputs[i].shape != outs[o].shape or inputs[i].dtype != outs[o].dtype:
            raise AliasError(
                f"{kernel}: input_output_aliases has {i}: {o}, but input {i} is {_text(inputs[i])} and output {o} is "
                f"{_text(outs[o])}; only arrays of one shape and dtype can share memory."
            )


def _check_alias_sums(kernel: str, aliases: Sequence[tuple[int, int]], rule: ShardingRule) -> None:
    for i, o in aliases:
        if rule.summed[o]:
            raise ShardingRuleError(
                f"{kernel}: sharding_rule {str(rule)!r} sums output {o} over {sorted(map(str, rule.summed[o]))}, and "
                f"input_output_aliases lets it begin with input {i}, which would be added once for each device. Write "
                "the factor in brackets, or return the sum in an output of its own."
            )


def _text(struct: Struct) -> str:
    return f"{struct.dtype.name}[{','.join(map(str, struct.shape))}]"
