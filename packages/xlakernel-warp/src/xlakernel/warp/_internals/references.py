"""Hashing and loading of Warp's modules, with code generated from the values that were hashed.

Warp reads globals, variables of enclosing functions and attributes twice: when it hashes a module and when it generates
the code. An assignment in between is possible: by another thread, or between the definition of a kernel with
``module="unique"`` and its first launch. The new code would then be stored, in memory and on disk, under the hash of
the old values, and kernels with the old values would run it. Here both steps take the values from one `Snapshot`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from .lock import lock
from .snapshot import Snapshot, renew, snapshot_of, snapshot_used, used, with_snapshot
from .static_expressions import evaluate_all
from .unique_modules import rename_if_changed

_Method = Callable[..., Any]


@contextmanager
def present_values(module: Any, options: dict[str, Any]) -> Iterator[None]:
    """Make this thread read present values in this context; *options* are the module's compile options."""
    hashed = snapshot_of(module)
    with used(Snapshot(None)) as present:
        present.block_dim = options["block_dim"]
        if hashed is not None and hashed.deferred:
            evaluate_all(module, options, present)
        yield


def settle(module: Any) -> None:
    """Give a module a new snapshot, unless a program was lowered or code loaded with the values of the present one."""
    with lock:
        snapshot = snapshot_of(module)
        if snapshot is None or not snapshot.is_final:
            module.hashers.clear()
            snapshot = renew(module)
        snapshot.is_final = True


def hashing(get_module_hash: _Method) -> _Method:
    """Return Warp's ``Module.get_module_hash``, changed to take values from the module's snapshot.

    The hash then depends also on the ``wp.static`` expressions that Warp evaluates only when it generates code. If the
    values of a ``"unique"`` kernel changed, Warp no longer returns the kernel for another definition.
    """

    def hash_of(module: Any, block_dim: int | None) -> Any:
        module.has_unresolved_static_expressions = False  # `hashed` evaluates them
        return get_module_hash(module, block_dim)

    @functools.wraps(get_module_hash)
    def hashed(module: Any, block_dim: int | None = None) -> Any:
        with lock, snapshot_used(module) as snapshot:
            snapshot.block_dim = module.options["block_dim"] if block_dim is None else block_dim
            digest = hash_of(module, block_dim)
            while snapshot.unevaluated():
                options = module.resolved_options[snapshot.block_dim]
                try:
                    evaluate_all(module, options, snapshot)
                except Exception:
                    module.mark_modified()  # the hash has the values of only some expressions
                    raise
                del module.hashers[snapshot.block_dim]
                digest = hash_of(module, block_dim)
            rename_if_changed(module, frozenset(module.hashers[snapshot.block_dim].unique_kernels))
            return digest

    return hashed


def loading(load: _Method) -> _Method:
    """Return Warp's ``Module.load``, changed to read values anew if no lowered program or loaded code has them."""
    load = with_snapshot(load)

    @functools.wraps(load)
    def loaded(module: Any, *args: Any, **options: Any) -> Any:
        with lock:
            settle(module)
            return load(module, *args, **options)

    return loaded
