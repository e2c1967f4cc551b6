"""Signatures of `jax_kernel` and `jax_callable`: the inputs and outputs among the parameters, and output extents."""

from __future__ import annotations

import dataclasses
import inspect
import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp

from xlakernel.core.backend import Struct, extents
from xlakernel.core.errors import ArgumentError, ArityError, KernelTypeError, OutputSpecError

from ._parameters import Parameter
from ._types import MAX_NDIM

Dims = int | Sequence[int]
#: Extents of the outputs: of all of them, or by the names of the parameters.
OutputDims = Dims | Mapping[str, Dims]
#: `OutputDims` in a hashable form.
FrozenDims = tuple[int, ...] | tuple[tuple[str, tuple[int, ...]], ...]


@dataclasses.dataclass(frozen=True)
class Signature:
    """The parameters of a kernel or function, divided into inputs and outputs.

    Attributes:
      name: the name of the kernel or function, for messages.
      parameters: all parameters, inputs before outputs.
      num_passed: the number of parameters that are passed in a call.
      in_out: the names of parameters that are both input and output, in the order of the parameters.
    """

    name: str
    parameters: tuple[Parameter, ...]
    num_passed: int
    in_out: tuple[str, ...]

    @property
    def passed(self) -> tuple[Parameter, ...]:
        """The parameters that are passed in a call."""
        return self.parameters[: self.num_passed]

    @property
    def inputs(self) -> tuple[Parameter, ...]:
        """The arrays that are passed in a call."""
        return tuple(parameter for parameter in self.passed if parameter.is_array)

    @property
    def outputs(self) -> tuple[Parameter, ...]:
        """The arrays that are only outputs."""
        return self.parameters[self.num_passed :]

    @property
    def aliases(self) -> dict[int, int]:
        """The inputs and outputs that share memory, ``{input: output}``, by their numbers."""
        both = [i for i, parameter in enumerate(self.inputs) if parameter.name in self.in_out]
        return {i: output for output, i in enumerate(both)}

    @property
    def without_defaults(self) -> dict[str, Any]:
        """The mapping of parameters for `kernel_function`: the name of every array and scalar, without defaults."""
        names = [parameter.name for parameter in self.parameters] + [f"{name} (output)" for name in self.in_out]
        return dict.fromkeys(names, inspect.Parameter.empty)

    def divide(self, arguments: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
        """Return the arrays among a call's arguments, and the scalars by name."""
        if len(arguments) != self.num_passed:
            names = ", ".join(parameter.name for parameter in self.passed)
            raise ArgumentError(
                f"{self.name}: Expected {self.num_passed} input{'s' * (self.num_passed != 1)} ({names}), but got "
                f"{len(arguments)}. Leave out the outputs, except those in in_out_argnames."
            )
        pairs = list(zip(self.passed, arguments, strict=True))
        return [x for p, x in pairs if p.is_array], {p.name: x for p, x in pairs if not p.is_array}

    def check_options(self, unknown: Iterable[str], known: Sequence[str]) -> None:
        """Raise `ArityError` if a call has options other than the *known* ones, such as the name of a scalar."""
        for name in unknown:
            names = ", ".join(parameter.name for parameter in self.passed)
            raise ArityError(
                f"{self.name}: unknown option {name!r}. Pass all parameters, including scalars, by position: "
                f"({names}). Options: {', '.join(known)}."
            )

    def first_shape(self, inputs: Sequence[Struct]) -> tuple[int, ...]:
        """Return the shape of the first input in Warp, without the extents of its elements (vectors or matrices)."""
        if not inputs:
            raise OutputSpecError(
                f"{self.name}: Unable to determine output dimensions, without an input: give output_dims=."
            )
        return self.inputs[0].outer(inputs[0].shape)

    def outs(self, inputs: Sequence[Struct], dims: FrozenDims) -> list[Struct]:
        """Return the structs of the outputs: first the outputs that are also inputs, then others of extents *dims*.

        Raises:
          OutputSpecError: if an output's extents are missing or of a wrong rank, or no input determines its dtype.
        """
        found = [Struct(inputs[i].shape, inputs[i].dtype) for i in self.aliases]
        by_name = None if dims and not isinstance(dims[0], tuple) else dict(dims)  # type: ignore[arg-type]
        generic = next((x.dtype for p, x in zip(self.inputs, inputs, strict=False) if p.dtype is None), None)
        for parameter in self.outputs:
            if by_name is not None and parameter.name not in by_name:
                raise OutputSpecError(
                    f"{self.name}: Missing output dimensions for argument {parameter.name!r}; output_dims has "
                    f"{sorted(by_name)}."
                )
            own = dims if by_name is None else by_name[parameter.name]
            found.append(self._out(parameter, own, generic))  # type: ignore[arg-type]
        return found

    def _out(self, parameter: Parameter, dims: tuple[int, ...], generic: Any) -> Struct:
        dtype = parameter.jax_dtype or generic
        if dtype is None:
            raise OutputSpecError(
                f"{self.name}: the output {parameter.name!r} has a generic dtype, and no input determines it. "
                "Give an overload: warp.overload(kernel, [types])."
            )
        if len(dims) == parameter.ndim:
            dims = (*dims, *parameter.inner)
        if len(dims) != parameter.rank or dims[parameter.ndim :] != parameter.inner:
            inner = f", optionally followed by the element shape {parameter.inner}" if parameter.inner else ""
            raise OutputSpecError(
                f"{self.name}: Invalid output dimensions for argument {parameter.name!r}: {dims}; expected "
                f"{parameter.ndim} extent{'s' * (parameter.ndim != 1)}{inner}."
            )
        return Struct(dims, jnp.dtype(dtype))


def divide_parameters(name: str, parameters: Sequence[Parameter], num_outputs: int, in_out: Sequence[str]) -> Signature:
    """Return the signature of a kernel or function with *num_outputs* outputs, including those named in *in_out*.

    Raises:
      ArgumentError: if *num_outputs* or *in_out* does not fit the parameters.
      KernelTypeError: if an output is not an array.
    """
    if len(set(in_out)) != len(in_out):
        raise ArgumentError(f"{name}: in_out_argnames must not contain duplicate names, but is {list(in_out)}.")
    try:
        num_outputs = operator.index(num_outputs)
    except TypeError:
        raise ArgumentError(f"{name}: num_outputs is {num_outputs!r}; expected an integer.") from None
    known = [parameter.name for parameter in parameters]
    listed = f"the parameters are ({', '.join(known)})"
    for wrong, text in (
        (num_outputs < 1, "At least one output is required"),
        (num_outputs > len(parameters), "Number of outputs cannot be greater than the number of kernel arguments"),
        (num_outputs < len(in_out), "Number of outputs cannot be smaller than the number of in_out_argnames"),
    ):
        if wrong:
            raise ArgumentError(
                f"{name}: {text}: num_outputs is {num_outputs}, in_out_argnames {list(in_out)}; {listed}."
            )
    num_passed = len(parameters) - num_outputs + len(in_out)
    for label in in_out:
        if label not in known:
            raise ArgumentError(
                f"{name}: in_out_argnames: {label!r} did not match any function argument names; {listed}."
            )
        if known.index(label) >= num_passed:
            raise ArgumentError(
                f"{name}: Expected an output-only argument for argument {label}: in_out arguments should be placed "
                f"before output-only arguments; {listed}, the last {num_outputs - len(in_out)} of them only outputs."
            )
    for position, parameter in enumerate(parameters):
        if not parameter.is_array and (position >= num_passed or parameter.name in in_out):
            raise KernelTypeError(f"{name}: All output arguments must be arrays; {parameter.name} is a scalar.")
    return Signature(name, tuple(parameters), num_passed, tuple(label for label in known if label in in_out))


def freeze_names(name: str, what: str, names: Any) -> tuple[str, ...]:
    """Return the names of parameters as a tuple; raise `ArgumentError` for a string, which is a sequence of letters."""
    if isinstance(names, str):
        raise ArgumentError(f"{name}: {what} is {names!r}; expected a sequence of names, such as [{names!r}].")
    return tuple(names or ())


def freeze_output_dims(name: str, dims: OutputDims | None) -> FrozenDims | None:
    """Return extents of outputs as tuples; raise `LaunchError` for other objects."""
    most = MAX_NDIM + 2  # dimensions of an array, and of matrices in it
    if isinstance(dims, Mapping):
        return tuple((key, extents(name, f"output_dims[{key!r}]", dims[key], most=most)) for key in sorted(dims))
    return None if dims is None else extents(name, "output_dims", dims, most=most)
