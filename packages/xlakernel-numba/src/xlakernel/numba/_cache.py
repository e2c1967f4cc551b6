"""The disk cache of kernels that were decorated with ``njit(cache=True)``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from numba.core.caching import CompileResultCacheImpl, FunctionCache, NullCache

from xlakernel.core.warning import warn

# How Numba calls the address of a function that calls itself, in the code.
_UNRESOLVED = ".numba.unresolved$"


class _KernelCacheFiles(CompileResultCacheImpl):  # type: ignore[misc]  # Numba has no stubs
    """Names the files apart from those of Numba's own cache of the same function."""

    def get_filename_base(self, fullname: str, abiflags: str) -> str:
        return f"{super().get_filename_base(fullname, abiflags)}.xlakernel"

    def check_cachable(self, cres: Any) -> bool:
        """Whether the code can be read again, which ends the process where a function calls itself.

        Numba resolves the address of such a function when it compiles it, and not when it reads it:
        https://github.com/numba/numba/issues/6061
        """
        if _UNRESOLVED in cres.library.get_llvm_str():
            warn(
                f"{cres.fndesc.qualname} is not kept on disk, as njit's cache=True asks for: it calls itself, or a "
                "helper does, and Numba cannot read such code again (numba issue 6061)."
            )
            return False
        return bool(super().check_cachable(cres))


class _KernelCache(FunctionCache):  # type: ignore[misc]  # Numba has no stubs
    """Numba's cache with the content of the whole kernel in its key.

    Numba's own key is the function's bytecode and its pickled closure: it knows neither the compile options nor the
    helpers, so it can return stale code, and it misses for closures over other compiled functions.
    """

    _impl_class = _KernelCacheFiles

    def __init__(self, function: Any, content: str) -> None:
        super().__init__(function)
        self._content = content

    def _index_key(self, signature: Any, codegen: Any) -> tuple[Any, ...]:
        return (signature, codegen.magic_tuple(), self._content)


def enable_disk_cache(dispatcher: Any, content: str) -> None:
    """Let *dispatcher* keep its machine code beside its source, as ``njit(cache=True)`` does.

    Args:
      dispatcher: a dispatcher that nobody else uses.
      content: the fingerprint of the function and its options.
    """
    try:
        dispatcher._cache = _KernelCache(dispatcher.py_func, content)
    except RuntimeError as error:  # no folder can be written: Numba refuses that when a function is decorated
        warn(f"{dispatcher.__name__} is compiled without njit's cache=True: {error}")


def disk_cache_folder(dispatcher: Any) -> Path | None:
    """Return the folder in which *dispatcher* keeps its machine code, or None."""
    path = dispatcher.stats.cache_path
    return None if path is None else Path(path)


def disable_disk_cache(dispatcher: Any) -> None:
    """Let *dispatcher* keep nothing from now on."""
    dispatcher._cache = NullCache()
