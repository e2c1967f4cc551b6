"""Edge lists of the FlyWire connectome, as CSV or Parquet."""

from __future__ import annotations

import csv
import gzip
import importlib
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np


class EdgesError(ValueError):
    """A file that cannot be read as an edge list."""


class Edges(NamedTuple):
    """Connections between neurons: sources and targets, and the number of synapses, negative if they inhibit."""

    neurons: int
    source: np.ndarray
    target: np.ndarray
    synapses: np.ndarray


class Columns(NamedTuple):
    """The columns of one kind of edge list; without a transmitter, the number of synapses has a sign."""

    source: str
    target: str
    synapses: str
    transmitter: str | None = None


#: The edge list of Shiu et al., ``Connectivity_783.parquet``, and those of Codex (codex.flywire.ai), which have a row
#: for each neuropil.
KINDS = (
    Columns("Presynaptic_Index", "Postsynaptic_Index", "Excitatory x Connectivity"),
    Columns("pre_root_id", "post_root_id", "syn_count", "nt_type"),
)
#: The transmitters that inhibit: Shiu et al. take GABA and glutamate.
INHIBITORY = "GABA", "GLUT"


def read_edges(path: Path) -> Edges:
    """Read an edge list; neurons are numbered in the order of their identifiers, without those that have no edge.

    Args:
      path: a file whose name ends in ``.csv``, ``.csv.gz`` or ``.parquet``, with the columns of one of `KINDS`.

    Raises:
      EdgesError: if the name or the columns are others, if the file has no row, or if it is Parquet and pyarrow is not
        installed.
    """
    name = path.name.lower()
    if name.endswith(".parquet"):
        source, target, synapses = _read_parquet(path)
    elif name.endswith((".csv", ".csv.gz")):
        source, target, synapses = _read_csv(path)
    else:
        raise EdgesError(f"{path}: the name of an edge list ends in .csv, .csv.gz or .parquet")
    identifiers, numbers = np.unique(np.concatenate([source, target]), return_inverse=True)
    n = identifiers.size
    pairs, place = np.unique(numbers[: source.size] * n + numbers[source.size :], return_inverse=True)
    total = np.bincount(place, synapses).astype(np.int32)
    return Edges(n, (pairs // n).astype(np.int32), (pairs % n).astype(np.int32), total)


def _kind(path: Path, header: Sequence[str]) -> Columns:
    for kind in KINDS:
        if {name for name in kind if name is not None} <= set(header):
            return kind
    wanted = " or ".join(str([name for name in kind if name is not None]) for kind in KINDS)
    raise EdgesError(f"{path}: the columns are {list(header)}; allowed: {wanted}")


def _read_csv(path: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    with _open(path) as file:
        header = next(csv.reader([file.readline()]))
        kind = _kind(path, header)
        names = [name for name in kind if name is not None]
        # As structures: identifiers have more digits than a float.
        dtype = [(name, "U8" if name == kind.transmitter else np.int64) for name in names]
        places = [header.index(name) for name in names]
        if not (first := file.readline()):
            raise EdgesError(f"{path}: the edge list has no row")
        lines = itertools.chain([first], file)
        rows = np.loadtxt(lines, dtype=dtype, delimiter=",", usecols=places, ndmin=1, quotechar='"')
    sign = 1 if kind.transmitter is None else np.where(np.isin(rows[kind.transmitter], INHIBITORY), -1, 1)
    return rows[kind.source], rows[kind.target], rows[kind.synapses] * sign


def _open(path: Path) -> IO[str]:
    return gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8")


def _read_parquet(path: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    try:
        parquet = importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise EdgesError(
            f"{path}: Parquet is read by pyarrow, which is not installed. Install it with `pip install pyarrow`, or "
            "use an edge list as CSV."
        ) from None
    kind = _kind(path, parquet.read_schema(path).names)
    table = parquet.read_table(path, columns=[name for name in kind if name is not None])
    if not table.num_rows:
        raise EdgesError(f"{path}: the edge list has no row")
    columns = {name: table[name].to_numpy() for name in table.column_names}
    sign = 1 if kind.transmitter is None else np.where(np.isin(columns[kind.transmitter], INHIBITORY), -1, 1)
    return columns[kind.source], columns[kind.target], columns[kind.synapses] * sign
