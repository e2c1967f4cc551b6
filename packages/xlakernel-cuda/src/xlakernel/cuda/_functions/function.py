"""Functions that launch work on the GPU: recording and registration for the array types of a call."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import jax.numpy as jnp
import numpy as np

from xlakernel.core.backend import FORMAT, Callables, Kernel, Recipe, Struct, Target, fingerprint, write_static
from xlakernel.core.errors import DtypeError, ExportError, ResultError

from . import libraries
from .buffer import DeviceBuffer
from .signature import Signature

if TYPE_CHECKING:
    from xlakernel.core.backend.gpu import Array


@dataclasses.dataclass(frozen=True, eq=False)
class CudaFunction(Kernel):
    """A user's function that launches work, with its options. Two with the same function and options are equal.

    Attributes:
      function: the user's function.
      signature: its parameters.
      adapter: makes the function's arguments.
      record: see `cuda_callable`.
      aliases: pairs of the number of an input and the number of the output that shares its memory.
    """

    function: Any
    signature: Signature
    adapter: libraries.Adapter
    record: bool | Literal["auto"]
    aliases: tuple[tuple[int, int], ...] = ()

    platforms = ("cuda",)

    @property
    def name(self) -> str:  # type: ignore[override]  # read-only here
        """The function's name."""
        return str(getattr(self.function, "__name__", type(self.function).__name__))

    @property
    def arity_advice(self) -> str:  # type: ignore[override]  # read-only here
        """The most likely reason for a wrong number of arguments."""
        stream = self.signature.stream
        if stream == "stream":
            return " The parameter 'stream' takes the stream and is not counted."
        return (
            f" The last parameter, {stream!r}, takes the stream and is not counted: was the parameter for the stream "
            f"forgotten? Write def {self.name}({', '.join(self.signature.others)}, {stream}, stream)."
        )

    @property
    def _key(self) -> tuple[Any, ...]:
        choices = (self.adapter.arrays, self.adapter.stream)
        return id(self.function), *(c if isinstance(c, str) else id(c) for c in choices), self.record, self.aliases

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CudaFunction) and other._key == self._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __repr__(self) -> str:
        return f"CUDA function {self.name}"

    def target(
        self,
        inputs: Sequence[Struct],
        outs: Sequence[Struct],
        static: Mapping[str, np.generic],
        *,
        ordered: bool = False,
        debug: bool = False,
        levels: int = 0,
    ) -> Target:
        """Record and register the function for these arrays and static scalars, unless that was done before."""
        self._check(inputs, outs)
        from xlakernel.core.backend.gpu import arrays_of

        return self.register(arrays_of(inputs, outs), static, once=ordered, debug=debug)

    def register(
        self,
        arrays: Sequence[Array],
        static: Mapping[str, np.generic],
        *,
        once: bool = False,
        debug: bool,
        target: str | None = None,
    ) -> Target:
        """Register the function as *target*; by default, under a name that identifies everything it depends on."""
        from xlakernel.core.backend.gpu import Launchable, register, register_again

        found = self.callables.examine()
        launch = _Launch(self.function, self.signature, self.adapter, tuple(arrays), _plain(static))

        launchable = Launchable(
            name=target or self._target_name(arrays, static, found.digest, bool(found.unknown)),
            label=self.name,
            place=self.place,
            arrays=tuple(arrays),
            launch=launch,
            prepare=launch.prepare,
            record=self.record,
            recording=libraries.recording,
            unused=libraries.unused,
            closed_over=self.callables.parts,
            aliases=self.aliases,
            recipe=functools.partial(self._recipe, arrays, static, debug=debug, content=found.digest),
            own=self.callables.identity,
        )
        if target is not None:
            return register_again(launchable, target, debug=debug)
        return register(launchable, once=once, debug=debug)

    def _recipe(
        self, arrays: Sequence[Array], static: Mapping[str, np.generic], *, debug: bool, content: str
    ) -> Recipe:
        """Return the recipe that makes the target in another process; `_callable_export.prepare` reads it.

        Raise `ExportError` if the function's fingerprint is no longer *content*, or if another process cannot import
        the function.
        """
        data = {
            "format": FORMAT,
            **self.callables.write(content),
            "record": self.record,
            "aliases": list(map(list, self.aliases)),
            "types": [[array.source, array.index, array.dtype, list(array.shape)] for array in arrays],
            "static": write_static(static),
            "debug": debug,
        }
        return Recipe("xlakernel.cuda._callable_export", data)

    @property
    def callables(self) -> Callables:
        """The function, and the constructors of its arguments."""
        return Callables(self.function, {"arrays": self.adapter.arrays, "stream": self.adapter.stream})

    def _target_name(
        self, arrays: Sequence[Array], static: Mapping[str, np.generic], content: str, has_unknown: bool
    ) -> str:
        from xlakernel.core.backend.gpu import Closure

        options = {
            "record": self.record,
            "aliases": list(map(list, self.aliases)),
            "static": [(name, value.dtype.name, value.tobytes()) for name, value in sorted(static.items())],
            "place": self.place,  # part of messages
            "versions": [(name, libraries.LIBRARIES[name].version) for name in self.adapter.libraries],
            # The fingerprint has only the identity of an unknown object, whose arrays and numbers may have changed.
            "state": Closure(self.callables.parts).state if has_unknown else None,
        }
        shapes = ", ".join(f"{a.source[0]}{a.index} {a.dtype}[{','.join(map(str, a.shape))}]" for a in arrays)
        module = getattr(self.function, "__module__", None) or type(self.function).__module__
        qualname = getattr(self.function, "__qualname__", self.name)
        digest = hashlib.sha256(f"{content} {fingerprint((), options)}".encode()).hexdigest()[:32]
        return f"xlakernel.cuda/{module}.{qualname}({shapes})#{digest}"

    @property
    def place(self) -> str:
        """File and line of the function."""
        code = getattr(inspect.unwrap(self.function), "__code__", None)
        return f"{code.co_filename}:{code.co_firstlineno}" if code is not None else f"{self.function!r}"

    def _check(self, inputs: Sequence[Struct], outs: Sequence[Struct]) -> None:
        for source, structs in (("input", inputs), ("output", outs)):
            for index, struct in enumerate(structs):
                where = f"{self.name}: {source} {index}"
                if not all(isinstance(extent, (int, np.integer)) for extent in struct.shape):
                    raise ExportError(
                        f"{where} has the symbolic shape {struct.shape}. A recording holds for one shape: export the "
                        "program with a jax.ShapeDtypeStruct of fixed shape."
                    )
                # XLA packs several elements of fewer than 8 bits into a byte.
                bits = re.search(r"\d+", struct.dtype.name)
                if (bits and int(bits[0]) < 8) or not self.adapter.has_dtype(struct.dtype):
                    raise DtypeError(
                        f"{where} has the dtype {struct.dtype.name}, which arrays of {self.adapter.arrays!r} cannot "
                        "have. Convert it with astype, or view it as an integer with jax.lax.bitcast_convert_type; a "
                        "function, cuda_callable(..., arrays=function), can accept every dtype of whole bytes."
                    )


