"""The parameters of a function that launches work on the GPU."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping
from typing import Any

from xlakernel.core.errors import KernelTypeError


@dataclasses.dataclass(frozen=True)
class Signature:
    """The parameters of a function that launches work.

    Attributes:
      names: the names of all parameters, in order.
      stream: the name of the parameter that takes the stream: ``stream``, or else that of the last parameter.
      others: the other parameters: their defaults, by name.
    """

    names: tuple[str, ...]
    stream: str
    others: Mapping[str, Any]


def signature_of(asked_by: str, func: Any) -> Signature:
    """Return the parameters of *func*.

    Raises:
      KernelTypeError: if *func* is not a function of arrays and a stream.
    """
    if reason := _wrong_function(func):
        raise KernelTypeError(f"{asked_by}: {_name(func)} is of type {type(func).__name__}; {reason}")
    form = f"write def {_name(func)}(input, ..., output, ..., stream)."
    parameters = list(inspect.signature(func).parameters.values())
    for parameter in parameters:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.KEYWORD_ONLY):
            raise KernelTypeError(
                f"{asked_by}: {_name(func)} has the parameter {parameter}; a function has one plain parameter for each "
                f"input, output and static scalar, and one for the stream: {form}"
            )
    if not parameters:
        raise KernelTypeError(f"{asked_by}: {_name(func)} has no parameters; {form}")
    names = tuple(parameter.name for parameter in parameters)
    stream = "stream" if "stream" in names else names[-1]
    return Signature(names, stream, {p.name: p.default for p in parameters if p.name != stream})


def _wrong_function(func: Any) -> str | None:
    """Return advice if *func* is not a function that launches work; else None."""
    package = type(func).__module__.partition(".")[0]
    if hasattr(func, "xlakernel"):
        return "this one is wrapped already. Wrap the function itself, under a name of its own."
    if hasattr(func, "py_func") and "cuda" in type(func).__module__:
        return (
            "this is a CUDA kernel. Wrap it with numba_cuda_kernel, or write a function that launches it: "
            "kernel[blocks, threads, stream](...)."
        )
    if hasattr(func, "py_func") or package == "numba":
        return "this one runs on the CPU. Wrap an njit function with xlakernel.numba.numba_kernel."
    if package in ("cupy", "warp"):
        return "this is a kernel. Write a function of arrays and a stream that launches it."
    if hasattr(func, "trace") and hasattr(func, "lower"):
        return "jax.jit returned it, and JAX runs it without a wrapper."
    if not callable(func) or isinstance(func, type):
        return "expected a function that launches work on a stream."
    if inspect.iscoroutinefunction(func) or inspect.isgeneratorfunction(func) or inspect.isasyncgenfunction(func):
        return "a call of it launches nothing yet. Expected a plain function, without async and yield."
    return None


def _name(func: Any) -> str:
    return str(getattr(func, "__name__", None) or repr(func))
