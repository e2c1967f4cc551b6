"""Lets the tests of units import their quantities."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
