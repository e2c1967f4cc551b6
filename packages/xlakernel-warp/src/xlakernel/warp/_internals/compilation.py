"""Compilation of kernels by Warp: retries while other threads define kernels, and kernels that do not compile."""

from __future__ import annotations

import functools
import re
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

import warp

from xlakernel.core.errors import CompileError

from . import code, replaced
from .lock import lock
from .recognition import is_of_warp
from .threads import compiling

_Result = TypeVar("_Result")
_ATTEMPTS = 5

# The messages of kernels that failed to compile.
_failures: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
# Overloads that this package has made.
_added: weakref.WeakSet[Any] = weakref.WeakSet()


def load(name: str, kernel: Any, device: str, block_dim: int) -> None:
    """Have Warp compile and load a kernel that is not generic; raise `CompileError` if Warp refuses it."""
    with lock:
        if _is_left_out(kernel):
            again = (
                f"{name}: Warp {warp.__version__} failed to compile the kernel, here or together with another one of "
                'its file or notebook. Define it again; with @wp.kernel(module="unique") Warp reports the error.'
            )
            raise CompileError(_failures.get(kernel, again))
        if code.is_merged(kernel):
            raise CompileError(
                f"{name}: Warp {warp.__version__} does not distinguish two definitions of the kernel that refer to "
                'different functions, types or values: with module="unique" it returned the first kernel for both. '
                'Leave out module="unique", or give the functions different names.'
            )
        _remove_failed(kernel.module)
        replaced.put_back(kernel)
        restore_overload(kernel)
        # Warp 1.14 compiles a module again for a launch on the CPU unless *block_dim* is 1.
        load_module = functools.partial(warp.load_module, kernel.module, device=device, block_dim=block_dim)
        try:
            with compiling():
                _load_without_outdated(kernel, block_dim, load_module)
        except Exception as error:  # Warp raises errors of all kinds
            if not is_of_warp(error):
                _reset_after_interruption(kernel.module)
                raise
            _failures[kernel] = _message(name, kernel, device, error)
            _hash_anew_beside_given_up(kernel.module)
            _drop_overload(kernel)
            _remove_failed(kernel.module)
            raise CompileError(_failures[kernel]) from error


def _load_without_outdated(kernel: Any, block_dim: int, load_module: Callable[[], Any]) -> None:
    """Have Warp load a kernel's module; if it fails, once more without replaced kernels that no longer compile."""
    try:
        retry_while_defined(kernel.module, load_module)
    except Exception as error:
        if not is_of_warp(error) or not replaced.remove_outdated(kernel, block_dim):
            raise
        retry_while_defined(kernel.module, load_module)


def failed_before(name: str, kernel: Any) -> CompileError:
    """Return the error of a kernel whose module failed to compile in an earlier call."""
    again = (
        f"{name}: Failed to load Warp module {kernel.module.name!r} on the CPU: its compilation failed before, when "
        "Warp printed the reason."
    )
    return CompileError(_failures.get(kernel, again))


def content_or_id(name: str, kernel: Any, device: str, block_dim: int) -> str:
    """Return `code.content`; if Warp cannot hash the kernel, return its identity: `load` reports the error later."""
    if not _is_left_out(kernel):
        replaced.put_back(kernel)
    try:
        return code.content(kernel, block_dim)
    except Exception as error:  # Warp raises errors of all kinds
        if not is_of_warp(error):
            _reset_after_interruption(kernel.module)
            raise
        if code.is_given_up(kernel):
            _failures[kernel] = _message(name, kernel, device, error)
        return f"object {id(kernel)}"


def _message(name: str, kernel: Any, device: str, error: Exception) -> str:
    named = re.search(r'function "(\w+)"', str(error))
    other, own = "", '@warp.kernel(module="unique")'
    if named and named[1] not in (name, kernel.key):
        other = (
            f" Warp compiles the kernels of a file or notebook together. Fix {named[1]} even if it is not part of this "
            f"one, or give it a module of its own: {own}."
        )
    elif not named and len(kernel.module.kernels) > 1:  # an error of the C++ compiler, which prints the lines
        other = (
            " Warp compiles the kernels of a file or notebook together: the error may be that of another one. Its "
            f"compiler has printed the place. With {own}, a kernel is compiled alone."
        )
    if "Failed to load" in str(error):
        other = (
            " If the kernel ran in an earlier process, its file in Warp's cache may be damaged: remove the files with "
            "warp.clear_kernel_cache(), and start again."
        )
    return (
        f"{name}: Warp {warp.__version__} does not compile the kernel for {device}. Warp's error: "
        f"{type(error).__name__}: {error}{other}"
    )


