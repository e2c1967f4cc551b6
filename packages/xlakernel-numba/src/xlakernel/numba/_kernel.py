"""`numba_kernel`: a Numba function as a function of JAX arrays."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numba
from numba.core.dispatcher import Dispatcher

from xlakernel.core.backend import Transpose, VmapMethod, as_decorator, kernel_function
from xlakernel.core.errors import KernelTypeError

from ._compile import NumbaKernel


@as_decorator
def numba_kernel(
    kernel: Callable[..., None],
    outs: Any,
    *,
    vmap_method: VmapMethod = "native",
    input_output_aliases: Mapping[int, int] | None = None,
    has_side_effect: bool = False,
    reference: Callable[..., Any] | None = None,
    jvp: Callable[..., Any] | None = None,
    vjp: Callable[..., Any] | None = None,
    transpose: Transpose | None = None,
    sharding_rule: str | None = None,
) -> Callable[..., Any]:
    """Make a function of JAX arrays from a Numba CPU kernel; without the kernel, return a decorator that does.

    The kernel is compiled once for each combination of dtypes and ranks, into a handler that XLA calls as machine
    code: no Python and no GIL while it runs. It takes its inputs first, then its outputs, all as C-contiguous arrays
    over XLA's own memory (0-d arrays for scalars: read ``x[()]``), and returns nothing. Inputs are read-only. Outputs
    begin with arbitrary values, so the kernel writes every element. As in C, indices are not checked: develop in debug
    mode.

    In debug mode (`xlakernel.core.debug_mode`, or ``XLAKERNEL_DEBUG=1`` in the environment) the kernel is compiled once
    more, with every index checked in it and in the njit functions that it calls; a negative index counts from the end,
    as always. It is given copies of its arrays, and an error names the first element of an output that it did not
    write, and of an input that it changed. To tell an unwritten element from one that was given just the value that
    was there, a kernel that leaves some is run again, eight times at most; one with ``has_side_effect`` is run once,
    and then an unwritten element of one or two bytes, other than a bool, is not found. Not checked are the indices in
    ufuncs, in ``x.flat`` and other functions of Numba's own, and in what ``numba.extending`` puts in place of a
    function: there, only what is written right beside an array is noticed.

    The compiled code holds the values that globals, closure cells, attributes of modules and arrays among them had when
    the call was lowered, much as under ``jax.jit``. Helpers of every kind are compiled anew with those values, even
    where Numba has compiled them before with others, or has kept them on disk.

    Args:
      kernel: a function decorated with ``numba.njit``, any of its options, ``parallel=True`` and ``cache=True`` among
        them.
      outs: the outputs' shapes and dtypes: a ``jax.ShapeDtypeStruct`` or a pytree of them; or a function that returns
        that for the inputs' structs, so that one wrapper serves every size, and for scalars that it has parameters for,
        whose values must then be known when a call is traced. Tuples, lists and named tuples are in the order of the
        kernel's output parameters; a dictionary has their names as its keys.
      vmap_method: what ``jax.vmap`` does. ``"native"`` (as ``"expand_dims"``): the handler loops over the batch in one
        call, in several threads where that pays; ``"broadcast_all"``: the same with every input copied to the batch's
        size; ``"sequential"`` and ``"sequential_unrolled"``: one call after the other; None: an error. The kernel sees
        the rank it was written for in each case. A function, often another wrapped kernel, computes the whole batch
        instead: ``function(*inputs, **scalars) -> results``, where each array has the batch as its first dimension.
        Nested levels are one dimension, and an input that is not mapped is repeated. Where a scalar is mapped, it is
        ``"native"``.
      input_output_aliases: inputs whose memory becomes an output's, ``{input: output}``, for kernels that update in
        place. Both parameters are then the same memory, and only the output may be written. JAX copies the input
        first if anyone else still needs it.
      has_side_effect: whether to keep each call as it stands. Without it JAX takes the kernel for a pure function,
        whose equal calls may be merged, whose unused ones dropped, and whose slices may run at the same time; needed
        when it has no outputs.
      reference: ``reference(*inputs, **scalars) -> results``, a plain JAX function that computes the same. Derivatives
        of both modes and all orders are taken from it, in scalars too; the results still come from the kernel.
      jvp: ``jvp(primals, tangents, **scalars) -> tangents of the results``, for forward mode. It may call other
        kernels. Integer inputs have the tangent None.
      vjp: ``vjp(primals, results, cotangents, **scalars) -> cotangents of the inputs``, for reverse mode; None for
        integers and for zeros. With *jvp* or *reference* besides, both modes work; higher orders differentiate the
        reference, or else what *jvp* and *vjp* do.
      transpose: ``{input: function}`` for inputs that the kernel is linear in, the others held fixed, where
        ``function(inputs, cotangents, **scalars)`` returns the input's cotangent; linear inputs are None there. A tuple
        of inputs is linear together, and its function returns a tuple. All orders and both modes follow from it.
      sharding_rule: how a call is split over devices under ``jax.jit``, einsum-like, such as ``"m k, k n -> m n"``.
        What the outputs lack is summed over the devices; a factor in brackets, ``"i [j] -> i [j]"``, is kept whole, as
        a mean, a maximum or a sum with a bias needs it. Without a rule a call gathers its inputs and runs on each
        device; `jax.shard_map` works with or without it.

    Returns:
      A function of the inputs, and of scalars by keyword: numbers, arrays without dimensions, or values that JAX
      computes. A scalar fills the parameter of its name, wherever that stands, and a parameter's default is used as in
      Python. The kernel gets it by value: a number with the type that NumPy gives it, int64 or float64, another value
      with its own. A new value compiles nothing. The result has the structure of *outs*.

    Raises:
      KernelTypeError: if *kernel* is not an ``njit`` function.
      OutputSpecError: if *outs* has leaves without shape and dtype, or describes no output without *has_side_effect*.
      AliasError: if *input_output_aliases* cannot hold.
      VmapMethodError: if *vmap_method* is unknown, or a function of a kernel with a side effect.
      ShardingRuleError: if *sharding_rule* is not a rule.

    The function it returns raises `ArityError`, `InputError`, `DtypeError`, `StaticArgumentError` when it is traced,
    `OutputSpecError` for the keys of a dictionary and for what a function returns as *outs*, and `CompileError` when
    Numba refuses the kernel, `ReadOnlyInputError` if because it writes to an input. (Numba does not see writes through
    ``x.flat``, ``np.nditer``, ``np.fill_diagonal``, the ``out`` of ``np.dot`` and, in some versions,
    ``np.ascontiguousarray``: those would change the caller's array. Debug mode finds them.) An exception that the
    kernel raises, inside ``prange`` too, becomes JAX's error for a failed execution, with the exception's type,
    message, file and line.

    Example:
      >>> import jax, jax.numpy as jnp, numba
      >>> from xlakernel.numba import numba_kernel
      >>> @numba.njit
      ... def saxpy(x, y, out, alpha):
      ...     for i in range(len(out)):
      ...         out[i] = alpha * x[i] + y[i]
      >>> f = numba_kernel(saxpy, outs=lambda x, y: x)
      >>> print(jax.jit(f)(jnp.arange(3.0), jnp.ones(3), alpha=2.0))
      [1. 3. 5.]

      As a decorator:

      >>> @numba_kernel(outs=lambda x: x)
      ... @numba.njit
      ... def double(x, out):
      ...     for i in range(len(out)):
      ...         out[i] = 2 * x[i]
      >>> print(double(jnp.arange(3.0)))
      [0. 2. 4.]
    """
    if not isinstance(kernel, Dispatcher):
        raise KernelTypeError(_wrong_kernel(kernel))
    return kernel_function(
        NumbaKernel(kernel),
        _parameters(kernel),
        outs,
        vmap_method=vmap_method,
        input_output_aliases=input_output_aliases,
        has_side_effect=has_side_effect,
        reference=reference,
        jvp=jvp,
        vjp=vjp,
        transpose=transpose,
        sharding_rule=sharding_rule,
    )


def _parameters(kernel: Any) -> dict[str, Any]:
    parameters = inspect.signature(kernel.py_func).parameters.values()
    for parameter in parameters:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.KEYWORD_ONLY):
            raise KernelTypeError(
                f"numba_kernel: {kernel.__name__} has the parameter {parameter}; a kernel has one plain parameter for "
                "each input, output and scalar."
            )
    return {parameter.name: parameter.default for parameter in parameters}


def _wrong_kernel(kernel: Any) -> str:
    name = getattr(kernel, "__name__", repr(kernel))
    message = f"numba_kernel: {name} is of type {type(kernel).__name__}; expected a function decorated with numba.njit."
    if numba.config.DISABLE_JIT:
        return f"{message} NUMBA_DISABLE_JIT is set, which makes njit return plain functions: unset it."
    if "cuda" in type(kernel).__module__:
        return f"{message} This is a CUDA kernel, which runs on the GPU."
    if hasattr(kernel, "xlakernel"):
        return f"{message} This one is wrapped already; wrap the njit function, under a name of its own."
    if inspect.isfunction(kernel) and not hasattr(kernel, "__wrapped__"):
        return f"{message} Write numba_kernel(numba.njit({name}), ...)."
    if callable(kernel):
        return f"{message} Decorate the plain Python function with numba.njit."
    return message
