"""Rules for derivatives, batching and sharding that the author of an operator declares."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..call.derivatives.declaration import declare, group_of
from ..call.sharding.rule import ShardingRule
from ..errors import KernelTypeError, ShardingRuleError
from ..structs import check_callable
from . import derivatives
from .dispatch import Static
from .primitive import OperatorPrimitive


class TransformRules:
    """The rules of an operator's transformations.

    A new rule applies from the next call on, also to functions that are already jitted. Rules of the JAX primitive
    (`def_jvp_rule`, `def_transpose_rule`) replace a derivative that was declared, and a declaration replaces them.

    Args:
      primitive: the operator's primitive.
    """

    def __init__(self, primitive: OperatorPrimitive) -> None:
        self.name = primitive.name
        self._primitive = primitive
        self._derivative: dict[str, Any] = {}

    # Derivatives.

    def def_reference(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """Take derivatives, of both modes and all orders, from *fn*, ``fn(*ins, **static) -> results``.

        *fn* is a plain JAX function with the same results as the operator; several results are in a list. Like the
        functions of `def_jvp`, `def_vjp` and `def_transpose`, *fn* may call other operators and kernels, and gets the
        static keywords, and the keyword ``outs`` if it has such a parameter.
        """
        check_callable(self.name, "def_reference", fn)
        self._declare("reference", lambda _: fn)
        return fn

    def def_jvp(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """Set the forward derivative, ``fn(primals, tangents, **static) -> tangents of the results``.

        Integer inputs have the tangent None. Reverse mode transposes *fn*, unless there is a `def_vjp` or a
        `def_reference`.
        """
        check_callable(self.name, "def_jvp", fn)
        self._declare("jvp", lambda _: fn)
        return fn

    def def_vjp(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """Set the reverse derivative, ``fn(primals, results, cotangents, **static) -> cotangents of the inputs``.

        *fn* returns one cotangent for each input, None for integers and for zeros. In *cotangents*, the entry of an
        integer result is None. Forward mode also needs a `def_jvp` or a `def_reference`. Derivatives of higher order
        come from the reference if there is one, else from these functions.
        """
        check_callable(self.name, "def_vjp", fn)
        self._declare("vjp", lambda _: fn)
        return fn

    def def_transpose(self, inputs: int | tuple[int, ...], fn: Callable[..., Any]) -> Callable[..., Any]:
        """Declare that the operator is linear in *inputs*, with this transpose.

        A product of two matrices is linear in each of them: it has two transposes, declared one by one.

        Args:
          inputs: the position of an input, or a tuple of positions of inputs in which the operator is jointly linear,
            for fixed values of the other inputs.
          fn: ``fn(ins, cotangents, **static)``, where the linear inputs are None; returns their cotangents.

        Raises:
          KernelTypeError: if *inputs* is neither a position nor a tuple of positions, if another transpose covers one
            of the inputs, if *fn* cannot be called, or if there is a `def_jvp` or a `def_vjp`.
        """
        group = group_of(inputs)
        if group is None or not callable(fn):
            raise KernelTypeError(
                f"{self.name}: def_transpose was given {inputs!r} and {fn!r}; expected def_transpose(inputs, "
                "fn): the position of an input, counted from 0, or a tuple of positions if the operator is jointly "
                "linear in several inputs; and a function."
            )
        self._declare("transpose", lambda others: {**(others or {}), group: fn})
        return fn

    def _declare(self, keyword: str, value_after: Callable[[Any], Any]) -> None:
        """Declare ``value_after(earlier)`` under *keyword*; *earlier* is the value so far, or None."""
        with self._primitive.lock:
            declared = {**self._derivative, keyword: value_after(self._derivative.get(keyword))}
            derivative = declare(self.name, **declared, spelled="def_{}")
            assert derivative is not None
            self._derivative, self._primitive.derivative = declared, derivative
            for name in ("jvp", "transpose"):
                self._primitive.rules.pop(name, None)
        self._primitive.define_anew()

    def _drop_derivative(self) -> None:
        self._derivative, self._primitive.derivative = {}, None

    # Rules of the JAX primitive.

    def def_jvp_rule(self, rule: Callable[..., Any]) -> Callable[..., Any]:
        """Set the forward-mode rule, ``rule(primals, tangents, **params) -> (outs, tangents of outs)``.

        Symbolic zeros are `jax.interpreters.ad.Zero`. *params* are those of ``primitive.bind``. The rule replaces a
        declared derivative.
        """
        check_callable(self.name, "def_jvp_rule", rule)
        with self._primitive.lock:
            derivatives.define_jvp(self._primitive, rule)
            self._drop_derivative()
        self._primitive.define_anew()
        return rule

    def def_jvp_rule2(self, *rules: Callable[..., Any] | None) -> None:
        """Set one forward-mode rule for each input, ``rule(tangent, *primals, **params) -> tangents of outs``.

        If a rule is None, the tangent of its input is dropped. The rules replace a declared derivative.
        """
        for rule in rules:
            if rule is not None:
                check_callable(self.name, "def_jvp_rule2", rule)
        with self._primitive.lock:
            derivatives.define_jvp_per_input(self._primitive, rules)
            self._drop_derivative()
        self._primitive.define_anew()

    def def_transpose_rule(self, rule: Callable[..., Any]) -> Callable[..., Any]:
        """Set the reverse-mode rule of a linear operator, ``rule(cotangents, *ins, **params) -> cotangents of ins``.

        Linear inputs are `jax.interpreters.ad.UndefinedPrimal`. The rule returns None for the other inputs. It replaces
        a declared derivative, so that `def_jvp_rule` is needed too.
        """
        check_callable(self.name, "def_transpose_rule", rule)
        with self._primitive.lock:
            derivatives.define_transpose(self._primitive, rule)
            self._drop_derivative()
        self._primitive.define_anew()
        return rule

    def def_batching_rule(self, rule: Callable[..., Any]) -> Callable[..., Any]:
        """Set the rule of ``jax.vmap``, ``rule(ins, axes, **params) -> (outs, axes of outs)``.

        An axis of None means an input without a batch. Without this rule the kernel itself is mapped.
        """
        check_callable(self.name, "def_batching_rule", rule)

        def batch(ins: Sequence[Any], axes: Sequence[int | None], *, static: Static, **params: Any) -> Any:
            return rule(ins, axes, **params, **dict(static.items))

        self._primitive.set_rule("batch", batch)
        self._primitive.define_anew()
        return rule

    # Several devices.

    def def_sharding_rule(self, rule: str | Callable[..., str]) -> str | Callable[..., str]:
        """Set the rule that splits a call over devices, such as ``"m k, k n -> m n"`` for a matrix product.

        Args:
          rule: an einsum-like rule, or a function of the static keywords that returns one. A factor of both inputs and
            outputs is split over the mesh axes that split these arrays. A factor that the outputs lack is summed over.
            A factor in brackets, ``"i [j] -> i [j]"``, is not split, as required for a mean, a maximum or a sum with a
            bias. The kernel generator is called with the ``outs`` of one device's part.

        Raises:
          ShardingRuleError: if *rule* is invalid, or the operator has a side effect.
        """
        if self._primitive.has_side_effect:
            raise ShardingRuleError(
                f"{self.name}: def_sharding_rule and has_side_effect=True exclude each other: XLA may drop or repeat a "
                "call that it splits. Call the operator inside jax.shard_map instead."
            )
        if not callable(rule):
            ShardingRule.parse(rule, self.name)
        self._primitive.sharding = rule
        self._primitive.define_anew()
        return rule
