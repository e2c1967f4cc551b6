"""Serialization of matrices and event arrays that are arguments or results of exported programs."""

import json
from typing import Any

from jax import export

from .events.arrays import BinaryArray, WeightedArray
from .events.bit_packed import BitPackedArray
from .events.compact import CompactArray
from .formats.fixed import FixedNumPerPost, FixedNumPerPre
from .formats.matrices import COO, CSC, CSR
from .formats.prepared import Order, Prepared
from .formats.procedural import ProceduralMatrix


def _write(static: Any) -> bytes:
    return json.dumps(static).encode()


def _read(static: bytes) -> Any:
    """Return the static attributes, shapes or lengths."""
    return tuple(tuple(value) if isinstance(value, list) else value for value in json.loads(static))


_MATRICES = CSR, CSC, COO, FixedNumPerPre, FixedNumPerPost, ProceduralMatrix
for _kind in (*_MATRICES, BinaryArray, WeightedArray, BitPackedArray, CompactArray):
    export.register_pytree_node_serialization(
        _kind,
        serialized_name=f"xlakernel.sparse.{_kind.__name__}",
        serialize_auxdata=_write,
        deserialize_auxdata=_read,
    )
for _part in (Order, Prepared):
    export.register_namedtuple_serialization(_part, serialized_name=f"xlakernel.sparse.{_part.__name__}")
