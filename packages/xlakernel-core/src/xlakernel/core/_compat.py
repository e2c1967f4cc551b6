"""The only file of this package that imports private JAX, each use with its reason."""

from __future__ import annotations

import dataclasses
from typing import Any

# An effect keeps a call whose results nobody uses from being removed. The public `jax.ffi.ffi_call` has the same
# need and answers it with a private class; JAX has no public way to define one.
from jax._src import effects


@dataclasses.dataclass(frozen=True)
class NativeCallEffect(effects.Effect):  # type: ignore[misc]  # jax._src has no stubs
    """The effect of a kernel that was declared to have one."""

    def __str__(self) -> str:
        return "NativeCall"


NATIVE_CALL_EFFECT = NativeCallEffect()

for _allowed in (
    effects.lowerable_effects,
    effects.control_flow_allowed_effects,
    effects.remat_allowed_effects,
    effects.custom_derivatives_allowed_effects,
    effects.partial_eval_kept_effects,
):
    _allowed.add_type(NativeCallEffect)


def set_global(context: Any, value: Any) -> None:
    """Set a `jax.make_user_context` for every thread; its public ``set_global`` came after jax 0.7."""
    context._obj.set_global(value)


def get_global(context: Any) -> Any:
    """Read what `set_global` wrote."""
    return context._obj.get_global()
