"""`jax_kernel`: a replacement of ``warp.jax_kernel``; its calls run without Python."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax

from xlakernel.core.backend import Struct, VmapMethod, as_decorator, by_identity, kernel_function
from xlakernel.core.errors import ArityError, DifferentiationError

from ._internals.launches import cpu_blocks
from ._kernels.adjoint import adjoint_vjp
from ._kernels.geometry import check_block_dim, check_launch_dims
from ._kernels.kernel import WarpKernel
from ._parameters import name_of, parameters_of
from ._signature import (
    Dims,
    FrozenDims,
    OutputDims,
    Signature,
    divide_parameters,
    freeze_names,
    freeze_output_dims,
)


@as_decorator
def jax_kernel(
    kernel: Any,
    num_outputs: int = 1,
    vmap_method: VmapMethod = "broadcast_all",
    launch_dims: Dims | None = None,
    output_dims: OutputDims | None = None,
    in_out_argnames: Sequence[str] | None = None,
    module_preload_mode: Any = None,
    enable_backward: bool = False,
    has_side_effect: bool = False,
    block_dim: int | None = None,
) -> Callable[..., list[jax.Array]]:
    """Make a function of JAX arrays from a Warp kernel, as ``warp.jax_kernel`` does, with the same arguments.

    This function replaces ``jax_kernel`` of ``warp`` and of ``warp.jax_experimental``, with any version of Warp. Calls
    run without Python, like those of `warp_kernel`. One thing differs from Warp: under ``jax.vmap``, one call makes a
    launch for each slice of the batch, while Warp merges the batch into the first dimension of a single launch. Results
    are therefore correct also if the rows of an array depend on each other, and for any *launch_dims*.

    Args:
      kernel: a function decorated with ``warp.kernel``, or an overload of a generic one. A generic kernel is compiled
        for the dtypes of each call; its generic outputs have the dtype of its first generic input.
      num_outputs: number of outputs, including those in *in_out_argnames*.
      vmap_method: the behaviour under ``jax.vmap``; see `warp_kernel`.
      launch_dims: threads along each dimension: an integer, or a sequence of up to four. None: the shape of the first
        input, without the dimensions of vectors or matrices.
      output_dims: the extents of all outputs, or a dict with the extents of each output by its name; the dimensions of
        vectors or matrices may be omitted. None: the extents of the launch; or, with *enable_backward*, the shape of
        the first input for any launch, as in Warp. Elements that no thread writes are then arbitrary.
      in_out_argnames: names of inputs that are outputs as well. Such a parameter is one array, which begins with the
        input's values. These outputs precede the others, among the kernel's parameters and in the result.
      module_preload_mode: accepted without effect; in Warp, the time when modules are loaded.
      enable_backward: whether ``jax.grad`` works, by Warp's own adjoint of the kernel (its reverse-mode derivative).
        Gradients equal those of ``wp.Tape``; the tutorial lists the kernels for which Warp's gradients are wrong.
      has_side_effect: whether to keep every call, even if its results are unused or it equals another call.
      block_dim: threads of a block; see `warp_kernel`.

    Returns:
      A function that takes the inputs by position and returns a list of the outputs. Scalars are inputs too, and must
      not be traced. The keyword arguments *launch_dims*, *output_dims* and *vmap_method* of a call override those given
      here, except with *enable_backward*, where they are errors. Equal arguments of `jax_kernel` give the same object.

    Raises:
      KernelTypeError: if *kernel* is not the result of ``warp.kernel``, or has parameters that are neither arrays nor
        scalars, or outputs that are not arrays.
      ArgumentError: if *num_outputs* or *in_out_argnames* do not fit the kernel's parameters.
      StaticArgumentError: if *block_dim* is not an integer.
      LaunchError: if *launch_dims* or *output_dims* are not extents, or *block_dim* is out of range.
      DifferentiationError: for *enable_backward* with *output_dims* or *in_out_argnames*, which Warp does not support.

    The returned function raises `ArgumentError`, `ArityError`, `DtypeError`, `InputError`, `StaticArgumentError`,
    `OutputSpecError` and `LaunchError` when it is traced. When it is differentiated it raises `DifferentiationError` if
    Warp has no adjoint of the kernel. When it is lowered it raises the same errors as a function of `warp_kernel`.

    Example:
      >>> import jax, jax.numpy as jnp, warp as wp
      >>> from xlakernel.warp import jax_kernel
      >>> @wp.kernel
      ... def scatter(x: wp.array(dtype=float), places: wp.array(dtype=int), total: wp.array(dtype=float)):
      ...     i = wp.tid()
      ...     wp.atomic_add(total, places[i], x[i])
      >>> f = jax_kernel(scatter, in_out_argnames=["total"])
      >>> jax.eval_shape(f, jnp.ones(5), jnp.zeros(5, jnp.int32), jnp.zeros(3))
      [ShapeDtypeStruct(shape=(3,), dtype=float32)]
    """
    parameters, name = parameters_of(kernel, "jax_kernel"), name_of(kernel)
    in_out = freeze_names(name, "in_out_argnames", in_out_argnames)
    threads = check_block_dim(name, block_dim)
    signature = divide_parameters(name, parameters, num_outputs, in_out)
    dims = check_launch_dims(name, launch_dims)
    outputs = freeze_output_dims(name, output_dims)
    if enable_backward and (in_out or outputs is not None):
        raise DifferentiationError(
            f"{name}: {'in_out_argnames' if in_out else 'output_dims'} is not supported when enable_backward=True, as "
            "with Warp's own jax_kernel: outputs have the shape of the first input, and nothing is written in place. "
            "Give warp_kernel a vjp= instead."
        )
    method = by_identity(vmap_method)
    return _made(kernel, signature, method, dims, outputs, bool(enable_backward), bool(has_side_effect), threads)


@dataclasses.dataclass(eq=False, repr=False)
class JaxKernel:
    """The result of `jax_kernel`."""

    kernel: Any
    signature: Signature
    vmap_method: VmapMethod
    launch_dims: tuple[int, ...] | None
    output_dims: FrozenDims | None
    enable_backward: bool
    has_side_effect: bool
    block_dim: int | None

    def __post_init__(self) -> None:
        self.__name__ = self.signature.name
        self.xlakernel = WarpKernel(
            self.kernel,
            self.signature.parameters,
            self.launch_dims,
            self.block_dim,
            in_out=self.signature.in_out,
            aliases=tuple(self.signature.aliases.items()),
        )
        self._function = functools.lru_cache(maxsize=256)(self._make_function)
        self._usual = self._function(self.launch_dims, self.output_dims, self.vmap_method)

    def __call__(
        self,
        *args: Any,
        output_dims: OutputDims | None = None,
        launch_dims: Dims | None = None,
        vmap_method: VmapMethod = None,
        **unknown: Any,
    ) -> list[jax.Array]:
        """Run the kernel; see `jax_kernel`."""
        self.signature.check_options(unknown, ("output_dims", "launch_dims", "vmap_method"))
        arrays, scalars = self.signature.divide(args)
        blocks = cpu_blocks()
        if output_dims is None and launch_dims is None and vmap_method is None and not blocks:
            return self._usual(*arrays, **scalars)  # type: ignore[no-any-return]
        if self.enable_backward:
            self._refuse(output_dims=output_dims, launch_dims=launch_dims, vmap_method=vmap_method)
        dims = check_launch_dims(self.__name__, launch_dims)
        chosen = freeze_output_dims(self.__name__, output_dims)
        function = self._function(
            self.launch_dims if dims is None else dims,
            self.output_dims if chosen is None else chosen,
            by_identity(vmap_method) or self.vmap_method,
            blocks,
        )
        return function(*arrays, **scalars)  # type: ignore[no-any-return]

    def _refuse(self, **options: Any) -> None:
        for name in (name for name, value in options.items() if value is not None):
            why = "is not supported" if name == "output_dims" else "cannot be overridden per-call"
            raise ArityError(
                f"{self.__name__}: {name} {why} when enable_backward=True. Call jax_kernel() again for another one."
            )

    def _make_function(
        self,
        launch_dims: tuple[int, ...] | None,
        output_dims: FrozenDims | None,
        vmap_method: VmapMethod,
        blocks: bool = False,
    ) -> Callable[..., Any]:
        kernel, signature = dataclasses.replace(self.xlakernel, dims=launch_dims, cpu_blocks=blocks), self.signature
        # With enable_backward, outputs have the shape of the first input for any launch, as in Warp.
        like_outputs = dataclasses.replace(kernel, dims=None) if self.enable_backward else kernel
        method = "native" if callable(vmap_method) else vmap_method

        def outs(*inputs: Struct) -> list[Struct]:
            kernel.check(inputs, [])
            return signature.outs(inputs, like_outputs.threads(inputs) if output_dims is None else output_dims)

        return kernel_function(
            kernel,
            signature.without_defaults,
            outs,
            vmap_method=vmap_method,
            input_output_aliases=signature.aliases,
            has_side_effect=self.has_side_effect,
            vjp=adjoint_vjp(kernel, len(signature.inputs), method) if self.enable_backward else None,
        )


_made = functools.lru_cache(maxsize=1024)(JaxKernel)
