"""`jax_kernel`: Warp's own way to make a function of JAX arrays from a kernel, on our path."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import jax

from xlakernel.core.backend import Struct, VmapMethod, as_decorator, kernel_function
from xlakernel.core.errors import ArityError, DifferentiationError

from . import _inside
from ._adjoint import AdjointKernel, check_has_adjoint, is_floating
from ._kernel import WarpKernel
from ._parameters import name_of, parameters_of
from ._run import RunnableKernel
from ._split import (
    Dims,
    FrozenDims,
    OutputDims,
    SplitParameters,
    check_block_dim,
    freeze_launch_dims,
    freeze_names,
    freeze_output_dims,
    split_parameters,
)
from ._warp_kernel import check_kernel


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
    """Make a function of JAX arrays from a Warp kernel, with the arguments and the meaning of ``warp.jax_kernel``.

    Code that imports ``jax_kernel`` from ``warp`` or from ``warp.jax_experimental`` runs when it imports it from here,
    whatever the Warp; calls go the way of `warp_kernel`, without Python while a program runs. What differs: a batch
    (`jax.vmap`) is a launch for each slice in one call, in place of one launch over arrays whose batch is rolled into
    their first dimension; so kernels whose rows depend on each other come out right, with any *launch_dims*.

    Args:
      kernel: a function decorated with ``warp.kernel``, or an overload of a generic one. A generic kernel is compiled
        for the dtypes of each call; its generic outputs have the dtype of its first generic input.
      num_outputs: how many outputs the kernel has, those in *in_out_argnames* among them.
      vmap_method: what ``jax.vmap`` does: see `warp_kernel`.
      launch_dims: threads along each dimension: an integer, or up to four. None: the shape of the first input, without
        the dimensions of vectors or matrices.
      output_dims: extents of all outputs, or of each in a dict by its name, with or without the dimensions of vectors
        or matrices. None: as *launch_dims*; with *enable_backward* as the first input, as Warp has it, whatever
        the launch: elements that no thread writes are then arbitrary.
      in_out_argnames: names of inputs that are outputs as well: the kernel gets one array, which begins with the input.
        They stand before the other outputs, among the kernel's parameters and in the result.
      module_preload_mode: when Warp would load modules; nothing here depends on it.
      enable_backward: whether the function has a reverse mode (``jax.grad``), by Warp's own adjoint of the kernel. Its
        gradients are those of ``wp.Tape``; the tutorial lists the kernels for which these are wrong.
      has_side_effect: whether to keep each call as it stands, used or not.
      block_dim: threads of a block; see `warp_kernel`.

    Returns:
      A function of the kernel's inputs by position, scalars among them, which must be numbers while JAX traces. It
      takes *launch_dims*, *output_dims* and *vmap_method* by keyword, in place of those given here, unless
      *enable_backward* is set. It returns a list of the outputs. The same arguments give the same object.

    Raises:
      KernelTypeError: if *kernel* is not what ``warp.kernel`` returned, or has parameters that are neither arrays nor
        scalars, or outputs that are no arrays.
      ArgumentError: if *num_outputs* or *in_out_argnames* do not fit the kernel's parameters.
      StaticArgumentError: if *block_dim* is no integer.
      LaunchError: if *launch_dims* or *output_dims* are no extents.
      DifferentiationError: for *enable_backward* with *output_dims* or *in_out_argnames*, which Warp does not have.

    The function it returns raises `ArgumentError`, `DtypeError`, `InputError`, `StaticArgumentError`, `OutputSpecError`
    and `LaunchError` when it is traced, `DifferentiationError` when it is differentiated and Warp makes no adjoint of
    the kernel, and what that of `warp_kernel` does when it is lowered.

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
    check_kernel(kernel, "jax_kernel")
    name = name_of(kernel)
    in_out = freeze_names(name, "in_out_argnames", in_out_argnames)
    threads = check_block_dim(name, block_dim)
    split = split_parameters(name, parameters_of(kernel, "jax_kernel"), num_outputs, in_out)
    dims = freeze_launch_dims(name, launch_dims)
    outputs = freeze_output_dims(name, output_dims)
    if enable_backward and (in_out or outputs is not None):
        raise DifferentiationError(
            f"{name}: {'in_out_argnames' if in_out else 'output_dims'} is not supported when enable_backward=True, as "
            "with Warp's own jax_kernel: outputs have the shape of the launch, and nothing is written in place. Give "
            "warp_kernel a vjp= where that is not so."
        )
    return _made(kernel, split, vmap_method, dims, outputs, bool(enable_backward), bool(has_side_effect), threads)


@functools.lru_cache(maxsize=1024)
def _made(
    kernel: Any,
    split: SplitParameters,
    vmap_method: VmapMethod,
    dims: tuple[int, ...] | None,
    output_dims: FrozenDims | None,
    enable_backward: bool,
    has_side_effect: bool,
    block_dim: int | None,
) -> JaxKernel:
    kind = DifferentiableJaxKernel if enable_backward else JaxKernel
    return kind(kernel, split, vmap_method, dims, output_dims, has_side_effect, block_dim)


