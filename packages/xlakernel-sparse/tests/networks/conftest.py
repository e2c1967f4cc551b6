"""The networks of `models`, and the models of the benchmarks, can be imported by the tests."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
# There are no benchmarks in a source archive.
sys.path.append(str(Path(__file__).parents[4] / "benchmarks"))
