"""`warp_kernel`: a Warp kernel as a function of JAX arrays."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import warp

from xlakernel.core.backend import Struct, Transpose, VmapMethod, as_decorator, extents, is_function, kernel_function
from xlakernel.core.backend import output_init as begin
from xlakernel.core.errors import KernelTypeError, LaunchError, OutputSpecError

from . import _inside
from ._kernel import MAX_DIMS, WarpKernel
from ._parameters import name_of, parameters_of
from ._run import RunnableKernel

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
    """Make a function of JAX arrays from a Warp kernel, for the CPU and for GPUs; without it, return a decorator.

    Warp compiles the kernel where a program is compiled for a device. There, too, Warp's own launch is recorded once
    for each combination of shapes, and machine code calls or replays it: no Python and no GIL while a program runs, and
    on a GPU XLA may capture the launch in its CUDA graphs. The kernel takes its inputs first, then its outputs, as Warp
    arrays over XLA's own memory; a 0-d array as one of shape ``(1,)``; an array of vectors or matrices has their
    dimensions last in JAX. Outputs begin with arbitrary values unless *output_init* says otherwise, so the kernel
    writes every element. Inputs must not be written: Warp does not forbid it, and it would change the caller's array.
    Debug mode finds that.

    A launch of no threads, where an extent is 0, is no launch: outputs are *output_init*, or zeros.

    In debug mode (`xlakernel.core.debug_mode`, or ``XLAKERNEL_DEBUG=1`` in the environment) the kernel is given copies
    of its arrays, and an error names the first element of an output that it did not write, and of an input that it
    changed. On a GPU each launch is waited for, so that an illegal memory access is an error that names the kernel.
    Indices are not checked, but what is written right beside an array is noticed. (Warp's own checks,
    ``warp.config.mode = "debug"``, end the process on the CPU.)

    Args:
      kernel: a function decorated with ``warp.kernel``, generic ones (``dtype=Any``, ``dtype=wp.Float``) among them:
        they are compiled for the dtypes of each call. Parameters are arrays of scalars, vectors or matrices, and
        scalars.
      outs: the outputs' shapes and dtypes: a ``jax.ShapeDtypeStruct`` or a pytree of them; or a function that returns
        that for the inputs' structs, so that one wrapper serves every size, and for scalars that it has parameters for.
        Tuples, lists and named tuples are in the order of the kernel's output parameters; a dictionary has their names
        as its keys.
      launch_dims: threads along each dimension: an integer, or a tuple of up to four; or a function of the inputs'
        structs that returns that. None: the shape of the first input, without the dimensions of vectors or matrices.
      block_dim: threads of a block, for kernels with tiles. None: 256 on a GPU and 1 on the CPU, where another number
        means something only with ``warp.config.enable_cpu_blocks``, and then goes through Python.
      output_init: what outputs begin with: a number for all of them, or a tuple, or the structure of *outs*, with a
        number or None for each.
      vmap_method: what ``jax.vmap`` does. ``"native"`` (as ``"expand_dims"``): one call, with a launch for each slice,
        on the CPU in several threads where that pays; ``"broadcast_all"``: the same with every input copied to the
        batch's size; ``"sequential"`` and ``"sequential_unrolled"``: one call after the other; None: an error. A
        function computes the whole batch instead: ``function(*inputs, **scalars) -> results``, where each array has the
        batch as its first dimension. Nested levels are one dimension, and an input that is not mapped is repeated.
      input_output_aliases: inputs whose memory becomes an output's, ``{input: output}``, for kernels that update in
        place. Both parameters are then the same memory, and only the output may be written. JAX copies the input
        first if anyone else still needs it.
      has_side_effect: whether to keep each call as it stands. Without it JAX takes the kernel for a pure function,
        whose equal calls may be merged, whose unused ones dropped, and whose slices may run at the same time; needed
        when it has no outputs.
      reference: ``reference(*inputs, **static) -> results``, a plain JAX function that computes the same. Derivatives
        of both modes and all orders are taken from it; the results still come from the kernel.
      jvp: ``jvp(primals, tangents, **static) -> tangents of the results``, for forward mode. It may call other
        kernels. Integer inputs have the tangent None.
      vjp: ``vjp(primals, results, cotangents, **static) -> cotangents of the inputs``, for reverse mode; None for
        integers and for zeros. With *jvp* or *reference* besides, both modes work; higher orders differentiate the
        reference, or else what *jvp* and *vjp* do. (`jax_kernel` with ``enable_backward=True`` takes Warp's own adjoint
        of a kernel.)
      transpose: ``{input: function}`` for inputs that the kernel is linear in, the others held fixed, where
        ``function(inputs, cotangents, **static)`` returns the input's cotangent; linear inputs are None there. A tuple
        of inputs is linear together, and its function returns a tuple. All orders and both modes follow from it.
      sharding_rule: how a call is split over devices under ``jax.jit``, einsum-like, such as ``"m k, k n -> m n"``.
        What the outputs lack is summed over the devices; a factor in brackets, ``"i [j] -> i [j]"``, is kept whole, as
        a mean, a maximum or a sum with a bias needs it. Without a rule a call gathers its inputs and runs on each
        device; `jax.shard_map` works with or without it.

    Returns:
      A function of the inputs, and of static scalars by keyword: a parameter that is no array is static, and has no
      default. It takes numbers of Python's and NumPy's, and arrays without dimensions that are not traced. The result
      has the structure of *outs*.

    Raises:
      KernelTypeError: if *kernel* is not what ``warp.kernel`` returned, or has parameters of other kinds.
      LaunchError: if *launch_dims*, *block_dim* or *output_init* make no sense.
      OutputSpecError: if *outs* has leaves without shape and dtype, or describes no output without *has_side_effect*.
      AliasError: if *input_output_aliases* cannot hold, or shares an output that has an *output_init*.
      VmapMethodError: if *vmap_method* is unknown, or a function of a kernel with a side effect.
      ShardingRuleError: if *sharding_rule* is not a rule, or sums an output whose *output_init* is not 0.

    The function it returns raises `ArityError`, `InputError`, `DtypeError`, `StaticArgumentError` and `LaunchError`
    when it is traced. When it is lowered it raises `CompileError` if Warp refuses the kernel, `LaunchError` if Warp
    refuses the launch, `StaticArgumentError` for a static scalar that the parameter's type does not have, and
    `DeviceError` if there is no GPU, or no Warp for it.

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
    check_kernel(kernel, "warp_kernel")
    name = name_of(kernel)
    parameters = parameters_of(kernel, "warp_kernel")
    aliases = input_output_aliases if isinstance(input_output_aliases, Mapping) else {}  # else core complains
    init = begin.freeze(name, output_init, [parameter.name for parameter in parameters])
    begin.check_aliases(name, init, aliases)
    begin.check_sums(name, init, sharding_rule)
    described = WarpKernel(
        kernel,
        parameters,
        check_dims(name, launch_dims),
        check_block_dim(name, block_dim),
        init,
        aliased=frozenset(o for o in aliases.values() if isinstance(o, int)),
        cpu_blocks=_inside.cpu_blocks(),
    )

    def check(_: Any, inputs: Sequence[Struct], structs: Sequence[Struct], tree: Any) -> None:
        begin.check_structure(name, output_init, tree)
        described.check(inputs, structs)

    return kernel_function(
        RunnableKernel(described),
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
    """Return *outs* if it has no annotation of Warp's, which would pass for an array of no elements; or as a function.

    Raises:
      OutputSpecError: if it has one.
    """
    if is_function(outs):
        return functools.wraps(outs)(lambda *inputs, **scalars: _checked_outs(kernel, outs(*inputs, **scalars)))
    for i, leaf in enumerate(jax.tree.leaves(outs)):
        if warp.types.is_array(leaf):
            raise OutputSpecError(
                f"{kernel}: outs[{i}] is {leaf!r}, an array of Warp's or an annotation of one, which has no extents; "
                "expected an object with a shape and a dtype, such as jax.ShapeDtypeStruct((n,), jnp.float32). "
                "warpinfo_to_jaxinfo(annotation, shape) makes one."
            )
    return outs


def check_kernel(kernel: Any, asked_by: str) -> None:
    """Raise `KernelTypeError` unless it is a kernel of Warp's."""
    if isinstance(kernel, warp.Kernel):
        return
    name = getattr(kernel, "__name__", None) or getattr(kernel, "key", repr(kernel))
    message = f"{asked_by}: {name} is of type {type(kernel).__name__}; expected a kernel decorated with warp.kernel."
    if hasattr(kernel, "xlakernel"):
        message += " This one is wrapped already; wrap the warp.kernel function, under a name of its own."
    elif isinstance(kernel, warp.Function):
        message += " This is a function (warp.func), which kernels call: decorate it with warp.kernel."
    elif inspect.isfunction(kernel):
        message += f" Decorate the plain Python function: {asked_by}(warp.kernel({name}), ...)."
    raise KernelTypeError(message)


def check_dims(kernel: str, dims: Any) -> Any:
    """Return *dims* as a tuple of integers, unless it is None or a function."""
    return dims if dims is None or callable(dims) else extents(kernel, "launch_dims", dims, most=MAX_DIMS)


def check_block_dim(kernel: str, block_dim: Any) -> int | None:
    """Return the threads of a block; None: what Warp takes."""
    if block_dim is None:
        return None
    (threads,) = extents(kernel, "block_dim", block_dim, most=1)
    if not 1 <= threads <= 1024:
        raise LaunchError(f"{kernel}: block_dim is {threads}; allowed: None, or 1 to 1024 threads.")
    return threads
