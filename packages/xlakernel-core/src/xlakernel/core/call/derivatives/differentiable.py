"""Calls of wrapped kernels and of operators with the derivatives that their authors declare.

A derivative is declared by plain JAX functions or by other kernels. With a JVP and a VJP, the map from the tangents of
the inputs to those of the results is one `multilinear` call: the JVP evaluates the map and the VJP transposes it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import jaxpr_as_fun

from ...config import Settings
from ...errors import DifferentiationError, KernelTypeError, ResultError, XLAKernelError
from ...interrupts import is_raised_by_handler
from ...structs import Struct, counted, is_smooth, keywords_of, text_of
from ..results import as_array, fits, flat_results
from . import multilinear
from .declaration import Derivative
from .multilinear import Group, Multilinear, TangentsByJAX, smooth_results, tangents_of


@dataclasses.dataclass(frozen=True, eq=False)
class Differentiable:
    """One call with a declared derivative.

    Attributes:
      derivative: the declared derivative.
      run: the kernel, ``run(*inputs, *scalars) -> list of results``; it has no rule of its own for derivatives.
      outs: the results.
      tree: the structure of the results in the functions that the author declares.
      static: the call's static keywords.
      has_side_effect: run the kernel even if its results are not used.
      offered: optional keywords; each is passed to the author's functions that have a parameter of this name.
      scalars: the names of scalars that are operands; they follow the inputs.
      settings: the settings when the call was traced; they apply to operators in the author's functions, too.
    """

    derivative: Derivative
    run: Callable[..., list[Any]]
    outs: tuple[Struct, ...]
    tree: Any
    static: Mapping[str, Any]
    has_side_effect: bool = False
    offered: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    scalars: tuple[str, ...] = ()
    settings: Settings = dataclasses.field(default_factory=Settings.present)

    @property
    def owner(self) -> str:
        """The kernel's or operator's name."""
        return self.derivative.owner

    def described(self, inputs: Sequence[Any]) -> Multilinear:
        """Return the call with these *inputs*, which may be structs, as a function that JAX can differentiate."""
        self.derivative.check_arity(len(inputs) - len(self.scalars))
        groups = []
        tangents: Callable[..., list[Any]] | None = self._tangents
        reference = None if self.derivative.reference is None else TangentsByJAX(self._reference)
        for positions, function in self.derivative.transposes:
            structs = [Struct(jnp.shape(inputs[i]), jax.dtypes.result_type(inputs[i])) for i in positions]
            groups.append(Group(positions, self._transpose(positions, function, structs)))
        if groups or (self.derivative.jvp is None and self.derivative.vjp is None):
            tangents = reference
        return Multilinear(
            self.owner,
            self.run,
            self.outs,
            tuple(groups),
            tangents,
            self.has_side_effect,
            spelled=self.derivative.spelled,
            scalars=self.scalars,
        )

    # The tangents of a call without transposes.

    def _tangents(self, primals: Sequence[Any], results: Sequence[Any], tangents: Sequence[Any]) -> list[Any]:
        """Return the tangents of the results of inexact dtype, given the *tangents* of the arguments (None: zero)."""
        primals = list(primals)
        count = len(primals) - len(self.scalars)
        if all(tangent is None for tangent in tangents[count:]):
            return self._tangents_in_inputs(primals, results, tangents)
        of_scalars = tangents_of(self._of_scalars, primals, [*[None] * count, *tangents[count:]])
        if all(tangent is None for tangent in tangents[:count]):
            return of_scalars
        of_inputs = self._tangents_in_inputs(primals, results, tangents)
        return list(map(multilinear.add_tangents, of_inputs, of_scalars))

    def _tangents_in_inputs(self, primals: list[Any], results: Sequence[Any], tangents: Sequence[Any]) -> list[Any]:
        """Return the tangents of the results for zero tangents of the scalars, by the JVP or the VJP."""
        smooth = [i for i, x in enumerate(self._split(primals)[0]) if is_smooth(x.dtype)]
        moved = [jnp.zeros_like(primals[i]) if tangents[i] is None else tangents[i] for i in smooth]
        if self.derivative.vjp is None and self.derivative.reference is None:
            return self._jvp(primals, moved)
        return multilinear.apply(self._tangent_map(len(primals), smooth), [*primals, *results, *moved])

    # The transpose of a call that is linear in some inputs.

    def _transpose(
        self, positions: Sequence[int], function: Callable[..., Any], structs: Sequence[Struct]
    ) -> Callable[..., Sequence[Any]]:
        what = f"the transpose for inputs {positions}"

        def transpose(arguments: Sequence[Any], cotangents: Sequence[Any]) -> Sequence[Any]:
            inputs, scalars = self._split(arguments)
            tree = jax.tree.unflatten(self.tree, cotangents)
            try:
                found = self._call("transpose", function, tuple(inputs), tree, **scalars)
            except (TypeError, AttributeError) as error:
                if isinstance(error, XLAKernelError) or "None" not in str(error):
                    raise
                raise KernelTypeError(
                    f"{self.owner}: {what} failed with {type(error).__name__}: {error}. The linear inputs are None "
                    "there, since a transpose does not depend on them. Take shapes and dtypes from the cotangents and "
                    "from the other inputs."
                ) from error
            return self._cotangents(what, found, positions, structs)

        return transpose

    # The reference.

    def _reference(self, *arguments: Any) -> list[Any]:
        """Compute all results in plain JAX."""
        assert self.derivative.reference is not None
        inputs, scalars = self._split(arguments)
        found = self._call("reference", self.derivative.reference, *inputs, **scalars)
        return flat_results(self.owner, "reference", found, self.outs, self.tree)

    def _of_scalars(self, *arguments: Any) -> list[Any]:
        """Compute all results by the reference, to differentiate them with respect to scalars."""
        if self.derivative.reference is None:
            raise DifferentiationError(
                f"{self.owner}: no derivative with respect to the scalars {list(self.scalars)}; the declared one "
                f"covers only inputs. Give {self.derivative.spelled.format('reference')}, a plain JAX version; pass "
                "the scalar by position, as a 0-d array; or keep it out of the derivative with jax.lax.stop_gradient."
            )
        return self._reference(*arguments)

    # The tangent map of a declared JVP or VJP.

    def _tangent_map(self, inputs: int, smooth: Sequence[int]) -> Multilinear:
        """Return the tangents as a function of the inputs, the results, and the tangents of the *smooth* inputs."""
        first = inputs + len(self.outs)
        positions = tuple(range(first, first + len(smooth)))

        def split(arguments: Sequence[Any]) -> tuple[list[Any], list[Any], list[Any]]:
            return list(arguments[:inputs]), list(arguments[inputs:first]), list(arguments[first:])

        def by_reference(*arguments: Any) -> list[Any]:
            primals, _, moved = split(arguments)
            tangents: list[Any] = [None] * inputs
            for i, tangent in zip(smooth, moved, strict=True):
                tangents[i] = tangent
            return tangents_of(self._reference, primals, tangents)

        def by_jvp(*arguments: Any) -> list[Any]:
            primals, _, moved = split(arguments)
            return self._jvp(primals, moved)

        def transpose(arguments: Sequence[Any], cotangents: Sequence[Any]) -> Sequence[Any]:
            primals, results, _ = split(arguments)
            return self._vjp(primals, results, list(cotangents), smooth)

        def transpose_by_reference(arguments: Sequence[Any], cotangents: Sequence[Any]) -> Sequence[Any]:
            primals, _, _ = split(arguments)

            of_smooth = smooth_results(self._reference, primals, smooth)
            return list(jax.vjp(of_smooth, *(primals[i] for i in smooth))[1](list(cotangents)))

        def transpose_with_derivative(arguments: Sequence[Any], cotangents: Sequence[Any]) -> Sequence[Any]:
            def of_list(by: Callable[..., Any]) -> Callable[..., list[Any]]:
                return lambda *values: list(by(values[:first], values[first:]))

            tangents = TangentsByJAX(of_list(transpose_by_reference))
            run = multilinear.with_tangents(f"the cotangents of {self.owner}", of_list(transpose), tangents)
            return run(*arguments[:first], *cotangents)

        # If all three are declared, the JVP and the VJP give first derivatives, and the reference higher ones.
        known = self.derivative.reference is not None
        forward = by_jvp if self.derivative.jvp is not None else by_reference if known else self._no_forward
        backward = transpose_by_reference
        if self.derivative.vjp is not None:
            backward = transpose_with_derivative if known else transpose
        outs = tuple(out for out in self.outs if is_smooth(out.dtype))
        return Multilinear(
            f"the tangents of {self.owner}",
            forward,
            outs,
            (Group(positions, backward),),
            TangentsByJAX(by_reference if known else forward),
            spelled=self.derivative.spelled,
            sharded_like=lambda *arguments: self._only_smooth(split(arguments)[1]),
        )

    def _no_forward(self, *_: Any) -> list[Any]:
        vjp, jvp, reference = map(self.derivative.spelled.format, ("vjp", "jvp", "reference"))
        raise DifferentiationError(
            f"{self.owner}: forward mode (jax.jvp, jax.jacfwd, jax.hessian) asks for the tangents of its results, and "
            f"only {vjp} is known. Give {jvp} or {reference} too, or use reverse mode (jax.grad, jax.vjp, jax.jacrev)."
        )

    def _jvp(self, primals: list[Any], moved: Sequence[Any]) -> list[Any]:
        assert self.derivative.jvp is not None
        inputs, scalars = self._split(primals)
        given = iter(moved)
        tangents = tuple(next(given) if is_smooth(x.dtype) else None for x in inputs)
        found = self._call("jvp", self.derivative.jvp, tuple(inputs), tangents, **scalars)
        return self._only_smooth(flat_results(self.owner, "jvp", found, self.outs, self.tree, tangents=True))

    def _vjp(
        self, arguments: list[Any], results: list[Any], cotangents: list[Any], smooth: Sequence[int]
    ) -> Sequence[Any]:
        assert self.derivative.vjp is not None
        primals, scalars = self._split(arguments)
        given = iter(cotangents)
        every = [next(given) if is_smooth(out.dtype) else None for out in self.outs]
        trees = [jax.tree.unflatten(self.tree, values) for values in (results, every)]
        found = self._call("vjp", self.derivative.vjp, tuple(primals), *trees, **scalars)
        every = self._cotangents("vjp", found, range(len(primals)), primals)
        return [every[i] for i in smooth]

    def _cotangents(self, what: str, found: Any, positions: Sequence[int], primals: Sequence[Any]) -> list[Any]:
        """Check and return the cotangents that an author's function returned for *primals*; None for integers."""
        number = len(primals)
        if found is None:  # a forgotten return must not become a zero
            raise ResultError(
                f"{self.owner}: {what} returned None; return a tuple of {counted(number, 'cotangent')} (does it lack "
                f"a return?). For zero return {(None,) * number}."
            )
        flat = list(found) if isinstance(found, (tuple, list)) else [found]
        if len(flat) != number:
            raise ResultError(
                f"{self.owner}: {what} returned {counted(len(flat), 'cotangent')} for {counted(number, 'input')}; "
                "return one for each input, None for integers and for zero."
            )
        for k, (i, primal) in enumerate(zip(positions, primals, strict=True)):
            if not is_smooth(primal.dtype):
                flat[k] = None
            elif flat[k] is None:
                flat[k] = jnp.zeros(primal.shape, primal.dtype)
            elif fits(flat[k], primal):
                flat[k] = as_array(flat[k], primal.dtype)
            else:
                raise ResultError(
                    f"{self.owner}: {what} returned {text_of(flat[k])} as the cotangent of input {i}, which is "
                    f"{text_of(primal)}; a cotangent has the shape and dtype of its input, or is None for zero."
                )
        return flat

    # Calls of the author's functions.

    def _split(self, arguments: Sequence[Any]) -> tuple[Sequence[Any], dict[str, Any]]:
        """Return the inputs and, by name, the scalars that follow the inputs in *arguments*."""
        count = len(arguments) - len(self.scalars)
        return arguments[:count], dict(zip(self.scalars, arguments[count:], strict=True))

    def _call(self, keyword: str, function: Callable[..., Any], /, *args: Any, **scalars: Any) -> Any:
        offered = {name: self.offered[name] for name in keywords_of(function, self.offered)}
        static = {**self.static, **scalars, **offered}
        try:
            inspect.signature(function).bind(*args, **static)
        except TypeError as error:
            own = "multiple values" in str(error)
            hint = " Make its inputs positional-only, with a / after them: a scalar may then have the same name." * own
            raise KernelTypeError(
                f"{self.owner}: {keyword} cannot be called as {keyword}({_SIGNATURES[keyword]}"
                f"{''.join(f', {name}=...' for name in static)}): {error}.{hint}"
            ) from error
        except ValueError:  # a builtin without a signature
            pass
        with self.settings.resumed():
            run, used = _examined(function, args, static)
            captured = next(_tracers_in(used), None)
            if captured is None:
                return run()
        raise DifferentiationError(
            f"{self.owner}: {keyword} uses the traced value {captured}, which it gets from a closure, an object or a "
            "global, and which JAX does not let a rule of differentiation do. Define the function outside, and pass "
            "the value as an input (the kernel may ignore it)."
        )

    def _only_smooth(self, values: Sequence[Any]) -> list[Any]:
        return [value for value, out in zip(values, self.outs, strict=True) if is_smooth(out.dtype)]


