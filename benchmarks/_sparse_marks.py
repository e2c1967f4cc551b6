"""What must hold of the sparse products: how long ours may take in terms of a peer, in the same run."""

from __future__ import annotations

import statistics
from collections.abc import Mapping

from _harness import Mark
from _sparse_operations import OPERATIONS, OPERATIONS_OF_TWO
from _sparse_regimes import BATCHES, DENSE_RATES, SPARSE_RATES, WIDE_COLUMNS

FIRST_CONVERSION = 0.1  #: seconds
IN_GRAPH = 5.0  #: microseconds
TAIL = 5.0  #: the 99th percentile of single calls, in terms of their median

# (our case, the case it is compared with or several of which the best counts, limit), by platform and part.
_Entry = tuple[str, str | tuple[str, ...], float]

_EVENT_RATES = ("0.1%", "1.0%", "10.0%")

_DRAWN_RATES, _WEIGHTS = _EVENT_RATES[1:], ("equal weights", "uniform", "normal")
_PLASTICITY: list[_Entry] = [
    (f"update on {side}, {rate}{limits}", f"update on {side}, {rate}{limits}, brainevent", 0.7)
    for side in ("pre", "post")
    for rate in _EVENT_RATES[:2]
    for limits in ("", ", within limits")
]

_DELAYS: list[_Entry] = [
    (f"delivery with delays, {rate}", f"delivery with delays, {rate}, brainevent", 1.0) for rate in _EVENT_RATES
]

_OPERATIONS: list[_Entry] = [
    *(
        (name, f"{name}, SciPy", 1.5)
        for name in (
            *(*OPERATIONS, *OPERATIONS_OF_TWO),
            *("A.todense()", "CSR.from_dense(X)", "vmap of A[i], 2000 rows"),
        )
    ),
    ("CSR.from_scipy(A), 10^7 entries", "CSR(arrays, check=False), 10^7 entries", 3.0),
]
_BATCHES: list[_Entry] = [
    (name, peer, 1.1)
    for batch in BATCHES
    for rate in SPARSE_RATES
    for name in (f"batch of {batch}, {rate:.1%}",)
    for peer in (f"{name}, lax.map", f"{name}, dense")
]
_DENSE_MATRIX: list[_Entry] = [
    (f"{name} @ dense, {rate}", f"{name} @ dense, {rate}, {peer}", limit)
    for name in ("events", "32 x events")
    for rate in _EVENT_RATES
    for peer, limit in (("brainevent", 0.7), ("jax.numpy", 1.1))
]
_REGIMES: list[_Entry] = [
    ("CompactArray(s) @ CSR, 0.1%", "BinaryArray(s) @ CSR, 0.1%", 1.2),
    ("CSR @ events, 0.1%, prepared, new weights", "CSR @ events, 0.1%", 0.05),
    *(
        (
            f"CSR @ events, {rate:.0%}, prepared",
            tuple(f"CSR @ events, {rate:.0%}, {way}" for way in ("gathered", "scattered")),
            1.1,
        )
        for rate in DENSE_RATES
    ),
    *(
        (name, f"{name}, SciPy", 0.9)
        for name in (
            *("CSR @ x, 10^6 rows of 10", "x @ CSR, 10^6 rows of 10"),
            *(f"X @ CSR, {WIDE_COLUMNS} rows", f"CSR @ X, {WIDE_COLUMNS} columns"),
        )
    ),
]

