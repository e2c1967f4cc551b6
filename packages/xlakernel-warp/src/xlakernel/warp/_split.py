"""Which of a kernel's or function's parameters are inputs and which outputs, as Warp's own JAX calls divide them."""

from __future__ import annotations

import dataclasses
import inspect
import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp

from xlakernel.core.backend import Struct, extents
from xlakernel.core.errors import ArgumentError, ArityError, KernelTypeError, OutputSpecError, StaticArgumentError

from ._kernel import MAX_DIMS
from ._parameters import Parameter
from ._types import MAX_NDIM

Dims = int | Sequence[int]
#: Extents of the outputs: of all of them, or by the names of the parameters.
OutputDims = Dims | Mapping[str, Dims]
#: The same, hashable.
FrozenDims = tuple[int, ...] | tuple[tuple[str, tuple[int, ...]], ...]


@dataclasses.dataclass(frozen=True)
class SplitParameters:
    """The parameters, divided.

    Attributes:
      name: whose they are, for messages.
      parameters: all of them: inputs, then outputs.
      given: how many of them a call gives.
      in_out: the names of those that are both.
    """

    name: str
    parameters: tuple[Parameter, ...]
    given: int
    in_out: tuple[str, ...]

    @property
    def inputs(self) -> tuple[Parameter, ...]:
        """The arrays that a call gives."""
        return tuple(parameter for parameter in self.parameters[: self.given] if parameter.is_array)

    @property
    def outputs(self) -> tuple[Parameter, ...]:
        """The arrays that are only outputs."""
        return self.parameters[self.given :]

    @property
    def aliases(self) -> dict[int, int]:
        """Input → output that has its memory."""
        found = [i for i, parameter in enumerate(self.inputs) if parameter.name in self.in_out]
        return {i: output for output, i in enumerate(found)}

    @property
    def filled(self) -> dict[str, Any]:
        """What a call fills: all parameters, and once more those that are both."""
        names = [parameter.name for parameter in self.parameters] + [f"{name} (output)" for name in self.in_out]
        return dict.fromkeys(names, inspect.Parameter.empty)

    def divide(self, arguments: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
        """Return the arrays among a call's arguments, and the scalars by name.

        Raises:
          ArgumentError: if there are more or fewer than parameters to give.
        """
        wanted = self.parameters[: self.given]
        if len(arguments) != len(wanted):
            names = ", ".join(parameter.name for parameter in wanted)
            raise ArgumentError(
                f"{self.name}: Expected {len(wanted)} input{'s' * (len(wanted) != 1)} ({names}), but got "
                f"{len(arguments)}. The outputs are not given, but those in in_out_argnames are."
            )
        pairs = list(zip(wanted, arguments, strict=True))
        return [x for p, x in pairs if p.is_array], {p.name: x for p, x in pairs if not p.is_array}

    def check_options(self, unknown: Iterable[str], known: Sequence[str]) -> None:
        """Raise `ArityError` for the first option that a call does not have, such as the name of a scalar."""
        for name in unknown:
            taken = f"by keyword it is given {', '.join(known)}" if known else "nothing is given by keyword"
            wanted = ", ".join(parameter.name for parameter in self.parameters[: self.given])
            raise ArityError(
                f"{self.name}: a call has no option {name!r}; the parameters are given by position, scalars among "
                f"them: ({wanted}), and {taken}."
            )

    def numbers(self, count: int) -> dict[str, int]:
        """Return the number of each array, among *count* inputs and then the outputs; of one that is both, the last."""
        numbers = {parameter.name: number for number, parameter in enumerate(self.inputs)}
        names = [*self.in_out, *(parameter.name for parameter in self.outputs)]
        return numbers | {name: count + number for number, name in enumerate(names)}

    def first_shape(self, inputs: Sequence[Struct]) -> tuple[int, ...]:
        """Return the extents of the first input, without those of a vector or matrix.

        Raises:
          OutputSpecError: if there is none.
        """
        if not inputs:
            raise OutputSpecError(
                f"{self.name}: Unable to determine output dimensions, without an input: give output_dims=."
            )
        return self.inputs[0].outer(inputs[0].shape) or (1,)  # a 0-d array is one of shape (1,) to Warp

    def outs(self, inputs: Sequence[Struct], dims: FrozenDims | Mapping[str, Any]) -> list[Struct]:
        """Return the structs of the outputs, those that are inputs as well first.

        Args:
          inputs: the inputs' structs.
          dims: extents of all others, or of each by name.

        Raises:
          OutputSpecError: if the extents of one are missing, or cannot be its.
        """
        found = [Struct(inputs[i].shape, inputs[i].dtype) for i in self.aliases]
        by_name = None if dims and not isinstance(dims[0], tuple) else dict(dims)  # type: ignore[arg-type,index]
        generic = next((x.dtype for p, x in zip(self.inputs, inputs, strict=False) if p.dtype is None), None)
        for parameter in self.outputs:
            if by_name is not None and parameter.name not in by_name:
                raise OutputSpecError(
                    f"{self.name}: Missing output dimensions for argument {parameter.name!r}; output_dims has "
                    f"{sorted(by_name)}."
                )
            own = dims if by_name is None else by_name[parameter.name]
            found.append(self._out(parameter, tuple(own), generic))  # type: ignore[arg-type]
        return found

    def _out(self, parameter: Parameter, dims: tuple[int, ...], generic: Any) -> Struct:
        dtype = parameter.jax_dtype or generic
        if dtype is None:
            raise OutputSpecError(
                f"{self.name}: the output {parameter.name!r} is of any dtype, and no input says which. Give an "
                "overload: warp.overload(kernel, [types])."
            )
        if parameter.inner and len(dims) == parameter.ndim:
            dims = (*dims, *parameter.inner)
        if len(dims) != parameter.rank or dims[parameter.ndim :] != parameter.inner:
            inner = f", with {parameter.inner} of its elements behind them or without" if parameter.inner else ""
            raise OutputSpecError(
                f"{self.name}: Invalid output dimensions for argument {parameter.name!r}: {dims}; it is an array of "
                f"{parameter.ndim} dimension{'s' * (parameter.ndim != 1)}{inner}."
            )
        return Struct(dims, jnp.dtype(dtype))


def split_parameters(name: str, parameters: Sequence[Parameter], num_outputs: int, in_out: Sequence[str]) -> Any:
    """Divide parameters.

    Raises:
      ArgumentError: if they cannot be divided like that.
      KernelTypeError: if an output is no array.
    """
    if len(set(in_out)) != len(in_out):
        raise ArgumentError(f"{name}: in_out_argnames must not contain duplicate names, and is {list(in_out)}.")
    try:
        count = operator.index(num_outputs)
    except TypeError:
        raise ArgumentError(f"{name}: num_outputs is {num_outputs!r}; expected an integer.") from None
    listed = f"the parameters are ({', '.join(parameter.name for parameter in parameters)})"
    for wrong, text in (
        (count < 1, "At least one output is required"),
        (count > len(parameters), "Number of outputs cannot be greater than the number of kernel arguments"),
        (count < len(in_out), "Number of outputs cannot be smaller than the number of in_out_argnames"),
    ):
        if wrong:
            raise ArgumentError(f"{name}: {text}: num_outputs is {count}, in_out_argnames {list(in_out)}; {listed}.")
    given = len(parameters) - count + len(in_out)
    known = [parameter.name for parameter in parameters]
    for missing in (label for label in in_out if label not in known):
        raise ArgumentError(
            f"{name}: in_out_argnames: {missing!r} did not match any function argument names; {listed}."
        )
    for late in (label for label in in_out if known.index(label) >= given):
        raise ArgumentError(
            f"{name}: Expected an output-only argument for argument {late}: in_out arguments should be placed before "
            f"output-only arguments; {listed}, the last {count - len(in_out)} of them only outputs."
        )
    for parameter in parameters:
        if not parameter.is_array and (known.index(parameter.name) >= given or parameter.name in in_out):
            raise KernelTypeError(f"{name}: All output arguments must be arrays; {parameter.name} is a scalar.")
    # In the result, they stand in the order of the parameters.
    return SplitParameters(name, tuple(parameters), given, tuple(label for label in known if label in set(in_out)))


def freeze_names(name: str, what: str, names: Any) -> tuple[str, ...]:
    """Return the names of parameters as a tuple.

    Raises:
      ArgumentError: if they are one string, which would be read letter by letter.
    """
    if isinstance(names, str):
        raise ArgumentError(f"{name}: {what} is {names!r}; expected a sequence of names, such as [{names!r}].")
    return tuple(names or ())


def freeze_launch_dims(name: str, dims: Dims | None) -> tuple[int, ...] | None:
    """Return threads along each dimension as a tuple.

    Raises:
      LaunchError: if they are something else.
    """
    return None if dims is None else extents(name, "launch_dims", dims, most=MAX_DIMS)


def freeze_output_dims(name: str, dims: OutputDims | None) -> FrozenDims | None:
    """Return extents of outputs as tuples.

    Raises:
      LaunchError: if they are something else.
    """
    most = MAX_NDIM + 2  # those of an array, and of matrices in it
    if isinstance(dims, Mapping):
        return tuple((key, extents(name, f"output_dims[{key!r}]", dims[key], most=most)) for key in sorted(dims))
    return None if dims is None else extents(name, "output_dims", dims, most=most)


def check_block_dim(name: str, block_dim: Any) -> int | None:
    """Return the threads of a block.

    Raises:
      StaticArgumentError: if it is no integer.
      ArgumentError: if it is not positive.
    """
    if block_dim is None:
        return None
    if isinstance(block_dim, bool) or not hasattr(block_dim, "__index__"):
        raise StaticArgumentError(f"{name}: block_dim must be an integer or None, and is {block_dim!r}.")
    if operator.index(block_dim) <= 0:
        raise ArgumentError(f"{name}: block_dim must be positive, and is {block_dim}.")
    return operator.index(block_dim)
