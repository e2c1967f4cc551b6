"""Warp's own C++ compiler and linker, and what Warp keeps of a module that it loaded on the CPU.

Warp has no public way to compile a piece of C++ as it compiles a module, so this uses what is private of Warp (the same
from 1.14 to 1.19), and nothing else of the package does. Whatever is missing, or more than is known here, is a
`CompileError`: an option that Warp gives its compiler and we do not could change what a kernel computes.
"""

from __future__ import annotations

import ctypes
import dataclasses
import inspect
import itertools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import warp as wp

from xlakernel.core.errors import CompileError

#: How C++ is read and written: a comment may quote bytes that are no UTF-8.
TEXT = {"encoding": "utf-8", "errors": "surrogateescape"}

#: What Warp's compiler is told of how to compile, and the option of a module that says it.
OPTIONS = {
    "mode": "mode",
    "verify_fp": "verify_fp",
    "fast_math": "fast_math",
    "fuse_fp": "fuse_fp",
    "extra_flags": "cpu_compiler_flags",
    "optimization_level": "optimization_level",
    "use_precompiled_headers": "use_precompiled_headers",
    "block_dim": "block_dim",
    "enable_tiles_in_stack_memory": "enable_tiles_in_stack_memory",
    "extra_include_dirs": "extra_cpu_include_dirs",  # from 1.17 on
}
_OTHER_PARAMETERS = {"obj_path", "cpp_path", "pch_dir", "verbose"}
_USUAL_LEVEL = 2  # of optimisation, on the CPU, where the option is None

_handles = map("xlakernel_{}".format, itertools.count())


@dataclasses.dataclass(frozen=True)
class LoadedKernel:
    """A kernel as Warp compiled and loaded it.

    Attributes:
      key: its name in Python.
      name: its name in C++.
      source: the C++ of its module.
      folder: where Warp keeps the module.
      options: how the module was compiled.
      module_hash: the hash of the module and of its options.
    """

    key: str
    name: str
    source: str
    folder: Path
    options: Mapping[str, Any]
    module_hash: str


def loaded_kernel(launch: Any) -> LoadedKernel:
    """Return the kernel of a recorded launch on the CPU.

    Raises:
      CompileError: if this Warp keeps modules in another way, if the module has changed since the launch was recorded,
        or if its C++ is not to be had.
    """
    kernel, loaded = launch.kernel, launch.module_exec
    with recognised(kernel.key):
        _check_module(kernel, loaded)
        # Warp 1.18 gave loaded modules names of their own, and 1.19 their path.
        named = hasattr(loaded, "get_kernel_mangled_name")
        name = loaded.get_kernel_mangled_name(kernel) if named else kernel.get_mangled_name()
        entry = ctypes.cast(launch.hooks.forward, ctypes.c_void_p).value
        if look_up(loaded.handle, f"{name}_cpu_forward") != entry:
            raise AttributeError(f"its entry is not {name}_cpu_forward")
        identifier = kernel.module.get_module_identifier(1)
        path = getattr(loaded, "binary_path", None)
        folder = Path(path).parent if path else Path(wp.config.kernel_cache_dir, identifier)
        source = _read(kernel.key, folder / f"{identifier}.cpp")
        options = dict(kernel.module.resolved_options[1])
        return LoadedKernel(kernel.key, name, source, folder, options, loaded.module_hash.hex())


def _check_module(kernel: Any, loaded: Any) -> None:
    """Raise why what can be learnt of a kernel's module may not be true of what is loaded."""
    module = kernel.module
    if module.options["strip_hash"]:
        raise CompileError(
            f"{kernel.key}: parallel=True reads the C++ of the module {module.name} in Warp's cache, which may be that "
            "of another version, as the module has the option strip_hash. Leave that out, or pass parallel=False."
        )
    if loaded.module_hash != module.get_module_hash(1):
        raise CompileError(
            f"{kernel.key}: the module {module.name} has changed since the launch was recorded: a kernel, a function "
            "or an option of it. Record the launch again."
        )


def _read(key: str, path: Path) -> str:
    try:
        return path.read_text(**TEXT)
    except FileNotFoundError:
        raise CompileError(
            f"{key}: parallel=True reads the C++ of the kernel's module in Warp's cache, and {path} is not there. "
            "Clear the cache, or set another one, only before kernels are loaded; or pass parallel=False."
        ) from None


def build(kernel: LoadedKernel, source: Path, output: Path) -> None:
    """Compile C++ to an object file, with the options of the module of *kernel*.

    Raises:
      CompileError: if this Warp's compiler is told more than is known here, or does not compile the code.
    """
    with recognised(kernel.key):
        from warp._src.build import build_cpu
        from warp._src.context import runtime

        parameters = inspect.signature(build_cpu).parameters.keys()
        if unknown := parameters - OPTIONS.keys() - _OTHER_PARAMETERS:
            raise AttributeError(f"its compiler has the further parameters {sorted(unknown)}")
        options = {name: kernel.options[option] for name, option in OPTIONS.items() if name in parameters}
        if options["optimization_level"] is None:
            options["optimization_level"] = _USUAL_LEVEL
        headers = runtime.get_clang_pch_dir() if options["use_precompiled_headers"] else None
    try:
        build_cpu(str(output), str(source), pch_dir=headers, **options)
    except Exception as error:
        raise CompileError(
            f"{kernel.key}: Warp {wp.__version__} does not compile the C++ of the kernel's module with entries for "
            f"ranges of threads: {error} (the compiler's own words went to stderr). Pass parallel=False."
        ) from error


def load(kernel: LoadedKernel, path: Path, symbol: str) -> str | None:
    """Load an object file for ever; return a handle of what it became, or None without a function *symbol* in it.

    What is wrong with a file may show only when a function of it is looked up, and the file must be there until then.
    """
    handle = next(_handles)
    with recognised(kernel.key):
        from warp._src.context import runtime

        failed = runtime.llvm.wp_load_obj(str(path).encode(), handle.encode(), wp.config.legacy_cpu_linker)
        return None if failed or not look_up(handle, symbol) else handle


def look_up(handle: str, symbol: str) -> int:
    """Return the address of a function in a loaded object file, or 0."""
    from warp._src.context import runtime

    return int(runtime.llvm.wp_lookup(handle.encode(), symbol.encode()))


@contextmanager
def recognised(key: str) -> Iterator[None]:
    """Turn what comes of a Warp that is made in another way into a `CompileError` about the kernel *key*."""
    try:
        yield
    except (ImportError, AttributeError, LookupError, TypeError, ctypes.ArgumentError) as error:
        raise CompileError(
            f"{key}: parallel=True must know how Warp writes, compiles and loads a kernel, and does not know it of "
            f"Warp {wp.__version__}, only of 1.14 to 1.19 ({type(error).__name__}: {error}). Pass parallel=False."
        ) from error
