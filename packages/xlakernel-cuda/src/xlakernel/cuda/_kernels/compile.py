"""The launch of a Numba CUDA kernel, which `xlakernel.core` records and registers for the types of a call."""

from __future__ import annotations

import dataclasses
import hashlib
import math
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numba import cuda

from xlakernel.core.backend import (
    Entry,
    Examination,
    Kernel,
    OutputInit,
    Scalar,
    Struct,
    Target,
    fingerprint,
    for_each,
    keywords_of,
    or_zeros,
    patterns,
    write_init,
    write_structs,
)
from xlakernel.core.backend.gpu import Launchable, arrays_of, register
from xlakernel.core.backend.native import is_importable, write_recipe
from xlakernel.core.errors import ExportError

from .._environment import versions
from .arrays import array_type
from .device import check_device
from .geometry import LaunchForm
from .launch import KernelLaunch, Slot
from .recipe import COMPILER, copy_dispatcher

_Scalars = Mapping[str, Scalar]

#: In debug mode, a kernel reports exceptions only up to this size of its dynamic shared memory, in bytes. Code that
#: reports exceptions needs more registers, and kernels with more shared memory tend to have large blocks.
MOST_CHECKED_SHARED_MEM = 48 * 1024

# The targets (registered launches) of a dispatcher, by the fingerprint of its code and by the launch. A value must not
# refer to the dispatcher, which would then never be freed.
_targets: weakref.WeakKeyDictionary[Any, dict[Any, Target]] = weakref.WeakKeyDictionary()
# Our copies of dispatchers, by everything that their machine code depends on. A copy compiles each combination of types
# once, for all shapes.
_copies: dict[tuple[Any, ...], Any] = {}


