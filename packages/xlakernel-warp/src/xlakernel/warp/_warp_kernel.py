"""`warp_kernel`: a Warp kernel as a function of JAX arrays."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import warp

from xlakernel.core.backend import (
    Struct,
    Transpose,
    VmapMethod,
    as_decorator,
    checked_aliases,
    is_function,
    kernel_function,
)
from xlakernel.core.backend import output_init as begin
from xlakernel.core.errors import OutputSpecError

from ._internals.launches import cpu_blocks
from ._kernels.geometry import check_block_dim, check_launch_dims
from ._kernels.kernel import WarpKernel
from ._parameters import name_of, parameters_of

_Extents = int | Sequence[int] | Callable[..., Any]


@as_decorator
def warp_kernel(
    kernel: Any,
    outs: Any,
    *,
    launch_dims: _Extents | None = None,
    block_dim: int | None = None,
    output_init: Any = None,
    vmap_method: VmapMethod = "native",
    input_output_aliases: Mapping[int, int] | None = None,
    has_side_effect: bool = False,
    reference: Callable[..., Any] | None = None,
    jvp: Callable[..., Any] | None = None,
    vjp: Callable[..., Any] | None = None,
    transpose: Transpose | None = None,
    sharding_rule: str | None = None,
) -> Callable[..., Any]:
    """Make a function of JAX arrays from a Warp kernel, on the CPU or a GPU; without the kernel, return a decorator.

    When a program is lowered, Warp compiles the kernel, and Warp's launch is recorded, once for each combination of
    shapes. While the program runs, machine code calls the kernel or replays the launch, without Python and the GIL. On
    a GPU, XLA may capture the launch in its CUDA graphs. The kernel takes its inputs first, then its outputs, as Warp
    arrays over XLA's memory. In Warp, a 0-d array has the shape ``(1,)``; in JAX, an array of vectors or matrices has
    their dimensions last. Outputs begin with arbitrary values unless *output_init* is given, so the kernel must write
    every element. It must not write its inputs: Warp allows such writes, but they change the caller's array. A launch
    without threads (an extent is 0) is skipped, and the outputs are *output_init* or zeros.

    In debug mode (`xlakernel.core.debug_mode`, or ``XLAKERNEL_DEBUG=1`` in the environment), the kernel works on copies
    of its arrays. An error then names the first output element that the kernel did not write, the first input element
    that it changed, or a write just outside of an array. On a GPU, each call waits for its launch, so that the error of
    an illegal memory access names the kernel. Indices are not checked. (Warp's own checks, ``warp.config.mode =
    "debug"``, end the process on the CPU.)

    Args:
      kernel: a function decorated with ``warp.kernel``. Its parameters are scalars, and arrays of scalars, vectors or
        matrices. A generic kernel (``dtype=Any``, ``dtype=wp.Float``) is compiled for the dtypes of each call.
      outs: the outputs' shapes and dtypes: a struct (``jax.ShapeDtypeStruct``) or a pytree of structs; or a function
        that returns these, so that one wrapper serves every size. The function gets the inputs' structs, and those
        scalars that it has parameters for. Tuples, lists and named tuples are in the order of the kernel's output
        parameters; a dictionary has the parameters' names as its keys.
      launch_dims: threads along each dimension: an integer, or a tuple of up to four; or a function of the inputs'
        structs that returns these. None: the shape of the first input, without the dimensions of vectors or matrices.
      block_dim: threads of a block, for kernels with tiles. None: 256 on a GPU, and 1 on the CPU. On the CPU, another
        number has an effect only with ``warp.config.enable_cpu_blocks``; calls then run through Python.
      output_init: the outputs' initial values: a number for all outputs; or a tuple, or the structure of *outs*, with a
        number or None for each output.
      vmap_method: the behaviour under ``jax.vmap``. ``"native"`` (same as ``"expand_dims"``): one call, with a launch
        for each slice of the batch, on the CPU in several threads where that pays; ``"broadcast_all"``: the same with
        every input copied to the batch's size; ``"sequential"``: one call after the other; ``"sequential_unrolled"``:
        likewise, for a batch of a known size; None: an error. A function given here computes the whole batch:
        ``function(*inputs, **scalars) -> results``, where each array has the batch as its first dimension. For the
        function, nested ``jax.vmap`` levels are flattened into one dimension, and an unmapped input is repeated.
      input_output_aliases: inputs whose memory becomes an output's, ``{input: output}``, for kernels that update in
        place. Both parameters then have the same memory; the kernel may write it only by the output parameter. JAX
        copies the input first if it is used again.
      has_side_effect: whether to keep every call. Otherwise JAX treats the kernel as a pure function: it may merge
        equal calls, drop unused ones, and run the slices of a batch at the same time. Required without outputs.
      reference: ``reference(*inputs, **static) -> results``, a plain JAX function that computes the same. Derivatives
        of both modes and all orders are taken from it; the results still come from the kernel.
      jvp: ``jvp(primals, tangents, **static) -> tangents of the results``, for forward mode. It may call other
        kernels. Integer inputs have the tangent None.
      vjp: ``vjp(primals, results, cotangents, **static) -> cotangents of the inputs``, for reverse mode; None for
        integers and for zeros. Together with *jvp* or *reference*, both modes work; higher orders differentiate the
        reference, or else *jvp* and *vjp*. (`jax_kernel` with ``enable_backward=True`` uses Warp's adjoint of a
        kernel.)
      transpose: ``{input: function}`` for inputs that the kernel is linear in while the others are fixed.
        ``function(inputs, cotangents, **static)`` returns the input's cotangent; the linear inputs are None in its
        argument *inputs*. A key may be a tuple of inputs that the kernel is jointly linear in; its function returns a
        tuple. Derivatives of all orders and both modes follow from *transpose*.
      sharding_rule: the split of a call over devices under ``jax.jit``, einsum-like, such as ``"m k, k n -> m n"``.
        Factors (the letters) that the outputs lack are summed over the devices. A factor in brackets, as ``j`` in
        ``"i [j] -> i [j]"``, is not split; a mean, a maximum or a sum with a bias needs that. Without a rule, a call
        gathers its inputs and runs on each device; `jax.shard_map` works with or without a rule.

    Returns:
      A function that takes the inputs by position and the kernel's scalars by keyword, and returns results in the
      structure of *outs*. The scalars are static and have no defaults: numbers of Python or NumPy, or 0-d arrays that
      are not traced.

    Raises:
      KernelTypeError: if *kernel* is not the result of ``warp.kernel``, or has parameters of other kinds.
      StaticArgumentError: if *block_dim* is not an integer.
      LaunchError: if *launch_dims*, *block_dim* or *output_init* is invalid.
      OutputSpecError: if *outs* has leaves without shape and dtype, or is empty and *has_side_effect* is False.
      AliasError: if *input_output_aliases* is invalid, or shares an output that has an *output_init*.
      VmapMethodError: if *vmap_method* is unknown, or if it is a function and the kernel has a side effect.
      ShardingRuleError: if *sharding_rule* is invalid, or sums an output whose *output_init* is not 0.

    The returned function raises `ArityError`, `InputError`, `DtypeError`, `StaticArgumentError` and `LaunchError`
    when it is traced. When it is lowered it raises `CompileError` if Warp refuses the kernel, `LaunchError` if Warp
    refuses the launch, `StaticArgumentError` for a static scalar that the parameter's type cannot represent, and
    `DeviceError` if there is no GPU, or this build of Warp does not support the platform.

    Example:
      >>> import jax, jax.numpy as jnp, warp as wp
      >>> from xlakernel.warp import warp_kernel
      >>> @wp.kernel
      ... def saxpy(alpha: float, x: wp.array(dtype=float), y: wp.array(dtype=float), out: wp.array(dtype=float)):
      ...     i = wp.tid()
      ...     out[i] = alpha * x[i] + y[i]
      >>> f = warp_kernel(saxpy, outs=lambda x, y: x)
      >>> jax.eval_shape(lambda x, y: f(x, y, alpha=2.0), jnp.arange(3.0), jnp.ones(3))
      ShapeDtypeStruct(shape=(3,), dtype=float32)
    """
    parameters, name = parameters_of(kernel, "warp_kernel"), name_of(kernel)
    aliases = checked_aliases(name, input_output_aliases)
    init = begin.freeze(name, output_init, [parameter.name for parameter in parameters])
    begin.check_aliases(name, init, aliases)
    begin.check_sums(name, init, sharding_rule)
    described = WarpKernel(
        kernel,
        parameters,
        check_launch_dims(name, launch_dims),
        check_block_dim(name, block_dim),
        init,
        aliases=aliases,
        cpu_blocks=cpu_blocks(),
    )

    def check(_: Any, inputs: Sequence[Struct], structs: Sequence[Struct], tree: Any) -> None:
        begin.check_structure(name, output_init, tree)
        described.check(inputs, structs)

    return kernel_function(
        described,
        {parameter.name: inspect.Parameter.empty for parameter in parameters},
        _checked_outs(name, outs),
        vmap_method=vmap_method,
        input_output_aliases=input_output_aliases,
        has_side_effect=has_side_effect,
        reference=reference,
        jvp=jvp,
        vjp=vjp,
        transpose=transpose,
        sharding_rule=sharding_rule,
        check=check,
    )


def _checked_outs(kernel: str, outs: Any) -> Any:
    """Return *outs*; raise `OutputSpecError` for a Warp annotation, because JAX would take it for an empty struct."""
    if is_function(outs):
        return functools.wraps(outs)(lambda *inputs, **scalars: _checked_outs(kernel, outs(*inputs, **scalars)))
    for i, leaf in enumerate(jax.tree.leaves(outs)):
        if warp.types.is_array(leaf):
            raise OutputSpecError(
                f"{kernel}: outs[{i}] is {leaf!r}, a Warp array or an annotation of one, which has no extents; "
                "expected an object with a shape and a dtype, such as jax.ShapeDtypeStruct((n,), jnp.float32). "
                "warpinfo_to_jaxinfo(annotation, shape) makes one."
            )
    return outs
