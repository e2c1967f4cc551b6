"""`jax_callable`: a replacement of ``warp.jax_callable``; on a GPU, its calls run without Python."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import warp

from xlakernel.core.backend import Struct, VmapMethod, as_decorator, by_identity, kernel_function

from ._functions.function import WarpFunction
from ._parameters import annotated
from ._signature import FrozenDims, OutputDims, divide_parameters, freeze_names, freeze_output_dims


@as_decorator
def jax_callable(
    func: Callable[..., None],
    num_outputs: int = 1,
    graph_mode: Any = None,
    vmap_method: VmapMethod = "broadcast_all",
    output_dims: OutputDims | None = None,
    in_out_argnames: Sequence[str] | None = None,
    stage_in_argnames: Sequence[str] | None = None,
    stage_out_argnames: Sequence[str] | None = None,
    graph_cache_max: int | None = 32,
    module_preload_mode: Any = None,
    has_side_effect: bool = False,
) -> Callable[..., list[jax.Array]]:
    """Make a function of JAX arrays from a function that launches Warp kernels, as ``warp.jax_callable`` does.

    On a GPU, the function's launches and temporary arrays are recorded once for each combination of shapes. Machine
    code replays them, also inside of XLA's CUDA graphs. A function that cannot be recorded, because it reads results on
    the host or its launches vary, runs through Python, with one `RecordingWarning`. On the CPU, each call runs the
    function in Python. In debug mode, the function gets copies of its arrays. The copies are checked like those of a
    kernel (see `warp_kernel`).

    Warp's own graphs and staging buffers are not used. The arguments *graph_mode*, *stage_in_argnames*,
    *stage_out_argnames*, *graph_cache_max* and *module_preload_mode* are accepted and have no effect, with one
    exception: on the CPU, a mode that uses Warp's graphs is rejected, as by Warp.

    Args:
      func: a function that is annotated like a Warp kernel, with inputs before outputs. It launches kernels on Warp's
        current device and stream, the default of ``warp.launch``, and returns nothing. Under ``jax.vmap`` its launches
        run once for each slice of the batch.
      num_outputs: number of outputs, including those in *in_out_argnames*.
      graph_mode: a ``warp.JaxCallableGraphMode``; None: ``JAX``.
      vmap_method: the behaviour under ``jax.vmap``; see `warp_kernel`.
      output_dims: the extents of all outputs, or a dict with the extents of each output by its name; the dimensions of
        vectors or matrices may be omitted. None: the shape of the first input, without such dimensions.
      in_out_argnames: names of inputs that are outputs as well; they precede the other outputs.
      stage_in_argnames: see above.
      stage_out_argnames: see above.
      graph_cache_max: see above.
      module_preload_mode: see above.
      has_side_effect: whether to keep every call, even if its results are unused or it equals another call.

    Returns:
      A function that takes the inputs by position and returns a list of the outputs. Scalars are inputs too, and must
      not be traced. The function's keyword arguments *output_dims* and *vmap_method* override those given here. Equal
      arguments of `jax_callable` give the same function object.

    Raises:
      KernelTypeError: if *func* is not a function, or a parameter is not annotated as an array or a scalar.
      ArgumentError: if *num_outputs* or *in_out_argnames* do not fit the parameters of *func*.
      LaunchError: if *output_dims* are not extents.

    The returned function raises the same errors as a function that `jax_kernel` returns.

    Example:
      >>> import jax, jax.numpy as jnp, warp as wp
      >>> from xlakernel.warp import jax_callable
      >>> @wp.kernel
      ... def double(x: wp.array(dtype=float), out: wp.array(dtype=float)):
      ...     i = wp.tid()
      ...     out[i] = 2.0 * x[i]
      >>> def quadruple(x: wp.array(dtype=float), out: wp.array(dtype=float)):
      ...     between = wp.empty_like(x)
      ...     wp.launch(double, dim=x.shape, inputs=[x], outputs=[between])
      ...     wp.launch(double, dim=x.shape, inputs=[between], outputs=[out])
      >>> f = jax_callable(quadruple)
      >>> jax.eval_shape(f, jnp.ones(3))
      [ShapeDtypeStruct(shape=(3,), dtype=float32)]
    """
    mode = warp.JaxCallableGraphMode(warp.JaxCallableGraphMode.JAX if graph_mode is None else graph_mode)
    name = str(getattr(func, "__name__", repr(func)))
    in_out = freeze_names(name, "in_out_argnames", in_out_argnames)
    stage_in, stage_out = frozenset(stage_in_argnames or ()), frozenset(stage_out_argnames or ())
    function = WarpFunction(func, divide_parameters(name, annotated(func), num_outputs, in_out), mode)
    outputs = freeze_output_dims(name, output_dims)
    return _made(function, by_identity(vmap_method), outputs, bool(has_side_effect), in_out, stage_in, stage_out)


@dataclasses.dataclass(eq=False, repr=False)
class JaxCallable:
    """The result of `jax_callable`, with the attributes of Warp's counterpart."""

    xlakernel: WarpFunction
    vmap_method: VmapMethod
    output_dims: FrozenDims | None
    has_side_effect: bool
    in_out_argnames: tuple[str, ...]
    stage_in_argnames: frozenset[str]
    stage_out_argnames: frozenset[str]

    def __post_init__(self) -> None:
        self.__name__ = self.xlakernel.name
        self.graph_mode = self.xlakernel.graph_mode
        self._function = functools.lru_cache(maxsize=256)(self._make_function)

    def __call__(
        self, *args: Any, output_dims: OutputDims | None = None, vmap_method: VmapMethod = None, **unknown: Any
    ) -> list[jax.Array]:
        """Run the function; see `jax_callable`."""
        signature = self.xlakernel.signature
        signature.check_options(unknown, ("output_dims", "vmap_method"))
        arrays, scalars = signature.divide(args)
        chosen = freeze_output_dims(self.__name__, output_dims)
        function = self._function(
            self.output_dims if chosen is None else chosen, by_identity(vmap_method) or self.vmap_method
        )
        return function(*arrays, **scalars)  # type: ignore[no-any-return]

    def _make_function(self, output_dims: FrozenDims | None, vmap_method: VmapMethod) -> Callable[..., Any]:
        signature = self.xlakernel.signature

        def outs(*inputs: Struct) -> list[Struct]:
            for index, (given, struct) in enumerate(zip(signature.inputs, inputs, strict=False)):
                given.check(struct, signature.name, f"input {index}")
            return signature.outs(inputs, signature.first_shape(inputs) if output_dims is None else output_dims)

        return kernel_function(
            self.xlakernel,
            signature.without_defaults,
            outs,
            vmap_method=vmap_method,
            input_output_aliases=signature.aliases,
            has_side_effect=self.has_side_effect,
        )


_made = functools.lru_cache(maxsize=1024)(JaxCallable)
