"""Replaced kernels: those whose name in their module has been given to another kernel.

Warp compiles a replaced kernel with its module until no reference to it is left, and JAX's caches keep references. In a
notebook, all cells of which are one module, such a kernel may no longer compile, because a type, function or constant
that it names was replaced too.
"""

from __future__ import annotations

import weakref
from typing import Any

import warp

from . import code
from .lock import lock
from .recognition import is_of_warp
from .snapshot import snapshot_used

# The kernels that `remove_outdated` has removed from their modules.
_removed: weakref.WeakSet[Any] = weakref.WeakSet()


def is_replaced(kernel: Any) -> bool:
    """Return True if the kernel's name in its module is bound to another object."""
    latest = getattr(kernel.module, "kernels", {})
    return latest.get(kernel.key) is not _registered(kernel)


def remove(kernel: Any) -> None:
    """Make Warp compile a kernel's module without it, if the kernel is replaced."""
    live: Any = getattr(kernel.module, "_live_kernels", ())
    if _registered(kernel) in live and is_replaced(kernel):
        live.discard(_registered(kernel))
        kernel.module.mark_modified()


def remove_outdated(wanted: Any, block_dim: int) -> bool:
    """Remove replaced kernels that no longer compile from a kernel's module; return True if there were any."""
    live = list(getattr(wanted.module, "_live_kernels", ()))
    others = [kernel for kernel in live if kernel is not _registered(wanted) and is_replaced(kernel)]
    outdated = [kernel for kernel in others if not _generates_code(kernel, block_dim)]
    _removed.update(outdated)
    for kernel in outdated:
        remove(kernel)
        for one in (kernel, *kernel.overloads.values()):
            one.adj.skip_build = False  # Warp 1.14 would not compile it again after `put_back`
    return bool(outdated)


def put_back(kernel: Any) -> None:
    """Make Warp compile a kernel again if `remove_outdated` has removed it: its names may have new values."""
    with lock:
        if _registered(kernel) in _removed:
            _removed.discard(_registered(kernel))
            kernel.module._live_kernels.add(_registered(kernel))
            kernel.module.mark_modified()


def _registered(kernel: Any) -> Any:
    """Return the kernel that Warp lists in the module: for an overload, its generic kernel."""
    return code.generic(kernel) or kernel


def _generates_code(kernel: Any, block_dim: int) -> bool:
    """Return True if Warp generates the code of a kernel and its overloads."""
    from warp._src import context

    module = kernel.module
    hashes = [(one, one.hash) for one in (kernel, *kernel.overloads.values())]
    if any(code.is_given_up(one) for one, _ in hashes):
        return False
    try:
        with snapshot_used(module):
            options = getattr(module, "resolve_options", lambda _: dict(module.options))(warp.config)
            options |= {"block_dim": block_dim, "output_arch": None}
            context.ModuleBuilder(module, options, hasher=context.ModuleHasher([kernel], options))
    except Exception as error:  # Warp raises errors of all kinds
        if not is_of_warp(error):
            raise
        return False
    finally:
        for one, digest in hashes:
            one.hash = digest
    return True
