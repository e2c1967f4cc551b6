"""`export` and `deserialize`: programs with kernels, for another process."""

from __future__ import annotations

import dataclasses
import importlib
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from .._compat import vary_alike
from ..config import exporting
from ..errors import ArgumentError, ExportError, KernelTypeError, MissingDependencyError
from ..ffi.registry import recipes_of, registered_targets
from .allowed import allowing, check_allowed, read_allow
from .artifact import StoredTarget, pack, unpack
from .loading import make, of_platforms_here, steps


class Exported:
    """A program that can be written as bytes and called in another process, as returned by `export` and `deserialize`.

    Attributes:
      exported: the `jax.export.Exported` inside, which has the program's name, platforms, pytrees, shapes and text.
      call: runs the program, ``call(*args, **kwargs)``, with arguments of the pytrees, dtypes and shapes that it was
        exported for. It is jitted, and works inside ``jax.jit``, ``jax.grad`` (if it was serialised with *vjp_order*)
        and ``jax.shard_map``. ``jax.vmap`` cannot map it, nor any `jax.export.Exported`: export
        ``jax.jit(jax.vmap(f))``, with a symbolic batch size if need be.
    """

    def __init__(self, exported: Any, targets: Sequence[StoredTarget], checks: Sequence[Any]) -> None:
        self.exported = exported
        run = exported.call if exported.has_vjp() else _without_vjp(exported)

        def call(*args: Any, **kwargs: Any) -> Any:
            results, tree = jax.tree.flatten(run(*args, **kwargs))
            inputs = jax.tree.leaves((args, kwargs))
            return jax.tree.unflatten(tree, vary_alike([*inputs, *results])[len(inputs) :])

        call.__name__ = call.__qualname__ = str(exported.fun_name)
        self.call: Callable[..., Any] = jax.jit(call)
        self._targets = tuple(targets)
        self._checks = tuple(checks)  # disabled by the user

    def __repr__(self) -> str:
        return f"Exported({self.exported.fun_name!r}, platforms={self.platforms}, kernels={list(self.targets)})"

    @property
    def platforms(self) -> tuple[str, ...]:
        """JAX's names of the platforms that it can run on."""
        return tuple(self.exported.platforms)

    @property
    def targets(self) -> tuple[str, ...]:
        """The names of the native handlers that it calls."""
        return tuple(dict.fromkeys(target.name for target in self._targets))

    def vjp(self) -> Exported:
        """Return the program's VJP, exported; see `jax.export.Exported.vjp`.

        Raises:
          ExportError: if it was loaded from bytes that have none.
        """
        if not self.exported.has_vjp():
            raise _no_vjp(self.exported.fun_name)
        with exporting():
            open_ = dataclasses.replace(self.exported, disabled_safety_checks=_EveryTarget(self._checks))
            found = open_.vjp()
        return _with_targets(found, self._checks, self._targets)

    def serialize(self, vjp_order: int = 0) -> bytes:
        """Return the program and the recipes of its kernels as bytes for `deserialize`.

        Args:
          vjp_order: the highest order of reverse-mode derivatives to include.

        Raises:
          ArgumentError: if *vjp_order* is not an integer of at least 0.
          ExportError: if a kernel of the derivatives cannot be made again in another process.
          MissingDependencyError: if JAX lacks its serialisation library, flatbuffers.
        """
        if not isinstance(vjp_order, (int, np.integer)) or vjp_order < 0:
            raise ArgumentError(f"serialize: vjp_order is {vjp_order!r}; expected an integer of at least 0.")
        vjp_order = int(vjp_order)
        _check_flatbuffers("serialize")
        # JAX lowers the derivatives while it serialises, and their handlers must be known before.
        programs = [self]
        for _ in range(vjp_order):
            programs.append(programs[-1].vjp())
        targets = {(target.platform, target.name): target for program in programs for target in program._targets}
        checks = (*self._checks, *_checks(name for _, name in targets))
        with exporting():
            program = dataclasses.replace(self.exported, disabled_safety_checks=tuple(dict.fromkeys(checks)))
            return pack(list(targets.values()), bytes(program.serialize(vjp_order=vjp_order)))