def retry_while_defined(module: Any, work: Callable[[], _Result]) -> _Result:
    """Return the result of *work*, which loads a module; retry if another thread defined kernels in it meanwhile.

    Warp first hashes the kernels of a module and then compiles them; a kernel that is defined in between has no hash.
    """
    for _ in range(_ATTEMPTS - 1):
        before = getattr(module, "hashers", None)  # Warp makes a new dict for each change
        try:
            return work()
        except Exception as error:
            changed = getattr(module, "hashers", None) is not before or _hash_missing_kernels(module)
            if not changed or not is_of_warp(error):
                raise
    return work()


def _hash_missing_kernels(module: Any) -> bool:
    """Make Warp hash a module again if it has kernels without a hash; return True if so."""
    try:
        live = {kernel for kernel in module._get_live_kernels() if not kernel.is_generic}
        # Warp 1.14 stores hashes only in the kernels.
        known = [getattr(hasher, "kernel_hashes", None) for hasher in module.hashers.values()]
        if all(live <= set(h) if h is not None else all(kernel.hash for kernel in live) for h in known):
            return False
        module.mark_modified()
    except AttributeError:  # an unknown Warp
        return False
    return True


# Overloads. Warp compiles all overloads with their module and never removes one. If one of them does not compile, the
# module no longer compiles.


def overload(kernel: Any, annotations: list[Any]) -> Any:
    """Return a generic kernel's overload; `load` drops it again if it is new and does not compile."""
    before = list(kernel.overloads.values())
    made = warp.overload(kernel, annotations)
    if all(made is not one for one in before):
        _added.add(made)
    return made


def restore_overload(kernel: Any) -> None:
    """Put an overload back among those of its generic kernel."""
    parent = code.generic(kernel)
    if kernel in _added and not code.is_given_up(kernel) and kernel.sig not in parent.overloads:
        parent.overloads[kernel.sig] = kernel
        kernel.module.mark_modified()


def _drop_overload(kernel: Any) -> None:
    """Remove an overload that `overload` added from those of its generic kernel."""
    parent = code.generic(kernel)
    if kernel in _added and parent.overloads.get(kernel.sig) is kernel:
        del parent.overloads[kernel.sig]
        kernel.module.mark_modified()


# Kernels that do not compile


def _remove_failed(module: Any) -> None:
    """Remove from a module those kernels that failed to compile and have been redefined since.

    Warp removes such a kernel when no reference to it is left, but the failed calls in JAX's caches refer to it. Until
    it is removed, Warp 1.19 compiles no other kernel of the module. (All cells of a notebook are one module.)
    """
    for kernel in list(_failures):
        if kernel.module is module:
            replaced.remove(kernel)


def _reset_after_interruption(module: Any) -> None:
    """Make Warp compile the kernels of a module again after an exception that they did not cause."""
    for kernel in list(getattr(module, "_live_kernels", ())):
        for one in (kernel, *getattr(kernel, "overloads", {}).values()):
            if one not in _failures:
                one.adj.skip_build = False
    module.mark_modified()


def _hash_anew_beside_given_up(module: Any) -> None:
    """Make Warp hash a module again after a failed compilation, if Warp has given up one of its kernels.

    Warp 1.14 compiles such a kernel without its body. Without a new hash, Warp would store the binary under the hash of
    the complete kernels.
    """
    live = list(getattr(module, "_live_kernels", ()))
    overloads = [one for kernel in live for one in getattr(kernel, "overloads", {}).values()]
    if any(map(code.is_given_up, [*live, *overloads])):
        module.mark_modified()


def _is_left_out(kernel: Any) -> bool:
    """Return True if Warp no longer compiles a kernel with its module, because the kernel failed to compile.

    Warp 1.14 compiles it without its body; later versions fail again, until another kernel is defined with its name.
    """
    return code.is_given_up(kernel) or (kernel in _failures and replaced.is_replaced(kernel))
