"""Checks of a kernel's memory accesses in debug mode.

The handler passes its call to a Python function, which runs the kernel on copies of the call's arrays. Invalid writes
then damage no other data, even while other threads read the originals. Outputs are poisoned before the run. After the
run, inputs and the bytes around each array must be unchanged, and no element of an output may still have the poison.

A kernel may also write a value equal to the poison. If an element still has the poison, the kernel runs again, on new
copies and with another poison, until the element has kept 64 bits of poison or more. No fixed value equals two poisons,
and a random value is unlikely to match 64 bits. A kernel that must not run twice is checked where one run suffices: no
valid bool equals the poison, and a value of four bytes or more equals it only by coincidence, as the message says.

A kernel that reads an output before writing to it, for example to add to it, has other results with another poison. A
kernel with a race between threads may have other results too. Therefore a difference counts as an error only if each
poison gives the same results in several runs.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from llvmlite import ir

from ...ffi import abi
from ..arguments import Argument
from ..machine.frame import load, new_error
from ..machine.status import CallError, describe
from ..machine.upcall import emit_upcall
from .call_frame import ArrayView, FrameCopy, api_of, arrays_of
from .copies import POISONS, Copies, part_of, poison
from .memory import HostMemory, Memory

#: Further runs with each of two poisons, before a difference between their results counts as an error.
_PAIRS = 4

#: `Observer.out_of_bounds` for a kernel of many threads.
UNCHECKED_THREADS = (
    "at an index that is not checked. Threads that have no element must not write: compare their index with the "
    "array's extents."
)


class Observer:
    """Checks the calls of one handler.

    Args:
      kernel: the kernel's name, for messages.
      place: file and line of its definition, for messages.
      once: whether a call must run the kernel only once.
    """

    #: The end of the message for a write out of bounds.
    out_of_bounds = "at an index that is not checked."

    def __init__(self, kernel: str, place: str, *, once: bool) -> None:
        self.kernel = kernel
        self.place = place
        self.once = once

    def observe(
        self,
        inputs: Sequence[ArrayView],
        outputs: Sequence[ArrayView],
        run: Callable[[Mapping[ArrayView, int]], int | None],
        memory: Memory,
    ) -> int | None:
        """Run the kernel on copies, and copy the results to the outputs if all checks pass.

        Args:
          inputs: the call's inputs.
          outputs: the call's outputs.
          run: runs the kernel on arrays at the given addresses, and returns an ``XLA_FFI_Error`` or None.
          memory: the memory of the arrays.

        Returns:
          The kernel's own error, or None.

        Raises:
          CallError: if a check fails.
        """
        unwritten: dict[ArrayView, Any] = {}
        made: list[Copies] = []
        for number in range(POISONS):
            copies = Copies(inputs, outputs, number, memory)
            with copies.placed() as addresses:
                error = run(addresses)
            if error:
                return error
            self._check_memory(copies)
            made.append(copies)
            unwritten = {view: copies.poisoned(view) & unwritten.get(view, True) for view in copies.fresh}
            suspects = [view for view in copies.fresh if unwritten[view].any()]
            for view in suspects:
                if number + 1 >= runs_needed(view.dtype, once=self.once):
                    raise self._not_written(view, unwritten[view], number)
            if self.once or (not suspects and (number or not copies.fresh)):
                break
        if changed := _first_difference(made[0], copies):
            self._check_reads(made[0], copies, run, *changed)
        copies.hand_out(outputs)
        return None

    def _check_reads(
        self, one: Copies, other: Copies, run: Callable[[Mapping[ArrayView, int]], int | None], view: ArrayView, at: int
    ) -> None:
        """Raise an error if results depend on the poison, and not on the order of threads."""
        for _ in range(_PAIRS):
            for earlier in (one, other):
                copies = earlier.again()
                with copies.placed() as addresses:
                    if run(addresses) or _first_difference(earlier, copies):
                        return
        a, b = (copies.bytes_of(view).view(view.dtype)[at] for copies in (one, other))
        raise _failed_check(
            f"{self._who} read {view.name_element(at)} before it was written: the result is {a} or {b}, depending on "
            "what the memory held. Outputs begin with arbitrary values: write to each element first, or give them "
            "values to begin with (on a GPU and in Warp with output_init)."
        )

    def _check_memory(self, copies: Copies) -> None:
        for view in copies.damaged():
            raise _failed_check(f"{self._who} wrote out of bounds, beside {view}, {self.out_of_bounds}")
        for view in copies.constant:
            changed = copies.changed(view)
            if changed.any():
                first = int(changed.argmax())
                before, after = (
                    array.view(view.dtype)[first] for array in (copies.memory.read(view), copies.bytes_of(view))
                )
                raise _failed_check(
                    f"{self._who} changed {view.name_element(first)}{_and_others(changed)}: {before} became {after}. "
                    "Inputs are read-only, because JAX arrays never change; debug mode left the caller's array as it "
                    "was. Write to an output instead, or give the input's memory to an output with "
                    "input_output_aliases={input: output}."
                )

    def _not_written(self, view: ArrayView, unwritten: Any, number: int) -> CallError:
        doubt = ""
        if self.once and view.dtype.kind != "b":
            value = poison(view.dtype, number).view(view.dtype)[0]
            doubt = f" (Unless it wrote {value}: with has_side_effect it runs only once, and one run cannot tell.)"
        return _failed_check(
            f"{self._who} did not write {view.name_element(int(unwritten.argmax()))}{_and_others(unwritten)}. Every "
            f"element must be written, and before it is read: outputs begin with arbitrary values.{doubt}"
        )

    @functools.cached_property
    def _who(self) -> str:
        return f"kernel {self.kernel!r} of {self.place}"


class HandlerObserver(Observer):
    """Checks the calls of a native handler."""

    def __init__(
        self, arguments: Sequence[Argument], kernel: str, place: str, *, once: bool, out_of_bounds: str
    ) -> None:
        super().__init__(kernel, place, once=once)
        self.arguments = arguments
        self.out_of_bounds = out_of_bounds
        self._upcall = self._call  # called by machine code, as long as the handler keeps this object alive

    def emit_call(self, builder: ir.IRBuilder, run: Any, frame: Any, total: Any) -> Any:
        """Emit a call that checks ``run(frame, total)``; return the ``XLA_FFI_Error``."""
        api = load(builder, frame, abi.CALL_FRAME, "api")
        return emit_upcall(builder, self._upcall, [frame, total, run], api)

    def _call(self, frame: int, total: int, run: int) -> int | None:
        # ctypes releases the GIL around calls of this function.
        function = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)(run)
        try:
            inputs, outputs = arrays_of(frame, self.arguments)

            def run_on(addresses: Mapping[ArrayView, int]) -> int | None:
                data = ([(view, addresses[view]) for view in views] for views in (inputs, outputs))
                frame_copy = FrameCopy(frame, *data)
                return function(frame_copy.address, total)  # type: ignore[no-any-return]

            return self.observe(inputs, outputs, run_on, HostMemory())
        except Exception as error:  # noqa: BLE001  # becomes the error of XLA's program
            return new_error(api_of(frame), *describe(error, self.kernel, self.place, None))


def _first_difference(one: Copies, other: Copies) -> tuple[ArrayView, int] | None:
    """Return the first output and element whose bits differ between two runs; None if all bits are equal."""
    for view in one.fresh:
        differs = (one.bytes_of(view) != other.bytes_of(view)).reshape(-1, view.dtype.itemsize).any(axis=1)
        if differs.any():
            return view, int(differs.argmax())
    return None


def runs_needed(dtype: np.dtype[Any], *, once: bool) -> int:
    """Return the number of runs after which an element that keeps its poison counts as not written.

    Args:
      dtype: the dtype of the element.
      once: whether only one run is possible. A result above 1 then means that the element is not checked.
    """
    width = part_of(dtype).itemsize
    if dtype.kind == "b" or (once and width >= 4):
        return 1
    return max(2, 8 // width)


def _failed_check(text: str) -> CallError:
    return CallError(text, "FAILED_PRECONDITION")


def _and_others(elements: Any) -> str:
    others = int(elements.sum()) - 1
    return f", and {others} more" if others else ""
