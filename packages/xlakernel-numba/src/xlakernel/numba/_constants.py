"""Private copies of the arrays that compiled code refers to.

Numba embeds the bytes of a small contiguous array in the code of a kernel. For any other array the code contains the
address, so that a kernel would read the array's values at the time of a call instead of those at compile time.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numba.core.compiler_lock import global_compiler_lock
from numba.core.cpu import CPUContext

from xlakernel.core.backend import fingerprint

# By content; never freed, because machine code reads them.
arrays_in_code: dict[str, np.ndarray[Any, Any]] = {}


@contextmanager
def private_arrays() -> Iterator[None]:
    """Compile references to arrays in this context as references to read-only copies."""
    by_numba = CPUContext.make_constant_array

    def of_copy(context: Any, builder: Any, kind: Any, array: Any) -> Any:
        return by_numba(context, builder, kind, _copy(array))

    with global_compiler_lock:
        CPUContext.make_constant_array = of_copy
        try:
            yield
        finally:
            CPUContext.make_constant_array = by_numba


def _copy(array: Any) -> Any:
    """Return the copy of *array*: contiguous, in the same memory order, and readable by code for any strides."""
    content = fingerprint(array)
    if content not in arrays_in_code:
        arrays_in_code[content] = np.array(array)
        arrays_in_code[content].flags.writeable = False
    return arrays_in_code[content]
