"""Every check, by name."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

from ..measure.comparison import CheckFailure
from . import _batches, _calls, _derivatives, _export, _sharding
from ._report import NotTried, Outcome
from ._subject import Subject


@dataclasses.dataclass(frozen=True)
class Check:
    """A check of one use of a kernel.

    Attributes:
      name: the check's name, for ``skip`` and the report.
      family: a name that stands for several checks.
      run: runs the check: raises `CheckFailure` or `NotTried`, or returns a remark.
      advice: a remedy if the check fails.
      needs_inputs: True if a kernel without inputs cannot be checked.
    """

    name: str
    family: str
    run: Callable[[Subject], str | None]
    advice: str
    needs_inputs: bool = False


_STATE = "look for state that tracing freezes, or outs that depend on values."
_UNWRITTEN = "write every element of each output: they begin with arbitrary values."
_ALIASES = "do not write to inputs, and declare shared memory in input_output_aliases."
_VMAP = (
    'the kernel\'s slices are mixed up or padded: check its rank and strides, or wrap it with vmap_method="sequential".'
)
_GRAD = (
    "declare the kernel's derivative (reference=, jvp=, vjp= or transpose= of its wrapper; def_reference, ... of an "
    'operator), correct the declared one, or skip it with a reason: skip={"grad": "the reason"}.'
)
_VARY = "make the results vary over the mesh axes of the inputs."
_EXPORT = (
    "define the kernel at the top of a module that imports; a named tuple also needs "
    "jax.export.register_namedtuple_serialization there."
)
_RULE = "put the factors that each call needs whole in brackets, in the kernel's sharding_rule."

#: Checks of single calls. If one of them fails, the other checks would fail for the same reason, and are not tried.
_SINGLE = (
    Check("eager", "call", _calls.check_eager, "compare the kernel with its reference on these arguments."),
    Check("jit", "call", _calls.check_jit, _STATE),
    Check("written", "call", _calls.check_written, _UNWRITTEN),
    Check("inputs_kept", "call", _calls.check_inputs_kept, _ALIASES, needs_inputs=True),
)
_OTHERS = (
    Check("vmap_first_axis", "vmap", _batches.check_first_axis, _VMAP, needs_inputs=True),
    Check("vmap_last_axis", "vmap", _batches.check_last_axis, _VMAP, needs_inputs=True),
    Check("vmap_nested", "vmap", _batches.check_nested, _VMAP, needs_inputs=True),
    Check("vmap_sizes", "vmap", _batches.check_sizes, _VMAP, needs_inputs=True),
    Check("grad_forward", "grad", _derivatives.check_forward, _GRAD),
    Check("grad_reverse", "grad", _derivatives.check_reverse, _GRAD),
    Check("grad_vmap", "grad", _derivatives.check_vmap_of_grad, _GRAD),
    Check("control_flow", "call", _calls.check_control_flow, _STATE),
    Check("threads", "threads", _calls.check_threads, "keep all scratch memory inside the kernel."),
    Check("export", "export", _export.check_export, _EXPORT),
    Check("shard_map", "sharding", _sharding.check_shard_map, _VARY, needs_inputs=True),
    Check("sharding_rule", "sharding", _sharding.check_sharding_rule, _RULE, needs_inputs=True),
)

CHECKS = {check.name: check for check in (*_SINGLE, *_OTHERS)}
#: The names of checks and families, for ``skip``.
NAMES = sorted({*CHECKS, *(check.family for check in CHECKS.values())})


def run_check(check: Check, subject: Subject) -> Outcome:
    """Run one check and return its outcome."""
    if check.needs_inputs and not subject.inputs:
        return Outcome(check.name, "not tried", "there are no inputs")
    try:
        return Outcome(check.name, "passed", check.run(subject) or "")
    except NotTried as reason:
        return Outcome(check.name, "not tried", str(reason))
    except CheckFailure as failure:
        return Outcome(check.name, "failed", f"{failure} Next: {check.advice}")
    except Exception as error:  # noqa: BLE001 - any error of a kernel is a failure
        detail = f"raised {type(error).__name__}: {error}"
        return Outcome(check.name, "failed", detail if check in _SINGLE else f"{detail} Next: {check.advice}")


def run_all(subject: Subject, skipped: Mapping[str, str]) -> tuple[Outcome, ...]:
    """Run every check but those in *skipped*, which maps names of checks and families to reasons."""
    outcomes: list[Outcome] = []
    wrong, has_raised = None, False
    for name, check in CHECKS.items():
        if reason := skipped.get(name) or skipped.get(check.family):
            outcomes.append(Outcome(name, "not tried", f"skipped: {reason}"))
        elif wrong and (name != "written" or has_raised):  # unwritten elements may be why a single call is wrong
            outcomes.append(Outcome(name, "not tried", f"see {wrong}: a single call is wrong"))
        else:
            outcomes.append(run_check(check, subject))
            if check in _SINGLE and outcomes[-1].outcome == "failed":
                wrong, has_raised = wrong or name, outcomes[-1].detail.startswith("raised ")
    return tuple(outcomes)
