"""Evaluation of those ``wp.static`` expressions that Warp evaluates only when it generates code.

Such an expression refers to a loop variable, for example, and is evaluated once for each snapshot. Warp evaluates the
others when a function is defined, and its hash of the function has only their values.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable
from typing import Any

import warp

from .snapshot import Snapshot, current

_Method = Callable[..., Any]


def evaluating(evaluate: _Method) -> _Method:
    """Return Warp's ``Adjoint.evaluate_static_expression``, changed to evaluate each expression once per snapshot."""

    @functools.wraps(evaluate)
    def evaluated(adjoint: Any, node: ast.Call) -> tuple[Any, str]:
        snapshot = current()
        work = functools.partial(evaluate, adjoint, node)
        is_defined = hasattr(adjoint, "builder_options")  # False at the definition, where Warp evaluates what it can
        return work() if snapshot is None or not is_defined else snapshot.static(adjoint, _key(adjoint, node), work)

    return evaluated


def _key(adjoint: Any, node: ast.Call) -> str:
    """Return the key of an expression in a snapshot.

    The key contains the constants, and the lengths of variables, that the expression's value depends on.
    """
    named = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)} & adjoint.symbols.keys()
    variables = [adjoint.symbols[name] for name in sorted(named)]
    found = [(repr(getattr(one, "constant", None)), _length(getattr(one, "type", None))) for one in variables]
    return f"{node.lineno}:{node.col_offset} {ast.unparse(node)} {found}"


def _length(kind: Any) -> int | None:
    try:
        return int(warp.types.type_length(kind))
    except Exception:  # noqa: BLE001  # a type without a length; Warp ignores all errors here, too
        return None


def statics(adjoint: Any) -> list[tuple[str, Any]]:
    """Return key and value of the ``wp.static`` expressions that were evaluated in the generated code."""
    snapshot = current()
    if snapshot is None:
        return []
    if adjoint.has_unresolved_static_expressions:
        snapshot.deferred.add(adjoint.func)
        if snapshot.is_evaluating:  # of functions with equal hashes, Warp generates the code of only one
            return [("", str(id(adjoint.func)))]
    return snapshot.statics(adjoint.func)


def evaluate_all(module: Any, options: dict[str, Any], snapshot: Snapshot) -> None:
    """Evaluate, for a snapshot, the expressions that Warp evaluates when it generates a module's code."""
    from warp._src import context

    live = list(module._get_live_kernels())
    hashes = [(one, one.hash) for kernel in live for one in (kernel, *kernel.overloads.values())]
    hashers = module.hashers, module.resolved_options
    snapshot.is_evaluating = True
    try:
        context.ModuleBuilder(module, options | {"output_arch": None})
    finally:
        snapshot.is_evaluating = False
        module.hashers, module.resolved_options = hashers  # they change if an expression defines a function
        for kernel, digest in hashes:
            kernel.hash = digest
    snapshot.unreached |= snapshot.unevaluated()
