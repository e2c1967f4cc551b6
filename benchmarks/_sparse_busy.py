"""Single products, alone and beside a process that keeps a core busy."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from typing import Any

import jax
import jax.numpy as jnp
from _harness import Mark, Part
from _sparse_marks import TAIL
from _sparse_matrices import Size, uniform

CALLS = 3000  # single products


def measure_busy(_: Any) -> Part:
    """Time single products, alone and beside a process that keeps a core busy."""
    matrix = uniform(Size(2000, 50))
    x = jnp.ones(matrix.shape[1])
    product = jax.jit(lambda x: matrix @ x)

    def calls() -> list[float]:
        seconds = []
        for _ in range(CALLS):
            start = time.perf_counter()
            product(x).block_until_ready()
            seconds.append(time.perf_counter() - start)
        return seconds

    calls()  # measures an iteration, too
    cases = {"CSR @ x, 100 000 entries": calls()}
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
        try:
            time.sleep(1)
            cases["CSR @ x, 100 000 entries, beside a busy process"] = calls()
        finally:
            busy.kill()  # it has no other end
    marks = []
    for name, seconds in cases.items():
        tail = statistics.quantiles(seconds, n=100)[98] / statistics.median(seconds)
        marks.append(Mark(f"{name}: 99th percentile over the median", tail, TAIL))
    return Part("single calls", cases, marks)
