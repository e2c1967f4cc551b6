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
    combination of shapes and replayed by machine code, without Python and the GIL; XLA may capture it in CUDA graphs.
    The kernel's parameters are its inputs, then its outputs, as C-contiguous device arrays over XLA's own memory (0-d
    arrays for scalars: read ``x[()]``). Inputs are read-only. Outputs begin with arbitrary values unless *output_init*
    is given, so the kernel must write every element. As in C, indices are not checked.

    Give either *grid* and *block*, or *launch_dims*. Each of them may be a function of the inputs' shape/dtype structs,
    and of scalars that it has parameters for, so that one wrapper serves every size; it must return the same each time.
    The values of these scalars must be known when a call is traced, and each value is compiled. In a program that is
    split over devices, the function is called with the shapes of a device's part. A launch of no threads, where an
    extent is 0, only fills the outputs with *output_init*, or zeros.

    In debug mode (`xlakernel.core.debug_mode`, or ``XLAKERNEL_DEBUG=1`` in the environment) the kernel is compiled
    again, with checks, and runs on copies of its arrays; each call waits until it has finished. Errors report an
    exception of the kernel, with its thread; the first element of an output that it did not write, or of an input that
    it changed; a write just outside of an array; and an illegal memory access, with the kernel's name. Other indices
    are not checked, as Numba CUDA has no ``boundscheck``. Exceptions are not reported by kernels with more than 48 KiB
    of dynamic shared memory, nor from device functions that were compiled without ``debug=True``.

    Args:
      kernel: a function decorated with ``numba.cuda.jit``. Its options apply (``fastmath``, ``max_registers``,
        ``link``, …); declared signatures do not, as it is compiled anew for the types of each call. A kernel that
        synchronises its grid (``cuda.cg.this_grid().sync()``) is launched cooperatively.
      outs: the outputs' shapes and dtypes: a ``jax.ShapeDtypeStruct`` or a pytree of them; or a function that returns
        them for the inputs' structs, so that one wrapper serves every size, and for scalars that it has parameters for,
        whose values must then be known when a call is traced. Tuples, lists and named tuples are in the order of the
        kernel's output parameters; a dictionary has their names as its keys.
      grid: blocks: an integer, or a tuple of up to three, along x, y and z.
      block: threads of a block, likewise: 1024 at most altogether.
      launch_dims: threads altogether: an integer, or a tuple of up to three along x, y and z. Blocks have
        *threads_per_block* threads in one dimension, (16, 16) in two and (8, 8, 4) in three; the grid has enough blocks
        to cover *launch_dims*. The kernel must ignore the surplus threads.
      threads_per_block: threads of a block for *launch_dims* of one dimension.
      shared_mem: bytes of dynamic shared memory of a block (``cuda.shared.array(0, dtype)``), also above 48 KiB:
        together with shared arrays of a fixed size, up to the limit of the device.
      output_init: the initial value of outputs: a number for all of them, or a tuple, or the structure of *outs*, with
        a number or None for each.
      batch_axis: ``"x"``, ``"y"`` or ``"z"``: a batch (``jax.vmap``, nested or not) is one launch, and this axis of the
        grid counts its slices. Each of the kernel's arrays then has an additional first dimension, to be indexed with
        ``cuda.blockIdx.x`` (or ``.y``, ``.z``), of extent 1 without a batch. The given launch must have the extent 1 on
        this axis. None: each slice is a launch.
      vmap_method: the implementation of ``jax.vmap``. ``"native"`` (as ``"expand_dims"``): one call, with a launch for
        each slice (see *batch_axis*); ``"broadcast_all"``: the same with every input copied to the batch's size;
        ``"sequential"``: one call after the other; ``"sequential_unrolled"``: likewise, for a batch of a known size;
        None: an error. A function, often another wrapped kernel, computes the whole batch instead: ``function(*inputs,
        **scalars) -> results``, where each array has the batch as its first dimension. Nested levels are flattened into
        one dimension, and an input that is not mapped is repeated. With a mapped scalar, ``"native"`` is used.
      input_output_aliases: inputs whose memory becomes an output's, ``{input: output}``, for kernels that update in
        place. Both parameters are then the same memory, and only the output may be written. JAX copies the input
        first if it is used elsewhere.
      has_side_effect: whether to keep every call. Otherwise JAX treats the kernel as a pure function: it may merge
        equal calls and drop unused ones. Required if there are no outputs.
      reference: ``reference(*inputs, **scalars) -> results``, a plain JAX function that computes the same. Derivatives
        of both modes and all orders are taken from it, in scalars too; the results still come from the kernel.
      jvp: ``jvp(primals, tangents, **scalars) -> tangents of the results``, for forward mode. It may call other
        kernels. Integer inputs have the tangent None.
      vjp: ``vjp(primals, results, cotangents, **scalars) -> cotangents of the inputs``, for reverse mode; None for
        integers and for zeros. If *jvp* or *reference* is also given, both modes work; higher orders differentiate the
        reference, or else *jvp* and *vjp*.
      transpose: ``{input: function}`` for inputs in which the kernel is linear if the others are fixed.
        ``function(inputs, cotangents, **scalars)`` returns the cotangent of the input; linear inputs are passed to it
        as None. A tuple of inputs as a key means that the kernel is jointly linear in them; its function returns a
        tuple. It defines both modes and all orders.
      sharding_rule: how a call is split over devices under ``jax.jit``, einsum-like, such as ``"m k, k n -> m n"``.
        Factors that are missing in the outputs are summed over the devices. A factor in brackets,
        ``"i [j] -> i [j]"``, is not split, as required for a mean, a maximum or a sum with a bias. Without a rule, a
        call gathers its inputs and runs on each device; `jax.shard_map` works with and without one.

    Returns:
      A function of the inputs, and of scalars by keyword: numbers, arrays without dimensions, or values that JAX
      computes. A scalar fills the parameter of its name, at any position, and a parameter's default is used as in
      Python. It is passed to the kernel by value: a Python number as int64 or float64, another value with its own
      dtype. A new value compiles and records nothing. The result has the structure of *outs*.

    Raises:
      KernelTypeError: if *kernel* is not a kernel decorated with ``cuda.jit``.
      LaunchError: if the launch is given twice, in part or not at all, or is larger than any device takes, or if
        *output_init* or *batch_axis* is invalid.
      MissingDependencyError: if numba-cuda is missing, too old, or does not work with the installed NumPy or Numba.
      SettingError: if Numba is set to simulate a GPU.
      OutputSpecError: if *outs* has leaves without shape and dtype, or describes no output without *has_side_effect*.
      AliasError: if *input_output_aliases* is invalid, or shares an output that has an *output_init*.
      VmapMethodError: if *vmap_method* is unknown, or a function of a kernel with a side effect.
      ShardingRuleError: if *sharding_rule* is not a rule, or sums an output whose *output_init* is not 0.

    The returned function raises `ArityError`, `InputError`, `DtypeError`, `StaticArgumentError` and, if functions give
    the launch, `LaunchError` when it is traced. When it is lowered it raises `DeviceError` if there is no GPU,
    `LaunchError` if the GPU does not take the launch, and `CompileError` if Numba cannot compile the kernel: a
    `ReadOnlyInputError` if that is because the kernel writes to an input.

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
