"""The checks are scripts, which import each other from their folder."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "checks"))
