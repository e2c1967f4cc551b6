"""`Plastic`: compressed matrices with weights that change at active events; a base of `CSR` and `CSC`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import jax

from ..operators.plasticity.compressed import update_entries
from ..operators.plasticity.rules import apply_rule
from ..operators.units import joined, split
from .compressed import Compressed


class Plastic(Compressed):
    """The methods that return a matrix with changed weights, or changed states of the entries."""

    __slots__ = ()

    def update_on_pre(self, pre_spike: Any, post_trace: Any, w_min: Any = None, w_max: Any = None) -> Self:
        """Return the matrix with the trace of the columns added to the weights of active rows.

        A matrix in compressed rows visits only the active rows. In compressed columns, `prepare` it, or all entries are
        visited. See `update_csr_on_binary_pre`. The result of a prepared matrix is prepared: all copies of its weights
        are updated, which visits all entries unless the program does not use the copies. In a loop, carry ``A.data``
        instead of the matrix: ``data = A.with_data(data).update_on_pre(...).data``.

        Args:
          pre_spike: bool, integers or real numbers, ``(rows,)``, or an event array; elements that are not zero are
            active.
          post_trace: the trace of each column, ``(columns,)``, converted to the dtype of the weights.
          w_min: the lower limit of weights that are updated, integers or real numbers, ``()`` or ``(nnz,)``; None: no
            limit.
          w_max: the upper limit, integers or real numbers, ``()`` or ``(nnz,)``; None: no limit.

        Raises:
          ShapeError: if lengths do not fit, or if the matrix has one weight for all entries.
          DtypeError: if a dtype is not supported.
        """
        return self._updated("update_on_pre", 0, pre_spike, post_trace, w_min, w_max)

    def update_on_post(self, pre_trace: Any, post_spike: Any, w_min: Any = None, w_max: Any = None) -> Self:
        """Return the matrix with the trace of the rows added to the weights of active columns.

        A matrix in compressed columns, or a prepared one, visits only the active columns; otherwise, all entries are
        visited. See `update_on_pre` and `update_csr_on_binary_post`.

        Args:
          pre_trace: the trace of each row, ``(rows,)``, converted to the dtype of the weights.
          post_spike: bool, integers or real numbers, ``(columns,)``, or an event array; elements that are not zero are
            active.
          w_min: the lower limit of weights that are updated, integers or real numbers, ``()`` or ``(nnz,)``; None: no
            limit.
          w_max: the upper limit, integers or real numbers, ``()`` or ``(nnz,)``; None: no limit.

        Raises:
          ShapeError: if lengths do not fit, or if the matrix has one weight for all entries.
          DtypeError: if a dtype is not supported.
        """
        return self._updated("update_on_post", 1, post_spike, pre_trace, w_min, w_max)

    def apply_on_pre(
        self,
        rule: Callable[..., Any],
        pre_spike: Any,
        *,
        edge_state: Any = None,
        pre_vals: Any = None,
        post_vals: Any = None,
        params: Any = None,
    ) -> Any:
        """Return the state of the entries with a rule applied to the entries of active rows; see `csr_apply_on_pre`.

        Args:
          rule: ``rule(state, pre, post, params)`` returns the new state of an entry.
          pre_spike: bool, integers or real numbers, ``(rows,)``, or an event array.
          edge_state: a pytree of arrays of any dtype, ``(nnz, ...)``; None: the weights.
          pre_vals: a pytree of arrays of any dtype, ``(rows, ...)``.
          post_vals: a pytree of arrays of any dtype, ``(columns, ...)``.
          params: a pytree of numbers or arrays of any shape and dtype, the same for all entries.

        Returns:
          The new state, or the new weights if *edge_state* is None; `with_data` inserts them.

        Raises:
          ShapeError: if lengths do not fit, or if *edge_state* is None and the matrix has one weight for all entries.
          DtypeError: if events are complex.
          ArgumentError: if *rule* returns another structure than that of the state.
        """
        return self._applied("apply_on_pre", 0, rule, pre_spike, edge_state, pre_vals, post_vals, params)

    def apply_on_post(
        self,
        rule: Callable[..., Any],
        post_spike: Any,
        *,
        edge_state: Any = None,
        pre_vals: Any = None,
        post_vals: Any = None,
        params: Any = None,
    ) -> Any:
        """Return the state of the entries with a rule applied to the entries of active columns; see `apply_on_pre`.

        Args:
          rule: ``rule(state, pre, post, params)`` returns the new state of an entry.
          post_spike: bool, integers or real numbers, ``(columns,)``, or an event array.
          edge_state: a pytree of arrays of any dtype, ``(nnz, ...)``; None: the weights.
          pre_vals: a pytree of arrays of any dtype, ``(rows, ...)``.
          post_vals: a pytree of arrays of any dtype, ``(columns, ...)``.
          params: a pytree of numbers or arrays of any shape and dtype, the same for all entries.

        Returns:
          The new state, or the new weights if *edge_state* is None.

        Raises:
          ShapeError: if lengths do not fit, or if *edge_state* is None and the matrix has one weight for all entries.
          DtypeError: if events are complex.
          ArgumentError: if *rule* returns another structure than that of the state.
        """
        return self._applied("apply_on_post", 1, rule, post_spike, edge_state, pre_vals, post_vals, params)

    def _structure_for(self, axis: int) -> tuple[tuple[jax.Array, ...], bool]:
        """Return the structure to update by events of *axis*, and True if they select places instead of lines.

        The structure is ``indices, indptr`` and, of the mirror of a prepared matrix, the permutation.
        """
        if axis == self._axis or self.prepared is None:
            return self.structure, axis != self._axis
        mirror = self.prepared.mirror
        return (mirror.indices, mirror.indptr, mirror.permutation), False

    def _updated(self, method: str, axis: int, spikes: Any, trace: Any, w_min: Any, w_max: Any) -> Self:
        self._check_single()
        matrix, unit = split(self)
        (indices, indptr, *permutation), across = self._structure_for(axis)
        updated = update_entries(
            f"{type(self).__name__}.{method}",
            joined(matrix._weights, unit),
            indices,
            indptr,
            trace,
            spikes,
            w_min,
            w_max,
            *permutation,
            shape=self.shape,
            axis=axis,
            across=across,
            backend=None,
        )
        plastic: Self = joined(matrix._with_data(split(updated)[0]), unit)
        return plastic

    def _applied(self, method: str, axis: int, rule: Any, spikes: Any, state: Any, *values: Any) -> Any:
        self._check_single()
        structure, across = self._structure_for(axis)
        matrix, unit = split(self)
        return apply_rule(
            f"{type(self).__name__}.{method}",
            rule,
            joined(matrix._weights, unit) if state is None else state,
            structure,
            spikes,
            *values,
            shape=self.shape,
            axis=axis,
            across=across,
        )