def export(
    jitted: Any, *, platforms: str | Sequence[str] | None = None, disabled_checks: Sequence[Any] = ()
) -> Callable[..., Exported]:
    """Export a jitted function, with the kernels of this project in it, for another process.

    It is `jax.export.export`, and an artifact with recipes of the kernels: a kernel that can be imported
    is imported there by module and name, and refused if its code, or that of anything it refers to, is not the exported
    one. Any other kernel (one defined in ``__main__``, in a notebook, or inside a function, as an operator's generator
    does) is pickled into the artifact; but not one of Warp, which compiles kernels from their source files. Kernels
    are loaded by the minor version of Python that exported them. Load only artifacts that you trust: loading one
    imports modules and unpickles.

    Args:
      jitted: what ``jax.jit`` returned.
      platforms: JAX's name of a platform, or of several: ``"cpu"``, ``"cuda"``, ...; None: that of the default device
        here.
      disabled_checks: `jax.export.DisabledSafetyCheck` for custom calls of other libraries.

    Returns:
      A function of the arguments, or of their `jax.ShapeDtypeStruct`, with symbolic shapes
      (`jax.export.symbolic_shape`) or without, that returns the `Exported`.

    Raises:
      KernelTypeError: if *jitted* is not the result of ``jax.jit``.
      ArgumentError: if a platform is called ``"gpu"``.

    The returned function raises `ExportError` if a kernel cannot be made again in another process.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from xlakernel.core import export
      >>> exported = export(jax.jit(jnp.sin))(jax.ShapeDtypeStruct((4,), jnp.float32))
      >>> exported.call(jnp.zeros(4))
      Array([0., 0., 0., 0.], dtype=float32)
    """
    # Arrays have a method trace, too.
    if not (callable(jitted) and hasattr(jitted, "trace") and hasattr(jitted, "lower")):
        raise KernelTypeError(
            f"export: expected a function that jax.jit returned; got {jitted!r} of type {type(jitted).__name__}. "
            "Write export(jax.jit(f))."
        )
    asked = (platforms,) if isinstance(platforms, str) else None if platforms is None else tuple(platforms)
    if asked is not None and "gpu" in asked:
        raise ArgumentError(
            f"export: platforms is {platforms!r}; JAX's name of NVIDIA's GPUs is 'cuda', of AMD's 'rocm'."
        )

    def export_for(*args: Any, **kwargs: Any) -> Exported:
        from jax import export as jax_export  # `import jax` does not import it in every version

        checks = _EveryTarget(disabled_checks)
        with exporting():
            chosen = _default_platforms() if asked is None else asked
            found = jax_export.export(jitted, platforms=chosen, disabled_checks=checks)(*args, **kwargs)
        return _with_targets(found, disabled_checks)

    return export_for


def deserialize(blob: bytes | bytearray | memoryview, *, allow: Collection[str] | None = None) -> Exported:
    """Load a program that `Exported.serialize` wrote, and compile its kernels.

    Modules that define kernels must be importable, as they were when the program was exported; `deserialize` imports
    them. Kernels that can be imported are compared with the exported ones first, then those that are unpickled. Nothing
    is compiled or recorded unless all agree.

    Loading imports modules and unpickles kernels that no module holds, and a program may call anything once it runs:
    load only programs that you trust. *allow* limits the modules that are imported and the pickles that are opened; a
    program that needs any other is refused first, even if this process has its kernels already.

    Args:
      blob: the bytes.
      allow: names of modules, each with all modules below it, and ``"sha256:..."`` of pickled kernels, as the error
        lists them. With modules alone, nothing is unpickled. None: everything.

    Returns:
      The program. Kernels for platforms that this machine lacks are left out.

    Raises:
      ArgumentError: if *allow* is not a collection of names of modules and of digests.
      ExportError: if the bytes are not such a program, or are damaged or malformed, or need a module or pickle that is
        not allowed, or if a kernel has changed, or if JAX cannot read the program of another version.
      MissingDependencyError: if the package of a kernel's backend is not installed.
    """
    allowed = read_allow(allow)
    targets, program, made_with = unpack(blob)
    _check_flatbuffers("deserialize")
    here = of_platforms_here(targets)
    with allowing(allowed):
        check_allowed({key: step for target in here for key, step in steps(target).items()})
        exported = _read(program, made_with["jax"])
        make(here)
    return Exported(exported, targets, exported.disabled_safety_checks)