_CPU: dict[str, list[_Entry]] = {
    "operations": _OPERATIONS,
    "batches": _BATCHES,
    "regimes": _REGIMES,
    "dense": _DENSE_MATRIX,
    "vectors": [
        ("CSR @ x", "CSR @ x, SciPy", 0.45),
        ("x @ CSR", "x @ CSR, SciPy", 0.5),
        ("CSR @ x, equal weights", "CSR @ x", 0.8),
        ("x @ CSR, equal weights", "x @ CSR", 0.8),
    ],
    "matrices": [("CSR @ X", "CSR @ X, SciPy", 0.2), ("X @ CSR", "X @ CSR, SciPy", 0.3)],
    "events": [
        *(
            (f"events @ CSR, {rate}", f"events @ CSR, {rate}, brainevent", limit)
            for rate, limit in zip(_EVENT_RATES, (0.15, 0.35, 0.35), strict=True)
        ),
        *((f"CSR @ events, {rate}, prepared", f"events @ CSR, {rate}", 1.2) for rate in _EVENT_RATES),
        *((f"CSR @ events, {rate}", f"CSR @ events, {rate}, brainevent", 0.25) for rate in _EVENT_RATES),
        *((f"events @ CSR, {rate}, equal weights", f"events @ CSR, {rate}", 0.8) for rate in _EVENT_RATES[1:]),
    ],
    "conversion": [("CSR to CSC", "CSR to CSC, SciPy", 0.6)],
    "procedural": [
        (f"events @ drawn, {rate}, {weights}", f"events @ drawn, {rate}, {weights}, brainevent", 1.0)
        for rate in _DRAWN_RATES
        for weights in _WEIGHTS
    ],
    "plasticity": _PLASTICITY,
    "delays": _DELAYS,
}

_CUDA: dict[str, list[_Entry]] = {
    "dense": _DENSE_MATRIX,
    "plasticity": _PLASTICITY,
    "delays": _DELAYS,
    "vectors": [
        ("CSR @ x, prepared", "CSR @ x, cuSPARSE", 0.35),
        ("CSR @ x", "CSR @ x, cuSPARSE", 0.8),
        ("x @ CSR, prepared", "x @ CSR, brainevent", 0.3),
    ],
    "matrices": [
        (product, (f"{product}, cuSPARSE", f"{product}, brainevent"), limit)
        for product, limit in (("CSR @ X", 0.6), ("X @ CSR", 0.9))
    ],
    "events": [
        (f"{product}{weights}", f"{product}{weights}, brainevent", limit)
        for rate in _EVENT_RATES
        for weights in ("", ", equal weights")
        for product, limit in ((f"events @ CSR, {rate}", 0.5), (f"CSR @ events, {rate}", 0.6))
    ]
    + [
        (f"CSR @ events, 1.0%, prepared{weights}", f"CSR @ events, 1.0%{weights}, brainevent", 0.15)
        for weights in ("", ", equal weights")
    ],
    # Per active entry, also those of 24 * 10^9 entries, beside the stored matrix that fits into memory.
    "procedural": [
        (f"events @ drawn, {rate}, {weights}{size}", f"events @ CSR, {rate}, {weights}", 2.0)
        for rate in _DRAWN_RATES
        for weights in _WEIGHTS
        for size in ("", ", 24e9 entries")
    ],
}

_DENSE = ("CSR @ x", "x @ CSR", "CSR @ x, prepared", "x @ CSR, prepared", "CSR @ X", "X @ CSR")
_HEAVY: list[_Entry] = [
    *((f"{product}, Zipf", f"{product}, uniform", 1.25) for product in _DENSE),
    ("CSR @ events, 1.0%, Zipf", "CSR @ events, 1.0%, uniform", 1.5),
    *((f"events @ CSR, {rate}, Zipf", f"events @ CSR, {rate}, uniform", 1.5) for rate in _EVENT_RATES),
]


def marks_of(platform: str, part: str, seconds: Mapping[str, list[float]]) -> list[Mark]:
    """Return the marks of *part*; one whose peer was not measured does not hold.

    Args:
      platform: JAX's name of it.
      part: the part's name.
      seconds: what the cases took, round by round.
    """
    entries = _HEAVY if part == "heavy-tailed" else {"cpu": _CPU, "cuda": _CUDA}[platform].get(part, [])
    marks = []
    for ours, peers, limit in entries:
        named = (peers,) if isinstance(peers, str) else peers
        known = [seconds[peer] for peer in named if peer in seconds]
        ratios = [mine / min(theirs) for mine, *theirs in zip(seconds[ours], *known, strict=True)] if known else []
        suffix = " (per active entry)" if "events @ CSR" in ours and part == "heavy-tailed" else ""
        value = statistics.median(ratios) if ratios else None
        marks.append(Mark(f"{ours} / {' or '.join(named)}{suffix}", value, limit))
    return marks
