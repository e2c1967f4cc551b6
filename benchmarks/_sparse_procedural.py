"""The part of `sparse` for matrices that are drawn in each product."""

from __future__ import annotations

from typing import Any

from _harness import Part
from _sparse_loops import Loop, in_jit, in_jit_brainevent, time_loops
from _sparse_marks import marks_of
from _sparse_matrices import HUGE, RATES, Size, drawn_matrices, spikes, vectors
from _sparse_products import left, right_brainevent, right_events


def measure_procedural(setting: Any) -> Part:
    """Time products that draw the entries, beside those of the same matrices, stored."""
    size, rates = setting.size, RATES[1:]
    drawn = drawn_matrices(size.n, size.n, size.degree / size.n)
    cases: dict[str, Loop | None] = {}
    work: dict[str, float] = {}  # active entries, over those of the stored matrix
    for name, matrix in drawn.items():
        stored = matrix.tocsr()
        cases[f"drawn @ x, {name}"] = in_jit(left, matrix, vectors(size))
        cases[f"CSR @ x, {name}"] = in_jit(left, stored, vectors(size))
        cases[f"drawn @ x, {name}, brainevent"] = in_jit_brainevent(left, name, matrix, vectors(size))
        for rate in rates:
            x = spikes(size, rate)
            cases[f"events @ drawn, {rate:.1%}, {name}"] = in_jit(right_events, matrix, x)
            cases[f"events @ CSR, {rate:.1%}, {name}"] = in_jit(right_events, stored, x)
            cases[f"events @ drawn, {rate:.1%}, {name}, brainevent"] = in_jit_brainevent(
                right_brainevent, name, matrix, x
            )
    if setting.platform == "cuda":
        rows, columns, probability = HUGE
        for name, matrix in drawn_matrices(*HUGE).items():
            for rate in rates:
                case = f"events @ drawn, {rate:.1%}, {name}, 24e9 entries"
                cases[case] = in_jit(right_events, matrix, spikes(Size(rows, size.degree), rate))
                work[case] = rows * columns * probability / size.nnz
    seconds = time_loops(cases, setting.rounds)
    per_entry = {name: [value / work.get(name, 1) for value in values] for name, values in seconds.items()}
    return Part("matrices that are not stored", seconds, marks_of(setting.platform, "procedural", per_entry))
