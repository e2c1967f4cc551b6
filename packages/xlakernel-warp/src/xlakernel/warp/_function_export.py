"""Targets of functions in loaded programs: `prepare` is called by `xlakernel.core.deserialize`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import warp

from xlakernel.core.backend import Callables, check_format, read_static, read_structs

from ._alone import guard
from ._function import WarpFunction
from ._gpu import check_device
from ._parameters import annotated
from ._python import python_target
from ._split import split_parameters
from ._written import check_listed, listed


def prepare(target: str, data: Mapping[str, Any]) -> Callable[[], None]:
    """Find the function that *data* describes, and return what makes and registers its target.

    Raises:
      ExportError: if the function is not there, or is another one now.
    """
    guard()
    check_format("xlakernel-warp", target, data)
    callables, how = Callables.find(data), data["how"]
    name, parameters = data["name"], annotated(callables.function)
    check_listed(f"the function {name}", "parameters", data["parameters"], listed(parameters))
    split = split_parameters(name.rpartition(".")[2], parameters, data["num_outputs"], data["in_out"])
    kernel = WarpFunction(callables.function, split, warp.JaxCallableGraphMode[data["graph_mode"]])
    versions = f"; or Warp itself, which was {data['warp']} and is {warp.__version__}"
    callables.check_same(data, kernel.place, versions * (data["warp"] != warp.__version__))
    given = (read_structs(data["inputs"]), read_structs(data["outs"]), read_static(data["static"]))

    def build() -> None:
        launchable = kernel.launchable(*given, **how)
        if not how["on_a_gpu"]:
            python_target(launchable, once=how["ordered"], debug=how["debug"], target=target)
            return
        from xlakernel.core.backend.gpu import register_again

        check_device(kernel.name)
        register_again(launchable, target, debug=how["debug"])

    return build
