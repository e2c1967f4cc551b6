"""`numba_cuda_kernel`: a Numba CUDA kernel as a function of JAX arrays."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from xlakernel.core.backend import (
    Struct,
    Transpose,
    VmapMethod,
    as_decorator,
    checked_aliases,
    extents,
    kernel_function,
)
from xlakernel.core.backend import output_init as initial
from xlakernel.core.errors import KernelTypeError

from ._environment import numba_cuda
from ._kernels.geometry import LaunchForm

_Extents = int | Sequence[int] | Callable[..., Any]


@as_decorator
def numba_cuda_kernel(
    kernel: Callable[..., None],
    outs: Any,
    *,
    grid: _Extents | None = None,
    block: _Extents | None = None,
    launch_dims: _Extents | None = None,
    threads_per_block: int = 256,
    shared_mem: int = 0,
    output_init: Any = None,
    batch_axis: str | None = None,
    vmap_method: VmapMethod = "native",
    input_output_aliases: Mapping[int, int] | None = None,
    has_side_effect: bool = False,
    reference: Callable[..., Any] | None = None,
    jvp: Callable[..., Any] | None = None,
    vjp: Callable[..., Any] | None = None,
    transpose: Transpose | None = None,
    sharding_rule: str | None = None,
) -> Callable[..., Any]:
    """Make a function of JAX arrays from a Numba CUDA kernel; without the kernel, return a decorator.

    The kernel is compiled once for each combination of dtypes and ranks. Its launch is recorded once for each
    combination of shapes. Machine code replays the launch, without Python and the GIL, and XLA may capture it in CUDA
    graphs. The kernel's parameters are its inputs, then its outputs, as C-contiguous device arrays over XLA's own
    memory (read a 0-d array as ``x[()]``). Inputs are read-only. Outputs begin with arbitrary values unless
    *output_init* is given, so the kernel must write every element. As in C, indices are not checked.

    Give either *grid* and *block*, or *launch_dims*. Each of these may be a function of the inputs' shape/dtype structs
    and of the scalars that it has parameters for, so that one wrapper serves every size. The function must return the
    same each time. The values of its scalars must be known when a call is traced, and each value is compiled. In a
    program that is split over devices, the function is called with the shapes of a device's part. If an extent of the
    launch is 0, no threads are launched: outputs are only filled with *output_init*, or zeros.

    In debug mode (`xlakernel.core.debug_mode`, or ``XLAKERNEL_DEBUG=1`` in the environment) the kernel is compiled
    again, with checks, and runs on copies of its arrays; each call waits until the kernel has finished. Errors report
    an exception of the kernel, with its thread; the first output element that the kernel did not write, or the first
    input element that it changed; a write just outside of an array; and an illegal memory access, with the kernel's
    name. Other indices are not checked, as Numba CUDA has no ``boundscheck``. Exceptions are not reported for kernels
    with more than 48 KiB of dynamic shared memory, nor for device functions compiled without ``debug=True``.

    Args:
      kernel: a function decorated with ``numba.cuda.jit``. Its options apply (``fastmath``, ``max_registers``,
        ``link``, …). Declared signatures do not: the kernel is compiled anew for the types of each call. A kernel that
        synchronises its grid (``cuda.cg.this_grid().sync()``) is launched cooperatively.
      outs: the outputs' shapes and dtypes: a struct (``jax.ShapeDtypeStruct``) or a pytree of structs; or a function
        that returns these, so that one wrapper serves every size. The function gets the inputs' structs, and those
        scalars that it has parameters for; their values must be known when a call is traced. Tuples, lists and named
        tuples are in the order of the kernel's output parameters; a dictionary has the parameters' names as its keys.
      grid: the number of blocks: an integer, or a tuple of up to three integers, along x, y and z.
      block: the number of threads of a block, likewise; at most 1024 in total.
      launch_dims: the total number of threads: an integer, or a tuple of up to three integers, along x, y and z. Blocks
        have *threads_per_block* threads in one dimension, (16, 16) in two and (8, 8, 4) in three; the grid has enough
        blocks to cover *launch_dims*. The kernel must ignore the surplus threads.
      threads_per_block: threads of a block for *launch_dims* of one dimension.
      shared_mem: bytes of dynamic shared memory of a block (``cuda.shared.array(0, dtype)``). Together with shared
        arrays of a fixed size, a block may have more than 48 KiB, up to the limit of the device.
      output_init: the outputs' initial values: a number for all outputs; or a tuple, or the structure of *outs*, with a
        number or None for each output.
      batch_axis: ``"x"``, ``"y"`` or ``"z"``: a batch (``jax.vmap``, nested or not) is one launch, with one block for
        each slice along this axis of the grid. Each of the kernel's arrays then has an additional first dimension, to
        be indexed with ``cuda.blockIdx.x`` (or ``.y``, ``.z``); without a batch, its extent is 1. The given launch must
        have the extent 1 on this axis. None: each slice is a launch.
      vmap_method: the behaviour under ``jax.vmap``. ``"native"`` (same as ``"expand_dims"``): one call, with a launch
        for each slice (see *batch_axis*); ``"broadcast_all"``: the same with every input copied to the batch's size;
        ``"sequential"``: one call after the other; ``"sequential_unrolled"``: likewise, for a batch of a known size;
        None: an error. A function given here computes the whole batch: ``function(*inputs, **scalars) -> results``,
        where each array has the batch as its first dimension. For the function, nested ``jax.vmap`` levels are
        flattened into one dimension, and an unmapped input is repeated. If a scalar is mapped, ``"native"`` replaces
        the function.
      input_output_aliases: inputs whose memory becomes an output's, ``{input: output}``, for kernels that update in
        place. Both parameters then have the same memory; the kernel may write it only by the output parameter. JAX
        copies the input first if it is used again.
      has_side_effect: whether to keep every call. Otherwise JAX treats the kernel as a pure function: it may merge
        equal calls and drop unused ones. Required without outputs.
      reference: ``reference(*inputs, **scalars) -> results``, a plain JAX function that computes the same. Derivatives
        of both modes and all orders are taken from it, in scalars too; the results still come from the kernel.
      jvp: ``jvp(primals, tangents, **scalars) -> tangents of the results``, for forward mode. It may call other
        kernels. Integer inputs have the tangent None.
      vjp: ``vjp(primals, results, cotangents, **scalars) -> cotangents of the inputs``, for reverse mode; None for
        integers and for zeros. Together with *jvp* or *reference*, both modes work; higher orders differentiate the
        reference, or else *jvp* and *vjp*.
      transpose: ``{input: function}`` for inputs that the kernel is linear in while the others are fixed.
        ``function(inputs, cotangents, **scalars)`` returns the input's cotangent; the linear inputs are None in its
        argument *inputs*. A key may be a tuple of inputs that the kernel is jointly linear in; its function returns a
        tuple. Derivatives of all orders and both modes follow from *transpose*.
      sharding_rule: the split of a call over devices under ``jax.jit``, einsum-like, such as ``"m k, k n -> m n"``.
        Factors (the letters) that the outputs lack are summed over the devices. A factor in brackets, as ``j`` in
        ``"i [j] -> i [j]"``, is not split; a mean, a maximum or a sum with a bias needs that. Without a rule, a call
        gathers its inputs and runs on each device; `jax.shard_map` works with or without a rule.

    Returns:
      A function of the inputs by position, and of scalars by keyword: numbers, 0-d arrays, or traced values. A scalar
      fills the parameter of its name, at any position, and a parameter's default is used as in Python. A scalar is
      passed to the kernel by value: a Python number as int64 or float64, another value with its own dtype. A new value
      compiles and records nothing. The result has the structure of *outs*.

    Raises:
      KernelTypeError: if *kernel* is not a kernel decorated with ``cuda.jit``.
      LaunchError: if the launch is given twice, in part or not at all, or is larger than any device allows, or if
        *output_init* or *batch_axis* is invalid.
      MissingDependencyError: if numba-cuda is missing, too old, or does not work with the installed NumPy or Numba.
      SettingError: if Numba is set to simulate a GPU.
      OutputSpecError: if *outs* has leaves without shape and dtype, or is empty and *has_side_effect* is False.
      AliasError: if *input_output_aliases* is invalid, or shares an output that has an *output_init*.
      VmapMethodError: if *vmap_method* is unknown, or if it is a function and the kernel has a side effect.
      ShardingRuleError: if *sharding_rule* is invalid, or sums an output whose *output_init* is not 0.

    When the returned function is traced, it raises `ArityError`, `InputError`, `DtypeError`, `StaticArgumentError` and,
    if functions give the launch, `LaunchError`. When it is lowered, it raises `DeviceError` if there is no GPU,
    `LaunchError` if the GPU does not allow the launch, `CompileError` if Numba rejects the kernel, and
    `ReadOnlyInputError` if the reason is a write to an input.

    Example:
      >>> from functools import partial
      >>> import jax, jax.numpy as jnp
      >>> from numba import cuda
      >>> from xlakernel.cuda import numba_cuda_kernel
      >>> @cuda.jit
      ... def saxpy(x, y, out, alpha):
      ...     i = cuda.grid(1)
      ...     if i < out.size:
      ...         out[i] = alpha * x[i] + y[i]
      >>> f = numba_cuda_kernel(saxpy, outs=lambda x, y: x, launch_dims=lambda x, y: x.size)
      >>> jax.eval_shape(partial(f, alpha=2.0), jnp.arange(3.0), jnp.ones(3))
      ShapeDtypeStruct(shape=(3,), dtype=float32)
    """
    numba_cuda()
    from ._kernels.compile import NumbaCudaKernel

    _check_kernel(kernel)
    name = kernel.__name__
    parameters = _parameters(kernel)
    form = LaunchForm(name, grid, block, launch_dims, threads_per_block, batch_axis).checked()
    aliases = checked_aliases(name, input_output_aliases)
    init = initial.freeze(name, output_init, tuple(parameters))
    initial.check_aliases(name, init, aliases)
    initial.check_sums(name, init, sharding_rule)
    (shared_mem,) = extents(name, "shared_mem", shared_mem, most=1)
    described = NumbaCudaKernel(kernel, form, shared_mem, init, aliases)

    def check(given: NumbaCudaKernel, inputs: Sequence[Struct], structs: Sequence[Struct], tree: Any) -> None:
        initial.check_structure(name, output_init, tree)
        given.check(inputs, structs)

    return kernel_function(
        described,
        parameters,
        outs,
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


def _check_kernel(kernel: Any) -> None:
    from numba.cuda.dispatcher import CUDADispatcher

    if not isinstance(kernel, CUDADispatcher) or kernel.targetoptions.get("device"):
        raise KernelTypeError(_wrong_kernel(kernel, CUDADispatcher))


def _parameters(kernel: Any) -> dict[str, Any]:
    parameters = inspect.signature(kernel.py_func).parameters.values()
    for parameter in parameters:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.KEYWORD_ONLY):
            raise KernelTypeError(
                f"numba_cuda_kernel: {kernel.__name__} has the parameter {parameter}; a kernel has one plain parameter "
                "for each input, output and scalar."
            )
    return {parameter.name: parameter.default for parameter in parameters}


def _wrong_kernel(kernel: Any, dispatcher: type) -> str:
    name = getattr(kernel, "__name__", repr(kernel))
    message = (
        f"numba_cuda_kernel: {name} is of type {type(kernel).__name__}; expected a kernel decorated with "
        "numba.cuda.jit."
    )
    if isinstance(kernel, dispatcher):
        return f"{message} This is a device function (device=True), which kernels call: decorate it without device."
    if hasattr(kernel, "xlakernel"):
        return f"{message} This one is wrapped already; wrap the cuda.jit function, under a name of its own."
    if hasattr(kernel, "py_func"):
        return f"{message} This one is compiled for the CPU, where numba_kernel of xlakernel-numba runs it."
    if hasattr(kernel, "dispatcher"):
        return f"{message} This one is configured already: pass the kernel itself, and grid= and block=."
    if inspect.isfunction(kernel) and not hasattr(kernel, "__wrapped__"):
        return f"{message} Write numba_cuda_kernel(cuda.jit({name}), ...)."
    if callable(kernel):
        return f"{message} Decorate the plain Python function with cuda.jit."
    return message
