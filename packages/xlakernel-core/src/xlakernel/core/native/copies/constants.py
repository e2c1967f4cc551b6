"""Private copies of the arrays that compiled code refers to.

Numba embeds the bytes of a small contiguous array in the code of a kernel. For any other array the code contains the
address, so that a kernel would read the array's values at the time of a call instead of those at compile time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from ...identity.fingerprint import fingerprint

# The copies by fingerprint; never freed, because machine code reads them.
_arrays: dict[str, np.ndarray[Any, Any]] = {}


@contextmanager
def private_arrays(context: Any, copy: Callable[[Any], Any]) -> Iterator[None]:
    """In this context, compile references to an array as references to ``copy(array)``. Numba's lock must be held.

    Args:
      context: the class of the target context of Numba that lowers constants.
      copy: returns a read-only copy of an array.
    """
    by_numba = context.make_constant_array

    def of_copy(self: Any, builder: Any, kind: Any, array: Any) -> Any:
        own = copy(array)
        return by_numba(self, builder, kind, _arrays.setdefault(fingerprint(own), own))

    context.make_constant_array = of_copy
    try:
        yield
    finally:
        context.make_constant_array = by_numba
