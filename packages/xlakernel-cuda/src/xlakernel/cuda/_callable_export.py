"""Registration of functions for deserialized programs; `xlakernel.core.deserialize` calls `prepare`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from xlakernel.core.backend import Callables, check_format, read_static

from ._functions.function import CudaFunction
from ._functions.libraries import Adapter
from ._functions.signature import signature_of


def prepare(target: str, data: Mapping[str, Any]) -> Callable[[], None]:
    """Find the function that *data* describes, and return a function that records and registers it as *target*.

    Raises:
      ExportError: if the function is missing or has changed.
    """
    check_format("xlakernel-cuda", target, data)
    from xlakernel.core.backend.gpu import Array

    callables = Callables.find(data, "arrays", "stream")
    adapter = Adapter(**callables.others)
    adapter.check(f"deserialize: the function {data['name']}")
    signature = signature_of("deserialize", callables.function)
    kernel = CudaFunction(callables.function, signature, adapter, data["record"], tuple(map(tuple, data["aliases"])))
    callables.check_same(data, kernel.place)
    arrays = [Array(source, index, dtype, tuple(shape)) for source, index, dtype, shape in data["types"]]
    static = read_static(data["static"])

    def build() -> None:
        kernel.register(arrays, static, debug=data["debug"], target=target)

    return build
