"""Threads that compile, lower and run kernels at once, by machine code and by Python, in a process of their own."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[1] / "programs" / "locks.py"
TABLE = next(
    node.value
    for node in ast.parse(PROGRAM.read_text("utf-8")).body
    if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "CASES"
)


@pytest.fixture(scope="module")
def program():
    """Run all cases in one process; return its output, up to a deadlock."""
    child = subprocess.Popen([sys.executable, PROGRAM], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        return child.communicate(timeout=200)[0]
    except subprocess.TimeoutExpired:
        child.kill()
        return child.communicate()[0]


@pytest.mark.process
@pytest.mark.parametrize("case", [key.value for key in TABLE.keys])
def test_threads_do_not_deadlock(case, program):
    assert f"passed: {case}\n" in program, program[-3000:]
