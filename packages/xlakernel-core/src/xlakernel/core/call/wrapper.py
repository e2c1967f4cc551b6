"""`kernel_function`: a kernel as a function of JAX arrays. Backends build their wrappers on it."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from .._compat import is_tracing, vary_alike
from ..config import Settings
from ..errors import ArgumentError, ArityError, ShardingRuleError, VmapMethodError
from ..identity.same import Same
from ..structs import Struct, check_inputs, check_plain, counted, keywords_of, of_structs
from .aliases import check_alias_sums, check_alias_types, checked_aliases
from .batch import BatchFunction
from .derivatives import multilinear
from .derivatives.declaration import Derivative, Transpose, declare
from .derivatives.differentiable import Differentiable
from .kernel_function import KernelFunction
from .native import VMAP_METHODS, Kernel, NativeCall, native_call
from .outs import check_enabled, check_has_effect, flatten_outs, is_function, order_of
from .scalars import Entry, freeze, operand, operands_of, plain_numbers
from .sharding.rule import ShardingRule

#: The scalars of a call, sorted by name.
_Form = tuple[Entry, ...]
#: ``check(kernel, inputs, outs, tree)`` raises an error if the kernel cannot be called with inputs and outputs of these
#: types, in the order of its parameters, or if the user's ``outs`` cannot have this tree.
_Check = Callable[[Any, Sequence[Struct], Sequence[Struct], Any], None]

#: One of `VMAP_METHODS`, a function of the inputs that computes a whole batch, or None, which forbids `jax.vmap`.
VmapMethod = str | Callable[..., Any] | None

_KNOWN = "as outs, or a function of the launch's dimensions, has a parameter of this name"


def kernel_function(
    kernel: Kernel,
    parameters: Mapping[str, Any],
    outs: Any,
    *,
    vmap_method: VmapMethod,
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
      kernel: the kernel.
      parameters: the kernel's parameters, name → default or `inspect.Parameter.empty`. The inputs come before the
        outputs; scalars may be anywhere, and only they have defaults.
      outs: a struct, a pytree of structs, or a function that returns either. The function takes the inputs' structs by
        position, and scalars by name. The keys of a dictionary are the names of the outputs' parameters
        (`outs.order_of`).
      vmap_method: one of `call.VMAP_METHODS`, None, or a function that computes a whole batch.
      input_output_aliases: ``{input: output}``; the output takes the input's memory.
      has_side_effect: run the kernel even if its results are not used.
      reference: a plain JAX function of the inputs that computes the same; JAX differentiates this function.
      jvp: ``jvp(primals, tangents, **scalars)``, the tangents of the results.
      vjp: ``vjp(primals, results, cotangents, **scalars)``, the cotangents of the inputs.
      transpose: {input: ``transpose(inputs, cotangents, **scalars)``} for inputs that the kernel is linear in.
      sharding_rule: the rule that splits a call over devices, such as ``"i j, j -> i"``; see `sharding`.
      check: an additional check by the backend, made when a call is traced.

    Returns:
      A `KernelFunction`. JAX can trace it like a function of `jax.numpy`. Outside any transformation it runs through a
      `jax.jit` of its own: a second call with the same shapes costs as much as a jitted call.
    """
    arguments = dict(locals())
    wrapped = _Wrapped(
        kernel,
        tuple(parameters),
        tuple(
            (name, *freeze(kernel.name, name, kernel.number(name, default)))
            for name, default in sorted(parameters.items())
            if default is not inspect.Parameter.empty
        ),
        outs if is_function(outs) else flatten_outs(outs, kernel.name),
        _check_vmap_method(kernel.name, vmap_method, has_side_effect),
        checked_aliases(kernel.name, input_output_aliases),
        _check_flag(kernel.name, has_side_effect),
        declare(kernel.name, reference=reference, jvp=jvp, vjp=vjp, transpose=transpose),
        _check_rule(kernel.name, sharding_rule, has_side_effect),
        check,
    )
    if not is_function(outs):
        check_has_effect(wrapped.outs[0], has_side_effect, kernel.name)
    with_scalars = jax.jit(wrapped.trace, static_argnums=0)
    without_scalars = jax.jit(_named(lambda *inputs: wrapped.trace((), *inputs), kernel.name))
    known = functools.cache(wrapped.known_scalars)
    ndarray = np.ndarray  # a local name is faster than a global's attribute

    # A function, since an object with a `__call__` in Python adds a tenth to the time of the jitted call.
    def call(*inputs: Any, **scalars: Any) -> Any:
        # JAX refuses an array in another byte order only as long as there is no compiled program for the native dtype.
        # Such a program would read the bytes in native order.
        for x in inputs:
            if isinstance(x, ndarray) and not x.dtype.isnative:
                check_inputs(inputs, kernel.name)
        try:
            if scalars:
                form, operands = wrapped.split(scalars, known(len(inputs)))
                return with_scalars(form, *operands, *inputs)
            return without_scalars(*inputs)
        except (TypeError, ValueError):  # JAX's own message names neither the kernel nor what to do
            check_inputs(inputs, kernel.name)
            raise

    call.__doc__ = f"Run the kernel {kernel.name}({', '.join(parameters)}); inputs by position, scalars by name."
    return KernelFunction.of(_named(call, kernel.name), kernel_function, arguments, parameters)


