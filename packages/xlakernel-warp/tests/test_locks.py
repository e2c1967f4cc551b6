"""Threads that compile, lower and run kernels at once, by machine code and by Python, in a process of their own."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parent / "programs" / "locks.py"
TABLE = next(
    node.value
    for node in ast.parse(PROGRAM.read_text("utf-8")).body
    if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "CASES"
)


@pytest.fixture(scope="module")
def program():
    """Run all cases in one process; return what it wrote, up to where it stood still."""
    child = subprocess.Popen([sys.executable, PROGRAM], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        return child.communicate(timeout=200)[0]
    except subprocess.TimeoutExpired:
        child.kill()
        return child.communicate()[0]


@pytest.mark.parametrize("case", [key.value for key in TABLE.keys])
def test_threads_wait_for_each_other_and_not_for_ever(case, program):
    assert f"passed: {case}\n" in program, program[-3000:]
