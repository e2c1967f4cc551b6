"""Named tuples of arrays, packed in words of 32 bits; a kernel takes one array of words for all fields.

A field is an array with a value for each neuron, or one value that all neurons share. The functions that read and write
a neuron's tuple are generated from the field names: Numba builds a named tuple only from a call that lists its fields.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from numba import njit

from xlakernel.core.errors import ArgumentError, DtypeError, ShapeError

from .noise import Normal, Poisson

#: The size of each cache of generated functions. The limit drops those of a notebook's earlier definitions.
KEPT = 128


# Indices are unsigned. In Numba, signed indices may be negative and count from the end; they are therefore compared
# with 0, and loops with such a comparison are not vectorised.
@njit
def _get_float32(words, word, i):
    return np.int32(words[word, np.uint64(i)]).view(np.float32)


@njit
def _get_int32(words, word, i):
    # Numba computes with integers of 64 bits.
    return np.int64(words[word, np.uint64(i)])


@njit
def _get_uint32(words, word, i):
    return np.int32(words[word, np.uint64(i)]).view(np.uint32)


@njit
def _get_bool(words, word, i):
    return words[word, np.uint64(i)] != 0


@njit
def _join(words, word, i):
    return np.int64(words[word + 1, np.uint64(i)]) << 32 | np.int64(words[word, np.uint64(i)]) & np.int64(0xFFFFFFFF)


@njit
def _get_float64(words, word, i):
    return np.int64(_join(words, word, i)).view(np.float64)


@njit
def _set_word(words, word, i, value):
    words[word, np.uint64(i)] = value


@njit
def _set_float32(words, word, i, value):
    words[word, np.uint64(i)] = np.float32(value).view(np.int32)


@njit
def _set_int64(words, word, i, value):
    words[word, np.uint64(i)] = np.int32(value & np.int64(0xFFFFFFFF))
    words[word + 1, np.uint64(i)] = np.int32(value >> 32)


@njit
def _set_float64(words, word, i, value):
    _set_int64(words, word, i, np.float64(value).view(np.int64))


@njit
def _wrap_int32(value):
    # Wraps as a store does, so that a state in registers is the same as a state in memory.
    return np.int64(np.int32(value))


class _Kind(NamedTuple):
    """A dtype that fields may have: its number of words, its type and conversion in Numba, and functions for access."""

    words: int
    scalar: type
    convert: Callable[..., Any]
    get: Callable[..., Any]
    set: Callable[..., Any]


_KINDS = {
    "float32": _Kind(1, np.float32, np.float32, _get_float32, _set_float32),
    "int32": _Kind(1, np.int64, _wrap_int32, _get_int32, _set_word),
    "uint32": _Kind(1, np.uint32, np.uint32, _get_uint32, _set_word),
    "bool": _Kind(1, np.bool_, np.bool_, _get_bool, _set_word),
    "float64": _Kind(2, np.float64, np.float64, _get_float64, _set_float64),
    "int64": _Kind(2, np.int64, np.int64, _join, _set_int64),
}


#: The types of random inputs in Numba, by distribution.
_RANDOM = {"poisson": np.int64, "normal": np.float32}


_GETTERS = {f"get_{name}": kind.get for name, kind in _KINDS.items()}


class Field(NamedTuple):
    """A field, and the place of its first word among a neuron's words or, if *shared*, among those that all share.

    A random input has its distribution in place of a dtype, and the number of its draw in place of a word.
    """

    name: str
    dtype: str
    shared: bool
    word: int


def is_random(field: Field) -> bool:
    """Return True for a random input."""
    return field.dtype in _RANDOM


class Fields(NamedTuple):
    """The fields of a named tuple; *kind* is its class, *words* and *shared* count a neuron's and shared words."""

    kind: type
    fields: tuple[Field, ...]
    words: int
    shared: int

    @property
    def random(self) -> int:
        """The number of random inputs."""
        return sum(map(is_random, self.fields))


class _Empty(NamedTuple):
    pass


#: The fields of parameters or inputs that are not given.
EMPTY = Fields(_Empty, (), 0, 0)