@dataclasses.dataclass(frozen=True, eq=False)
class _Wrapped:
    """A kernel with the user's options, checked."""

    kernel: Kernel
    parameters: tuple[str, ...]
    defaults: _Form
    outs: Any  # (structs, tree), or the user's function of structs
    vmap_method: VmapMethod
    aliases: tuple[tuple[int, int], ...]
    has_side_effect: bool
    derivative: Derivative | None
    sharding_rule: ShardingRule | None
    check: _Check | None

    @property
    def name(self) -> str:
        return self.kernel.name

    def known_scalars(self, inputs: int) -> frozenset[str]:
        """Return the names of the scalars that must have known values to trace a call with *inputs* inputs."""
        functions = [*self.kernel.launch_functions, *([self.outs] if callable(self.outs) else [])]
        return frozenset(name for f in functions for name in keywords_of(f, self.parameters, inputs))

    def split(self, given: Mapping[str, Any], known: Collection[str]) -> tuple[_Form, list[Any]]:
        """Return a call's scalars, sorted by name, and the operands of scalars that are neither static nor *known*."""
        kernel = self.kernel
        for name in given:
            if name not in self.parameters or (kernel.scalars is not None and name not in kernel.scalars):
                raise ArityError(self._wrong_name(name))
        if not kernel.takes_scalars:
            static = [(name, *freeze(kernel.name, name, kernel.number(name, x))) for name, x in given.items()]
            return tuple(sorted(static)), []
        form: list[Entry] = []
        operands: list[Any] = []
        # Functions that define a derivative, or compute a batch, should get known scalars as numbers. While JAX traces,
        # the values of these scalars are therefore part of the form, and these scalars are not operands.
        kept = (self.derivative is not None or callable(self.vmap_method)) and is_tracing()
        for name in sorted(given):
            value = given[name]
            if name in known:
                form.append((name, *freeze(kernel.name, name, value, _KNOWN)))
            elif kept and not isinstance(value, jax.Array):
                form.append((name, *freeze(kernel.name, name, value)))
            else:
                dtype, array = operand(kernel.name, kernel.platforms[0], name, value)
                form.append((name, dtype, None))
                operands.append(array)
        return tuple(form), operands

    def _wrong_name(self, name: str) -> str:
        if name in self.parameters:
            return (
                f"{self.name}: {name!r} is an array and is passed by keyword: inputs are passed by position, in "
                "the order of the kernel's parameters, and outputs are not passed."
            )
        hint = " An operator needs a generator, a function of outs that returns the wrapped kernel." * (name == "outs")
        return (
            f"{self.name}: no parameter {name!r}; the kernel has ({', '.join(self.parameters)}). "
            f"Arrays are passed by position, and only scalars by keyword.{hint}"
        )

    def trace(self, form: _Form, *arrays: Any) -> Any:
        count = sum(data is None for *_, data in form)
        operands, inputs = arrays[:count], arrays[count:]
        check_inputs(inputs, self.name)
        inputs = tuple(jax.numpy.asarray(x) for x in inputs)
        structs = [check_plain(x, f"{self.name}: input {i}") for i, x in enumerate(inputs)]
        outs, tree = self._resolve_outs(structs, form)
        check_enabled(outs, self.name)
        check_has_effect(outs, self.has_side_effect, self.name)
        form = self._with_defaults(form, len(inputs) + len(outs))
        given = [name for name, *_ in form]
        self._check_arity(len(inputs), len(outs), given)
        buffers = [name for name in self.parameters if name not in given]
        order = order_of(tree, buffers[len(inputs) :], self.name)
        outs = tuple(outs[order.index(i)] for i in range(len(outs)))  # in the kernel's order
        kernel = self.kernel.given([entry for entry in form if entry[2] is not None])
        if self.check is not None:
            self.check(kernel, structs, outs, tree)
        check_alias_types(self.name, self.aliases, structs, outs)
        rule = self.sharding_rule
        if rule is not None:
            rule.check(self.name, structs, outs)
            check_alias_sums(self.name, self.aliases, rule)
            rule = rule.with_scalars(len(form) if kernel.takes_scalars else 0)
        method = self.vmap_method
        call = NativeCall(
            kernel,
            outs,
            attributes=() if kernel.takes_scalars else form,
            scalars=tuple((name, dtype) for name, dtype, _ in form) if kernel.takes_scalars else (),
            aliases=self.aliases,
            vmap_method=BatchFunction(self.name, Same(method), form, tree, order) if callable(method) else method,
            has_side_effect=self.has_side_effect,
            sharding_rule=rule,
            settings=Settings.present(),
            wrapper=self,
        )
        run = self._differentiable(call, form, tree, order)
        return jax.tree.unflatten(tree, run(*vary_alike([*inputs, *operands])))

    def _differentiable(
        self, call: NativeCall, form: _Form, tree: Any, order: Sequence[int]
    ) -> Callable[..., list[Any]]:
        """Return a function that takes the call's inputs, then its scalars without known values.

        The function returns the results in the order of the tree's leaves.
        """
        unknown = tuple(name for name, _, data in form if data is None)

        def run(*arrays: Any) -> list[Any]:
            inputs, values = arrays[: len(arrays) - len(unknown)], arrays[len(arrays) - len(unknown) :]
            results = native_call(call, [*inputs, *(operands_of(form, values) if call.scalars else ())])
            return [results[i] for i in order]

        if self.derivative is None:
            return run
        outs = tuple(call.outs[i] for i in order)
        known = plain_numbers(form)
        of = Differentiable(
            self.derivative, run, outs, tree, known, call.has_side_effect, scalars=unknown, settings=call.settings
        )
        return lambda *arrays: multilinear.apply(of.described(arrays), arrays)

    def _resolve_outs(self, inputs: list[Struct], form: _Form) -> tuple[tuple[Struct, ...], Any]:
        if not callable(self.outs):
            structs, tree = self.outs
            return structs, tree
        known = plain_numbers((*self.defaults, *form))
        outs = of_structs(self.name, "outs", self.outs, inputs, parameters=self.parameters, scalars=known)
        return flatten_outs(outs, self.name)

    def _with_defaults(self, form: _Form, buffers: int) -> _Form:
        """Add the defaults of scalars that were not given, unless there is an argument for each parameter."""
        if buffers + len(form) >= len(self.parameters):
            return form
        return tuple(sorted({entry[0]: entry for entry in (*self.defaults, *form)}.values()))

    def _check_arity(self, inputs: int, outs: int, scalars: list[str]) -> None:
        arrays = [name for name in self.parameters if name not in (self.kernel.scalars or scalars)]
        missing = [name for name in self.kernel.scalars or () if name not in scalars]
        if inputs + outs == len(arrays) and not missing:
            return
        count = len(arrays) - inputs - outs
        if missing:
            problem = f"Missing: {', '.join(f'{name}=...' for name in missing)}"
        elif count > 0 and self.kernel.scalars is not None:
            problem = f"Missing: {', '.join(arrays[inputs : len(arrays) - outs] or arrays[-outs:])}"
        elif count > 0:
            candidates = self._unfilled(count, arrays)
            few = f"{count} of " * (count < len(candidates))
            how = f"a scalar as {candidates[-1]}=..., an array by position, an output in outs"
            problem = f"Missing: {few}{', '.join(candidates)} ({how})"
        else:
            problem = f"Too many: it has {counted(len(arrays), 'parameter')} for arrays ({', '.join(arrays)})"
        raise ArityError(
            f"{self.name}: the kernel has {counted(len(self.parameters), 'parameter')} "
            f"({', '.join(self.parameters)}); the call gives {counted(inputs, 'input')} by position and the "
            f"scalars {scalars} by keyword, and outs describes {counted(outs, 'output')}. {problem}. A kernel takes "
            "its inputs first, then its outputs; scalars stand anywhere, and are passed by keyword."
            f"{self.kernel.arity_advice}"
        )

    def _unfilled(self, count: int, arrays: list[str]) -> list[str]:
        """Return the parameters that may be the *count* missing ones, for an error message.

        If ``outs`` is a function, its parameters are inputs; a kernel's parameters of the same names are not missing.
        """
        named = [name for name in arrays if is_function(self.outs) and name in keywords_of(self.outs, arrays)]
        candidates = [name for name in arrays if name not in named] or arrays
        early = [name for name in candidates if named and arrays.index(name) < arrays.index(named[-1])]
        return early if len(early) == count else candidates  # parameters before an input cannot be outputs


