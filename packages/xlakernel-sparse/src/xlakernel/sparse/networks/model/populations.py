"""`Population`: neurons that share a function, and the functions for kernels that are generated from this function."""

from __future__ import annotations

import functools
import inspect
import keyword
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numba
import numpy as np
from numba import njit
from numba.core.dispatcher import Dispatcher

from xlakernel.core.backend.native import is_of_numba
from xlakernel.core.errors import ArgumentError, CompileError, KernelTypeError
from xlakernel.numba.pickles import reduce

from ...operators.arguments import as_integer
from ..random.drawing import FourSteps, drawing, drawing_four, filling, preparing, reading
from ..random.generator import Generator
from .fields import KEPT, Fields, converter, generate, loader, scalars_of, storer


class Population(NamedTuple):
    """Neurons that share a function.

    Args:
      function: one step of one neuron, ``function(state, arrived, p, rng) -> (state, fired)``, decorated with
        ``numba.njit``. *state* and *p* are the named tuples of state and parameters of `Network.run`, with this
        neuron's scalars in place of arrays. *arrived* is a named tuple with a float32 for each receptor, the sum of
        the weights that arrive in this step. *rng* is the first argument of `uniform`, `normal` and `poisson`. With
        ``inputs`` in `Network.run`, a fifth argument has their values in this step. Values of int32 are passed as
        int64. A division of floats by zero is infinite or NaN on all platforms, as with ``error_model="numpy"``.
      size: the number of neurons.
      reference: the same step in plain JAX, for the backend ``"jax"``. Its arguments are arrays over the neurons, and
        *rng* is the first argument of the functions in `xlakernel.sparse.networks.reference`.
    """

    function: Callable[..., Any]
    size: int
    reference: Callable[..., Any] | None = None

    def __reduce__(self) -> Any:
        """Pickle the function with the present values of its globals."""
        return reduce(self)

    def __deepcopy__(self, memo: Any) -> Population:
        """Return the same object, as `copy.deepcopy` does for a function."""
        return self


#: The name of a population that was given without a name, as the only one of a network.
ALONE = ""


def check_populations(populations: Any) -> tuple[tuple[str, Population], ...]:
    """Return the populations with their names.

    Raises:
      ArgumentError: if there are no populations, a name is not a string, or a size is not a positive integer.
      KernelTypeError: if a population is not a `Population`, or its function is not decorated with ``numba.njit``.
    """
    named = populations if isinstance(populations, Mapping) else {ALONE: populations}
    if not named:
        raise ArgumentError(
            "Network: there are no populations; allowed: a Population, or a dictionary of them by name."
        )
    if isinstance(populations, Mapping) and not all(isinstance(name, str) and name for name in named):
        raise ArgumentError(f"Network: the names of the populations are {list(named)}; allowed: strings, not empty.")
    for name, population in named.items():
        what = f"Network: population {name!r}" if name else "Network: the population"
        if not isinstance(population, Population):
            raise KernelTypeError(f"{what} is a {type(population).__name__}; allowed: a Population(function, size).")
        if not isinstance(population.function, Dispatcher):
            raise KernelTypeError(
                f"{what} has the function {population.function!r}; allowed: one that is decorated with numba.njit."
            )
        size = as_integer(population.size)
        if size is None or size < 1:
            raise ArgumentError(f"{what} has the size {population.size!r}; allowed: an integer of at least 1.")
    return tuple(named.items())


class Part(NamedTuple):
    """The neurons of one population in a run: their function, its fingerprint, and the fields of its arguments.

    The fingerprint *code* covers the values of the function's globals: after a change of a global, the function is
    compiled anew. *noise* has the parameters of the random inputs; their words follow those of *parameters*.
    """

    function: Any
    code: str
    reference: Callable[..., Any] | None
    name: str
    first: int
    size: int
    state: Fields
    parameters: Fields
    inputs: Fields
    noise: Fields


class Functions(NamedTuple):
    """Numba functions for the neurons of one population, whose values are packed in words of 32 bits (see `fields`).

    ``load(words, shared, i)`` returns the state of neuron *i*, and ``store(words, i, state)`` writes it.
    ``parameters(words, shared, i)``, ``inputs(words, shared, i, noise)`` and ``arrived(sums, at, stride, scales)``
    return the other arguments of the neuron's function. ``update(state, arrived, parameters, inputs, rng)`` calls this
    function, and returns the next state and whether the neuron fired. *prepare*, *draw*, *four*, *fill* and *read* are
    for the random inputs, see `drawing`. *are_equal* is True if all neurons have the same parameters, also of random
    inputs. *is_cached* is True if the neuron's function is declared with ``cache=True``. If all functions of a network
    are, its kernel is stored on disk as well.
    """

    load: Any
    store: Any
    parameters: Any
    inputs: Any
    arrived: Any
    update: Any
    prepare: Any
    draw: Any
    four: FourSteps
    fill: Any
    read: Any
    are_equal: bool
    is_cached: bool


