"""Arrays that compiled code refers to: private copies of them.

Numba writes the bytes of a small contiguous array into the code of a kernel. Of any other array, the code contains the
address, so that it would read what the array contains when it runs, and not when it was compiled.
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
    """Return the copy of *array*, compact and of the same memory order; code for any strides reads it too."""
    content = fingerprint(array)
    if content not in arrays_in_code:
        arrays_in_code[content] = np.array(array)
        arrays_in_code[content].flags.writeable = False
    return arrays_in_code[content]