def _named(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    function.__name__ = function.__qualname__ = name
    return function


def _check_vmap_method(kernel: str, method: VmapMethod, has_side_effect: bool) -> VmapMethod:
    if callable(method):
        if has_side_effect:
            raise VmapMethodError(
                f"{kernel}: has_side_effect=True, and vmap_method is a function, which would replace the kernel and "
                f"its side effect; allowed with a side effect: {VMAP_METHODS} or None."
            )
    elif method is not None and method not in VMAP_METHODS:
        raise VmapMethodError(
            f"{kernel}: unknown vmap_method {method!r}; allowed: {VMAP_METHODS} or None, or a function that computes "
            "the whole batch."
        )
    return method


def _check_flag(kernel: str, has_side_effect: bool) -> bool:
    if not isinstance(has_side_effect, bool):
        raise ArgumentError(f"{kernel}: has_side_effect is {has_side_effect!r}; allowed: True or False.")
    return has_side_effect


def _check_rule(kernel: str, rule: str | None, has_side_effect: bool) -> ShardingRule | None:
    if rule is None:
        return None
    if has_side_effect:
        raise ShardingRuleError(
            f"{kernel}: sharding_rule and has_side_effect=True exclude each other: XLA may drop or repeat a call that "
            "it splits. Call the kernel inside jax.shard_map instead."
        )
    return ShardingRule.parse(rule, kernel)