def functions_of(
    part: Part, receptors: tuple[str, ...], is_random: bool, product: Callable[[Any, Any], Any] = operator.mul
) -> Functions:
    """Return the functions of a population; unless *is_random*, the function of the neuron gets None for *rng*.

    *product* multiplies the sum of weights of a receptor by its scale, in float32. A compiler may fuse a product with
    an addition and so omit a rounding. Of two products that are added, it fuses only one, and not the same one in all
    kernels. With a *product* that is never fused, results do not depend on the kernel.
    """
    fields = part.state, part.parameters, part.inputs, part.noise
    return _functions(part.function, *fields, receptors, is_random, product)


@functools.lru_cache(KEPT)
def _functions(
    function: Any,
    state: Fields,
    parameters: Fields,
    inputs: Fields,
    noise: Fields,
    receptors: tuple[str, ...],
    is_random: bool,
    product: Any,
) -> Functions:
    convert = converter(state)
    if not inputs.fields:

        @njit
        def update(state, arrived, parameters, inputs, rng):
            following, fired = function(state, arrived, parameters, rng if is_random else None)
            return convert(following), fired
    else:

        @njit
        def update(state, arrived, parameters, inputs, rng):
            following, fired = function(state, arrived, parameters, rng if is_random else None, inputs)
            return convert(following), fired

    return Functions(
        loader(state),
        storer(state),
        loader(parameters),
        loader(inputs),
        arrivals(receptors, product),
        update,
        preparing(inputs, noise),
        drawing(inputs, noise),
        drawing_four(inputs, noise),
        filling(inputs, noise),
        reading(inputs),
        parameters.words + noise.words == 0,
        function.stats.cache_path is not None,
    )


@functools.lru_cache(KEPT)
def arrivals_type(receptors: tuple[str, ...]) -> Any:
    """Return the class of the named tuple *arrived*."""
    return NamedTuple("Arrived", [(name, float) for name in receptors])  # type: ignore[misc]  # mypy asks for a literal list


@functools.lru_cache(KEPT)
def arrivals(receptors: tuple[str, ...], product: Any) -> Any:
    """Return a function ``arrived(sums, at, stride, scales)`` that returns a neuron's *arrived*.

    The neuron's sum for receptor ``k`` is the integer ``sums[at + k * stride]``; *scales* is an array or a tuple. For
    *product* see `functions_of`.
    """
    values = [f"product(number(sums[index(at + {k} * stride)]), scales[{k}])" for k in range(len(receptors))]
    names = {"kind": arrivals_type(receptors), "number": np.float32, "index": np.uint64, "product": product}
    return generate("arrived(sums, at, stride, scales)", [f"return kind({', '.join(values)})"], names)


@functools.lru_cache(KEPT)
def tuple_of(length: int) -> Any:
    """Return a function ``values(array)`` that returns the first *length* elements of an array as a tuple."""
    values = "".join(f"array[{k}], " for k in range(length))
    return generate("values(array)", [f"return ({values})"], {})


def check_name(what: str, name: Any) -> str:
    """Return *name* if a field of a named tuple may have this name.

    Raises:
      ArgumentError: if no field may have this name.
    """
    if not isinstance(name, str) or not name.isidentifier() or keyword.iskeyword(name) or name.startswith("_"):
        raise ArgumentError(f"{what} is {name!r}; allowed: an identifier that does not start with an underscore.")
    return name


@functools.lru_cache(KEPT)
def check_function(part: Part, receptors: tuple[str, ...], is_random: bool) -> frozenset[str]:
    """Compile a population's function for its arguments, and return the receptors that have no effect in it.

    Raises:
      CompileError: if Numba rejects the function, or if it does not return a state of the given types and a bool.
    """
    name = f"Network.run: {part.function.py_func.__qualname__}"
    arguments = [
        scalars_of(part.state),
        arrivals_type(receptors)(*[np.float32(0)] * len(receptors)),
        scalars_of(part.parameters),
        Generator(*[np.uint32(0)] * 4) if is_random else None,
        *([scalars_of(part.inputs)] if part.inputs.fields else []),
    ]
    types = tuple(map(numba.typeof, arguments))
    _check_signature(name, part, len(arguments))
    try:
        copy = njit(part.function.py_func)  # the user's own function is left as it is
        copy.compile(types)
        returned = copy.overloads[types].signature.return_type
    except Exception as error:
        if not is_of_numba(error):
            raise
        raise CompileError(
            f"{name}: Numba cannot compile it for {_described(part, receptors)}.{hint(str(error), is_random)}\n{error}"
        ) from error
    _check_returned(name, part.state, returned)
    check_random(name, copy.overloads[types])
    unused = _unused_arguments(copy.overloads[types])
    arrived = [*inspect.signature(part.function.py_func).parameters, ""][1]
    return frozenset(name for k, name in enumerate(receptors) if f"arg.{arrived}.{k}" in unused)


