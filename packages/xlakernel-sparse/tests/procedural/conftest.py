"""Lets the tests of procedural matrices import their oracle and cases."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
pytest.register_assert_rewrite("procedural_cases")
