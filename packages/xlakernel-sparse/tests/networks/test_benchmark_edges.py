"""Edge lists of the fly's connectome, as the benchmark reads them."""

import gzip
import sys

import pytest

_fly_edges = pytest.importorskip("_fly_edges")  # there are no benchmarks in a source archive

SHIU = """,Presynaptic_ID,Presynaptic_Index,Postsynaptic_Index,Connectivity,Excitatory,Excitatory x Connectivity
0,720575940596125868,7,3,2,1,2
1,720575940597856265,3,7,5,-1,-5
2,720575940597856265,3,12,1,-1,-1
"""
CODEX = """pre_root_id,post_root_id,neuropil,syn_count,nt_type
720575940620877589,720575940627197566,AVLP_R,7,ACH
720575940627197566,720575940620877589,AVLP_R,3,GABA
720575940620877589,720575940627197566,LO_R,4,ACH
720575940627197566,720575940620877590,LO_R,1,GLUT
"""


def _as_tuples(edges):
    rows = zip(edges.source.tolist(), edges.target.tolist(), edges.synapses.tolist(), strict=True)
    return edges.neurons, sorted(rows)


@pytest.mark.parametrize("compressed", [False, True], ids=["csv", "gz"])
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (SHIU, (3, [(0, 1, -5), (0, 2, -1), (1, 0, 2)])),
        (CODEX, (3, [(0, 2, 11), (2, 0, -3), (2, 1, -1)])),
    ],
    ids=["shiu", "codex"],
)
def test_edge_lists_are_read(tmp_path, text, expected, compressed):
    path = tmp_path / ("edges.csv.gz" if compressed else "edges.csv")
    path.write_bytes(gzip.compress(text.encode()) if compressed else text.encode())
    assert _as_tuples(_fly_edges.read_edges(path)) == expected


def test_an_edge_list_in_parquet_is_read(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "edges.parquet"
    names = ["Presynaptic_Index", "Postsynaptic_Index", "Excitatory x Connectivity"]
    parquet.write_table(pyarrow.table(dict(zip(names, ([7, 3, 3], [3, 7, 12], [2, -5, -1]), strict=True))), path)
    assert _as_tuples(_fly_edges.read_edges(path)) == (3, [(0, 1, -5), (0, 2, -1), (1, 0, 2)])
    codex = tmp_path / "codex.parquet"
    columns = {"pre_root_id": [5, 6], "post_root_id": [6, 5], "syn_count": [7, 3], "nt_type": ["ACH", "GABA"]}
    parquet.write_table(pyarrow.table(columns), codex)
    assert _as_tuples(_fly_edges.read_edges(codex)) == (2, [(0, 1, 7), (1, 0, -3)])


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("edges.csv", "a,b,c\n1,2,3\n", r"columns are \['a', 'b', 'c'\]; allowed: \['Presynaptic_Index'"),
        ("edges.csv", SHIU.splitlines()[0] + "\n", "has no row"),
        ("edges.txt", SHIU, "ends in .csv"),
    ],
)
def test_other_files_are_refused(tmp_path, name, text, message):
    path = tmp_path / name
    path.write_text(text, "utf-8")
    with pytest.raises(_fly_edges.EdgesError, match=message):
        _fly_edges.read_edges(path)


def test_parquet_without_pyarrow_is_refused(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(_fly_edges.EdgesError, match="pip install pyarrow"):
        _fly_edges.read_edges(tmp_path / "edges.parquet")
