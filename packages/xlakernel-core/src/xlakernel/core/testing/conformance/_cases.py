"""Kernels that every backend implements, with their references in NumPy and JAX."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ...measure.comparison import Array

Shapes = tuple[tuple[int, ...], ...]  # the shapes of the inputs of one call

INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
FLOATS = ("float16", "bfloat16", "float32", "float64")
COMPLEX = ("complex64", "complex128")
#: 64-bit types, which are tested with JAX's setting for them.
WIDE = ("int64", "uint64", "float64", "complex128")


@dataclasses.dataclass(frozen=True)
class Case:
    """A kernel that every backend implements.

    Attributes:
      name: the case's name.
      parameters: the kernel's parameters.
      about: the kernel's computation, element by element.
      outs: a function that returns the structs (shapes and dtypes) of the outputs for the inputs.
      reference: ``reference(xp, *inputs, **static)``: the same computation; *xp* is NumPy or ``jax.numpy``. Derivatives
        are taken from it.
      shapes: shapes of the inputs of several calls, some with an extent of 0. Tests of one call use the first.
      dtypes: dtypes to test. Tests of one dtype use the first.
      fixed: the dtypes of inputs that have the same dtype in all calls.
      below: exclusive upper bounds of inputs that are indices.
      static: static scalars.
      aliases: ``input_output_aliases``.
    """

    name: str
    parameters: str
    about: str
    outs: Callable[..., Any]
    reference: Callable[..., Any]
    shapes: tuple[Shapes, ...]
    dtypes: tuple[str, ...] = ("float32", "float64", "int32")
    fixed: Mapping[int, str] = dataclasses.field(default_factory=dict)
    below: Mapping[int, int] = dataclasses.field(default_factory=dict)
    static: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    aliases: Mapping[int, int] = dataclasses.field(default_factory=dict)

    def draw(self, seed: int, dtype: str | None = None, shapes: Shapes | None = None) -> tuple[Array, ...]:
        """Return random inputs with values that every dtype represents exactly.

        Args:
          seed: a number that determines the random numbers.
          dtype: the dtype of the inputs that are not in *fixed*; None: the first of *dtypes*.
          shapes: the shapes of the inputs; None: the first of the case's *shapes*.
        """
        rng = np.random.default_rng(seed)
        return tuple(
            _draw(rng, self.fixed.get(i, dtype or self.dtypes[0]), shape, self.below.get(i))
            for i, shape in enumerate(self.shapes[0] if shapes is None else shapes)
        )


def _draw(rng: np.random.Generator, dtype: str, shape: tuple[int, ...], below: int | None) -> Array:
    kind = jnp.dtype(dtype)
    if kind.kind == "b":
        return np.asarray(rng.random(shape) < 0.5)
    if kind.kind in "iu":
        low = -9 if kind.kind == "i" and below is None else 0
        return np.asarray(rng.integers(low, below or 10, shape)).astype(kind)
    values = rng.integers(-15, 16, shape) / 8
    return np.asarray(values + 1j * rng.integers(-15, 16, shape) / 8 if kind.kind == "c" else values).astype(kind)


def _first(x: Any, *_: Any) -> Any:
    return x


def _struct(shape: tuple[Any, ...], like: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, like.dtype)


CASES = {
    case.name: case
    for case in (
        Case(
            "elementwise",
            "x, out",
            "out[i, …] = x[i, …] * x[i, …] + x[i, …], for every rank from 0",
            _first,
            lambda xp, x: x * x + x,
            shapes=(((5,),), ((),), ((2, 3),), ((2, 1, 3),), ((0,),), ((2, 0),), ((0, 1, 3),)),
            dtypes=(*FLOATS[2:], *FLOATS[:2], "bool", *INTEGERS, *COMPLEX),
        ),
        Case(
            "coupled",
            "x, out",
            "out[i] = x[0] + … + x[i]: each element depends on all before it",
            _first,
            lambda xp, x: xp.cumsum(x, dtype=x.dtype),
            shapes=(((7,),), ((1,),), ((0,),)),
            dtypes=("float32", "float64", *INTEGERS, *COMPLEX),
        ),
        Case(
            "reduction",
            "x, out",
            "out[i] = x[i, 0] + … + x[i, n-1]; 0 if n is 0",
            lambda x: _struct(x.shape[:1], x),
            lambda xp, x: xp.sum(x, axis=1, dtype=x.dtype),
            shapes=(((3, 4),), ((1, 5),), ((3, 0),), ((0, 4),)),
        ),
        Case(
            "total",
            "x, out",
            "out[()] = x[0] + … + x[n-1]; 0 if n is 0",
            lambda x: _struct((), x),
            lambda xp, x: xp.sum(x, dtype=x.dtype),
            shapes=(((6,),), ((0,),)),
        ),
        Case(
            "matrix_product",
            "a, b, out",
            "out[i, j] = the sum over k of a[i, k] * b[k, j]",
            lambda a, b: _struct((a.shape[0], b.shape[1]), a),
            lambda xp, a, b: xp.matmul(a, b),
            shapes=(((2, 3), (3, 4)), ((1, 1), (1, 2)), ((2, 0), (0, 3)), ((0, 2), (2, 3))),
        ),
        Case(
            "outer_product",
            "x, y, out",
            "out[i, j, k] = x[i] * y[j, k]: inputs of two ranks, an output of a third",
            lambda x, y: _struct((*x.shape, *y.shape), x),
            lambda xp, x, y: x[:, None, None] * y,
            shapes=(((3,), (2, 4)), ((0,), (2, 4)), ((3,), (2, 0))),
        ),
        Case(
            "several_outputs",
            "x, double, positive, total",
            "double[i] = 2 * x[i], positive[i] = x[i] > 0, total[()] = the sum of x",
            lambda x: [x, (jax.ShapeDtypeStruct(x.shape, jnp.bool_), _struct((), x))],
            lambda xp, x: [2 * x, (x > 0, xp.sum(x, dtype=x.dtype))],
            shapes=(((5,),), ((0,),)),
        ),
        Case(
            "no_inputs",
            "out",
            "out[i] = i, 6 elements of float32",
            lambda: jax.ShapeDtypeStruct((6,), jnp.float32),
            lambda xp: xp.arange(6, dtype="float32"),
            shapes=((),),
            dtypes=("float32",),
        ),
        Case(
            "scalars",
            "a, x, b, out",
            "out[i] = a[()] * x[i] + b[()]: inputs of rank 0",
            lambda a, x, b: x,
            lambda xp, a, x, b: a * x + b,
            shapes=(((), (5,), ()), ((), (0,), ())),
        ),
        Case(
            "static_scalar",
            "x, y, out, alpha",
            "out[i] = alpha * x[i] + y[i] with alpha static",
            _first,
            lambda xp, x, y, alpha: alpha * x + y,
            shapes=(((5,), (5,)), ((0,), (0,))),
            dtypes=("float32", "float64"),
            static={"alpha": 1.5},
        ),
        Case(
            "in_place",
            "acc, x, out",
            "out[i] += x[i], where acc and out are the same memory",
            _first,
            lambda xp, acc, x: acc + x,
            shapes=(((5,), (5,)), ((0,), (0,))),
            aliases={0: 0},
        ),
        Case(
            "gather",
            "x, index, out",
            "out[i] = x[index[i]], with int32 indices",
            lambda x, index: _struct(index.shape, x),
            lambda xp, x, index: x[index],
            shapes=(((6,), (4,)), ((6,), (0,))),
            fixed={1: "int32"},
            below={1: 6},
        ),
        Case(
            "raises",
            "x, out",
            'out[i] = x[i]; raises ValueError("negative input") if an x[i] is negative',
            _first,
            lambda xp, x: abs(x),
            shapes=(((5,),),),
            dtypes=("float32",),
        ),
    )
}

#: All cases but "raises", which is for the test of errors.
USUAL = [name for name in CASES if name != "raises"]
