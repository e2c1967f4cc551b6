"""`numba_cuda_callable` and `cuda_callable`: functions that launch work on the GPU as functions of JAX arrays."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Literal

from xlakernel.core.backend import Transpose, VmapMethod, as_decorator, checked_aliases, kernel_function
from xlakernel.core.errors import ArgumentError

from ._functions.function import CudaFunction
from ._functions.libraries import Adapter, Choice
from ._functions.signature import signature_of

_Record = bool | Literal["auto"]


@as_decorator
def numba_cuda_callable(
    func: Callable[..., None],
    outs: Any,
    *,
    record: _Record = "auto",
    vmap_method: VmapMethod = "native",
    input_output_aliases: Mapping[int, int] | None = None,
    has_side_effect: bool = False,
    reference: Callable[..., Any] | None = None,
    jvp: Callable[..., Any] | None = None,
    vjp: Callable[..., Any] | None = None,
    transpose: Transpose | None = None,
    sharding_rule: str | None = None,
) -> Callable[..., Any]:
    """Make a function of JAX arrays from one that launches Numba CUDA kernels; without *func*, return a decorator.

    It is `cuda_callable` with Numba's device arrays and streams: ``func(input1, ..., output1, ..., stream)``. Launch
    kernels on the stream, ``kernel[blocks, threads, stream](...)``. Allocate temporaries with ``cuda.device_array``; at
    a replay, XLA owns their memory. The stream is the arrays' default stream, so that ``out[:] = x`` and
    ``out.copy_to_device(x)`` are recorded too.

    Args:
      func: the function.
      outs: the outputs' shapes and dtypes; this and the other arguments as for `cuda_callable`.
      record: whether the function is recorded and then replayed by machine code.
      vmap_method: the behaviour under ``jax.vmap``.
      input_output_aliases: inputs whose memory becomes an output's.
      has_side_effect: whether to keep every call.
      reference: a plain JAX function that computes the same.
      jvp: tangents of the results.
      vjp: cotangents of the inputs.
      transpose: cotangents of inputs that *func* is linear in.
      sharding_rule: the split of a call over devices.

    Returns:
      A function of the inputs, and of static scalars by keyword; see `cuda_callable`.

    Raises:
      KernelTypeError: if *func* is not a function of arrays and a stream (a kernel, for example).
      ArgumentError: if *record* is not an allowed value.
      MissingDependencyError: if numba-cuda is not installed.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from numba import cuda
      >>> from xlakernel.cuda import numba_cuda_callable
      >>> @cuda.jit
      ... def double(x, out):
      ...     i = cuda.grid(1)
      ...     if i < out.size:
      ...         out[i] = 2 * x[i]
      >>> def quadruple(x, out, stream):
      ...     blocks = -(-x.size // 256)
      ...     once = cuda.device_array(x.shape, x.dtype)
      ...     double[blocks, 256, stream](x, once)
      ...     double[blocks, 256, stream](once, out)
      >>> f = numba_cuda_callable(quadruple, outs=lambda x: x)
      >>> jax.eval_shape(f, jnp.ones(1000))  # f(jnp.ones(1000)) on a GPU
      ShapeDtypeStruct(shape=(1000,), dtype=float32)
    """
    return _wrap(
        "numba_cuda_callable",
        func,
        Adapter("numba"),
        record,
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


@as_decorator
def cuda_callable(
    func: Callable[..., None],
    outs: Any,
    *,
    arrays: Choice = "numba",
    stream: Choice | None = None,
    record: _Record = "auto",
    vmap_method: VmapMethod = "native",
    input_output_aliases: Mapping[int, int] | None = None,
    has_side_effect: bool = False,
    reference: Callable[..., Any] | None = None,
    jvp: Callable[..., Any] | None = None,
    vjp: Callable[..., Any] | None = None,
    transpose: Transpose | None = None,
    sharding_rule: str | None = None,
) -> Callable[..., Any]:
    """Make a function of JAX arrays from one that launches work of CUDA libraries; without *func*, return a decorator.

    The function is ``func(input1, ..., output1, ..., stream)``, with static scalars at any position. Inputs and outputs
    are arrays over XLA's own memory. The function launches kernels, fills and copies on the stream, and returns
    nothing. When a program is compiled, the function is called at least twice and its launches are recorded, without
    being executed. Afterwards machine code replays the launches, and Python is not called again. The function must
    therefore launch the same work each time: its control flow may depend on shapes, dtypes and static scalars, but not
    on data (kernels may branch on data). A replay uses the kernels, device arrays, numbers and attributes that the
    function referred to when it was recorded, even if a name was bound to another object since: pass values that vary
    as static scalars. If the function refers to a device array that is not an argument, its calls run only on the
    device of that array. While a function is recorded, no other thread can use CUDA's default stream. The function must
    not write to its inputs; only debug mode detects such writes. Outputs begin with arbitrary values.

    A function that reads data back, waits for the stream, copies from the host, or allocates memory outside of the
    supported libraries cannot be recorded. Depending on *record*, Python then runs it in every call, on XLA's stream.
    Even then all work must go on the given stream: XLA does not wait for other work.

    Args:
      func: the function. The parameter named ``stream``, or else the last parameter, takes the stream.
      outs: the outputs' shapes and dtypes: a struct (``jax.ShapeDtypeStruct``) or a pytree of structs; or a function
        that returns these for the inputs' structs. Tuples, lists and named tuples are in the order of the function's
        output parameters; a dictionary has the parameters' names as its keys.
      arrays: the type of inputs and outputs: ``"numba"``, ``"cupy"`` or ``"warp"`` arrays (a Warp array has at least
        one dimension), or a function that makes each array from a `DeviceBuffer`: an object with ``ptr``, ``shape``,
        ``dtype``, ``nbytes``, ``device``, ``__cuda_array_interface__`` and ``__dlpack__``. Examples are
        ``torch.as_tensor`` and ``lambda buffer: buffer.ptr``.
      stream: the type of the stream: the name of a library, or a function that makes the stream from its handle, an
        int, such as ``cuda.core.Stream.from_handle``. None: the stream of the arrays' library or, if *arrays* is a
        function, a `StreamHandle`, which has ``__cuda_stream__`` and ``__int__``. CuPy's and Warp's streams are current
        while the function runs.
      record: ``"auto"``: a function that cannot be recorded runs through Python, with one warning that has the reason;
        True: a function that cannot be recorded is a `RecordingError`; False: it always runs through Python.
      vmap_method: the behaviour under ``jax.vmap``. ``"native"`` (same as ``"expand_dims"``): one call, with a replay
        of the recording for each slice; ``"broadcast_all"``: the same with every input copied to the batch's size;
        ``"sequential"``: one call after the other; ``"sequential_unrolled"``: likewise, for a batch of a known size;
        None: an error. A function given here computes the whole batch: see `numba_cuda_kernel`.
      input_output_aliases: inputs whose memory becomes an output's, ``{input: output}``, for functions that update in
        place. Both parameters then have the same memory; the function may write it only by the output parameter. JAX
        copies the input first if it is used again.
      has_side_effect: whether to keep every call. Otherwise JAX may merge equal calls and drop unused ones.
      reference: ``reference(*inputs, **static) -> results``, a plain JAX function that computes the same. Derivatives
        of both modes and all orders are taken from it.
      jvp: ``jvp(primals, tangents, **static) -> tangents of the results``, for forward mode.
      vjp: ``vjp(primals, results, cotangents, **static) -> cotangents of the inputs``, for reverse mode.
      transpose: ``{input: function}`` for inputs that *func* is linear in while the others are fixed.
        ``function(inputs, cotangents, **static)`` returns the input's cotangent; see `numba_cuda_kernel`.
      sharding_rule: the split of a call over devices under ``jax.jit``, einsum-like, such as ``"m k, k n -> m n"``; see
        `numba_cuda_kernel`.

    Returns:
      A function of the inputs by position, and of static scalars by keyword. A static scalar fills the parameter of its
      name, as a Python number, and a parameter's default is used as in Python. The result has the structure of *outs*.

    Raises:
      KernelTypeError: if *func* is not a function of arrays and a stream (a kernel, for example).
      ArgumentError: if *arrays*, *stream* or *record* is not an allowed value.
      MissingDependencyError: if a library of *arrays* or *stream* is not installed.
      OutputSpecError: if *outs* has leaves without shape and dtype, or is empty and *has_side_effect* is False.
      AliasError: if *input_output_aliases* is invalid.
      VmapMethodError: if *vmap_method* is unknown, or if it is a function and *func* has a side effect.
      ShardingRuleError: if *sharding_rule* is invalid.

    The returned function raises `ArityError`, `InputError`, `StaticArgumentError` when it is traced, and
    `DtypeError`, `RecordingError` and `PlatformError` when its program is compiled.

    Example:
      An elementwise chain of CuPy, on a machine with a GPU::

        def wave(x, out, stream):
            out[...] = cupy.sin(x) * 2 + x

        f = cuda_callable(wave, outs=lambda x: x, arrays="cupy")
        jax.jit(f)(jnp.arange(4.0))
    """
    return _wrap(
        "cuda_callable",
        func,
        Adapter(arrays, stream),
        record,
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


def _wrap(asked_by: str, func: Any, adapter: Adapter, record: _Record, outs: Any, **options: Any) -> Callable[..., Any]:
    signature = signature_of(asked_by, func)
    if not (record is True or record is False or record == "auto"):
        raise ArgumentError(f"{asked_by}: record is {record!r}; allowed: True, False and 'auto'.")
    adapter.check(asked_by)
    kernel = CudaFunction(func, signature, adapter, record)
    kernel = dataclasses.replace(kernel, aliases=checked_aliases(kernel.name, options["input_output_aliases"]))
    return kernel_function(kernel, signature.others, outs, **options)