def _read(program: bytes, written_with: str) -> Any:
    """Return the program that JAX reads, or raise an error that names both versions of JAX."""
    from jax import export as jax_export  # likewise

    try:
        exported = jax_export.deserialize(bytearray(program))
        if written_with != jax.__version__:  # its operations are parsed when it is called, with an obscure error
            exported.mlir_module()
    except Exception as error:  # of several kinds, which differ between versions of JAX
        raise ExportError(
            f"deserialize: the program was written with jax {written_with}; this is {jax.__version__}, which cannot "
            f"read it: {type(error).__name__}: {error}. Load it with the version that wrote it, or export it again."
        ) from error
    return exported


def _without_vjp(exported: Any) -> Callable[..., Any]:
    """Return the call of a program that was serialised without its derivative; its derivative raises `ExportError`."""

    def run(arguments: Any) -> Any:
        args, kwargs = arguments
        return exported.call(*args, **kwargs)

    def backward(*_: Any) -> Any:
        raise _no_vjp(exported.fun_name)

    checked = jax.custom_vjp(run)
    checked.defvjp(lambda arguments: (run(arguments), None), backward)
    return lambda *args, **kwargs: checked((args, kwargs))


def _no_vjp(name: str) -> ExportError:
    return ExportError(
        f"{name}: the exported program was serialised without its derivative; write it with serialize(vjp_order=1), or "
        "a higher number for derivatives of derivatives."
    )


def _default_platforms() -> list[str] | None:
    """Return the platform of the default device if it is the CPU, which JAX's own default, None, ignores."""
    device: Any = jax.config.jax_default_device  # type: ignore[attr-defined]  # set at run time
    platform = device if isinstance(device, str) else getattr(device, "platform", None)
    return ["cpu"] if platform == "cpu" else None


class _EveryTarget(list[Any]):
    """The checks that the user disables, and one for each handler that is registered when JAX iterates over them.

    JAX does that after lowering, which registers the handlers that the program calls; `_with_targets` then keeps only
    those.
    """

    def __iter__(self) -> Iterator[Any]:
        return itertools.chain(super().__iter__(), _checks(registered_targets()))


def _checks(names: Iterable[str]) -> list[Any]:
    from jax.export import DisabledSafetyCheck

    return [DisabledSafetyCheck.custom_call(name) for name in dict.fromkeys(names)]


def _with_targets(exported: Any, checks: Sequence[Any], known: Sequence[StoredTarget] = ()) -> Exported:
    """Return *exported* with the handlers that it calls, maybe *known* ones, and disabled checks for no others."""
    # A module in MLIR's bytecode holds its strings unchanged, one after the other, each with a zero behind it, the
    # dialects' names first. Its text would contain every constant, and escapes non-ASCII names.
    content = exported.mlir_module_serialized
    candidates = dict.fromkeys([*registered_targets(), *(target.name for target in known)])
    names = [name for name in candidates if b"\0%b\0" % name.encode() in content]
    targets = {(target.platform, target.name): target for target in known if target.name in names}
    for name in names:
        for platform in recipes_of(name):
            if (platform, name) not in targets:
                targets[platform, name] = _target_of(name, platform)
    closed = dataclasses.replace(exported, disabled_safety_checks=tuple(dict.fromkeys([*checks, *_checks(names)])))
    return Exported(closed, list(targets.values()), checks)


def _target_of(name: str, platform: str) -> StoredTarget:
    recipe = recipes_of(name)[platform]
    if recipe is None:
        raise ExportError(
            f"export: {name!r} cannot be made again in another process: it was registered without a recipe. Export the "
            "program with another backend (use_backend), or make the backend give one to ensure_registered."
        )
    return StoredTarget(name, platform, recipe())


def _check_flatbuffers(asked_by: str) -> None:
    try:
        importlib.import_module("flatbuffers")
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            f"{asked_by}: JAX writes and reads exported programs with flatbuffers, which is not installed. "
            'Install it with `pip install "xlakernel-core[export]"`.'
        ) from error
