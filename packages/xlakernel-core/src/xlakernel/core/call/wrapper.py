"""What a backend's wrapper returns: a kernel as a function of JAX arrays."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from .._compat import vary_alike
from ..config import is_debugging
from ..errors import AliasError, ArgumentError, ArityError, ShardingRuleError, StaticArgumentError, VmapMethodError
from ..specs import (
    Struct,
    check_enabled,
    check_has_effect,
    check_inputs,
    check_plain,
    counted,
    flatten_outs,
    is_function,
    of_structs,
    order_of,
)
from .checks import names
from .declaration import Derivative, Transpose, declare
from .derivative import Differentiable
from .kernel_function import KernelFunction
from .native import VMAP_METHODS, Kernel, NativeCall, native_call
from .sharding import ShardingRule

# What XLA passes as a scalar attribute.
_SCALARS = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32", "float64")

_Attributes = tuple[tuple[str, str, bytes], ...]
#: ``check(inputs, outs, tree)``: raise what is wrong with a call of these inputs and outputs, which are in the kernel's
#: order, and with the tree of ``outs``.
_Check = Callable[[Sequence[Struct], Sequence[Struct], Any], None]


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
    check: _Check | None = None,
) -> Callable[..., Any]:
    """Return *kernel* as a function of JAX arrays; backends build their wrappers on this.

    Args:
      kernel: what to run.
      parameters: the kernel's parameters, inputs, then outputs, with static scalars anywhere: their names and the
        defaults of static scalars, `inspect.Parameter.empty` for those that have none.
      outs: structs, a pytree of them, or a function of the inputs' structs that returns either. A dictionary is bound
        by the names of the outputs' parameters (`specs.order_of`).
      vmap_method: see `call.VMAP_METHODS`.
      input_output_aliases: input → output that takes its memory.
      has_side_effect: whether to run the kernel even if nobody uses its results.
      reference: a plain JAX function of the inputs that computes the same; derivatives are taken from it.
      jvp: ``jvp(primals, tangents, **static)``, the tangents of the results.
      vjp: ``vjp(primals, results, cotangents, **static)``, the cotangents of the inputs.
      transpose: {input: ``transpose(inputs, cotangents, **static)``} for inputs that the kernel is linear in.
      sharding_rule: how to split a call over devices, such as ``"i j, j -> i"``; see `sharding`.
      check: checks what the backend knows of a call, when it is traced.

    Returns:
      A `KernelFunction`. It traces into JAX like a function of `jax.numpy`, and outside any transformation it runs
      through a `jax.jit` of its own, so that a second call with the same shapes costs what a jitted call costs.
    """
    made_of = dict(locals())
    wrapped = _Wrapped(
        kernel,
        tuple(parameters),
        tuple(
            (name, *_freeze_scalar(kernel, name, default))
            for name, default in sorted(parameters.items())
            if default is not inspect.Parameter.empty
        ),
        outs if is_function(outs) else flatten_outs(outs, kernel.name),
        _check_vmap_method(kernel.name, vmap_method),
        _check_aliases(kernel.name, input_output_aliases),
        _check_flag(kernel.name, "has_side_effect", has_side_effect),
        declare(kernel.name, reference=reference, jvp=jvp, vjp=vjp, transpose=transpose),
        _check_rule(kernel.name, sharding_rule, has_side_effect),
        check,
    )
    if not is_function(outs):
        check_has_effect(wrapped.outs[0], has_side_effect, kernel.name)
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
    check: _Check | None

    @property
    def name(self) -> str:
        return self.kernel.name

    def freeze(self, static: Mapping[str, Any]) -> _Attributes:
        """Return static scalars by their bytes, sorted by name."""
        for name in static:
            if name not in self.parameters:
                hint = " A generator of an operator is a function of outs that returns this one." * (name == "outs")
                raise ArityError(
                    f"{self.name}: no parameter {name!r}; the kernel has ({', '.join(self.parameters)}). "
                    f"Arrays are passed by position, and only static scalars by keyword.{hint}"
                )
            if self.kernel.scalars is not None and name not in self.kernel.scalars:
                raise ArityError(
                    f"{self.name}: {name!r} is an array and is passed by keyword: inputs are passed by position, in "
                    "the order of the kernel's parameters, and outputs are not passed."
                )
        return tuple(sorted((name, *_freeze_scalar(self.kernel, name, value)) for name, value in static.items()))

    def trace(self, attributes: _Attributes, *inputs: Any) -> Any:
        check_inputs(inputs, self.name)
        inputs = tuple(jax.numpy.asarray(x) for x in inputs)
        structs = [check_plain(x, f"{self.name}: input {i}") for i, x in enumerate(inputs)]
        outs, tree = self._resolve_outs(structs)
        check_enabled(outs, self.name)
        check_has_effect(outs, self.has_side_effect, self.name)
        attributes = self._with_defaults(attributes, len(inputs) + len(outs))
        given = [name for name, *_ in attributes]
        self._check_arity(len(inputs), len(outs), given)
        arrays = [name for name in self.parameters if name not in given]
        order = order_of(tree, arrays[len(inputs) :], self.name)
        outs = tuple(outs[order.index(i)] for i in range(len(outs)))  # as the kernel has them
        if self.check is not None:
            self.check(structs, outs, tree)
        _check_alias_types(self.name, self.aliases, structs, outs)
        if self.sharding_rule is not None:
            self.sharding_rule.check(self.name, structs, outs)
            _check_alias_sums(self.name, self.aliases, self.sharding_rule)
        call = NativeCall(
            self.kernel,
            outs,
            attributes=attributes,
            aliases=self.aliases,
            vmap_method=self.vmap_method,
            has_side_effect=self.has_side_effect,
            sharding_rule=self.sharding_rule,
            debug=is_debugging(),
        )
        return jax.tree.unflatten(tree, self._differentiable(call, tree, order)(*vary_alike(inputs)))

    def _differentiable(self, call: NativeCall, tree: Any, order: Sequence[int]) -> Callable[..., list[Any]]:
        """Return the call as a function that returns the results in the order of the tree's leaves."""

        def run(*inputs: Any) -> list[Any]:
            results = native_call(call, inputs)
            return [results[i] for i in order]

        if self.derivative is None:
            return run
        static = {name: _plain(value) for name, value in call.static_values().items()}
        outs = tuple(call.outs[i] for i in order)
        return Differentiable(self.derivative, run, outs, tree, static, call.has_side_effect).function()

    def _resolve_outs(self, inputs: list[Struct]) -> tuple[tuple[Struct, ...], Any]:
        if not callable(self.outs):
            structs, tree = self.outs
            return structs, tree
        return flatten_outs(of_structs(self.name, "outs", self.outs, inputs, parameters=self.parameters), self.name)

    def _with_defaults(self, attributes: _Attributes, buffers: int) -> _Attributes:
        """Add the defaults of static scalars that were not given, unless arrays fill their parameters."""
        if buffers + len(attributes) >= len(self.parameters):
            return attributes
        return tuple(
            sorted({**{default[0]: default for default in self.defaults}, **{a[0]: a for a in attributes}}.values())
        )

    def _check_arity(self, inputs: int, outs: int, static: list[str]) -> None:
        arrays = [name for name in self.parameters if name not in (self.kernel.scalars or static)]
        missing = [name for name in self.kernel.scalars or () if name not in static]
        if inputs + outs == len(arrays) and not missing:
            return
        if inputs + outs < len(arrays) or missing:
            said = self._missing(inputs, outs, missing, arrays)
        else:
            said = f"Too many: it has {counted(len(arrays), 'parameter')} for arrays ({', '.join(arrays)})"
        raise ArityError(
            f"{self.name}: the kernel has {counted(len(self.parameters), 'parameter')} "
            f"({', '.join(self.parameters)}); the call gives {counted(inputs, 'input')} by position and the static "
            f"scalars {static} by keyword, and outs describes {counted(outs, 'output')}. {said}. A kernel takes its "
            "inputs first, then its outputs; static scalars stand anywhere, and are passed by keyword."
            f"{self.kernel.arity_advice}"
        )

    def _missing(self, inputs: int, outs: int, scalars: list[str], arrays: list[str]) -> str:
        """Say which parameters are not filled, as far as that can be known."""
        if scalars:
            return f"Missing: {', '.join(f'{name}=...' for name in scalars)}"
        if self.kernel.scalars is not None:
            return f"Missing: {', '.join(arrays[inputs : len(arrays) - outs] or arrays[-outs:])}"
        count, candidates = len(arrays) - inputs - outs, arrays
        if is_function(self.outs):  # the names that it has for inputs are no scalars, and what precedes one no output
            named = [name for name in arrays if names(self.outs, name)]
            candidates = [name for name in arrays if name not in named] or arrays
            early = [name for name in candidates if named and arrays.index(name) < arrays.index(named[-1])]
            candidates = early if len(early) == count else candidates
        few = f"{count} of " * (count < len(candidates))
        return f"Missing: {few}{', '.join(candidates)} (a static scalar as {candidates[-1]}=..., an array by position)"


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


