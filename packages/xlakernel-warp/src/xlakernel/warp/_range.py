"""A launch on the CPU in pieces: an entry for a range of its thread indices, so that threads can share one launch.

Warp's entry runs all threads of a launch, one after the other. The C++ that Warp generated for a kernel's module is
compiled once more, by Warp's compiler and as Warp compiled it, after the loop in each kernel's entry was given a
beginning and an end. Nothing else in the code changes, and results are bit by bit what ``wp.launch`` computes: Warp's
compiler only contracts what stands in one expression, so that inlining and vectors round as single calls do. (Flags of
the user's such as ``-ffast-math`` may round an element in another way if it stands at the edge of a piece.)

What was found about threads in the code of Warp 1.14 to 1.19:

* The code of a kernel keeps everything on its stack and in its arguments, which it only reads. The headers have no
  thread-local variable, and their static ones are constants, but for the memory of tiles.
* Warp's entry puts a block of tile memory, 256 KiB, on its stack and its address in ``wp::shared_tile_storage``, a
  static variable of the object file (a register on aarch64), whether the kernel has tiles or not, and puts the former
  address back at the end. Two threads in entries of one object leave it pointing into a stack that is gone: the next
  kernel that looks at it crashes, one with tiles in any mode, every kernel where ``mode="debug"`` checks it at the end.
  (With ``enable_tiles_in_stack_memory`` off, the block itself is static, and tiles of two threads share it.)
* An entry for a range has no such block, as kernels with tiles are refused. It therefore touches nothing that is
  shared, and it also runs on threads with small stacks.
* Atomic operations, gradients and stores into volumes are plain loads and stores: see `_sharing`.
* Random numbers, meshes, BVHs, hash grids, textures and volumes that are read have their state in local variables.
  What ``print`` and ``printf`` write comes in any order.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import re
import shutil
import tempfile
import threading
from pathlib import Path
from typing import Any

import warp as wp
from llvmlite import binding as llvm

from xlakernel.core.errors import LaunchError

from ._clang import TEXT, LoadedKernel, build, load, loaded_kernel, look_up, recognised
from ._sharing import shared_effect

#: How many threads a launch may have that is split: as many as Warp's int counts.
MAX_THREADS = 2**31 - 1

# What Warp writes, with NAME for a kernel's name, NDIM for the number of its coordinates, CONDITION for an expression.
_TILE_MEMORY = """
    wp::tile_shared_storage_t tile_mem;
#if defined(WP_ENABLE_TILES_IN_STACK_MEMORY)
    wp::shared_tile_storage = &tile_mem;
#endif
"""
_LOOP = "for (size_t task_index = 0; task_index < dim->size; ++task_index)"
_HEAD = "(\n    wp::launch_bounds_t<NDIM> *dim,\n    wp_args_NAME *_wp_args)\n{"
_TASKS = f"""
template <bool wp_linear_contiguous>
static WP_FORCEINLINE void NAME_cpu_forward_tasks{_HEAD}
    {_LOOP}
    {{
        NAME_cpu_kernel_forward<wp_linear_contiguous>(*dim, task_index, _wp_args);
    }}
}}

static WP_FORCEINLINE void NAME_cpu_forward_dispatch{_HEAD}{_TILE_MEMORY}"""
_OF_TASKS = f"""
}}

extern "C" {{

// Python CPU entry points
WP_API void NAME_cpu_forward{_HEAD}
    NAME_cpu_forward_dispatch(dim, _wp_args);
}}
"""

#: How a kernel's entry looks, by the Warps that write it so. It must be that to the letter: an entry that does anything
#: else for a launch than to run its threads cannot be replaced by one that only runs some of them.
FORMS = {
    "1.14 to 1.18": f"""
