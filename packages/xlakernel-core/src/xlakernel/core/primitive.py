"""The JAX primitive of an operator: its abstract evaluation, and its lowering to the chosen kernel."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
from jax.extend.core import Primitive
from jax.interpreters import mlir

from .errors import BackendNotFoundError, GeneratorError, ResultError, StaticArgumentError, XLAKernelError
from .specs import Struct

if TYPE_CHECKING:
    from .kernel import XLACustomKernel

# JAX's name of a platform → ours.
_PLATFORMS = {"cpu": "cpu", "cuda": "gpu", "rocm": "gpu", "tpu": "tpu"}


@dataclasses.dataclass(frozen=True)
class Mapped:
    """One level of ``jax.vmap``: where each input has the batch (None: nowhere), and its size."""

    axes: tuple[int | None, ...]
    size: Any  # int, or symbolic under jax.export


@dataclasses.dataclass(frozen=True)
class Dispatch:
    """How to run a call: the parameter ``dispatch`` of an operator's primitive.

    Attributes:
      backends: (platform, backend) pairs, as chosen where the call was traced.
      mapped: the levels of ``jax.vmap`` around the kernel, innermost first.
      kinds: the types of the static keywords; JAX compares parameters by ``==``, for which 1, 1.0 and True are equal.
    """

    backends: tuple[tuple[str, str], ...] = ()
    mapped: tuple[Mapped, ...] = ()
    kinds: Hashable = ()

    def batched(self, axes: Sequence[int | None], size: Any) -> Dispatch:
        """Return the same under one more ``jax.vmap``."""
        return dataclasses.replace(self, mapped=(*self.mapped, Mapped(tuple(axes), size)))

    def unbatched(self) -> Dispatch:
        """Return the same without the outermost ``jax.vmap``."""
        return dataclasses.replace(self, mapped=self.mapped[:-1])

    @property
    def batch(self) -> tuple[Any, ...]:
        """The leading dimensions that the results have, outermost first."""
        return tuple(level.size for level in reversed(self.mapped))


#: A call as `jax.extend.core.Primitive.bind` gets it from a rule that knows nothing of dispatching.
DIRECT = Dispatch()


def make_primitive(op: XLACustomKernel) -> Primitive:
    """Return a primitive with the parameters ``outs`` (structs without batch), ``dispatch``, and static keywords."""
    primitive = Primitive(op.name)  # type: ignore[no-untyped-call]
    primitive.multiple_results = True

    @primitive.def_impl
    def impl(*ins: Any, **params: Any) -> Any:
        with jax.disable_jit(False):  # one primitive is compiled also where the user asks for no jit
            return jitted(tuple(sorted(params.items())))(*ins)

    @functools.lru_cache(maxsize=1024)
    def jitted(params: tuple[tuple[str, Any], ...]) -> Callable[..., Any]:
        return jax.jit(functools.partial(primitive.bind, **dict(params)))

    @primitive.def_abstract_eval
    def abstract_eval(*_: Any, outs: Sequence[Any], dispatch: Dispatch = DIRECT, **__: Any) -> Any:
        return [jax.core.ShapedArray((*dispatch.batch, *out.shape), out.dtype) for out in outs]

    for jax_name, platform in _PLATFORMS.items():
        mlir.register_lowering(primitive, functools.partial(_lower, op=op, platform=platform), platform=jax_name)
    return primitive


def check_static(operator: str, static: Mapping[str, Any]) -> Hashable:
    """Check the static keywords of a call; return their types, nested as the values are.

    Raises:
      StaticArgumentError: if one is traced or cannot be hashed.
    """
    for name, value in static.items():
        if name == "dispatch":
            raise StaticArgumentError(f"{operator}: the keyword 'dispatch' is the primitive's own; use another name.")
        if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(value)):
            raise StaticArgumentError(
                f"{operator}: the static keyword {name!r} is traced ({value}), but kernels are generated from its "
                f"value. Name it in jax.jit(..., static_argnames={name!r}), or pass it as an input array."
            )
        try:
            hash(value)
        except TypeError as error:
            raise StaticArgumentError(
                f"{operator}: the static keyword {name!r} is {value!r} of the unhashable type {type(value).__name__}; "
                "pass a tuple instead of a list, and an array as an input."
            ) from error
    return tuple((name, _kinds(static[name])) for name in sorted(static))


def _kinds(value: Any) -> Any:
    if isinstance(value, (tuple, frozenset)):
        return type(value), tuple(map(_kinds, value))
    return type(value)


def _lower(
    context: Any,
    *operands: Any,
    op: XLACustomKernel,
    platform: str,
    outs: Sequence[Any],
    dispatch: Dispatch = DIRECT,
    **static: Any,
) -> Any:
    structs = [Struct(out.shape, out.dtype) for out in outs]
    backend = dict(dispatch.backends or op._chosen(None)).get(platform)
    if backend is None:
        raise BackendNotFoundError(
            f"{op.name}: no kernel for platform {platform!r}; there are kernels for {sorted(op._kernels)}. Register "
            f"one with def_kernel(backend, {platform!r}, generator), or move the inputs to a platform that has one."
        )
    kernel = _Checked(op, platform, backend, structs)
    run: Callable[..., Any] = kernel.generate(static)
    for level in dispatch.mapped:
        run = jax.vmap(run, in_axes=level.axes, axis_size=level.size)
    return mlir.lower_fun(run, multiple_results=True)(context, *operands)


@dataclasses.dataclass(frozen=True)
class _Checked:
    """A chosen kernel, whose failures say whose they are and what else there is."""

    op: XLACustomKernel
    platform: str
    backend: str
    outs: list[Struct]

    def generate(self, static: Mapping[str, Any]) -> Callable[..., list[Any]]:
        """Return the kernel as a function that returns a list of results as ``outs`` describes them."""
        generator = self.op.entry(self.platform, self.backend).kernel_generator
        kernel = self._guard(f"the generator of {self}", generator, outs=list(self.outs), **static)
        if not callable(kernel):
            raise GeneratorError(
                f"{self.op.name}: the generator of {self} returned {kernel!r}; expected a function of the inputs."
            )

        def run(*ins: Any) -> list[Any]:
            results = self._guard(str(self), kernel, *ins)
            flat = list(results) if isinstance(results, (tuple, list)) else [results]
            self._check(flat)
            return flat

        return run

    def __str__(self) -> str:
        return f"the {self.backend!r} kernel for {self.platform!r}"

    def _guard(self, who: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except XLAKernelError:
            raise  # says what is wrong already
        except Exception as error:
            others = [name for name in self.op.available_backends(self.platform) if name != self.backend]
            raise GeneratorError(
                f"{self.op.name}: {who} failed with {type(error).__name__}: {error}. "
                + (f"Other backends for {self.platform!r}: {others}." if others else "There is no other backend.")
            ) from error

    def _check(self, results: list[Any]) -> None:
        if len(results) != len(self.outs):
            raise ResultError(
                f"{self.op.name}: {self} returned {len(results)} results; outs describes {len(self.outs)}."
            )
        for i, (result, out) in enumerate(zip(results, self.outs, strict=True)):
            found = (getattr(result, "shape", None), getattr(result, "dtype", None))
            if found != (out.shape, out.dtype):
                raise ResultError(
                    f"{self.op.name}: result {i} of {self} is {_text(*found) if found[1] else repr(result)}; "
                    f"outs[{i}] is {_text(out.shape, out.dtype)}. The kernel must return what outs describes."
                )


def _text(shape: Any, dtype: Any) -> str:
    return f"{dtype}[{','.join(map(str, shape))}]"