def _freeze_scalar(kernel: Kernel, name: str, value: Any) -> tuple[str, bytes]:
    """Return a static scalar as its dtype and bytes."""
    value = kernel.number(name, value)
    # What is remembered is found by == and type, which does not tell the zeros apart.
    if isinstance(value, (bool, int, float)) and value != 0:
        return _freeze_remembered(kernel.name, kernel.integer_bits, name, value)
    return _freeze_anew(kernel.name, kernel.integer_bits, name, value)


def _freeze_anew(kernel: str, integer_bits: int, name: str, value: Any) -> tuple[str, bytes]:
    if isinstance(value, (jax.Array, np.ndarray)) and value.shape:
        raise StaticArgumentError(
            f"{kernel}: {name!r} is an array, {value.dtype}{list(value.shape)}, and is passed by keyword: inputs are "
            "passed by position, in the order of the kernel's parameters, and outputs are not passed. Only static "
            "scalars are passed by keyword."
        )
    if isinstance(value, jax.core.Tracer):
        raise StaticArgumentError(
            f"{kernel}: the static scalar {name!r} is traced ({value}); it must be a number while tracing. Name it in "
            f"jax.jit(..., static_argnames={name!r}), or pass it by position, as a 0-d array, to a "
            "parameter that is an array, and read its one element."
        )
    if isinstance(value, (bool, int, float, np.generic)):
        scalar = np.asarray(value)
        if scalar.dtype.name in _SCALARS and not (scalar.dtype.kind == "u" and int(scalar) >> integer_bits):
            return scalar.dtype.name, scalar.tobytes()
    raise StaticArgumentError(
        f"{kernel}: the static scalar {name!r} is {value!r} of type {type(value).__name__}; allowed: bool, int (below "
        f"2**{integer_bits}), float, or a NumPy scalar of the dtypes {', '.join(_SCALARS)}. Pass anything else by "
        "position, as an array."
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
