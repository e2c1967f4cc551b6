"""How a function that launches Warp kernels is found again in another process, and made a target there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import warp

from xlakernel.core.backend import Struct
from xlakernel.core.ffi.callables import Callables
from xlakernel.core.ffi.registry import Recipe

from ._alone import guard
from ._function import WarpFunction
from ._gpu import check_device
from ._jax_callable import annotated
from ._parameters import Parameter
from ._platform import Static
from ._python import python_target
from ._split import split_parameters
from ._types import PYTHON_SCALARS
from ._written import FORMAT, check_format, check_listed, read_static, read_structs, write_static, write_structs


def write_recipe(
    kernel: WarpFunction, inputs: Sequence[Struct], outs: Sequence[Struct], static: Static, content: str, **how: Any
) -> Recipe:
    """Say how the target of a function is made in another process.

    Args:
      kernel: the function.
      inputs: the structs of its inputs.
      outs: the structs of its outputs.
      static: its static scalars.
      content: the fingerprint that it had when its target was made.
      how: what else `WarpFunction.launchable` was given.

    Raises:
      ExportError: if it cannot be made there, or only something else.
    """
    split = kernel.split
    data = {
        "format": FORMAT,
        **kernel.callables.write(content),
        "warp": warp.__version__,
        "parameters": _listed(split.parameters),
        "num_outputs": len(split.outputs) + len(split.in_out),
        "in_out": list(split.in_out),
        "graph_mode": kernel.graph_mode.name,
        "inputs": write_structs(inputs),
        "outs": write_structs(outs),
        "static": write_static(static),
        "how": how,
    }
    return Recipe("xlakernel.warp._function_export", data)


def prepare(target: str, data: Mapping[str, Any]) -> Callable[[], None]:
    """Find the function that *data* describes, and return what makes and registers its target.

    Raises:
      ExportError: if the function is not there, or is another one now.
    """
    guard()
    check_format(target, data.get("format"))
    callables, how = Callables.find(data), data["how"]
    name, parameters = data["name"], annotated(callables.function)
    check_listed(f"the function {name}", "parameters", data["parameters"], _listed(parameters))
    split = split_parameters(name.rpartition(".")[2], parameters, data["num_outputs"], data["in_out"])
    kernel = WarpFunction(callables.function, split, warp.JaxCallableGraphMode[data["graph_mode"]])
    versions = f"; or Warp has: it was exported with {data['warp']}, and this is {warp.__version__}"
    callables.check_same(data, kernel.place, versions * (data["warp"] != warp.__version__))
    given = (read_structs(data["inputs"]), read_structs(data["outs"]), read_static(data["static"]))

    def build() -> None:
        launchable = kernel.launchable(*given, **how)
        if not how["on_a_gpu"]:
            python_target(launchable, once=how["ordered"], debug=how["debug"], target=target)
            return
        from xlakernel.core.gpu.target import register_again

        check_device(kernel.name)
        register_again(launchable, target, debug=how["debug"])

    return build


def _listed(parameters: Sequence[Parameter]) -> list[list[str]]:
    return [[parameter.name, warp.types.type_repr(_annotation(parameter))] for parameter in parameters]


def _annotation(parameter: Parameter) -> Any:
    dtype = Any if parameter.dtype is None else PYTHON_SCALARS.get(parameter.dtype, parameter.dtype)
    return warp.array(dtype=dtype, ndim=parameter.ndim) if parameter.is_array else dtype
