"""The code of a kernel as Warp hashes it, and the options that it is compiled with."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from typing import Any

import warp

from . import references
from .lock import lock
from .recognition import is_of_warp, recognising


def arguments(kernel: Any) -> list[tuple[str, Any]]:
    """Return name and annotation of each parameter, with Python's scalar types replaced by Warp's."""
    return [(argument.label, argument.type) for argument in kernel.adj.args]


def generic(kernel: Any) -> Any:
    """Return the generic kernel that a kernel is an overload of, or None."""
    return getattr(kernel, "generic_parent", None)


def is_given_up(kernel: Any) -> bool:
    """Return True if Warp 1.14 compiles a kernel without its body, because it failed to compile before."""
    return bool(getattr(kernel.adj, "skip_build", False))


def content(kernel: Any, block_dim: int) -> str:
    """Return a key of a kernel's binary: Warp's hash of its code, and the options that it is compiled with."""
    with lock:
        code = code_hash(kernel, block_dim)
        resolved = _resolved_options(kernel, block_dim)
        return f"{code} {options(kernel)} {block_dim} {sorted((name, repr(value)) for name, value in resolved.items())}"


@recognising("the kernel's hash")
def code_hash(kernel: Any, block_dim: int) -> str:
    """Return Warp's own hash of a kernel's source and all that it refers to: the key in Warp's cache of binaries."""
    with lock, _block_option(kernel.module, block_dim):
        references.settle(kernel.module)
        kernel.module.get_module_hash(block_dim)
        return str(kernel.hash.hex())


def is_outdated(kernel: Any, block_dim: int) -> bool:
    """Return True if an object that a kernel refers to changed after Warp hashed its code; Warp does not check that."""
    with lock, _block_option(kernel.module, block_dim):
        try:
            kernel.module.get_module_hash(block_dim)
            hasher = kernel.module.hashers[block_dim]
            compiled = getattr(hasher, "kernel_hashes", {}).get(kernel, kernel.hash)  # Warp 1.14 has only kernel.hash
            anew = copy.copy(kernel)  # the hasher sets its ``hash``
            options = _resolved_options(kernel, block_dim) or dict(kernel.module.options)
            with references.present_values(kernel.module, options):
                type(hasher)([anew], options)
            return bool(anew.hash != compiled)
        except Exception as error:  # hashing raises errors of all kinds, and compiling raises them again
            if not is_of_warp(error):
                raise
            return False


def is_merged(kernel: Any) -> bool:
    """Return True if Warp returned the kernel also for a second definition with the same text but other results.

    With ``module="unique"``, Warp hashes a kernel at its definition, perhaps before `hash_additions` take effect.
    """
    from warp._src import context

    kernel = generic(kernel) or kernel
    other = copy.copy(kernel.adj)
    other.func = getattr(kernel, "__wrapped__", kernel.func)
    if other.func is kernel.func:
        return False
    hasher = context.ModuleHasher([], {})
    return bool(hasher.hash_adjoint(other) != hasher.hash_adjoint(kernel.adj))


def options(kernel: Any) -> tuple[tuple[str, str], ...]:
    """Return the options that a kernel is compiled with, without ``block_dim``, which Warp changes at loading."""
    return tuple(sorted((name, repr(value)) for name, value in _options(kernel).items() if name != "block_dim"))


def option(kernel: Any, name: str) -> Any:
    """Return an option that a kernel is compiled with: its own, or else its module's."""
    return _options(kernel).get(name, getattr(warp.config, name, None))


def _options(kernel: Any) -> dict[str, Any]:
    return {**getattr(kernel.module, "options", {}), **getattr(kernel, "options", {})}


def _resolved_options(kernel: Any, block_dim: int) -> dict[str, Any]:
    """Return a module's options with those of ``warp.config``; empty with Warp 1.14."""
    return dict(getattr(kernel.module, "resolved_options", {}).get(block_dim, {}))


@contextlib.contextmanager
def _block_option(module: Any, block_dim: int) -> Iterator[None]:
    """Set a module's option ``block_dim`` for hashing: Warp 1.14 reads the option then, but sets it only at loading."""
    before = dict(module.options)
    module.options["block_dim"] = block_dim
    try:
        yield
    finally:
        module.options.pop("block_dim")
        module.options.update(before)