WP_API void NAME_cpu_forward{_HEAD}{_TILE_MEMORY}
    {_LOOP}
    {{
        NAME_cpu_kernel_forward(*dim, task_index, _wp_args);
    }}
}}
""",
    "1.19": f"{_TASKS}\n    NAME_cpu_forward_tasks<false>(dim, _wp_args);{_OF_TASKS}",
    "1.19, with code of its own for contiguous arrays": f"""{_TASKS}
    const bool wp_linear_contiguous = CONDITION;
    if (wp_linear_contiguous)
        NAME_cpu_forward_tasks<true>(dim, _wp_args);
    else
        NAME_cpu_forward_tasks<false>(dim, _wp_args);{_OF_TASKS}""",
}
_GROUPS = {"NAME": r"\w+", "NDIM": "[1-4]", "CONDITION": "[^;]+"}

# That no index overflows Warp's int is what lets the compiler make vectors of threads: `check_launch` sees to it.
_RANGE_LOOP = f"""if (end > dim->size)
        end = dim->size;
    if (end > {MAX_THREADS})
        __builtin_trap();
    for (size_t task_index = begin; task_index < end; ++task_index)"""

#: What makes an entry of any of these forms one for a range.
EDITS = {
    "_cpu_forward": "_xlakernel_range",
    "*_wp_args)": "*_wp_args, size_t begin, size_t end)",
    "(dim, _wp_args)": "(dim, _wp_args, begin, end)",
    _LOOP: _RANGE_LOOP,
    _TILE_MEMORY: "\n",
}

_lock = threading.Lock()
_loaded: dict[str, str] = {}  # what object files became, by the hash of all that each was made from


def range_entry(launch: Any) -> int:
    """Return the address of an entry that runs some of the threads of a launch.

    The entry is ``void f(bounds, args, size_t begin, size_t end)``, with the pointers that Warp's own entry takes
    (``launch.hooks.forward``), from which it only reads; they may be those of another launch that may be split. It runs
    the threads with the indices *begin* to *end* - 1, as far as there are any. Any thread may call it, at any time and
    without the interpreter.

    The first call for a module has the module compiled once more, which takes as long as it took Warp. The result is
    kept beside Warp's own in Warp's cache of kernels, for all kernels of the module and for other processes.

    Args:
      launch: what ``wp.launch(kernel, ..., device="cpu", record_cmd=True)`` returned. Its threads must be independent,
        as they must be on a GPU: what one writes, no other one may read or write.

    Raises:
      LaunchError: if the launch may not be split: the kernel uses atomic operations, tiles or anything else that
        threads share, or is compiled for debugging; or the launch runs derivatives, or threads with equal coordinates.
      CompileError: if this Warp does not make kernels as it is known here, or the kernel's module has changed since the
        launch was recorded.

    Example:
      .. code-block:: python

        launch = wp.launch(kernel, dim=n, inputs=[x], outputs=[y], device="cpu", record_cmd=True)
        entry = ctypes.CFUNCTYPE(None, c_void_p, c_void_p, c_size_t, c_size_t)(range_entry(launch))
        entry(bounds, args, 0, n // 2)
    """
    key = launch.kernel.key
    with _lock, recognised(key):
        check_launch(launch)
        kernel = loaded_kernel(launch)
        _check_kernel(kernel)
        source = with_ranges(kernel.source)
        symbol = f"{kernel.name}_xlakernel_range"
        if f"{symbol}(" not in source:
            raise LookupError(f"its entry {kernel.name}_cpu_forward has none of the forms of {', '.join(FORMS)}")
        digest = _digest(kernel, source)
        if digest not in _loaded or not look_up(_loaded[digest], symbol):
            _loaded[digest] = _load(kernel, source, symbol, kernel.folder / f"xlakernel_{digest[:16]}.o")
        return look_up(_loaded[digest], symbol)


def with_ranges(source: str) -> str:
    """Return the C++ of a module with an entry for ranges in the place of each kernel's entry that has a known form."""
    for form in FORMS.values():
        source = _pattern(form).sub(_edit, source)
    return source


@functools.cache
def _pattern(form: str) -> re.Pattern[str]:
    pattern = re.escape(form)
    for word, group in _GROUPS.items():
        first, *others = pattern.split(word)
        pattern = f"{first}(?P<{word}>{group})" + f"(?P={word})".join(others) if others else pattern
    return re.compile(pattern)


def _edit(entry: re.Match[str]) -> str:
    text = entry[0]
    for theirs, ours in EDITS.items():
        text = text.replace(theirs, ours)
    return text


def check_launch(launch: Any) -> None:
    """Raise what is wrong with splitting this launch, whatever the kernel does.

    An entry is the kernel's, and the next launch that it is used for may be another one.

    Raises:
      LaunchError: as `range_entry`.
    """
    key = launch.kernel.key
    if not launch.device.is_cpu:
        raise LaunchError(f"{key}: only a launch on the CPU can be split; this one is for {launch.device}.")
    if launch.adjoint:
        raise LaunchError(f"{key}: a launch of derivatives cannot be split, as its threads add to the same gradients.")
    if launch.bounds.size > MAX_THREADS:
        raise LaunchError(
            f"{key}: parallel=True splits launches of up to {MAX_THREADS} threads; this one has {launch.bounds.size}. "
            "Launch it in parts, or pass parallel=False."
        )
    if launch.block_dim != 1:
        raise LaunchError(
            f"{key}: parallel=True runs threads at the same time, and those of this launch work together in blocks of "
            f"{launch.block_dim}. Leave block_dim out, or pass parallel=False."
        )
    if launch.bounds.coord_mult != 1:
        raise LaunchError(
            f"{key}: parallel=True runs threads at the same time, and each {launch.bounds.coord_mult} of this launch "
            f"have equal coordinates: the kernel asks wp.tid() for {len(launch.bounds.shape)}, and the launch has more "
            "dimensions. Give it as many, or pass parallel=False."
        )


def _check_kernel(kernel: LoadedKernel) -> None:
    """Raise what keeps threads from running the kernel at the same time."""
    mode = kernel.options["mode"]
    if mode != "release":
        raise LaunchError(
            f"{kernel.key}: parallel=True runs threads at the same time, and with mode={mode!r} Warp's checks are made "
            'for one. Set mode="release", or pass parallel=False.'
        )
    if effect := shared_effect(kernel.source, f"{kernel.name}_cpu_kernel_forward"):
        advice = f"{effect.instead}, or pass" if effect.instead else "pass"
        raise LaunchError(
            f"{kernel.key}: parallel=True runs threads at the same time, and {effect.text}. "
            f"{advice[0].upper()}{advice[1:]} parallel=False."
        )


def _digest(kernel: LoadedKernel, source: str) -> str:
    """Return the hash of all that machine code is made from."""
    processor = llvm.get_host_cpu_name(), sorted(llvm.get_host_cpu_features().items())
    what = (wp.__version__, kernel.module_hash, sorted(kernel.options.items()), processor, source)
    return hashlib.sha256(repr(what).encode()).hexdigest()


def _load(kernel: LoadedKernel, source: str, symbol: str, kept: Path) -> str:
    """Load the machine code of *source* from the file where it is kept, or compile and keep it."""
    # A file that cannot be loaded, or has no such entry, is made again.
    if wp.config.cache_kernels and kept.is_file() and (handle := load(kernel, kept, symbol)):
        return handle
    with tempfile.TemporaryDirectory(prefix="xlakernel_") as folder:
        written, built = Path(folder, "range.cpp"), Path(folder, "range.o")
        written.write_text(source, **TEXT)
        build(kernel, written, built)
        _keep(built, kept)
        handle = load(kernel, built, symbol)
    if handle is None:
        raise LookupError("it does not load what its compiler made; it wrote to stderr why")
    return handle


def _keep(built: Path, kept: Path) -> None:
    """Copy an object file at one blow to where other processes look; where that cannot be, each builds its own."""
    with contextlib.suppress(OSError), tempfile.TemporaryDirectory(dir=kept.parent, prefix="xlakernel_") as folder:
        os.replace(shutil.copy(built, folder), kept)