@dataclasses.dataclass(frozen=True)
class NumbaCudaKernel(Kernel):
    """A Numba CUDA dispatcher and its launch. Kernels with the same dispatcher and launch are equal.

    Attributes:
      dispatcher: the result of ``cuda.jit``.
      form: the grid and blocks as a user gave them.
      shared_mem: bytes of dynamic shared memory of a block.
      output_init: the initial values of the outputs.
      aliases: pairs of the number of an input and the number of the output that shares its memory.
    """

    dispatcher: Any
    form: LaunchForm
    shared_mem: int = 0
    output_init: OutputInit = None
    aliases: tuple[tuple[int, int], ...] = ()

    platforms = ("cuda",)
    takes_scalars = True

    @property
    def name(self) -> str:  # type: ignore[override]  # read-only here
        """The kernel's name."""
        return str(self.dispatcher.py_func.__name__)

    @property
    def takes_batches(self) -> bool:  # type: ignore[override]  # read-only here
        """True if a batch is one launch."""
        return self.form.batch_axis is not None

    def __repr__(self) -> str:
        return f"Numba CUDA kernel {self.name}"

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of the kernel's parameters."""
        code = self.dispatcher.py_func.__code__
        return tuple(code.co_varnames[: code.co_argcount])

    @property
    def place(self) -> str:
        """File and line of the kernel's definition."""
        code = self.dispatcher.py_func.__code__
        return f"{code.co_filename}:{code.co_firstlineno}"

    @property
    def launch_functions(self) -> tuple[Callable[..., Any], ...]:
        """The user's functions that return the launch dimensions."""
        return self.form.functions

    def given(self, scalars: Sequence[Entry]) -> NumbaCudaKernel:
        """Return the kernel of a call in which the values of *scalars* are known."""
        names = {name for f in self.form.functions for name in keywords_of(f, [name for name, *_ in scalars])}
        named = tuple(entry for entry in scalars if entry[0] in names)
        return dataclasses.replace(self, form=dataclasses.replace(self.form, known=named)) if named else self

    def check(self, inputs: Sequence[Struct], outs: Sequence[Struct]) -> None:
        """Check the launch for these inputs and outputs of one slice, while a call is traced.

        Raises:
          ExportError: if a shape is symbolic.
          DtypeError: if Numba CUDA lacks a dtype.
          LaunchError: if the launch dimensions or the initial values are invalid.
        """
        for source, structs in (("input", inputs), ("output", outs)):
            for i, struct in enumerate(structs):
                if not all(isinstance(extent, (int, np.integer)) for extent in struct.shape):
                    raise ExportError(
                        f"{self.name}: {source} {i} has the symbolic shape {struct.shape}. A recorded launch holds for "
                        "one shape: export the program for each shape that it is to be called with. (A symbolic batch "
                        "works, under jax.vmap and without batch_axis.)"
                    )
                array_type(struct.dtype.name, 0, f"{self.name}: {source} {i}", readonly=True)
        self.form.geometry(inputs)
        patterns(self.name, self.output_init, outs)

    def _check_batch(self, extents: Sequence[Any]) -> None:
        if not all(isinstance(extent, (int, np.integer)) for extent in extents):
            raise ExportError(
                f"{self.name}: the batch has the symbolic size {extents[0]}, and with batch_axis the recorded launch "
                "has a block for each slice. Export the program for each size, or wrap the kernel without batch_axis."
            )

    def target(
        self,
        inputs: Sequence[Struct],
        outs: Sequence[Struct],
        scalars: _Scalars,
        *,
        ordered: bool = False,
        debug: bool = False,
        levels: int = 0,
    ) -> Target:
        """Record and register the launch of a call, unless that was done before."""
        known = _targets.setdefault(self.dispatcher, {})
        # The key has the results of the user's functions and not the functions: each wrapper may have other functions.
        geometry = self.form.geometry([Struct(s.shape[levels:], s.dtype) for s in inputs])
        launch = (geometry, self.form.batch_axis, self.shared_mem, self.output_init, self.aliases)
        structs = tuple((s.shape, s.dtype) for s in (*inputs, *outs))
        operands = tuple((name, scalar.dtype, scalar.struct.shape) for name, scalar in scalars.items())
        with COMPILER.lock:  # keeps other threads from declaring an implementation before the copies are made
            found = self._examine()
            key = (found.digest, launch, len(inputs), structs, operands, ordered, debug, levels)
            if key in known:
                return known[key]
            described = self.launchable(inputs, outs, scalars, found, debug=debug, levels=levels)
        known[key] = register(described, once=ordered, debug=debug)
        return known[key]

    def _examine(self) -> Examination:
        """Examine the present code."""
        with COMPILER.lock:  # while another thread compiles, implementations may be replaced
            return COMPILER.examine(self.dispatcher)

    def launchable(
        self,
        inputs: Sequence[Struct],
        outs: Sequence[Struct],
        scalars: _Scalars,
        found: Examination | None = None,
        *,
        debug: bool = False,
        levels: int = 0,
    ) -> Launchable:
        """Return the launch of a call; see `target`. *found* is the examination of the code; None: it is made now."""
        slices = [Struct(s.shape[levels:], s.dtype) for s in inputs], [Struct(s.shape[levels:], s.dtype) for s in outs]
        self.check(*slices)
        if self.takes_batches:
            self._check_batch([extent for struct in (*inputs, *outs) for extent in struct.shape[:levels]])
        batch = max((math.prod(s.shape[:levels]) for s in (outs or inputs)), default=1)
        geometry = self.form.batched(self.form.geometry(slices[0]), batch)
        check_device(self.name, self.shared_mem)
        checked = debug and self.shared_mem <= MOST_CHECKED_SHARED_MEM
        slots = self._slots(inputs, outs, scalars, levels=levels, batch=batch)
        operands = [*inputs, *(scalar.struct for scalar in scalars.values())]
        init = patterns(self.name, self.output_init, outs)
        if geometry.is_empty:
            init = or_zeros(init, outs, {output for _, output in self.aliases})
        found = found or self._examine()
        code = found.digest  # the recipe is kept; a reference to *found* would keep its copies of arrays too
        content = _content(code)
        launch = KernelLaunch(
            self.name,
            self._own_dispatcher(content, found, scalars, debug=checked),
            geometry,
            self.shared_mem,
            slots,
            self.dispatcher.py_func,
            arrays_of(operands, outs),
            tuple((len(operands) + i, pattern) for i, pattern in enumerate(init) if pattern is not None),
            debug=checked,
        )
        return Launchable(
            name=self._target_name(launch, content, debug=debug, levels=levels),
            label=self.name,
            place=self.place,
            arrays=launch.arrays,
            launch=launch,
            recording=cuda.defer_cleanup,
            aliases=self.aliases,
            recipe=lambda: write_recipe(
                COMPILER,
                self.dispatcher,
                content=code,
                call=self._call(inputs, outs, scalars, debug=debug, levels=levels),
            ),
        )

    def _call(
        self, inputs: Sequence[Struct], outs: Sequence[Struct], scalars: _Scalars, *, debug: bool, levels: int
    ) -> dict[str, Any]:
        """Return the description of a call for JSON; `_export.prepare` reads it."""
        geometry = self.form.geometry([Struct(s.shape[levels:], s.dtype) for s in inputs])
        return {
            "grid": geometry.grid,
            "block": geometry.block,
            "batch_axis": self.form.batch_axis,
            "shared_mem": self.shared_mem,
            "output_init": write_init(for_each(self.name, self.output_init, len(outs))),
            "aliases": list(map(list, self.aliases)),
            "inputs": write_structs(inputs),
            "outs": write_structs(outs),
            "scalars": {name: (scalar.dtype, *write_structs([scalar.struct])) for name, scalar in scalars.items()},
            "debug": debug,
            "levels": levels,
        }

    def _slots(
        self, inputs: Sequence[Struct], outs: Sequence[Struct], scalars: _Scalars, *, levels: int, batch: int
    ) -> tuple[Slot, ...]:
        """Return the source of each of the kernel's parameters."""

        def slot(number: int, where: str, dtype: str, struct: Struct, *, readonly: bool, scalar: bool = False) -> Slot:
            shape = () if scalar else struct.shape[levels:]
            own = math.prod(struct.shape[:levels])
            shared = batch if self.takes_batches and own != batch else 0
            full = (own, *shape) if self.takes_batches and not shared else shape
            type_ = array_type(
                dtype, len(full) + bool(shared), f"{self.name}: {where}", readonly=readonly, shared=bool(shared)
            )
            return Slot(type_, number, dtype, tuple(map(int, full)), shared, is_scalar=scalar)

        first = len(inputs) + len(scalars)
        rest = iter(
            [slot(i, f"input {i}", s.dtype.name, s, readonly=True) for i, s in enumerate(inputs)]
            + [slot(first + i, f"output {i}", s.dtype.name, s, readonly=False) for i, s in enumerate(outs)]
        )
        by_name = {
            name: slot(len(inputs) + i, repr(name), given.dtype, given.struct, readonly=True, scalar=True)
            for i, (name, given) in enumerate(scalars.items())
        }
        return tuple(by_name[name] if name in by_name else next(rest) for name in self.parameters)

    def _own_dispatcher(self, content: str, found: Examination, scalars: Collection[str], *, debug: bool) -> Any:
        """Return our copy of the dispatcher.

        The user's dispatcher may be limited to declared signatures, and may hold code compiled before a global changed.
        """
        index = f"cuda.blockIdx.{self.form.batch_axis}" if self.takes_batches else "()"
        loads = {name: index for name in self.parameters if name in scalars}
        key = (content, self.place, debug, tuple(loads.items()))
        if key not in _copies:
            # A kernel that refers to an unknown object has another fingerprint in each process: no other process would
            # read its file.
            cached = self.dispatcher.stats.cache_path is not None and not found.unknown
            of_entry = fingerprint(content, loads) if loads else content
            kept = of_entry if cached and not debug else None
            _copies[key] = copy_dispatcher(self.dispatcher, found, kept, checked=debug, loads=loads)
        return _copies[key]

    def _target_name(self, launch: KernelLaunch, content: str, *, debug: bool, levels: int) -> str:
        function = self.dispatcher.py_func
        types_ = ", ".join(map(str, launch.arrays))
        what = (
            content,
            # The module and name identify a function that can be imported; its place may differ between machines.
            "" if is_importable(self.dispatcher) else self.place,
            launch.geometry,
            self.shared_mem,
            [(str(slot.type), slot.number, slot.shape, slot.shared, slot.is_scalar) for slot in launch.slots],
            launch.fills,
            self.aliases,
            debug,
            levels,
        )
        digest = hashlib.sha256(repr(what).encode()).hexdigest()[:32]
        return f"xlakernel.cuda/{function.__module__}.{function.__qualname__}({types_}; {launch.geometry})#{digest}"


def _content(code: str) -> str:
    """Return the fingerprint of the machine code that the installed compiler makes of *code*."""
    return fingerprint(code, versions())
