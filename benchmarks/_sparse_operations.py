"""Operations on a matrix and its parts, ours and SciPy's, called from Python without `jax.jit`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from _sparse_loops import Loop, in_jit, on_host
from _sparse_matrices import OPERANDS, Size, uniform

from xlakernel.sparse import CSR

SIZE = Size(20_000, 50)  #: 10^6 entries
LARGE = Size(50_000, 200)  #: 10^7 entries
SMALL = Size(2000, 500)  #: 10^6 entries of a matrix that is converted to a dense array

#: By name; each is called with our matrix and with SciPy's.
OPERATIONS: dict[str, Callable[[Any], Any]] = {
    "abs(A)": abs,
    "A ** 2": lambda A: A**2,
    "A * row": lambda A: A * np.linspace(1, 2, A.shape[1], dtype=np.float32),
    "A.tocoo()": lambda A: A.tocoo(),
    "A ** 3": lambda A: A**3,
    "A.sqrt()": lambda A: A.sqrt(),
    "A.expm1()": lambda A: A.expm1(),
    "A.floor()": lambda A: A.floor(),
    "A.maximum(0)": lambda A: A.maximum(0),
    "A.diagonal()": lambda A: A.diagonal(),
    "A.trace()": lambda A: A.trace(),
    "A.sum()": lambda A: A.sum(),
    "A.mean()": lambda A: A.mean(),
    "A.max(axis=0)": lambda A: A.max(axis=0),
    "A.max(axis=1)": lambda A: A.max(axis=1),
    "A.argmax()": lambda A: A.argmax(),
    "A.argmax(axis=1)": lambda A: A.argmax(axis=1),
    "A.count_nonzero()": lambda A: A.count_nonzero(),
    "A.count_nonzero(axis=0)": lambda A: A.count_nonzero(axis=0),
    "A.count_nonzero(axis=1)": lambda A: A.count_nonzero(axis=1),
    "A.nonzero()": lambda A: A.nonzero(),
    "A.sum(axis=0)": lambda A: A.sum(axis=0),
    "A.sum(axis=1)": lambda A: A.sum(axis=1),
    "A[7]": lambda A: _dense(A[7]),
    "A[2:5]": lambda A: A[2:5],
    "A[:, 2:5]": lambda A: A[:, 2:5],
    "A[rows]": lambda A: A[np.arange(0, A.shape[0], 10)],
}

#: By name; each is called with two of our matrices, of different structures, and with SciPy's.
OPERATIONS_OF_TWO: dict[str, Callable[[Any, Any], Any]] = {
    "A + B": lambda A, B: A + B,
    "A * B": lambda A, B: A * B,
    "A @ B": lambda A, B: A @ B,
}


def _dense(row: Any) -> Any:
    """Return a row as a dense array; SciPy's is sparse."""
    return row.toarray() if hasattr(row, "toarray") else row


def operation_cases() -> dict[str, Loop | None]:
    """Return the operations, the conversions of SciPy's matrix and of a dense array, and rows by traced numbers."""
    import scipy.sparse

    matrix, large = uniform(SIZE), uniform(LARGE).to_scipy()
    theirs = matrix.to_scipy()
    dense = theirs[:2000, :2000].toarray()  # 0.25 % of the elements
    arrays = large.data, large.indices, large.indptr
    cases: dict[str, Loop | None] = {}
    for name, operation in OPERATIONS.items():
        cases[name] = _eager(operation, matrix)
        cases[f"{name}, SciPy"] = _eager(operation, theirs)
    other = CSR.random(jax.random.key(8), matrix.shape, per_row=SIZE.degree)
    both, both_theirs = (matrix, other), (theirs, other.to_scipy())
    for name, of_two in OPERATIONS_OF_TWO.items():
        cases[name] = _eager(lambda pair, f=of_two: f(*pair), both)
        cases[f"{name}, SciPy"] = _eager(lambda pair, f=of_two: f(*pair), both_theirs)
    small = uniform(SMALL)
    cases["A.todense()"] = _eager(lambda A: A.todense(), small)
    cases["A.todense(), SciPy"] = _eager(lambda A: A.toarray(), small.to_scipy())
    cases["CSR.from_dense(X)"] = _eager(CSR.from_dense, dense)
    cases["CSR.from_dense(X), SciPy"] = _eager(scipy.sparse.csr_array, dense)
    cases["CSR.from_scipy(A), 10^7 entries"] = _eager(CSR.from_scipy, large)
    cases["CSR(arrays, check=False), 10^7 entries"] = _eager(
        lambda arrays: CSR(arrays, shape=large.shape, check=False), arrays
    )
    rows = jax.random.randint(jax.random.key(7), (OPERANDS, 2000), 0, SIZE.n)
    cases["vmap of A[i], 2000 rows"] = in_jit(lambda A, i: jax.vmap(lambda i: A[i])(i), matrix, rows)
    cases["vmap of A[i], 2000 rows, SciPy"] = on_host(lambda i: theirs[i].toarray(), np.asarray(rows))
    return cases


def _eager(operation: Callable[[Any], Any], argument: Any) -> Loop:
    """Return a loop in Python that waits for each result."""

    def run(calls: int) -> None:
        for _ in range(calls):
            jax.block_until_ready(operation(argument))

    return run