def check_random(name: str, compiled: Any) -> None:
    """Raise `CompileError` if a compiled function draws random numbers that do not depend on the key of a run."""
    if re.search(r"\bnumba_get_(?:np|py)_random_state\b", compiled.library.get_llvm_str()):
        raise CompileError(
            f"{name} draws random numbers from np.random or random, which do not depend on the key of Network.run. In "
            "the function of a neuron, draw from rng: uniform(rng, 0), normal(rng, 0) or poisson(rng, 0, mean)."
        )


def _check_signature(name: str, part: Part, count: int) -> None:
    signature = inspect.signature(part.function.py_func)
    try:
        signature.bind(*range(count))
    except TypeError:
        given = "with" if count == 5 else "without"
        raise CompileError(
            f"{name} has the parameters {signature}; allowed: {count} {given} inputs of Network.run, (state, arrived, "
            f"p, rng{', inputs' * (count == 5)}). {'Remove the inputs' if count == 5 else 'Give inputs'}"
            f"{part.name and f' for {part.name!r}'} in Network.run, or change the function."
        ) from None


def _unused_arguments(compiled: Any) -> set[str]:
    """Return the LLVM names of the arguments that the optimised code of a compiled function does not use."""
    code = compiled.library.get_llvm_str()
    start = re.search(rf"^define .*@{re.escape(compiled.fndesc.llvm_func_name)}\((.*)$", code, re.MULTILINE)
    if start is None:
        return set()
    body = code[start.end() : code.index("\n}", start.end())]
    used = set(re.findall(r"%([\w.]+)", body))
    return {name for name in re.findall(r"%([\w.]+)", start[1]) if name not in used}


def hint(error: str, is_random: bool) -> str:
    """Return what to do next for frequent mistakes, or an empty string for others."""
    if not is_random and "key0" in error:
        return " It draws random numbers: give a key to Network.run."
    if missing := re.search(r"Unknown attribute '(\w+)' of type _Empty", error):
        return f" It reads {missing[1]!r} of parameters or inputs that are not given: give them to Network.run."
    if missing := re.search(r"Unknown attribute '(\w+)' of type (\w+)\(", error):
        other = "arrived, whose fields are the receptors of the projections" if missing[2] == "Arrived" else missing[2]
        return f" It reads {missing[1]!r}, which is no field of {other}: correct one of the names."
    if "unify return type" in error:
        return (
            " The types of its returns differ: write np.float32(...) around literals, and around products of integers "
            "and float32, which are float64; or return in one place."
        )
    if "No definition for lowering" in error:
        return " The state is a named tuple, which cannot be changed: return a new one."
    return ""


def _described(part: Part, receptors: Sequence[str]) -> str:
    fields = ", ".join(f"{field.name}: {field.dtype}" for field in part.state.fields)
    return f"state ({fields}), arrived ({', '.join(receptors)}), p and rng" + ", inputs" * bool(part.inputs.fields)


def _are_equal(one: Any, other: Any) -> bool:
    """Return True if two classes of named tuples are the same, or come from one definition that ran twice."""
    return bool(one is other or (one.__qualname__ == other.__qualname__ and one._fields == other._fields))


def _check_returned(name: str, state: Fields, returned: Any) -> None:
    types = numba.core.types
    pair = isinstance(returned, types.BaseTuple) and len(returned) == 2
    following = returned[0] if pair else None
    if not isinstance(following, types.BaseNamedTuple) or not _are_equal(following.instance_class, state.kind):
        raise CompileError(
            f"{name} returns {returned}; allowed: ({state.kind.__name__}(...), fired), the next state and a bool."
        )
    if not isinstance(returned[1], types.Boolean):
        raise CompileError(f"{name} returns {returned[1]} for fired; allowed: a bool.")
    for field, found in zip(state.fields, following.types, strict=True):
        if not np.can_cast(numba.np.numpy_support.as_dtype(found), field.dtype, "same_kind"):
            raise CompileError(
                f"{name} returns {found} for {field.name}, which is {field.dtype} in the state; allowed: a type that "
                "converts to it without loss of kind. Convert it in the function, or give the state another dtype."
            )
