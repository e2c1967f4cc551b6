"""`jax_callable`: Warp's own way to make a function of JAX arrays from one that launches kernels, on our path."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import warp

from xlakernel.core.backend import Struct, VmapMethod, as_decorator, kernel_function

from ._function import WarpFunction
from ._parameters import annotated
from ._split import FrozenDims, OutputDims, SplitParameters, freeze_names, freeze_output_dims, split_parameters

#: How many graphs of a callable Warp would keep.
_GRAPH_CACHE_MAX = 32


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
    graph_cache_max: int | None = _GRAPH_CACHE_MAX,
    module_preload_mode: Any = None,
    has_side_effect: bool = False,
) -> Callable[..., list[jax.Array]]:
    """Make a function of JAX arrays from one that launches Warp kernels, with the arguments of ``warp.jax_callable``.

    On a GPU what the function launches is recorded once for each combination of shapes, temporary arrays among it, and
    replayed by machine code; it may be part of XLA's CUDA graphs. What cannot be recorded, because the function reads
    results on the host or does something else each time, runs through Python, and says so once (`RecordingWarning`). On
    the CPU the function is called by Python each time. Warp's own graphs and staging buffers are not needed for that:
    *graph_mode*, *stage_in_argnames*, *stage_out_argnames* and *graph_cache_max* are taken and kept as attributes, and
    change nothing, except that the modes which capture graphs of Warp's are refused on the CPU, as Warp does. In debug
    mode the function is given copies of its arrays, which are checked as a kernel's are (see `warp_kernel`).

    Args:
      func: a function with the annotations of a Warp kernel, inputs before outputs. It launches kernels on Warp's
        current device and stream, as ``warp.launch`` does unless told otherwise, and returns nothing. Under
        ``jax.vmap`` it runs for each slice.
      num_outputs: how many outputs it has, those in *in_out_argnames* among them.
      graph_mode: a ``warp.JaxCallableGraphMode``; None: ``JAX``.
      vmap_method: what ``jax.vmap`` does: see `warp_kernel`.
      output_dims: extents of all outputs, or of each in a dict by its name, with or without the dimensions of vectors
        or matrices. None: the shape of the first input, without these.
      in_out_argnames: names of inputs that are outputs as well; they stand before the other outputs.
      stage_in_argnames: see above.
      stage_out_argnames: see above.
      graph_cache_max: see above.
      module_preload_mode: when Warp would load modules; nothing here depends on it.
      has_side_effect: whether to keep each call as it stands, used or not.

    Returns:
      A function of the inputs by position, scalars among them, which must be numbers while JAX traces. It takes
      *output_dims* and *vmap_method* by keyword, in place of those given here. It returns a list of the outputs. The
      same arguments give the same object.

    Raises:
      KernelTypeError: if *func* is no function with an annotation for each parameter, or has one that is neither an
        array nor a scalar.
      ArgumentError: if *num_outputs* or *in_out_argnames* do not fit its parameters.
      LaunchError: if *output_dims* are no extents.

    The function it returns raises what that of `jax_kernel` does.

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
    given = {
        "in_out_argnames": in_out_argnames,
        "stage_in_argnames": stage_in_argnames,
        "stage_out_argnames": stage_out_argnames,
    }
    listed = [freeze_names(name, what, names) for what, names in given.items()]
    split = split_parameters(name, annotated(func), num_outputs, listed[0])
    outputs = freeze_output_dims(name, output_dims)
    made = _made(func, split, mode, vmap_method, outputs, *listed, module_preload_mode, bool(has_side_effect))
    made.graph_cache_max = graph_cache_max
    return made


@functools.lru_cache(maxsize=1024)
def _made(
    func: Callable[..., None],
    split: SplitParameters,
    graph_mode: Any,
    vmap_method: VmapMethod,
    output_dims: FrozenDims | None,
    in_out: tuple[str, ...],
    stage_in: tuple[str, ...],
    stage_out: tuple[str, ...],
    module_preload_mode: Any,
    has_side_effect: bool,
) -> JaxCallable:
    function = WarpFunction(func, split, graph_mode)
    return JaxCallable(function, vmap_method, output_dims, stage_in, stage_out, has_side_effect)


class JaxCallable:
    """What `jax_callable` returns.

    Attributes:
      graph_mode: the mode that was asked for.
      stage_in_argnames: the names that were given; None: none.
      stage_out_argnames: the names that were given; None: none.
      graph_cache_max: what was given.
      captures: the graphs of Warp's: there never is one.
    """

    def __init__(
        self,
        function: WarpFunction,
        vmap_method: VmapMethod,
        output_dims: FrozenDims | None,
        stage_in: tuple[str, ...],
        stage_out: tuple[str, ...],
        has_side_effect: bool,
    ) -> None:
        self.xlakernel = function
        self.__name__ = function.name
        self.graph_mode = function.graph_mode
        self.vmap_method = vmap_method
        self.output_dims = output_dims
        self.stage_in_argnames = set(stage_in) or None
        self.stage_out_argnames = set(stage_out) or None
        self.graph_cache_max: int | None = _GRAPH_CACHE_MAX
        self.captures: dict[Any, Any] = {}
        self.has_side_effect = has_side_effect
        self._function = functools.lru_cache(maxsize=256)(self._make_function)

    @property
    def graph_cache_size(self) -> int:
        """How many graphs of Warp's there are: none."""
        return len(self.captures)

    def __call__(
        self, *args: Any, output_dims: OutputDims | None = None, vmap_method: VmapMethod = None, **unknown: Any
    ) -> list[jax.Array]:
        """Run the function; see `jax_callable`."""
        self.xlakernel.split.check_options(unknown, ("output_dims", "vmap_method"))
        arrays, scalars = self.xlakernel.split.divide(args)
        chosen = freeze_output_dims(self.__name__, output_dims)
        function = self._function(self.output_dims if chosen is None else chosen, vmap_method or self.vmap_method)
        return function(*arrays, **scalars)  # type: ignore[no-any-return]

    def _make_function(self, output_dims: FrozenDims | None, vmap_method: VmapMethod) -> Callable[..., Any]:
        split = self.xlakernel.split

        def outs(*inputs: Struct) -> list[Struct]:
            for index, (given, struct) in enumerate(zip(split.inputs, inputs, strict=False)):
                given.check(struct, split.name, f"input {index}")
            return split.outs(inputs, split.first_shape(inputs) if output_dims is None else output_dims)

        return kernel_function(
            self.xlakernel,
            split.filled,
            outs,
            vmap_method=vmap_method,
            input_output_aliases=split.aliases,
            has_side_effect=self.has_side_effect,
        )
