"""What is read of Warp's objects beyond its documented interface, with what is made of it; `_code_hash` is the rest.

Warp documents how a kernel is launched and how a launch is recorded (``warp.launch(record_cmd=True)``), not what the
recorded launch holds. A Warp in which that is not found is not guessed at: see `Unrecognised`.
"""

from __future__ import annotations

import contextlib
import copy
import ctypes
import os
import threading
import weakref
from collections.abc import Callable, Collection, Iterator
from typing import Any, TypeVar

import warp

#: Held while Warp compiles and records: it does not expect that from several threads. A thread that holds it calls no
#: function of the user's, and records nothing on a GPU.
lock = threading.RLock()

# What changes that which Warp knows of kernels and modules, by class; each Warp has some of it.
_CHANGING = {
    "Module": ("load", "register_kernel", "register_function", "register_struct"),
    "Kernel": ("add_overload", "_add_normalized_overload"),
    "ModuleExec": ("get_kernel_hooks",),
}
# What runs a kernel on the CPU, given the kernel first.
_RUNNING = ("invoke", "invoke_cpu_blocks")
# What hashes the code of a function or kernel.
_HASHING = "hash_adjoint"
# What Warp keeps once for all threads, to be set by one for a while.
_OWN = ("default_device", "tape")

_own = threading.local()
_static_memory: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()
_added: weakref.WeakSet[Any] = weakref.WeakSet()  # overloads that users did not ask for
_Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]

_Result = TypeVar("_Result")
_ATTEMPTS = 5


class Unrecognised(Exception):
    """An object of Warp's is not what it was in the versions that are known."""


def undisturbed(module: Any, work: Callable[[], _Result]) -> _Result:
    """Do what has Warp load a module; do it again if it failed, and another thread defined kernels there meanwhile.

    Warp hashes a module and then compiles what it finds in it, which is something else by now.
    """
    for _ in range(_ATTEMPTS - 1):
        before = getattr(module, "hashers", None)  # another dict for each change
        try:
            return work()
        except Exception:
            if getattr(module, "hashers", None) is before and not _hashed_again(module):
                raise
    return work()


def _hashed_again(module: Any) -> bool:
    """Have Warp hash a module again if the hashes lack a kernel, which a thread defined while another made them."""
    try:
        live = {kernel for kernel in module._get_live_kernels() if not kernel.is_generic}
        # Warp 1.14 notes hashes in the kernels alone.
        known = [getattr(hasher, "kernel_hashes", None) for hasher in module.hashers.values()]
        if all(live <= set(h) if h is not None else all(kernel.hash for kernel in live) for h in known):
            return False
        module.mark_modified()
    except AttributeError:  # a Warp that is not known
        return False
    return True


def parameters(kernel: Any) -> list[tuple[str, Any]]:
    """Return name and annotation of each parameter, with Python's own types as Warp's."""
    return [(argument.label, argument.type) for argument in kernel.adj.args]


def is_array(kind: Any) -> bool:
    """Whether an annotation is a ``wp.array``, in whichever spelling, and none that is indexed or of fabric."""
    return warp.types.is_array(kind) and issubclass(getattr(kind, "_concrete_cls", type(kind)), warp.array)


def generic(kernel: Any) -> Any:
    """Return the generic kernel that a kernel is an overload of; None: it is no overload."""
    return getattr(kernel, "generic_parent", None)


def overload(kernel: Any, annotations: list[Any]) -> Any:
    """Return a generic kernel's overload, to be dropped again by `drop_overload` if it is new and does not compile."""
    before = list(kernel.overloads.values())
    made = warp.overload(kernel, annotations)
    if all(made is not one for one in before):
        _added.add(made)
    return made


def restore_overload(kernel: Any) -> None:
    """Have Warp compile an overload with its module again that `drop_overload` dropped."""
    parent = generic(kernel)
    if kernel in _added and not _is_given_up(kernel) and kernel.sig not in parent.overloads:
        parent.overloads[kernel.sig] = kernel
        kernel.module.mark_modified()


def drop_overload(kernel: Any) -> None:
    """Have Warp compile a module without an overload of ours, which fails to compile.

    Warp compiles all overloads with their module and never forgets one: no other kernel of the module would compile.
    """
    parent = generic(kernel)
    if kernel in _added and parent.overloads.get(kernel.sig) is kernel:
        del parent.overloads[kernel.sig]
        kernel.module.mark_modified()


def content(kernel: Any, block_dim: int) -> str:
    """Return what tells a kernel's binary apart: Warp's hash of its code, and the options it is built with."""
    with lock:
        code = code_hash(kernel, block_dim)
        resolved = getattr(kernel.module, "resolved_options", {}).get(block_dim, {})  # with what warp.config says
        return f"{code} {options(kernel)} {block_dim} {sorted((name, repr(value)) for name, value in resolved.items())}"


