"""Registration of `jax_callable` functions for deserialized programs; `xlakernel.core.deserialize` calls `prepare`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import warp

from xlakernel.core.backend import Callables, check_format, read_static, read_structs

from ._functions.function import WarpFunction
from ._internals.threads import guard
from ._parameters import annotated
from ._platforms.written import check_blocks, check_listed, listed
from ._signature import divide_parameters


def prepare(target: str, data: Mapping[str, Any]) -> Callable[[], None]:
    """Find the user's function that *data* describes, and return a function that registers its handler as *target*.

    Raises:
      ExportError: if the function is missing or has changed.
    """
    guard()
    check_format("xlakernel-warp", target, data)
    callables = Callables.find(data)
    check_blocks(f"the function {data['name']}", data)
    name, parameters = data["name"], annotated(callables.function)
    check_listed(f"the function {name}", "parameters", data["parameters"], listed(parameters))
    signature = divide_parameters(name.rpartition(".")[2], parameters, data["num_outputs"], data["in_out"])
    mode = warp.JaxCallableGraphMode[data["graph_mode"]]
    function = WarpFunction(callables.function, signature, mode, data["platform"])
    versions = f"; or Warp itself, which was {data['warp']} and is {warp.__version__}"
    callables.check_same(data, function.place, versions * (data["warp"] != warp.__version__))
    given = read_structs(data["inputs"]), read_structs(data["outs"]), read_static(data["static"])

    def build() -> None:
        function.register(*given, **data["options"], target=target)

    return build
