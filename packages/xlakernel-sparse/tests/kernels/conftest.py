"""Lets the tests of each backend import the cases that they share."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
pytest.register_assert_rewrite("conformance", "deliveries", "structures", "updates")