def fields_of(
    what: str, values: Any, size: int, *, leading: tuple[int, ...] = (), first: int = 0, first_shared: int = 0
) -> Fields:
    """Return the fields of a named tuple of arrays.

    Args:
      what: the name of the values, for messages.
      values: the named tuple, or None for no fields. Each field has the shape ``leading`` or ``(*leading, size)``. With
        leading dimensions, a field may also be `Poisson` or `Normal`.
      size: the number of neurons.
      leading: the dimensions before the neurons.
      first: the place of the first word.
      first_shared: the place of the first shared word.

    Raises:
      ArgumentError: if *values* is no named tuple.
      ShapeError: if a field has another shape.
      DtypeError: if a field has a dtype that is not supported.
    """
    if values is None:
        return EMPTY
    if not isinstance(values, tuple) or not hasattr(values, "_fields") or isinstance(values, Poisson | Normal):
        raise ArgumentError(
            f"{what}: a {type(values).__name__}; allowed: a named tuple of arrays (typing.NamedTuple), whose fields "
            "are what the neuron's function reads."
        )
    found: list[Field] = []
    word, shared, draws = first, first_shared, 0
    for name, value in zip(values._fields, values, strict=True):
        if isinstance(value, Poisson | Normal):
            if not leading:
                raise ArgumentError(f"{what}.{name}: a {type(value).__name__}; allowed: in the inputs of Network.run.")
            found.append(Field(name, type(value).__name__.lower(), False, draws))
            draws += 1
            continue
        if not hasattr(value, "dtype") and not isinstance(value, int | float):
            raise DtypeError(
                f"{what}.{name}: a {type(value).__name__}; allowed: a number, or an array of {', '.join(_KINDS)}."
            )
        shape, dtype = np.shape(value), _dtype_name(value)
        if dtype not in _KINDS:
            raise DtypeError(f"{what}.{name}: {dtype}; allowed: {', '.join(_KINDS)}.")
        if shape not in {leading, (*leading, size)}:
            dimensions = " or ".join(str(shape) for shape in (leading, (*leading, size)))
            raise ShapeError(f"{what}.{name}: shape {shape}; allowed: {dimensions}.")
        common = shape == leading
        found.append(Field(name, dtype, common, shared if common else word))
        if common:
            shared += _KINDS[dtype].words
        else:
            word += _KINDS[dtype].words
    return Fields(type(values), tuple(found), word - first, shared - first_shared)


def _dtype_name(value: ArrayLike) -> str:
    """Return the name of the dtype that JAX gives a value, or of the value's own dtype if JAX gives none."""
    kind: Any = np.dtype(np.int64) if isinstance(value, int) else getattr(value, "dtype", None)
    if isinstance(value, int | np.integer | np.ndarray) and kind.kind in "iu" and np.size(value):
        limits = np.iinfo(own := jax.dtypes.canonicalize_dtype(kind))
        is_narrower = own != kind or isinstance(value, int)  # values of other arrays fit, and are not read
        if is_narrower and (np.min(value) < limits.min or np.max(value) > limits.max):
            return f"an integer that does not fit {limits.dtype}"
    if isinstance(value, np.ndarray) and not value.dtype.isnative:
        return f"{value.dtype} (not in native byte order)"
    try:
        return str(jax.dtypes.canonicalize_dtype(jnp.result_type(value)))
    except (TypeError, ValueError):  # strings, objects, dates; keys of random numbers
        return str(getattr(value, "dtype", value))


def parameters_of(name: str, noise: Fields) -> list[Field]:
    """Return the fields of *noise* that are parameters of the random input *name*, as `noise_of` names them."""
    return [field for field in noise.fields if field.name.partition("_of_")[2] == name]


def words_of(field: Field) -> int:
    """Return the number of words of a field."""
    return _KINDS[field.dtype].words


def _words_of(value: ArrayLike, dtype: str, axis: int) -> jax.Array:
    """Return a value as words along a new dimension *axis*, counted from the end."""
    value = jnp.asarray(value, dtype)
    if dtype == "bool":
        value = value.astype(jnp.int32)
    words = jax.lax.bitcast_convert_type(value, jnp.int32)
    return jnp.moveaxis(words, -1, axis) if words.ndim > value.ndim else jnp.expand_dims(words, axis)


