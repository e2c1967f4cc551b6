"""On-disk cache of compiled kernels, for functions that are decorated with ``cuda.jit(cache=True)``.

The key of Numba's own cache omits a kernel's options, globals and helpers, and two processes may store different
kernels under the same number of its index. Here each kernel is a file of `xlakernel.core.code_files`, which contains a
pickle of Numba's state of the kernel. Pickles are loaded only from the user's own folder, and only if the digest of the
file matches.
"""

from __future__ import annotations

import contextlib
import hashlib
import pickle
import sys
from typing import Any

from numba.cuda import dispatcher as cuda_dispatcher
from numba.cuda import serialize, utils
from numba.cuda.core.caching import NullCache

from xlakernel.core.backend import is_raised_by_handler, read_code, warn, write_code
from xlakernel.core.errors import CacheWarning


class KernelCache(NullCache):  # type: ignore[misc]  # Numba CUDA has no stubs
    """The cache of one dispatcher; *content* is the fingerprint of its code, its options and the compiler."""

    def __init__(self, function: Any, content: str) -> None:
        code = function.__code__
        # Compiled code may contain the location of its source, with lineinfo=True for example.
        place = function.__module__, function.__qualname__, code.co_filename, code.co_firstlineno, code.co_linetable
        self._name = function.__qualname__
        self._facts = content, place, sys.version
        self._fingerprints: dict[Any, str] = {}  # by signature

    def load_overload(self, signature: Any, target_context: Any) -> Any:
        """Return Numba's compiled kernel, or None."""
        target_context.refresh()
        what = (*self._facts, str(signature), target_context.codegen().magic_tuple())
        fingerprint = hashlib.sha256(repr(what).encode("utf-8", "surrogatepass")).hexdigest()
        self._fingerprints[signature] = fingerprint
        stored = read_code(fingerprint)
        if stored is None:
            return None
        # Before about version 0.24, Numba CUDA needs this to rebuild the kernel with its own compiler.
        with getattr(utils, "numba_target_override", contextlib.nullcontext)():
            return cuda_dispatcher._Kernel._rebuild(**pickle.loads(stored))

    def save_overload(self, signature: Any, kernel: Any) -> None:
        """Store a compiled kernel, or warn that it cannot be stored."""
        try:
            stored = serialize.dumps(kernel._reduce_states())
        except Exception as error:  # Numba raises several kinds, for linked files and arrays
            if is_raised_by_handler(error):
                raise
            warn(f"{self._name} is not cached on disk despite cuda.jit's cache=True: {error}", CacheWarning)
            return
        write_code(self._fingerprints[signature], stored)
