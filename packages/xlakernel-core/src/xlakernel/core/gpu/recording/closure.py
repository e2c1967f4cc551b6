"""Device arrays and other objects that a function uses besides its arguments."""

from __future__ import annotations

import dataclasses
import functools
import sys
import types
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import jax
import numpy as np

from ...identity.names import attributes_in, globals_in
from ...interrupts import is_raised_by_handler

_DEPTH = 8  # levels of nested objects to search
# Packages whose functions and objects are not searched: they refer to many objects, but to no array of the user.
_NOT_ENTERED = frozenset(
    {"cuda", "cupy", "cupy_backends", "cupyx", "jax", "jaxlib", "llvmlite", "numba", "numba_cuda", "numpy", "scipy"}
    | {"torch", "triton", "warp", "xlakernel"}
) | (sys.stdlib_module_names - {"functools", "types"})


@dataclasses.dataclass(frozen=True)
class DeviceArray:
    """An array in device memory.

    Attributes:
      owner: the array object.
      begin: the address of its first byte.
      end: the address after its last byte.
    """

    owner: Any
    begin: int
    end: int


class Closure:
    """The objects that functions refer to at present.

    The search covers the closures, defaults and named globals of functions, methods and partials, the items of
    containers, the attributes of objects, and those attributes of modules that a function names.

    Args:
      roots: the functions.

    Attributes:
      arrays: the device arrays.
      state: numbers, texts, and the identities of other objects. *state* changes when an attribute is rebound.
    """

    def __init__(self, roots: Iterable[Any]) -> None:
        self.arrays: list[DeviceArray] = []
        self.state: list[str] = []
        self._seen: dict[int, Any] = {}  # by identity; holds the objects, so that no identity is used again
        for root in roots:
            self._visit(root, frozenset(), 0)

    @property
    def objects(self) -> list[Any]:
        """All objects found. The kernels among them keep the modules with the code of a plan loaded."""
        return list(self._seen.values())

    def _visit(self, value: Any, names: frozenset[str], depth: int) -> None:
        """Search *value*, which a function that uses *names* refers to."""
        if isinstance(value, (str, bytes, int, float, complex)):
            self.state.append(repr(value))
            return
        if depth > _DEPTH or isinstance(value, (type, np.ndarray, jax.core.Tracer)):
            return
        if isinstance(value, types.ModuleType):
            for name in sorted(names & vars(value).keys()):
                self._visit(vars(value)[name], names, depth + 1)
            return
        if id(value) in self._seen:
            return
        self._seen[id(value)] = value
        self.state.append(f"{type(value).__qualname__} {_identity(value)}")
        array = _device_array(value)
        if array is not None:
            self.arrays.append(array)
            return
        for inner, inner_names in _parts(value):
            self._visit(inner, inner_names or names, depth + 1)


def _parts(value: Any) -> Iterator[tuple[Any, frozenset[str]]]:
    """Yield the objects that *value* refers to, and the names that its code uses."""
    nothing: frozenset[str] = frozenset()
    if isinstance(value, types.FunctionType):
        if str(value.__module__).partition(".")[0] in _NOT_ENTERED:
            return
        names = attributes_in(value.__code__)
        for cell in value.__closure__ or ():
            try:
                yield cell.cell_contents, names
            except ValueError:  # an empty cell
                continue
        yield (value.__defaults__, value.__kwdefaults__), names
        space = value.__globals__
        yield from ((space[name], names) for name in globals_in(value.__code__) if name in space)
    elif isinstance(value, functools.partial):
        yield (value.func, value.args, value.keywords), nothing
    elif isinstance(value, types.MethodType):
        yield (value.__func__, value.__self__), nothing
    elif isinstance(value, Mapping):
        yield from ((item, nothing) for item in list(value.values()))
    elif isinstance(value, (list, tuple, set, frozenset)):
        yield from ((item, nothing) for item in list(value))
    elif type(value).__module__.partition(".")[0] not in _NOT_ENTERED:
        yield from ((item, nothing) for item in list(getattr(value, "__dict__", {}).values()))
        slots = (name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ()))
        yield from ((getattr(value, name, None), nothing) for name in slots if isinstance(name, str))


def _identity(value: Any) -> int | None:
    """Return the identity of *value*; None for a container, which is compared by its items."""
    if isinstance(value, types.FunctionType):
        return id(value.__code__)
    inside = (Mapping, list, tuple, set, frozenset, functools.partial, types.MethodType)
    return None if isinstance(value, inside) else id(value)


def _device_array(value: Any) -> DeviceArray | None:
    try:
        interface = value.__cuda_array_interface__
        begin = interface["data"][0]
        shape, strides = interface["shape"], interface.get("strides")
        itemsize = np.dtype(interface["typestr"]).itemsize
    except Exception as error:  # the property of a foreign object may raise anything
        if is_raised_by_handler(error):
            raise
        return None
    steps = strides or [itemsize * int(np.prod(shape[axis + 1 :])) for axis in range(len(shape))]
    reach = [step * max(extent - 1, 0) for step, extent in zip(steps, shape, strict=True)]
    low, high = (sum(r for r in reach if r * sign > 0) for sign in (-1, 1))
    return DeviceArray(value, begin + low, begin + high + itemsize)