def pack(fields: Fields, values: Any, size: int, *, leading: tuple[int, ...] = ()) -> tuple[jax.Array, jax.Array]:
    """Return the words of all neurons, ``(*leading, words, size)``, and shared words, ``(*leading, shared, 1)``."""
    own, shared = [], []
    for field in fields.fields:
        if is_random(field):
            continue
        value = jnp.asarray(getattr(values, field.name))
        if field.shared:
            shared.append(_words_of(value[..., None], field.dtype, -2))
        else:
            own.append(_words_of(value, field.dtype, -2))
    return _stack(own, leading, size), _stack(shared, leading, 1)


def _stack(words: Sequence[jax.Array], leading: tuple[int, ...], size: int) -> jax.Array:
    return jnp.concatenate(words, axis=-2) if words else jnp.zeros((*leading, 0, size), jnp.int32)


def unpack(fields: Fields, words: jax.Array) -> Any:
    """Return the named tuple of arrays that is packed in *words*, ``(..., words, size)``; no field is shared."""
    return fields.kind(**{field.name: read_field(field, words) for field in fields.fields})


def read_field(field: Field, words: jax.Array) -> jax.Array:
    """Return the values of one field from *words*, ``(..., words, size)``."""
    count = _KINDS[field.dtype].words
    part = words[..., field.word : field.word + count, :]
    if count == 2:
        return jax.lax.bitcast_convert_type(jnp.moveaxis(part, -2, -1), jnp.dtype(field.dtype))
    if field.dtype == "bool":
        return part[..., 0, :] != 0
    return jax.lax.bitcast_convert_type(part[..., 0, :], jnp.dtype(field.dtype))


def scalars_of(fields: Fields) -> Any:
    """Return a named tuple of scalars, each of the type that the neuron's function gets."""
    scalars = {**_RANDOM, **{name: kind.scalar for name, kind in _KINDS.items()}}
    return fields.kind(**{field.name: scalars[field.dtype](0) for field in fields.fields})


@functools.lru_cache(KEPT)
def loader(fields: Fields) -> Any:
    """Return a function ``load(words, shared, i, noise=())`` that returns the named tuple of neuron *i*.

    *noise* has the neuron's random inputs.
    """
    values = ", ".join(_value(field) for field in fields.fields)
    return generate("load(words, shared, i, noise=())", [f"return kind({values})"], {**_GETTERS, "kind": fields.kind})


def _value(field: Field) -> str:
    if is_random(field):
        return f"noise[{field.word}]"
    return f"get_{field.dtype}({f'shared, {field.word}, 0' if field.shared else f'words, {field.word}, i'})"


def getter(field: Field) -> Any:
    """Return a function ``get(words, shared, i)`` that returns the value of one field of neuron *i*."""
    return generate("get(words, shared, i)", [f"return {_value(field)}"], _GETTERS)


@functools.lru_cache(KEPT)
def storer(fields: Fields) -> Any:
    """Return a function ``store(words, i, value)`` that writes the named tuple *value* for neuron *i*."""
    lines = [f"set_{field.dtype}(words, {field.word}, i, value.{field.name})" for field in fields.fields]
    return generate("store(words, i, value)", lines, {f"set_{name}": kind.set for name, kind in _KINDS.items()})


@functools.lru_cache(KEPT)
def converter(fields: Fields) -> Any:
    """Return a function ``convert(value)`` that converts each field of a named tuple to its type in `loader`."""
    names = {f"as_{name}": kind.convert for name, kind in _KINDS.items()}
    values = [f"as_{field.dtype}(value.{field.name})" for field in fields.fields]
    return generate("convert(value)", [f"return kind({', '.join(values)})"], {**names, "kind": fields.kind})


def generate(signature: str, lines: Sequence[str], names: dict[str, Any]) -> Any:
    """Return the ``njit`` function with this signature, these lines as its body, and these global names."""
    source = "\n    ".join([f"def {signature}:", *(lines or ["pass"])])
    namespace = dict(names)
    exec(source, namespace)  # noqa: S102  # made of identifiers and numbers
    return njit(namespace[signature.partition("(")[0]])
