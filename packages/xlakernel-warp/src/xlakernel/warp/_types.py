"""Conversion of dtypes and array types between JAX and Warp, without initialising Warp and without a GPU."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import warp as wp
from jax import export as jax_export

from xlakernel.core.errors import ArgumentError, DtypeError, InputError

# All scalar types of Warp, each of which JAX has too.
SCALARS = (
    *(wp.bool, wp.int8, wp.int16, wp.int32, wp.int64, wp.uint8, wp.uint16, wp.uint32, wp.uint64),
    *(wp.float16, wp.bfloat16, wp.float32, wp.float64),
)
# Warp's meaning of Python's scalar types in an annotation.
PYTHON_SCALARS = {bool: wp.bool, int: wp.int32, float: wp.float32}

MAX_NDIM = 4  # of Warp's arrays

_DTYPES: dict[Any, np.dtype[Any]] = {scalar: np.dtype(wp.dtype_to_jax(scalar)) for scalar in SCALARS}
_SCALAR_OF = {dtype: scalar for scalar, dtype in _DTYPES.items()}
_ALLOWED = ", ".join(dtype.name for dtype in _SCALAR_OF)


def jaxtype_to_warptype(dtype: Any) -> Any:
    """Return Warp's scalar type for a dtype.

    Args:
      dtype: a dtype of JAX or NumPy, in any spelling: ``jnp.float32``, ``np.dtype("int8")``, ``"bfloat16"``. Python's
        ``bool``, ``int`` and ``float`` have JAX's meaning, as in ``jnp.zeros(3, float)``: 32 bits, or 64 with
        ``jax_enable_x64``. A dtype that names its width keeps it in both modes. Warp's own scalar types are returned as
        they are.

    Returns:
      One of ``wp.bool``, ``wp.int8`` to ``wp.int64``, ``wp.uint8`` to ``wp.uint64``, ``wp.float16``, ``wp.bfloat16``,
      ``wp.float32`` and ``wp.float64``.

    Raises:
      DtypeError: for every other dtype (complex numbers, int4, float8, strings, random keys), and other objects.

    Example:
      >>> import jax.numpy as jnp, warp as wp
      >>> jaxtype_to_warptype(jnp.float32) is wp.float32
      True
    """
    if _is_scalar(dtype):
        return dtype
    try:
        found = _SCALAR_OF.get(_numpy_dtype(dtype))
    except TypeError as error:
        raise DtypeError(f"{_name(dtype)} is not a dtype that Warp has: {error}. {_advice(dtype)}") from error
    if found is None:
        raise DtypeError(f"Warp has no numbers of dtype {_name(dtype)}. {_advice(dtype)}")
    return found


def warptype_to_jaxtype(dtype: Any) -> np.dtype[Any]:
    """Return the dtype of the JAX arrays that hold numbers of a Warp type.

    Args:
      dtype: a scalar type of Warp; a vector, matrix, quaternion or transformation type, for the dtype of its numbers
        (`warpinfo_to_jaxinfo` returns its dimensions too); or Python's ``bool``, ``int`` or ``float``, which mean
        ``wp.bool``, ``wp.int32`` and ``wp.float32``, as in a Warp annotation.

    Returns:
      The dtype, of the same width with and without ``jax_enable_x64``.

    Raises:
      DtypeError: for other types, such as a struct, a generic type (``Any``, ``wp.Float``) or an array type.

    Example:
      >>> import warp as wp
      >>> warptype_to_jaxtype(wp.vec3)
      dtype('float32')
    """
    scalar, _ = split_warptype(dtype)
    return _DTYPES[scalar]


def jaxinfo_to_warpinfo(info: Any, *, dtype: Any = None) -> Any:
    """Return the annotation of a Warp kernel's parameter that takes an array like *info*.

    Args:
      info: an object with a shape and a dtype: a ``jax.ShapeDtypeStruct``, or an array of JAX (also traced) or NumPy.
      dtype: Warp's type of the elements: a vector, matrix, quaternion or transformation. Its dimensions are the last
        ones of the shape. None: the elements are numbers.

    Returns:
      ``wp.array(dtype=…, ndim=…)``, whose ``.dtype`` may be used in the kernel, as in ``annotation.dtype(0.0)``.

    Raises:
      InputError: if *info* has no shape or no dtype.
      DtypeError: if Warp does not have the dtype of *info*, or *dtype* is made of numbers of another dtype.
      ArgumentError: if the shape does not end in the dimensions of *dtype*, or does not have 1 to 4 further dimensions,
        as Warp's arrays do. Pass a 0-d array with the shape ``(1,)``, or as a number by value.

    Example:
      >>> import jax, jax.numpy as jnp, warp as wp
      >>> jaxinfo_to_warpinfo(jax.ShapeDtypeStruct((8, 4), jnp.int32))
      array(ndim=2, dtype=int32)
      >>> jaxinfo_to_warpinfo(jax.ShapeDtypeStruct((8, 3), jnp.float32), dtype=wp.vec3)
      array(ndim=1, dtype=vec3f)
    """
    try:
        shape, scalar = tuple(info.shape), info.dtype
    except (AttributeError, TypeError) as error:
        raise InputError(
            f"{info!r} has no shape and dtype; give an array, or a jax.ShapeDtypeStruct((n,), jnp.float32)."
        ) from error
    scalar = jaxtype_to_warptype(scalar)
    element, inner = (scalar, ()) if dtype is None else split_warptype(dtype)
    if element is not scalar:
        raise DtypeError(
            f"an array of {_DTYPES[scalar]} cannot hold {_name(dtype)}, which is made of {_DTYPES[element]}; cast the "
            f"array, or choose a type made of {_DTYPES[scalar]}."
        )
    ndim = len(shape) - len(inner)
    if ndim < 0 or shape[ndim:] != inner:
        raise ArgumentError(
            f"an array of shape {shape} cannot hold {_name(dtype)}; its shape must end in {inner}, the type's own."
        )
    if not 1 <= ndim <= MAX_NDIM:
        elements = f" with elements {_name(dtype)}" if inner else ""
        raise ArgumentError(
            f"an array of shape {shape}{elements} has {ndim} dimensions in Warp, whose arrays have 1 to {MAX_NDIM}; "
            "reshape it, or pass a single number to the kernel by value."
        )
    return wp.array(dtype=scalar if dtype is None else dtype, ndim=ndim)


def warpinfo_to_jaxinfo(info: Any, shape: Any = None) -> jax.ShapeDtypeStruct:
    """Return the shape and dtype of the JAX array for a Warp array, or for an annotation of one.

    Args:
      info: a ``wp.array``; or an annotation, such as ``wp.array(dtype=wp.float32, ndim=2)`` or ``wp.array2d[float]``.
      shape: the extents in Warp, without the dimensions of vectors or matrices; an integer for one dimension. None: the
        extents of the ``wp.array`` *info*; an annotation has no extents.

    Returns:
      The struct: *shape* followed by the dimensions of the element's type, and the dtype of its numbers.

    Raises:
      InputError: if *info* is neither a Warp array nor an annotation of one.
      DtypeError: if the elements are not numbers, vectors or matrices.
      ArgumentError: if the shape is missing, or has another number of dimensions.

    Example:
      >>> import warp as wp
      >>> warpinfo_to_jaxinfo(wp.array(dtype=wp.mat22, ndim=1), 5)
      ShapeDtypeStruct(shape=(5, 2, 2), dtype=float32)
    """
    try:
        ndim, dtype = info.ndim, info.dtype
    except AttributeError as error:
        raise InputError(
            f"{info!r} is neither a Warp array nor an annotation of one; give wp.array(dtype=wp.float32, ndim=1), for "
            "example."
        ) from error
    scalar, inner = split_warptype(dtype)
    extents = _extents(info, shape)
    if len(extents) != ndim:
        raise ArgumentError(
            f"{_name(info)} has {ndim} dimension{'s' * (ndim != 1)}, and the shape given is {extents}"
            + (f"; give it without the {inner} of its elements." if inner else ".")
        )
    return jax.ShapeDtypeStruct((*extents, *inner), _DTYPES[scalar])


def split_warptype(dtype: Any) -> tuple[Any, tuple[int, ...]]:
    """Return the scalar type of an element type, and an element's extents, a tuple of 0 to 2 integers.

    Raises:
      DtypeError: if *dtype* is neither a type of numbers that JAX has nor made of such numbers.
    """
    # Warp has a public function that recognizes composite types, but only private attributes for their scalar type and
    # their shape.
    composite = wp.types.type_is_composite(dtype)
    scalar, inner = (dtype._wp_scalar_type_, tuple(dtype._shape_)) if composite else (dtype, ())
    if isinstance(scalar, type):
        scalar = PYTHON_SCALARS.get(scalar, scalar)
    if not _is_scalar(scalar):
        raise DtypeError(
            f"{_name(dtype)} is not a type of numbers that JAX has; allowed: wp.{_ALLOWED.replace(', ', ', wp.')}, "
            "Python's bool, int and float, and vectors, matrices, quaternions and transformations. Pass the fields of "
            "a struct as arrays of their own, and name the overload of a generic kernel."
        )
    return scalar, inner


def _is_scalar(dtype: Any) -> bool:
    # Compare by identity: with NumPy 2.4 and Warp 1.19, np.dtype("float32") == wp.float32 is True.
    return any(dtype is scalar for scalar in SCALARS)


def _numpy_dtype(dtype: Any) -> Any:
    if dtype is None:
        raise TypeError("None would be NumPy's default, float64, which is not JAX's")
    if dtype is bool or dtype is int or dtype is float:  # not ==: np.dtype("float64") == float is True
        return jax.dtypes.canonicalize_dtype(dtype)
    return np.dtype(dtype)


def _extents(info: Any, shape: Any) -> tuple[Any, ...]:
    if shape is None:
        if getattr(info, "device", None) is None:  # an annotation, whose shape is a placeholder
            raise ArgumentError(f"{_name(info)} is an annotation, which has no extents; give shape=.")
        return tuple(info.shape)
    extents = tuple(shape) if isinstance(shape, (tuple, list)) else (shape,)
    for extent in extents:
        if not (isinstance(extent, (int, np.integer)) or jax_export.is_symbolic_dim(extent)) or not extent >= 0:
            raise ArgumentError(f"the shape given is {shape!r}; expected a non-negative integer, or a tuple of these.")
    return extents


def _advice(dtype: Any) -> str:
    name = str(dtype)
    if "complex" in name:
        advice = "pass the real and the imaginary parts, as two arrays or as vectors of two numbers"
    elif "key<" in name:
        advice = "pass jax.random.key_data(key)"
    else:
        advice = "cast the array to one of them first"
    return f"Allowed: {_ALLOWED}; {advice}."


def _name(dtype: Any) -> str:
    return getattr(dtype, "__name__", None) or repr(dtype)
