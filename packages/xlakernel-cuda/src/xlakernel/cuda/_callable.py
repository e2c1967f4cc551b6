"""`numba_cuda_callable` and `cuda_callable`: a function that launches work on the GPU, as one of JAX arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

from xlakernel.core.backend import Transpose, VmapMethod, as_decorator, kernel_function
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
    """Make a function of JAX arrays from one that launches Numba CUDA kernels; without it, return a decorator.

    It is `cuda_callable` with Numba's device arrays and streams:
    ``func(input1, ..., output1, ..., stream)``. Launch on the stream, ``kernel[blocks, threads, stream](...)``;
    temporaries are ``cuda.device_array(...)``, whose memory XLA owns when the function is replayed. The arrays have the
    stream as their own, so that ``out[:] = x`` and ``out.copy_to_device(x)`` go there too.

    Args:
      func: the function.
      outs: the outputs' shapes and dtypes; this and the others as for `cuda_callable`.
      record: whether the function is recorded once and replayed natively.
      vmap_method: what ``jax.vmap`` does.
      input_output_aliases: inputs whose memory becomes an output's.
      has_side_effect: whether to keep each call as it stands.
      reference: a plain JAX function that computes the same.
      jvp: tangents of the results.
      vjp: cotangents of the inputs.
      transpose: transposes by input.
      sharding_rule: how a call is split over devices.

    Returns:
      A function of the inputs, and of static scalars by keyword; see `cuda_callable`.

    Raises:
      KernelTypeError: if *func* is not a function that can be called like that, but a kernel, say.
      ArgumentError: if *record* is not one of those allowed.
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
    """Make a function of JAX arrays from one that launches work with any CUDA library; without it, return a decorator.

    The function is ``func(input1, ..., output1, ..., stream)``, with static scalars anywhere. It gets arrays over XLA's
    own memory, launches kernels, fills and copies on the stream, and returns nothing. When a program is compiled it
    runs twice or a few times more, without anything being executed, and what it launched is recorded: from then on
    machine code replays that, and Python is not called again. So it must do the same each time: what depends on
    shapes, dtypes and static scalars is decided when it is recorded, what depends on data is decided on the device.
    Kernels, device arrays and numbers that it refers to, and attributes of objects, are those of that time, in programs
    that are compiled already also when a name is bound to others later: pass what varies as a static scalar. Device
    arrays tie a call to the device that they are on, which inputs do not. While it is recorded, no other thread can use
    CUDA's default stream. It must not write to its inputs, which nothing but debug mode finds; outputs begin with
    arbitrary values.

    What cannot be recorded, because the function reads data back, waits for the stream, copies from the host or
    allocates where that cannot be seen, is run through Python at each call instead, on XLA's stream, as *record* says.
    There too all work must go on the stream: XLA waits for nothing else.

    Args:
      func: the function. The stream is its parameter of that name, or else the last one.
      outs: the outputs' shapes and dtypes: a ``jax.ShapeDtypeStruct`` or a pytree of them; or a function that returns
        that for the inputs' structs. Tuples, lists and named tuples are in the order of the function's output
        parameters; a dictionary has their names as its keys.
      arrays: what inputs and outputs arrive as: ``"numba"``, ``"cupy"`` or ``"warp"`` arrays (Warp has none without
        dimensions: those have one element), or what a function returns that is called with each argument's
        `DeviceBuffer`: an object with ``ptr``, ``shape``, ``dtype``, ``nbytes``, ``device``,
        ``__cuda_array_interface__`` and ``__dlpack__``, such as ``torch.as_tensor`` or ``lambda buffer: buffer.ptr``.
      stream: what the stream arrives as: the name of a library, or what a function returns of its handle, an int, such
        as ``cuda.core.Stream.from_handle``; None: the stream of the arrays' library, and a `StreamHandle`, which has
        ``__cuda_stream__`` and is an ``int()``, where that is none of the three. CuPy's and Warp's streams are
        current while the function runs.
      record: ``"auto"``: a function that cannot be recorded is run through Python, and says so once, with the reason;
        True: that is a `RecordingError`; False: it is not even tried.
      vmap_method: what ``jax.vmap`` does. ``"native"`` (as ``"expand_dims"``): what was recorded is replayed for each
        slice, in one call; ``"broadcast_all"``: the same with every input copied to the batch's size;
        ``"sequential"`` and ``"sequential_unrolled"``: one call after the other; None: an error. A function computes
        the whole batch instead: see `numba_cuda_kernel`.
      input_output_aliases: inputs whose memory becomes an output's, ``{input: output}``, for functions that update in
        place. Both parameters are then the same memory, and only the output may be written.
      has_side_effect: whether to keep each call as it stands; without it JAX may merge equal calls, and drop unused
        ones.
      reference: ``reference(*inputs, **static) -> results``, a plain JAX function that computes the same. Derivatives
        of both modes and all orders are taken from it.
      jvp: ``jvp(primals, tangents, **static) -> tangents of the results``, for forward mode.
      vjp: ``vjp(primals, results, cotangents, **static) -> cotangents of the inputs``, for reverse mode.
      transpose: ``{input: function}`` for inputs that the function is linear in, where
        ``function(inputs, cotangents, **static)`` returns the input's cotangent.
      sharding_rule: how a call is split over devices under ``jax.jit``, einsum-like, such as ``"m k, k n -> m n"``.

    Returns:
      A function of the inputs, and of static scalars by keyword. A static scalar fills the parameter of its name, as a
      Python number, and a parameter's default is used as in Python. The result has the structure of *outs*.

    Raises:
      KernelTypeError: if *func* is not a function that can be called like that, but a kernel, say.
      ArgumentError: if *arrays*, *stream* or *record* is not one of those allowed.
      MissingDependencyError: if the library that they name is not installed.
      OutputSpecError: if *outs* has leaves without shape and dtype, or describes no output without *has_side_effect*.
      AliasError: if *input_output_aliases* cannot hold.
      VmapMethodError: if *vmap_method* is unknown, or a function of a kernel with a side effect.
      ShardingRuleError: if *sharding_rule* is not a rule.

    The function it returns raises `ArityError`, `InputError`, `StaticArgumentError` when it is traced, and
    `DtypeError`, `RecordingError` and `PlatformError` when its program is compiled.

    Example:
      An elementwise chain of CuPy's, on a machine with a GPU::

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
    given = options["input_output_aliases"]
    aliases = given if isinstance(given, Mapping) else {}  # else core complains
    aliased = frozenset(output for output in aliases.values() if isinstance(output, int))
    kernel = CudaFunction(func, signature, adapter, record, aliased)
    return kernel_function(kernel, signature.others, outs, **options)