@dataclasses.dataclass(frozen=True)
class _Launch:
    """The launch of a function, on arrays at given addresses."""

    function: Any
    signature: Signature
    adapter: libraries.Adapter
    arrays: tuple[Array, ...]
    static: Mapping[str, Any]

    def __call__(self, stream: int, addresses: Sequence[int]) -> None:
        self.prepare(stream, addresses)()

    def prepare(self, stream: int, addresses: Sequence[int]) -> Callable[[], None]:
        """Make the arrays, which may not be possible in a stream capture, and return the function that launches."""
        device = libraries.current_device()
        buffers = [
            self.adapter.array(DeviceBuffer(address, array.shape, jnp.dtype(array.dtype), device), stream)
            for array, address in zip(self.arrays, addresses, strict=True)
        ]
        return functools.partial(self._launch, stream, device, buffers)

    def _launch(self, stream: int, device: int, buffers: Sequence[Any]) -> None:
        with self.adapter.entered(stream, device) as its_stream:
            rest = iter(buffers)
            given = {**self.static, self.signature.stream: its_stream}
            result = self.function(*(given[name] if name in given else next(rest) for name in self.signature.names))
        if result is not None:
            name = getattr(self.function, "__name__", repr(self.function))
            raise ResultError(
                f"{name}: returned {type(result).__name__}; a function returns nothing, and writes its results into "
                "its output parameters, as out[...] = result does in CuPy."
            )


def _plain(static: Mapping[str, np.generic]) -> dict[str, Any]:
    """Return static scalars as Python numbers, if Python's bool, int or float has their dtype."""
    wide = (np.bool_, np.int64, np.float64)
    return {name: value.item() if value.dtype in wide else value for name, value in static.items()}