def code_hash(kernel: Any, block_dim: int) -> str:
    """Return Warp's own hash of a kernel's source and of all that it refers to.

    Warp decides by it whether a binary in its cache is this kernel's.
    """
    try:
        with lock, _block_option(kernel.module, block_dim):
            kernel.module.get_module_hash(block_dim)
            return str(kernel.hash.hex())
    except (AttributeError, TypeError) as error:
        raise Unrecognised(f"the kernel's hash: {error}") from error


def is_outdated(kernel: Any, block_dim: int) -> bool:
    """Return True if what a kernel refers to has changed since Warp hashed its code, which Warp does not notice."""
    with lock, _block_option(kernel.module, block_dim):
        try:
            kernel.module.get_module_hash(block_dim)
            hasher = kernel.module.hashers[block_dim]
            compiled = getattr(hasher, "kernel_hashes", {}).get(kernel, kernel.hash)  # Warp 1.14 notes it there alone
            anew = copy.copy(kernel)  # which Warp notes the hash of
            options = getattr(kernel.module, "resolved_options", {}).get(block_dim, dict(kernel.module.options))
            type(hasher)([anew], options)
            return bool(anew.hash != compiled)
        except Exception:  # noqa: BLE001  # Warp lets errors of all kinds escape, and says the same when it compiles
            return False


def is_merged(kernel: Any) -> bool:
    """Return True if Warp returned the kernel for another definition too, of equal text, that computes something else.

    With ``module="unique"`` Warp hashes a kernel where it is defined, which may be before the hash is completed.
    """
    from warp._src import context

    kernel = generic(kernel) or kernel
    other = copy.copy(kernel.adj)
    other.func = getattr(kernel, "__wrapped__", kernel.func)
    if other.func is kernel.func:
        return False
    hasher = context.ModuleHasher([], {})
    return bool(hasher.hash_adjoint(other) != hasher.hash_adjoint(kernel.adj))


@contextlib.contextmanager
def _block_option(module: Any, block_dim: int) -> Iterator[None]:
    """Say how many threads a block has where Warp 1.14 looks, for what it hashes and remembers for compiling.

    When it loads a module it says so itself.
    """
    before = dict(module.options)
    module.options["block_dim"] = block_dim
    try:
        yield
    finally:
        module.options.pop("block_dim")
        module.options.update(before)


def options(kernel: Any) -> tuple[tuple[str, str], ...]:
    """Return the options that a kernel is built with, but for its blocks': where that is kept, Warp changes it."""
    return tuple(sorted((name, repr(value)) for name, value in _options(kernel).items() if name != "block_dim"))


def option(kernel: Any, name: str) -> Any:
    """Return an option that a kernel is built with: its own, or else its module's."""
    return _options(kernel).get(name, getattr(warp.config, name, None))


def _options(kernel: Any) -> dict[str, Any]:
    return {**getattr(kernel.module, "options", {}), **getattr(kernel, "options", {})}


def is_left_out(kernel: Any, failed: Collection[Any]) -> bool:
    """Whether a kernel is not compiled with its module any more: it is one of those that *failed* to compile.

    Warp 1.14 then compiles it without its body; later ones fail again, as long as nobody defines it anew.
    """
    return _is_given_up(kernel) or (kernel in failed and _is_replaced(kernel))


def forget_failed(module: Any, failed: Collection[Any]) -> None:
    """Have a module compile without those of its kernels that failed to compile and were defined anew since.

    Warp forgets such a kernel when nobody refers to it; but JAX's caches do, to the calls that it failed in. With Warp
    1.19 no other kernel of the module would compile from then on, as in a notebook, whose cells are one module.
    """
    live: Any = getattr(module, "_live_kernels", ())
    for kernel in [generic(kernel) or kernel for kernel in list(failed) if kernel.module is module]:
        if kernel in live and _is_replaced(kernel):
            live.discard(kernel)
            module.mark_modified()


def hash_anew(module: Any) -> None:
    """Have Warp hash a module anew that failed to compile, if it will compile a kernel of it without its body.

    Warp 1.14 would keep that in its cache under the hash that the kernels have with their bodies.
    """
    live = list(getattr(module, "_live_kernels", ()))
    if any(map(_is_given_up, [*live, *(one for kernel in live for one in getattr(kernel, "overloads", {}).values())])):
        module.mark_modified()


def _is_given_up(kernel: Any) -> bool:
    return bool(getattr(kernel.adj, "skip_build", False))


def _is_replaced(kernel: Any) -> bool:
    """Whether a kernel is not what its module has under its name."""
    latest = getattr(kernel.module, "kernels", {})
    return latest.get(kernel.key) is not (generic(kernel) or kernel)


def native_entry(launch: Any) -> int:
    """Return the address of the code that a launch recorded on the CPU calls.

    Its signature is ``void(bounds*, arguments*)``, with ``adjoint_arguments*`` behind for an adjoint launch.
    """
    try:
        function = launch.hooks.backward if launch.adjoint else launch.hooks.forward
        address = ctypes.cast(function, ctypes.c_void_p).value
    except (AttributeError, ctypes.ArgumentError, TypeError) as error:
        raise Unrecognised(f"the native entry: {error}") from error
    if not address:
        raise Unrecognised("there is no native entry")
    return address


