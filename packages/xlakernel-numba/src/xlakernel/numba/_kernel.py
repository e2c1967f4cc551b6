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
    """Make a function of JAX arrays from a Numba CPU kernel; without the kernel, return a decorator.

    The kernel is compiled once for each combination of dtypes and ranks. XLA calls the machine code without Python and
    the GIL. The kernel's parameters are the inputs and then the outputs, all of them C-contiguous arrays in XLA's
    memory (read a 0-d array as ``x[()]``). The kernel returns nothing. Inputs are read-only. Outputs begin with
    arbitrary values, so the kernel must write every element. As in C, indices are not checked: develop in debug mode.

    In debug mode (`xlakernel.core.debug_mode`, or ``XLAKERNEL_DEBUG=1`` in the environment) the kernel is compiled
    again, with checks of all indices in the kernel and in the njit functions that it calls; negative indices count from
    the end as usual. The kernel runs on copies of its arrays. An error names the first output element that the kernel
    did not write, or the first input element that it changed. An output element that still has its initial value may be
    unwritten, or written with this value; to decide, the kernel runs again from other initial values, at most eight
    times. A kernel with *has_side_effect* runs only once; its unwritten elements of one or two bytes, other than bools,
    are not detected. Indices are not checked in ufuncs, in ``x.flat``, in functions that are part of Numba, and in
    implementations declared with ``numba.extending``; a wrong write by these is detected only next to an array.

    As under ``jax.jit``, the compiled code contains the values that globals, closure cells and module attributes have
    when the call is lowered; arrays among them are copied. Functions of all kinds that the kernel calls are compiled
    again with these values, even if Numba has compiled them with other values or has them in its on-disk cache.

    Args:
      kernel: a function decorated with ``numba.njit``, with any of its options, including ``parallel=True`` and
        ``cache=True``.
      outs: the outputs' shapes and dtypes: a struct (``jax.ShapeDtypeStruct``) or a pytree of structs; or a function
        that returns these, so that one wrapper serves every size. The function gets the inputs' structs, and those
        scalars that it has parameters for; their values must be known when a call is traced. Tuples, lists and named
        tuples are in the order of the kernel's output parameters; a dictionary has the parameters' names as its keys.
      vmap_method: the behaviour under ``jax.vmap``. ``"native"`` (same as ``"expand_dims"``): one call, which loops
        over the slices of the batch, in several threads if that pays; ``"broadcast_all"``: the same with every input
        copied to the batch's size; ``"sequential"``: one call after the other; ``"sequential_unrolled"``: likewise, for
        a batch of a known size; None: an error. With each of these methods, the kernel gets arrays of the ranks that it
        was written for. A function given here computes the whole batch: ``function(*inputs, **scalars) -> results``,
        where each array has the batch as its first dimension. For the function, nested ``jax.vmap`` levels are
        flattened into one dimension, and an unmapped input is repeated. If a scalar is mapped, ``"native"`` replaces
        the function.
      input_output_aliases: inputs whose memory becomes an output's, ``{input: output}``, for kernels that update in
        place. Both parameters then have the same memory; the kernel may write it only by the output parameter. JAX
        copies the input first if it is used again.
      has_side_effect: whether to keep every call. Otherwise JAX treats the kernel as a pure function: it may merge
        equal calls, drop unused ones, and run the slices of a batch at the same time. Required without outputs.
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
      passed to the kernel by value: a Python number with NumPy's dtype for it, such as int64, another value with its
      own dtype. A new value compiles nothing. The result has the structure of *outs*.

    Raises:
      KernelTypeError: if *kernel* is not an ``njit`` function.
      OutputSpecError: if *outs* has leaves without shape and dtype, or is empty and *has_side_effect* is False.
      AliasError: if *input_output_aliases* is invalid.
      VmapMethodError: if *vmap_method* is unknown, or if it is a function and the kernel has a side effect.
      ShardingRuleError: if *sharding_rule* is invalid.

    The returned function raises, when it is traced or lowered: `ArityError`, `InputError`, `DtypeError`,
    `StaticArgumentError`, `OutputSpecError` for the keys of a dictionary and for the result of a function *outs*,
    `CompileError` if Numba rejects the kernel, and `ReadOnlyInputError` if the reason is a write to an input. (Numba
    does not detect writes through ``x.flat``, ``np.nditer``, ``np.fill_diagonal``, the ``out`` of ``np.dot`` and, in
    some versions, ``np.ascontiguousarray``. These change the caller's array; debug mode detects them.) An exception in
    the kernel, also inside ``prange``, becomes JAX's error for a failed execution, with the exception's type, message,
    file and line.

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
        return f"{message} It is wrapped already; wrap the njit function under another name."
    if inspect.isfunction(kernel) and not hasattr(kernel, "__wrapped__"):
        return f"{message} Write numba_kernel(numba.njit({name}), ...)."
    if callable(kernel):
        return f"{message} Decorate the plain Python function with numba.njit."
    return message