_ARRAY = object()  # in place of an array among the results of a rule


def _examined(
    function: Callable[..., Any], args: Sequence[Any], keywords: Mapping[str, Any]
) -> tuple[Callable[[], Any], list[Any]]:
    """Return a function that calls *function*, and the values (maybe tracers) that it uses besides its arguments."""

    def run() -> Any:
        return function(*args, **keywords)

    # *function* may reach a value in many ways, for example through an object: a trace finds all values.
    traced = {name: value for name, value in keywords.items() if isinstance(value, jax.core.Tracer)}
    found: list[Any] = []
    tree = None

    def call(args: list[Any], traced: dict[str, Any]) -> list[jax.Array]:
        nonlocal tree
        leaves, tree = jax.tree.flatten(function(*args, **{**keywords, **traced}))
        # `_ARRAY` replaces arrays, so that no tracer outlives the trace. The caller checks the other leaves.
        found[:] = [_ARRAY if isinstance(leaf, jax.Array) else leaf for leaf in leaves]
        return [leaf for leaf in leaves if isinstance(leaf, jax.Array)]

    try:
        program = jax.make_jaxpr(call)(list(args), traced)
    except Exception as error:
        if is_raised_by_handler(error):
            raise
        # The call itself raises the error, or succeeds with known values.
        return run, _referred_to(function)

    def run_program() -> Any:
        results = iter(jaxpr_as_fun(program)(*jax.tree.leaves((list(args), traced))))
        return jax.tree.unflatten(tree, [next(results) if leaf is _ARRAY else leaf for leaf in found])

    return run_program, list(program.consts)


def _tracers_in(values: Iterable[Any]) -> Iterator[Any]:
    for value in values:
        with contextlib.suppress(TypeError, ValueError):  # a dictionary whose keys have no order is no pytree
            yield from (leaf for leaf in jax.tree.leaves(value) if isinstance(leaf, jax.core.Tracer))


def _referred_to(function: Any) -> list[Any]:
    """Return the values in the closure and the globals of a function, and the arguments in a ``functools.partial``."""
    values = []
    while isinstance(function, functools.partial):
        values += [*function.args, *function.keywords.values()]
        function = function.func
    for cell in getattr(function, "__closure__", None) or ():
        try:
            values.append(cell.cell_contents)
        except ValueError:  # not assigned yet
            continue
    space = getattr(function, "__globals__", {})
    names = function.__code__.co_names if isinstance(function, types.FunctionType) else ()
    return values + [space[name] for name in names if name in space]


_SIGNATURES = {
    "reference": "*inputs",
    "jvp": "primals, tangents",
    "vjp": "primals, results, cotangents",
    "transpose": "inputs, cotangents",
}