def structs(launch: Any) -> list[bytes]:
    """Return the structs that a recorded launch passes by address: its bounds, its arguments and their adjoints."""
    try:
        bounds, *values = launch.params
        count = len(launch.kernel.adj.args)
        groups = [values[:count], values[count:]] if launch.adjoint else [values]
        if any(len(group) != count for group in groups):
            raise Unrecognised(f"a launch has {len(values)} values for {count} parameters")
        return [bytes(bounds), *map(_struct_of, groups)]
    except (AttributeError, TypeError, ValueError) as error:
        raise Unrecognised(f"a recorded launch: {error}") from error


def _struct_of(values: list[Any]) -> bytes:
    """Return ctypes values in one struct, as C lays them out and Warp's own ``invoke`` does."""
    fields = [(f"_{number}", type(value)) for number, value in enumerate(values)]
    struct = type("_Arguments", (ctypes.Structure,), {"_fields_": fields})()
    for (name, _), value in zip(fields, values, strict=True):
        setattr(struct, name, value)
    return bytes(struct)


def block_dim(launch: Any) -> int:
    """Return the threads of a block of a launch recorded on the CPU: 1, unless Warp's blocks are enabled there."""
    try:
        return int(launch.block_dim)
    except (AttributeError, TypeError) as error:
        raise Unrecognised(f"the threads of a block: {error}") from error


def cpu_blocks() -> bool:
    """Whether blocks have several threads on the CPU, a setting from Warp 1.19 on."""
    return bool(getattr(warp.config, "enable_cpu_blocks", False))


def must_run_alone(launch: Any) -> bool:
    """Whether two calls of the kernel at once would use the same memory.

    A module has one static block of shared memory, which its tiles lie in, and which its checks use in debug mode.
    """
    try:
        return _has_static_memory(launch.module_exec) or _is_checked(launch.kernel)
    except AttributeError as error:
        raise Unrecognised(f"the memory that a module shares: {error}") from error


def may_share_memory(kernel: Any) -> bool:
    """Whether a launch of a kernel on the CPU might have to run alone."""
    return any(map(_has_static_memory, list(kernel.module.execs.values()))) or _is_checked(kernel)


def _has_static_memory(loaded: Any) -> bool:
    if loaded not in _static_memory:
        _static_memory[loaded] = any(value for name, value in loaded.meta.items() if name.endswith("smem_bytes"))
    return _static_memory[loaded]


def _is_checked(kernel: Any) -> bool:
    return bool((kernel.options.get("mode") or kernel.module.options.get("mode") or warp.config.mode) == "debug")


def wrap(changing: _Wrap, running: _Wrap, hashing: _Wrap) -> None:
    """Wrap what Warp changes, hashes and runs (on the CPU) its kernels with, once for all.

    From then on a thread may also have its `own_values`.

    Raises:
      Unrecognised: if these are not where they are expected; then nothing is changed.
    """
    from warp._src import context

    warp.init()
    if isinstance(vars(type(context.runtime)).get(_OWN[0]), _PerThread):
        return
    try:
        owners = [(getattr(context, owner), names) for owner, names in _CHANGING.items()]
        places = [(owner, name, changing) for owner, names in owners for name in names]
        places += [(context, name, running) for name in _RUNNING]
        places += [(context.ModuleHasher, _HASHING, hashing)]
        found = [(owner, name, wrapper) for owner, name, wrapper in places if hasattr(owner, name)]
        missing = {"load", "get_kernel_hooks", "invoke", _HASHING} - {name for _, name, _ in found}
        runtime = context.runtime
        missing |= {name for name in _OWN if name not in vars(runtime)}
    except (AttributeError, TypeError) as error:
        raise Unrecognised(f"what runs kernels: {error}") from error
    if missing:
        raise Unrecognised(f"what runs kernels: there is no {', '.join(sorted(missing))}")
    for owner, name, wrapper in found:
        setattr(owner, name, wrapper(getattr(owner, name)))
    for module in list(context.user_modules.values()):
        module.mark_modified()  # have it hashed again; what it has loaded stays where the hash is the same
    for name in _OWN:
        setattr(type(runtime), name, _PerThread(name))
    # A child process would wait for ever for a thread that it does not have.
    os.register_at_fork(before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release)


@contextlib.contextmanager
def own_values(**values: Any) -> Iterator[None]:
    """Give this thread its own values of attributes of Warp's runtime, until the end; what it sets there is its own."""
    before = getattr(_own, "values", None)
    _own.values = values
    try:
        yield
    finally:
        _own.values = before


class _PerThread:
    """An attribute of Warp's runtime, of which a thread may have a value of its own."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, runtime: Any, kind: Any = None) -> Any:
        if runtime is None:
            return self
        values = getattr(_own, "values", None) or vars(runtime)
        return values[self.name]

    def __set__(self, runtime: Any, value: Any) -> None:
        values = getattr(_own, "values", None) or vars(runtime)
        values[self.name] = value
