"""`ProceduralMatrix`: random matrices that are never stored."""

from __future__ import annotations

from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from xlakernel.core.errors import DtypeError, InputError, ShapeError, StructureError

from ..events.arrays import BinaryArray
from ..events.compact import CompactArray
from ..operators.arguments import is_known
from ..operators.connections import Rule
from ..operators.dtypes import accumulator
from ..operators.operand import BINARY, Operand
from ..operators.procedural import PROCEDURAL, kernel_params
from .drawn import checked_parameters, checked_rule, checked_shape, draw_lines, seed_words
from .matrices import CSC, CSR
from .products import Multiplied

_NAMES = {"homogeneous": ("weight",), "uniform": ("low", "high"), "normal": ("mean", "std")}


@jax.tree_util.register_pytree_with_keys_class
class ProceduralMatrix(Multiplied):
    """A random matrix that is never stored: each product draws the entries that it needs again.

    All products, with vectors and matrices, from both sides and on every backend, use the same matrix. Make one with
    `homogeneous`, `uniform` or `normal`. The entries are drawn in lines, which are the rows; those of `T` are its
    columns. ``events @ A`` draws the rows of active events only, and so does ``A.T @ events``; other products draw all
    rows. The matrix is an immutable pytree, whose leaves are the parameters of the weights and the seed: these may be
    traced, batched by ``jax.vmap``, and the parameters differentiated. For gradients, make the matrix of the parameters
    inside of the differentiated function, or set them with `with_parameters`.

    *Definition.* Numbers are unsigned integers of 32 bits, and divisions are rounded down. The word of slot ``j`` of
    chunk ``q`` of line ``i`` is word ``j % 4`` of Philox4x32-10 (Salmon et al., SC 2011) with the two words of the seed
    as its key, low word first, and the counter ``(j / 4, q, i, kind)``; *kind* is 3 for places and 7 for weights. The
    words of a key of `jax.random` are ``jax.random.bits(key, (2,), "uint32")``. A line has ``n`` places.

    With *per_row*, entries are drawn independently and with replacement, so that a place may have several entries,
    which add up: entry ``k`` of a line is slot ``k % 128`` of chunk ``k / 128``, at place ``w * n / 2**32`` for its
    word ``w``. Each place is chosen with a probability of ``1 / n``, up to ``2**-32``.

    With a *probability* ``p``, each place has an entry or none, independently. A line has ``C`` chunks of
    ``L = ceil(n / C)`` places, ``C = max(ceil(n * p / 100), ceil(n / 2**23))`` in double precision; the last chunks may
    be shorter, or empty. The first entry of a chunk is at its place ``g[0]``; an entry at place ``t`` in slot ``j - 1``
    is followed by one at ``t + 1 + g[j]``, until the chunk ends. The gap of slot ``j`` is
    ``g[j] = l * M / 2**(27 + s)``, where ``M`` is ``-2**s / log2(1 - p)``, rounded down, for the largest ``s <= 36``
    with ``M < 2**32``; for ``p = 1`` all gaps are 0. The logarithm ``l`` is that of the slot's word with its lowest bit
    set, ``v``, which has ``e`` leading zeros: ``l = e * 2**27 + (2**31 - 1 - f * a[0] / 2**32) / 16`` with
    ``f = v * 2**(e + 1) % 2**32``, ``a[7] = c[7]``, ``a[k] = c[k] - f * a[k + 1] / 2**32``, and ``c`` = 3098161973,
    1548878642, 1029151573, 749075138, 523484232, 297141728, 111299757, 19518379. The distribution of gaps is geometric,
    with cumulative probabilities within 2e-7.

    The fraction of a word ``w`` is ``u = (w / 256) * 2**-24``. The weight in slot ``j`` is ``low + (high - low) * u``
    for uniform weights. For normal ones it is ``mean + std * z``. Here ``z`` of slots ``j`` and ``j + 1``, for even
    ``j``, is ``r * cos(a)`` and ``r * sin(a)`` with ``r = sqrt(-2 * log(1 - u[j]))`` and ``a = 2 * pi * u[j + 1]``, in
    float32.

    The places of entries are the same on every device, bit for bit. Weights are the same up to rounding, since devices
    round logarithms, cosines and fused operations differently; products are also summed in different orders.

    Attributes:
      parameters: the weight; or the lower and upper bound, or the mean and standard deviation; arrays without
        dimensions.
      seed: two words, uint32.
      shape: (rows, columns).
      distribution: ``"homogeneous"``, ``"uniform"`` or ``"normal"``.
      probability: the probability that an element is an entry; or None.
      number: the number of entries in each line; or None.
      axis: 0 if rows are lines, 1 if columns are.

    Raises:
      InputError: if the class is called.

    Example:
      >>> import jax.numpy as jnp
      >>> from xlakernel.sparse import BinaryArray, ProceduralMatrix
      >>> A = ProceduralMatrix.homogeneous(0.5, seed=1, probability=0.1, shape=(100, 1000))
      >>> A
      ProceduralMatrix(float32[100,1000], homogeneous, probability=0.1)
      >>> spikes = BinaryArray(jnp.arange(100) < 3)
      >>> print((spikes @ A).sum(), A.tocsr()[:3])
      155.0 CSR(float32[3,1000], nnz=310, equal weights)
    """

    __slots__ = ("axis", "distribution", "number", "parameters", "probability", "seed", "shape")
    _leaves = ("parameters", "seed")
    _static = ("shape", "distribution", "probability", "number", "axis")
    _advice = " A.with_parameters(…) returns the matrix with other parameters of the weights."

    parameters: tuple[jax.Array, ...]
    seed: jax.Array
    distribution: str
    probability: float | None
    number: int | None
    axis: int

    def __init__(self, *_: Any, **__: Any) -> None:
        raise InputError(
            "ProceduralMatrix: make one with ProceduralMatrix.homogeneous(weight, …), .uniform(low, high, …) or "
            ".normal(mean, std, …)."
        )

    @classmethod
    def _make(cls, name: str, given: tuple[Any, ...], seed: Any, shape: Any, probability: Any, per_row: Any) -> Self:
        caller = f"ProceduralMatrix.{name}"
        shape = checked_shape(caller, shape)
        rule = checked_rule(caller, name, probability, per_row)
        parameters = checked_parameters(caller, _NAMES[name], given)
        return cls._of(parameters=parameters, seed=seed_words(caller, seed), shape=shape, axis=0, **rule._asdict())

    @classmethod
    def homogeneous(
        cls, weight: Any, *, seed: Any, shape: Any, probability: float | None = None, per_row: int | None = None
    ) -> Self:
        """Make a matrix whose entries have one weight.

        Args:
          weight: a number of any dtype that a matrix may have; may be traced.
          seed: an integer of at least 0, or a key of `jax.random`; may be traced.
          shape: (rows, columns).
          probability: the probability that an element is an entry, independently of the others; 0, or from 1e-8 to 1.
          per_row: the number of entries in each row, drawn with replacement; give either *probability* or *per_row*.

        Raises:
          InputError: if *seed* or *weight* is not one of these.
          ShapeError: if *shape* is not that of a matrix, or *weight* has dimensions.
          ArgumentError: if not exactly one of *probability* and *per_row* is given, or it is out of range.
          DtypeError: if the dtype of *weight* is not supported.
        """
        return cls._make("homogeneous", (weight,), seed, shape, probability, per_row)

    @classmethod
    def uniform(
        cls, low: Any, high: Any, *, seed: Any, shape: Any, probability: float | None = None, per_row: int | None = None
    ) -> Self:
        """Make a matrix with uniformly distributed weights.

        Args:
          low: the lower bound of the weights, a real number; may be traced.
          high: the upper bound.
          seed: an integer of at least 0, or a key of `jax.random`; may be traced.
          shape: (rows, columns).
          probability: the probability that an element is an entry, independently of the others; 0, or from 1e-8 to 1.
          per_row: the number of entries in each row, drawn with replacement; give either *probability* or *per_row*.

        Raises:
          InputError: if *seed*, *low* or *high* is not one of these.
          ShapeError: if *shape* is not that of a matrix, or a bound has dimensions.
          ArgumentError: if not exactly one of *probability* and *per_row* is given, or it is out of range.
          DtypeError: if a bound is neither a floating-point number nor an integer.
        """
        return cls._make("uniform", (low, high), seed, shape, probability, per_row)

    @classmethod
    def normal(
        cls, mean: Any, std: Any, *, seed: Any, shape: Any, probability: float | None = None, per_row: int | None = None
    ) -> Self:
        """Make a matrix with normally distributed weights.

        Args:
          mean: the mean of the weights, a real number; may be traced.
          std: the standard deviation.
          seed: an integer of at least 0, or a key of `jax.random`; may be traced.
          shape: (rows, columns).
          probability: the probability that an element is an entry, independently of the others; 0, or from 1e-8 to 1.
          per_row: the number of entries in each row, drawn with replacement; give either *probability* or *per_row*.

        Raises:
          InputError: if *seed*, *mean* or *std* is not one of these.
          ShapeError: if *shape* is not that of a matrix, or a parameter has dimensions.
          ArgumentError: if not exactly one of *probability* and *per_row* is given, or it is out of range.
          DtypeError: if a parameter is neither a floating-point number nor an integer.
        """
        return cls._make("normal", (mean, std), seed, shape, probability, per_row)

    def with_parameters(self, *parameters: Any) -> Self:
        """Return the matrix with other parameters of the weights, and the same entries.

        Args:
          *parameters: the weight, the two bounds, or the mean and the standard deviation.

        Raises:
          InputError: if the number of parameters differs, or one is not a number.
          ShapeError: if a parameter has dimensions.
          DtypeError: if a dtype is not supported.
        """
        caller = "ProceduralMatrix.with_parameters"
        return self._like(parameters=checked_parameters(caller, _NAMES[self.distribution], parameters))

    @property
    def dtype(self) -> Any:
        """The dtype of the weights."""
        return self.parameters[0].dtype

    @property
    def T(self) -> Self:
        """The transposed matrix, of the same entries: lines that are rows become columns."""
        return self._like(shape=self.shape[::-1], axis=1 - self.axis)

    def astype(self, dtype: Any) -> Self:
        """Return the matrix with weights of another dtype.

        Args:
          dtype: one that a matrix may have; a floating-point one for uniform and normal weights.

        Raises:
          DtypeError: if *dtype* is another one.
        """
        if self.distribution != "homogeneous" and not jnp.issubdtype(dtype, jnp.floating):
            raise DtypeError(
                f"ProceduralMatrix.astype: dtype is {dtype!r}; {self.distribution} weights are floating-point numbers."
            )
        return self.with_parameters(*(parameter.astype(dtype) for parameter in self.parameters))

    def __repr__(self) -> str:
        if not all(hasattr(leaf, "dtype") for leaf in (*self.parameters, self.seed)):  # JAX puts other objects here
            return f"ProceduralMatrix({self.parameters}, {self.seed}, shape={self.shape})"
        (rows, columns), line = self.shape, ("row", "column")[self.axis]
        drawn = f"probability={self.probability}" if self.number is None else f"per_{line}={self.number}"
        batch = f", batch={self.seed.shape[:-1]}" if self.seed.ndim != 1 else ""
        return f"ProceduralMatrix({self.dtype.name}[{rows},{columns}], {self.distribution}, {drawn}{batch})"

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        raise InputError(
            f"ProceduralMatrix: {self!r} is not converted to a dense array implicitly. A.todense() returns a dense "
            "array, A.tocsr() a stored matrix; a product is A @ x."
        )

    def todense(self) -> jax.Array:
        """Return the matrix as a dense array, ``(rows, columns)``."""
        dense: jax.Array = self @ BinaryArray(jnp.eye(self.shape[1], dtype=bool))
        return dense

    def tocsr(self) -> CSR:
        """Return the matrix in compressed rows.

        Raises:
          StructureError: if the seed or a parameter is traced.
        """
        self._check_single()
        if not all(map(is_known, (self.seed, *self.parameters))):
            raise StructureError(
                "ProceduralMatrix.tocsr: the matrix is traced, so that the number of entries is not known. Convert it "
                "outside of jit, vmap and grad, and pass the CSR in; or use products of the matrix, or A.todense()."
            )
        lines, places = self.shape if self.axis == 0 else self.shape[::-1]
        wide = accumulator(self.dtype)
        params = kernel_params(self._params.astype(wide), self._rule)
        data, indices, indptr = draw_lines(self._rule, (lines, places), params, self.seed)
        kind = CSR if self.axis == 0 else CSC
        return kind((data.astype(self.dtype), indices, indptr), shape=self.shape, check=False).tocsr()

    @property
    def _rule(self) -> Rule:
        return Rule(self.distribution, self.probability, self.number)

    @property
    def _params(self) -> jax.Array:
        return jnp.stack(self.parameters)

    def _check_single(self) -> None:
        if self.seed.ndim != 1 or any(parameter.ndim for parameter in self.parameters):
            raise ShapeError(
                f"ProceduralMatrix: this is a batch of matrices, with a seed of shape {self.seed.shape} and parameters "
                f"of shapes {[parameter.shape for parameter in self.parameters]}. Map over it, as in "
                "jax.vmap(lambda A: A.todense())(matrices) or jax.vmap(lambda A, x: A @ x)(matrices, xs)."
            )

    def _multiply(self, operand: Operand, x: jax.Array, *, transpose: bool, caller: str) -> jax.Array:
        shape, transpose = (self.shape, transpose) if self.axis == 0 else (self.shape[::-1], not transpose)
        return PROCEDURAL[operand](
            caller, self._params, self.seed, x, shape=shape, transpose=transpose, rule=self._rule
        )

    def _multiply_compact(self, events: CompactArray, *, transpose: bool, caller: str) -> jax.Array:
        return self._multiply(BINARY, events.value, transpose=transpose, caller=caller)
