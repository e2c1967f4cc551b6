"""`Rule`: the change of the weights of a projection by the spikes of its sources and targets."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numba
import numpy as np
from numba import njit
from numba.core.dispatcher import Dispatcher

from xlakernel.core.backend.native import is_of_numba
from xlakernel.core.errors import ArgumentError, CompileError, InputError, KernelTypeError
from xlakernel.numba.pickles import reduce

from .fields import KEPT, Fields, loader, scalars_of
from .populations import check_random, hint

#: A trace is a sum over earlier spikes that decays exponentially. It is stored without its decay since the last step
#: that is a multiple of a period. The period is this many time constants, so that float32 can hold stored traces.
PERIOD = 16
#: The longest period, in steps.
LONGEST_PERIOD = 1 << 24
#: Stored traces below this number become 0 at multiples of the period.
FORGOTTEN = 1e-20


class History(NamedTuple):
    """The earlier spikes of a synapse's source or target; the arguments ``pre`` and ``post`` of a rule.

    Attributes:
      trace: the sum of ``exp(-age / tau)`` over the earlier spikes, float32.
      age: the steps since the latest of these spikes, float32; infinite if there is none.
    """

    trace: Any
    age: Any


class Rule(NamedTuple):
    """The change of weights by spikes: two scalar functions, decorated with ``numba.njit``.

    ``on_pre(weight, pre, post, p)`` is called for each synapse at which a spike arrives. It returns the new weight,
    and the target gets this weight. ``on_post(weight, pre, post, p)`` is called for each incoming synapse of a neuron
    that fires, and returns the new weight. *weight* is a float32, *pre* and *post* are each a `History`, and *p* is the
    named tuple *plasticity* of `Network.run` with the scalars of this step.

    In a step, *on_pre* is called first, then neurons are updated, and then *on_post* is called. If a spike arrives in
    the step in which the target fires, *on_post* gets it in *pre* with an age of 0, but *on_pre* does not get the
    target's spike in *post*. The spike for which a function is called is not in the history. Times are those at the
    synapse: a spike of the source counts from its arrival, and a spike of the target from its own step.

    Args:
      on_pre, on_post: the functions.
      tau_pre, tau_post: the time constants of the sources' and of the targets' traces, in steps.
      minimum, maximum: the limits of the weights, also of the initial ones; results are clipped to them. The closer
        they are to 0, the finer is the unit to which a weight is rounded when it arrives (the stored weight is not
        rounded): ``limit * synapses / 2**29`` to twice that, or more with large static weights. *limit* is the larger
        absolute limit, *synapses* the most of this receptor that a neuron has.
      reference: both functions in plain JAX, for the backend ``"jax"``, with arrays as arguments.
    """

    on_pre: Callable[..., Any]
    on_post: Callable[..., Any]
    tau_pre: float
    tau_post: float
    minimum: float
    maximum: float
    reference: tuple[Callable[..., Any], Callable[..., Any]] | None = None

    def __reduce__(self) -> Any:
        """Pickle the functions with the present values of their globals."""
        return reduce(self)

    def __deepcopy__(self, memo: Any) -> Rule:
        """Return the same object, as `copy.deepcopy` does for a function."""
        return self


class RuleFunctions(NamedTuple):
    """Numba functions of a rule.

    ``parameters(words, shared, t)`` returns the parameters in step *t*. ``on_pre`` and ``on_post(weight, pre_trace,
    pre_age, post_trace, post_age, p, minimum, maximum)`` return the new weight, clipped to the limits, or NaN.
    *is_cached* is True if both functions of the rule are declared with ``cache=True``.
    """

    parameters: Any
    on_pre: Any
    on_post: Any
    is_cached: bool


def check_rule(what: str, rule: Any) -> Rule:
    """Return the rule with its numbers as floats.

    Raises:
      InputError, KernelTypeError, ArgumentError: if the rule is invalid.
    """
    if not isinstance(rule, Rule):
        raise InputError(f"{what}: plasticity is a {type(rule).__name__}; allowed: a Rule, or None.")
    for name in ("on_pre", "on_post"):
        if not isinstance(getattr(rule, name), Dispatcher):
            raise KernelTypeError(
                f"{what}: {name} is {getattr(rule, name)!r}; allowed: a function that is decorated with numba.njit."
            )
    numbers: dict[str, Any] = {}
    for name in ("tau_pre", "tau_post", "minimum", "maximum"):
        try:
            numbers[name] = float(np.float32(getattr(rule, name)))
        except (TypeError, ValueError):
            numbers[name] = math.nan
        if not math.isfinite(numbers[name]) or (name.startswith("tau") and numbers[name] <= 0):
            allowed = "a number of steps above 0" if name.startswith("tau") else "a finite number"
            raise ArgumentError(f"{what}: {name} is {getattr(rule, name)!r}; allowed: {allowed}.")
    if not numbers["minimum"] < numbers["maximum"]:
        raise ArgumentError(
            f"{what}: weights from {rule.minimum} to {rule.maximum}; allowed: a minimum below the maximum."
        )
    return rule._replace(**numbers)


def rule_functions(on_pre: Any, on_post: Any, parameters: Fields) -> RuleFunctions:
    """Return the functions of a rule with these parameters."""
    is_cached = all(function.stats.cache_path is not None for function in (on_pre, on_post))
    return RuleFunctions(loader(parameters), _limited(on_pre), _limited(on_post), is_cached)


@functools.lru_cache(KEPT)
def _limited(function: Any) -> Any:
    @njit
    def following(weight, pre_trace, pre_age, post_trace, post_age, p, minimum, maximum):
        new = np.float32(function(weight, History(pre_trace, pre_age), History(post_trace, post_age), p))
        # NaN is kept, as both comparisons with it are False.
        if new > maximum:
            new = maximum
        if new < minimum:
            new = minimum
        return new

    return following


@functools.lru_cache(KEPT)
def compile_rule(what: str, on_pre: Any, on_post: Any, parameters: Fields, code: str) -> None:
    """Compile both functions of a rule for their arguments; *code* is their fingerprint, *what* the projection's name.

    Raises:
      CompileError: if Numba rejects a function, or if a function does not return a real number.
    """
    history = History(np.float32(0), np.float32(0))
    types = tuple(map(numba.typeof, (np.float32(0), history, history, scalars_of(parameters))))
    for name, function in (("on_pre", on_pre), ("on_post", on_post)):
        where = f"Network.run: {what}: {name}, {function.py_func.__qualname__}"
        try:
            copy = njit(function.py_func)  # the user's own function is left as it is
            copy.compile(types)
            returned = copy.overloads[types].signature.return_type
        except Exception as error:
            if not is_of_numba(error):
                raise
            raise CompileError(
                f"{where}: Numba cannot compile it for (weight, pre, post, p).{hint(str(error), True)}\n{error}"
            ) from error
        if not isinstance(returned, numba.core.types.Float | numba.core.types.Integer):
            raise CompileError(f"{where} returns {returned}; allowed: the new weight, a real number.")
        check_random(where, copy.overloads[types])
