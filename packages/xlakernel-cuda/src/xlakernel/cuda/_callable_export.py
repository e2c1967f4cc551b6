"""How a function that launches work is found again in another process, and whether it is still the same there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from xlakernel.core.errors import ExportError
from xlakernel.core.ffi.callables import Callables
from xlakernel.core.ffi.registry import Recipe

from ._function import CudaFunction
from ._libraries import Adapter

if TYPE_CHECKING:
    from xlakernel.core.gpu.plan import Array

_FORMAT = 2


def write_recipe(
    kernel: CudaFunction, arrays: Sequence[Array], static: Mapping[str, np.generic], *, debug: bool, content: str
) -> Recipe:
    """Say how the target of a function is made in another process.

    Args:
      kernel: the function, with what it is given.
      arrays: what it was recorded for.
      static: the static scalars that it was recorded with.
      debug: whether its target checks what it does.
      content: the fingerprint that it had then.

    Raises:
      ExportError: if it cannot be made there, or only something else.
    """
    data = {
        "format": _FORMAT,
        **kernel.callables.write(content),
        "record": kernel.record,
        "aliased": sorted(kernel.aliased),
        "types": [[array.source, array.index, array.dtype, list(array.shape)] for array in arrays],
        "static": [[key, value.dtype.name, value.tobytes().hex()] for key, value in sorted(static.items())],
        "debug": debug,
    }
    return Recipe("xlakernel.cuda._callable_export", data)


def prepare(target: str, data: Mapping[str, Any]) -> Callable[[], None]:
    """Find the function that *data* describes, and return what records and registers it as *target*.

    Raises:
      ExportError: if it is not there, or is another one now.
    """
    if data.get("format") != _FORMAT:
        raise ExportError(
            f"deserialize: {target!r} was exported by another xlakernel-cuda, whose recipes are of format "
            f"{data.get('format')!r}; this one reads format {_FORMAT}. Install that version, or export again."
        )
    from xlakernel.core.gpu.plan import Array

    from ._callable import signature_of  # which imports the module that imports this one when it is called

    callables = Callables.find(data, "arrays", "stream")
    adapter = Adapter(**callables.others)
    adapter.check(f"deserialize: the function {data['name']}")
    signature = signature_of("deserialize", callables.function)
    kernel = CudaFunction(callables.function, signature, adapter, data["record"], frozenset(data["aliased"]))
    callables.check_same(data, kernel.place)
    arrays = [Array(source, index, dtype, tuple(shape)) for source, index, dtype, shape in data["types"]]
    static = {key: np.frombuffer(bytes.fromhex(value), dtype)[0] for key, dtype, value in data["static"]}

    def build() -> None:
        kernel.register(arrays, static, debug=data["debug"], target=target)

    return build
