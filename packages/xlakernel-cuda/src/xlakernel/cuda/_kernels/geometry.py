"""Launch geometry: the blocks of a grid and the threads of a block, as a user gives them, checked while tracing."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

from xlakernel.core.backend import Entry, Struct, by_identity, extents, plain_numbers, resolve
from xlakernel.core.errors import LaunchError

Dimensions = tuple[int, int, int]

AXES = ("x", "y", "z")

# The limits of every CUDA device (CUDA C++ Programming Guide, "Technical Specifications per Compute Capability").
MAX_THREADS = 1024
MAX_BLOCK: Dimensions = (1024, 1024, 64)
MAX_GRID: Dimensions = (2**31 - 1, 65535, 65535)

# Threads of a block for `launch_dims` of two and of three dimensions; one dimension uses `threads_per_block`.
_BLOCKS = {2: (16, 16), 3: (8, 8, 4)}

_Extents = int | Sequence[int] | Callable[..., Any]


@dataclasses.dataclass(frozen=True)
class Geometry:
    """The launch of a kernel: the blocks of its grid, and the threads of a block, along x, y and z."""

    grid: Dimensions
    block: Dimensions

    @property
    def is_empty(self) -> bool:
        """True if the launch has no thread."""
        return 0 in (*self.grid, *self.block)

    def __str__(self) -> str:
        return f"grid {self.grid}, block {self.block}"


@dataclasses.dataclass(frozen=True, eq=False)
class LaunchForm:
    """A launch as a user gives it: either *grid* and *block*, or *launch_dims*.

    Attributes:
      kernel: the kernel's name, for messages.
      grid: the number of blocks: one to three extents, or a function that returns the extents. The function gets the
        inputs' structs, and those scalars that it has parameters for.
      block: the number of threads of a block, likewise.
      launch_dims: the total number of threads, likewise.
      threads_per_block: threads of a block for *launch_dims* of one dimension.
      batch_axis: the axis of the grid that counts the slices of a batch; None: a launch for each slice.
      known: the scalars of a call whose values are known, for the functions that name them.
    """

    kernel: str
    grid: _Extents | None = None
    block: _Extents | None = None
    launch_dims: _Extents | None = None
    threads_per_block: int = 256
    batch_axis: str | None = None
    known: tuple[Entry, ...] = ()

    @property
    def _key(self) -> tuple[Any, ...]:
        given = map(by_identity, (self.grid, self.block, self.launch_dims))
        return self.kernel, *given, self.threads_per_block, self.batch_axis, self.known

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LaunchForm) and other._key == self._key

    def __hash__(self) -> int:
        return hash(self._key)

    def checked(self) -> LaunchForm:
        """Return the form with plain integers, after checking all that is not a function.

        Raises:
          LaunchError: if the launch is invalid.
        """
        given = {"grid": self.grid, "block": self.block, "launch_dims": self.launch_dims}
        names = tuple(name for name, extents in given.items() if extents is not None)
        if names not in (("grid", "block"), ("launch_dims",)):
            raise LaunchError(
                f"{self.kernel}: got {' and '.join(names) or 'neither'}; give either grid= and block=, or launch_dims= "
                "(the total number of threads, from which grid and block are computed)."
            )
        if self.batch_axis is not None and self.batch_axis not in AXES:
            raise LaunchError(f"{self.kernel}: batch_axis is {self.batch_axis!r}; allowed: None, 'x', 'y' or 'z'.")
        (threads,) = extents(self.kernel, "threads_per_block", self.threads_per_block, most=1)
        if not 1 <= threads <= MAX_THREADS:
            raise LaunchError(
                f"{self.kernel}: threads_per_block is {threads}; allowed: 1 to {MAX_THREADS}, best a multiple of 32."
            )
        form = dataclasses.replace(
            self,
            grid=_plain(self.kernel, "grid", self.grid),
            block=_plain(self.kernel, "block", self.block),
            launch_dims=_plain(self.kernel, "launch_dims", self.launch_dims),
            threads_per_block=threads,
        )
        if not form.functions:
            form.geometry(())
        elif isinstance(form.block, tuple):
            form._check_block(_three(form.block))
        return form

    @property
    def functions(self) -> tuple[Callable[..., Any], ...]:
        """The functions among *grid*, *block* and *launch_dims*."""
        return tuple(f for f in (self.grid, self.block, self.launch_dims) if callable(f))

    def geometry(self, inputs: Sequence[Struct]) -> Geometry:
        """Return the grid and block for the inputs of one slice of a batch.

        Raises:
          LaunchError: if no CUDA device allows the launch, or if a function returned no extents.
        """
        if self.launch_dims is None:
            grid = _three(self._resolve("grid", self.grid, inputs))
            block = _three(self._resolve("block", self.block, inputs))
        else:
            dims = self._resolve("launch_dims", self.launch_dims, inputs)
            block = _three(_BLOCKS.get(len(dims), (self.threads_per_block,)))
            grid = _three([-(-extent // threads) for extent, threads in zip(dims, block, strict=False)])
            self._check_free(len(dims))
        found = Geometry(grid, block)
        self._check_block(found.block)
        self._check_grid(found.grid)
        return found

    def _resolve(self, what: str, given: Any, inputs: Sequence[Struct]) -> tuple[int, ...]:
        if not callable(given):
            return tuple(given)
        return resolve(self.kernel, what, given, inputs, scalars=plain_numbers(self.known))

    def _check_free(self, ndim: int) -> None:
        if self.batch_axis is not None and AXES.index(self.batch_axis) < ndim:
            raise LaunchError(
                f"{self.kernel}: launch_dims of {ndim} dimensions uses the grid's {', '.join(AXES[:ndim])}, and "
                f"batch_axis={self.batch_axis!r} must be free for the slices of a batch. "
                + (f"Choose {AXES[ndim]!r}, or give" if ndim < 3 else "Give")
                + " grid= and block=."
            )

    def _check_block(self, block: Dimensions) -> None:
        for axis, extent, most in zip(AXES, block, MAX_BLOCK, strict=True):
            if extent > most:
                raise LaunchError(
                    f"{self.kernel}: block {block} has {extent} threads along {axis}; CUDA allows {most}."
                )
        if math.prod(block) > MAX_THREADS:
            raise LaunchError(
                f"{self.kernel}: block {block} has {math.prod(block)} threads; CUDA allows {MAX_THREADS}. Make the "
                "blocks smaller and the grid larger."
            )

    def _check_grid(self, grid: Dimensions) -> None:
        for axis, extent, most in zip(AXES, grid, MAX_GRID, strict=True):
            if extent > most:
                raise LaunchError(
                    f"{self.kernel}: grid {grid} has {extent} blocks along {axis}; CUDA allows {most}. "
                    + ("Let each thread do more." if axis == "x" else "Put the longest extent along x.")
                )
            if axis == self.batch_axis and extent != 1:
                raise LaunchError(
                    f"{self.kernel}: grid {grid} has {extent} blocks along {axis}, which batch_axis={axis!r} reserves "
                    "for the slices of a batch. The extent must be 1; jax.vmap multiplies it by the number of slices."
                )

    def batched(self, geometry: Geometry, size: int) -> Geometry:
        """Return the launch for a batch of *size* slices.

        Raises:
          LaunchError: if the grid cannot have *size* blocks along the batch's axis.
        """
        if self.batch_axis is None:
            return geometry
        index = AXES.index(self.batch_axis)
        if size > MAX_GRID[index]:
            raise LaunchError(
                f"{self.kernel}: a batch of {size} slices along batch_axis={self.batch_axis!r}; CUDA allows "
                f"{MAX_GRID[index]} blocks there. Map over smaller batches (jax.lax.map with batch_size=)"
                + (", or let the kernel count the slices along x." if index else ".")
            )
        grid = [size if i == index else extent for i, extent in enumerate(geometry.grid)]
        return dataclasses.replace(geometry, grid=_three(grid))


def _plain(kernel: str, what: str, given: Any) -> Any:
    """Return extents as a tuple of integers, unless they are None or a function."""
    return given if given is None or callable(given) else extents(kernel, what, given)


def _three(extents: Sequence[int]) -> Dimensions:
    x, y, z = (*extents, 1, 1)[:3]
    return (x, y, z)
