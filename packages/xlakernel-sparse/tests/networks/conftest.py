"""The networks of `models`, and the models of the benchmarks, can be imported by the tests."""

import importlib
import sys
from pathlib import Path

_BENCHMARKS = Path(__file__).parents[4] / "benchmarks"
_IMPORTED = (
    *("_brainevent_network", "_fly_model", "_harness", "_nest_network", "_network_runs", "_plastic_model"),
    "_spike_statistics",
)

sys.path.insert(0, str(Path(__file__).parent))
# The folder does not stay on the path, where its `sparse` would be taken for the package of this name.
if _BENCHMARKS.is_dir():  # not in a source archive
    sys.path.append(str(_BENCHMARKS))
    for _name in _IMPORTED:
        importlib.import_module(_name)
    sys.path.remove(str(_BENCHMARKS))