class JaxKernel:
    """What `jax_kernel` returns."""

    def __init__(
        self,
        kernel: Any,
        split: SplitParameters,
        vmap_method: VmapMethod,
        launch_dims: tuple[int, ...] | None,
        output_dims: FrozenDims | None,
        has_side_effect: bool,
        block_dim: int | None,
    ) -> None:
        self.kernel = kernel
        self.split = split
        self.vmap_method = vmap_method
        self.launch_dims = launch_dims
        self.output_dims = output_dims
        self.has_side_effect = has_side_effect
        self.block_dim = block_dim
        self.__name__ = split.name
        self._function = functools.lru_cache(maxsize=256)(self._make_function)
        self._usual = self._function(launch_dims, output_dims, vmap_method)
        self.xlakernel = RunnableKernel(self.described(launch_dims))

    def __call__(
        self,
        *args: Any,
        output_dims: OutputDims | None = None,
        launch_dims: Dims | None = None,
        vmap_method: VmapMethod = None,
        **unknown: Any,
    ) -> list[jax.Array]:
        """Run the kernel; see `jax_kernel`."""
        self.split.check_options(unknown, ("output_dims", "launch_dims", "vmap_method"))
        arrays, scalars = self.split.divide(args)
        blocks = _inside.cpu_blocks()
        if output_dims is None and launch_dims is None and vmap_method is None and not blocks:
            return self._usual(*arrays, **scalars)  # type: ignore[no-any-return]
        dims = freeze_launch_dims(self.split.name, launch_dims)
        chosen = freeze_output_dims(self.split.name, output_dims)
        function = self._function(
            self.launch_dims if dims is None else dims,
            self.output_dims if chosen is None else chosen,
            vmap_method or self.vmap_method,
            blocks,
        )
        return function(*arrays, **scalars)  # type: ignore[no-any-return]

    def described(self, launch_dims: tuple[int, ...] | None) -> WarpKernel:
        """Return the kernel as core sees it."""
        split = self.split
        aliased = frozenset(range(len(split.in_out)))
        return WarpKernel(
            self.kernel, split.parameters, launch_dims, self.block_dim, in_out=split.in_out, aliased=aliased
        )

    def _make_function(
        self,
        launch_dims: tuple[int, ...] | None,
        output_dims: FrozenDims | None,
        vmap_method: VmapMethod,
        blocks: bool = False,
    ) -> Callable[..., Any]:
        described = dataclasses.replace(self.described(launch_dims), cpu_blocks=blocks)

        def outs(*inputs: Struct) -> list[Struct]:
            described.check(inputs, [])
            found = output_dims if output_dims is not None else self._usual_extents(described, inputs)
            return self.split.outs(inputs, found)

        return kernel_function(
            RunnableKernel(described),
            self.split.filled,
            outs,
            vmap_method=vmap_method,
            input_output_aliases=self.split.aliases,
            has_side_effect=self.has_side_effect,
            **self._derivative(launch_dims, blocks),
        )

    def _usual_extents(self, described: WarpKernel, inputs: Sequence[Struct]) -> tuple[int, ...]:
        return described.threads(inputs)

    def _derivative(self, launch_dims: tuple[int, ...] | None, blocks: bool) -> dict[str, Any]:
        return {}


class DifferentiableJaxKernel(JaxKernel):
    """What `jax_kernel` returns with ``enable_backward=True``."""

    def __call__(self, *args: Any, **options: Any) -> list[jax.Array]:
        """Run the kernel; see `jax_kernel`."""
        known = "output_dims", "launch_dims", "vmap_method"
        self.split.check_options([name for name in options if name not in known], known[:0])
        for name in options:
            why = "is not supported" if name == "output_dims" else "cannot be overridden per-call"
            raise ArityError(
                f"{self.split.name}: {name} {why} when enable_backward=True. Call jax_kernel() again for another one."
            )
        return super().__call__(*args)

    def _usual_extents(self, described: WarpKernel, inputs: Sequence[Struct]) -> tuple[int, ...]:
        return dataclasses.replace(described, dims=None).threads(inputs)  # as Warp, whatever the launch

    def _derivative(self, launch_dims: tuple[int, ...] | None, blocks: bool) -> dict[str, Any]:
        adjoint = AdjointKernel(
            self.kernel,
            self.split.parameters,
            launch_dims,
            self.block_dim,
            cpu_blocks=blocks,
            count=len(self.split.inputs),
        )
        scalars = [parameter.name for parameter in self.split.parameters if not parameter.is_array]

        # By position only: a kernel's scalar may have one of these names.
        def vjp(primals: Any, results: Any, cotangents: Any, /, **static: Any) -> list[Any]:
            check_has_adjoint(self.split.name, self.kernel)
            added_to = [c for r, c in zip(results, cotangents, strict=True) if is_floating(r)]
            given = [*primals, *results, *added_to]
            fresh = [x for x in primals if is_floating(x)]
            outs = [Struct(x.shape, x.dtype) for x in (*fresh, *results, *added_to)]
            written = len(results) + len(added_to)  # Warp may write the results too, which are not ours to change
            shared = {len(given) - i: len(outs) - i for i in range(1, 1 + written)}
            filled = [*scalars, *(f"array {i}" for i in range(len(given) + len(outs)))]
            run = kernel_function(
                RunnableKernel(dataclasses.replace(adjoint, aliased=frozenset(shared.values()))),
                dict.fromkeys(filled, inspect.Parameter.empty),
                outs,
                vmap_method="native" if callable(self.vmap_method) else self.vmap_method,
                input_output_aliases=shared,
                has_side_effect=False,
            )
            found = iter(run(*given, **static))
            return [next(found) if is_floating(x) else None for x in primals]

        return {"vjp": vjp}
