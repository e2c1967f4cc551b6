"""Every check, by name."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

import jax

from ..errors import DifferentiationError, MissingDependencyError
from . import _batches, _calls, _derivatives, _sharding, _splits
from ._report import CheckFailure, NotTried, Outcome
from ._subject import Subject


@dataclasses.dataclass(frozen=True)
class Check:
    """One way to use a kernel.

    Attributes:
      name: for ``skip`` and the report.
      family: a name that stands for several checks.
      run: raises what it finds; returns a remark.
      advice: what to try if it fails.
    """

    name: str
    family: str
    run: Callable[[Subject], str | None]
    advice: str


_VMAP = (
    'the kernel\'s slices are mixed up or padded: check its rank and strides, or wrap it with vmap_method="sequential".'
)
_GRAD = (
    "declare the kernel's derivative (reference=, jvp=, vjp= or transpose= of its wrapper; def_reference, ... of an "
    'operator), correct the one it has, or say why there is none: skip={"grad": "the reason"}.'
)

CHECKS = {
    check.name: check
    for check in (
        Check("eager", "call", _calls.check_eager, "compare the kernel with its reference on these arguments."),
        Check("jit", "call", _calls.check_jit, "look for state that tracing freezes, or outs that depend on values."),
        Check("written", "call", _calls.check_written, "write every element of each output: they begin arbitrary."),
        Check(
            "inputs_kept",
            "call",
            _calls.check_inputs_kept,
            "do not write to inputs, and declare memory that is shared in input_output_aliases.",
        ),
        Check("zero_size", "call", _calls.check_zero_size, "let loops over an extent of 0 write the empty result."),
        Check("vmap_first_axis", "vmap", _batches.check_first_axis, _VMAP),
        Check("vmap_last_axis", "vmap", _batches.check_last_axis, _VMAP),
        Check("vmap_nested", "vmap", _batches.check_nested, _VMAP),
        Check("vmap_sizes", "vmap", _batches.check_sizes, _VMAP),
        Check("grad_forward", "grad", _derivatives.check_forward, _GRAD),
        Check("grad_reverse", "grad", _derivatives.check_reverse, _GRAD),
        Check("grad_vmap", "grad", _derivatives.check_vmap_of_grad, _GRAD),
        Check("control_flow", "call", _calls.check_control_flow, "look for state that tracing freezes."),
        Check("threads", "threads", _calls.check_threads, "keep all scratch memory inside the kernel."),
        Check("export", "export", _sharding.check_export, "define the kernel at the top of a module that imports."),
        Check(
            "shard_map",
            "sharding",
            _sharding.check_sharding,
            "see that results vary over the mesh axes of the inputs, and that the kernel exports.",
        ),
        Check(
            "sharding_rule",
            "sharding",
            _splits.check_splits,
            "bracket the factors of sharding_rule that the kernel needs whole.",
        ),
    )
}

#: What ``skip`` may name: a check or a family of checks.
NAMES = sorted({*CHECKS, *(check.family for check in CHECKS.values())})


#: If one of these finds the kernel itself wrong, what the others find is no news, and their advice is false.
_FIRST = ("eager", "written", "inputs_kept")
# Whose exceptions are of the transformation as well as of the kernel, so that their advice may help.
_RAISE_THEMSELVES = ("grad", "export", "sharding")
# Whose own work needs packages that a kernel does without.
_NEED_PACKAGES = ("export", "sharding")
_RAISED = "raised "


def run_check(check: Check, subject: Subject) -> Outcome:
    """Run one check and say what came of it."""
    try:
        return Outcome(check.name, "passed", check.run(subject) or "")
    except CheckFailure as failure:
        return Outcome(check.name, "failed", str(failure), check.advice)
    except NotTried as reason:
        return Outcome(check.name, "not tried", str(reason), reason.advice)
    except DifferentiationError as error:
        return Outcome(check.name, "failed", f"there is no derivative: {error}", _GRAD)
    except jax.errors.JaxRuntimeError as error:  # the kernel's own
        return Outcome(check.name, "failed", f"{_RAISED}{type(error).__name__}: {error}")
    except Exception as error:  # noqa: BLE001 - whatever a kernel raises is a finding
        if isinstance(error, MissingDependencyError) and check.family in _NEED_PACKAGES:
            return Outcome(check.name, "not tried", str(error))  # it comes with the command that installs it
        advice = check.advice if check.family in _RAISE_THEMSELVES else ""
        return Outcome(check.name, "failed", f"{_RAISED}{type(error).__name__}: {error}", advice)


def run_all(subject: Subject, skipped: Mapping[str, str]) -> tuple[Outcome, ...]:
    """Run every check but those in *skipped*, which maps names to reasons; tell one cause once."""
    found = {name: Outcome(name, "not tried", f"skipped: {reason}") for name, reason in skipped.items()}
    for name in (*_FIRST, *(name for name in CHECKS if name not in _FIRST)):
        if name in found:
            continue
        causes = [first for first in _FIRST if first in found and found[first].outcome == "failed"]
        wrong = [first for first in causes if not found[first].detail.startswith(_RAISED)]
        if wrong and (name not in _FIRST or "written" in wrong):  # what is not written differs from call to call
            found[name] = Outcome(name, "not tried", f"see {wrong[-1]}: the kernel itself is wrong")
            continue
        outcome = run_check(CHECKS[name], subject)
        same = next((first for first in causes if _is_raised_by(found[first], outcome)), None)
        found[name] = Outcome(name, "not tried", f"see {same}: it raises the same") if same else outcome
    return tuple(found[name] for name in CHECKS)


def _is_raised_by(cause: Outcome, outcome: Outcome) -> bool:
    """Whether a check failed by the exception that another has told; threads and other processes say more before it."""
    told = cause.detail.startswith(_RAISED) and outcome.outcome == "failed"
    return told and outcome.detail.endswith(cause.detail.removeprefix(_RAISED))
