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
from ..interrupts import is_raised_by_handler
from .allowed import allowing, check_allowed, read_allow
from .artifact import StoredTarget, pack, unpack
from .loading import imports_and_pickles, of_platforms_here, prepare


class Exported:
    """A program that can be written as bytes and called in another process, as returned by `export` and `deserialize`.

    Attributes:
      exported: the `jax.export.Exported` inside, which has the program's name, platforms, pytrees, shapes and text.
      call: runs the program, ``call(*args, **kwargs)``, with arguments of the pytrees, dtypes and shapes that the
        program was exported for. ``call`` is jitted, and works inside ``jax.jit``, ``jax.grad`` (if the program was
        serialised with *vjp_order*) and ``jax.shard_map``. As with any `jax.export.Exported`, ``jax.vmap`` cannot map
        it: export ``jax.jit(jax.vmap(f))`` instead, with a symbolic batch size if it varies.
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
        self._checks = tuple(checks)  # the safety checks that the user disabled

    def __repr__(self) -> str:
        return f"Exported({self.exported.fun_name!r}, platforms={self.platforms}, kernels={list(self.targets)})"

    @property
    def platforms(self) -> tuple[str, ...]:
        """JAX's names of the platforms that the program can run on."""
        return tuple(self.exported.platforms)

    @property
    def targets(self) -> tuple[str, ...]:
        """The names of the native handlers that the program calls."""
        return tuple(dict.fromkeys(target.name for target in self._targets))

    def vjp(self) -> Exported:
        """Return the program's VJP, exported; see `jax.export.Exported.vjp`.

        Raises:
          ExportError: if the program was loaded from bytes without a VJP.
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
        # The derivatives are lowered here first, for the names of their handlers; JAX lowers them again to serialise.
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

    The program is that of `jax.export.export`; the artifact also contains a recipe for each kernel. A kernel that can
    be imported is loaded by module and name, and refused if its code, or the code of anything that it refers to,
    differs from the exported one. Any other kernel (defined in ``__main__``, in a notebook, or inside a function such
    as an operator's generator) is pickled into the artifact. Kernels of Warp that cannot be imported cannot be
    exported, because Warp compiles kernels from source files. Loading requires the minor version of Python that
    exported the kernels. Load only artifacts that you trust: loading imports modules and opens pickles.

    Args:
      jitted: a function that ``jax.jit`` returned.
      platforms: a platform or several, by JAX's names ``"cpu"``, ``"cuda"``, ...; None: the platform of the default
        device.
      disabled_checks: `jax.export.DisabledSafetyCheck` for custom calls of other libraries.

    Returns:
      A function that returns the `Exported`. Its arguments are those of *jitted*, or `jax.ShapeDtypeStruct` in place of
      arrays, also with symbolic shapes (`jax.export.symbolic_shape`).

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
    # Arrays, too, have a method `trace`.
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

    `deserialize` imports the modules that define kernels, by the names of the modules at export. It compares the
    imported kernels with the exported ones, then unpickles and compares the other kernels. Nothing is compiled or
    recorded unless all kernels are equal.

    Loading imports modules and opens the pickles of kernels that cannot be imported, and a program may call anything
    once it runs: load only programs that you trust. *allow* limits the modules that are imported and the pickles that
    are opened. A program that needs other modules or pickles is refused before anything is imported or opened, even if
    this process already has the program's kernels.

    Args:
      blob: the bytes.
      allow: names of modules, which include their submodules, and digests of pickled kernels, ``"sha256:..."``. The
        error for a refused program lists what the program needs. Without digests, no pickle is opened. None: everything
        is allowed.

    Returns:
      The program. Kernels for platforms that this machine lacks are left out.

    Raises:
      ArgumentError: if *allow* is not a collection of names of modules and of digests.
      ExportError: if the bytes are not such a program, are damaged or malformed, or need a module or pickle that is not
        allowed; if a kernel has changed; or if JAX cannot read the program, for example because another version of JAX
        wrote it.
      MissingDependencyError: if the package of a kernel's backend is not installed.
    """
    allowed = read_allow(allow)
    targets, program, made_with = unpack(blob)
    _check_flatbuffers("deserialize")
    here = of_platforms_here(targets)
    with allowing(allowed):
        check_allowed({key: step for target in here for key, step in imports_and_pickles(target).items()})
        make = prepare(here)
        # Read after `prepare` imported modules, which may define the types of the program's arguments.
        exported = _read(program, made_with["jax"])
        make()
    return Exported(exported, targets, exported.disabled_safety_checks)


def _read(program: bytes, written_with: str) -> Any:
    """Return the program that JAX reads, or raise an error that names both versions of JAX."""
    from jax import export as jax_export  # see `export`

    try:
        exported = jax_export.deserialize(bytearray(program))
        if written_with != jax.__version__:  # parse the operations now: an error at the call would be obscure
            exported.mlir_module()
    except Exception as error:  # of several kinds, which differ between versions of JAX
        if is_raised_by_handler(error):
            raise
        action = "Load it with the version that wrote it, or export it again."
        if "unregistered type" in str(error):
            action = "Import the module that registers the type for serialization first."
        raise ExportError(
            f"deserialize: the program was written with jax {written_with}; this is {jax.__version__}, which cannot "
            f"read it: {type(error).__name__}: {error}. {action}"
        ) from error
    return exported


def _without_vjp(exported: Any) -> Callable[..., Any]:
    """Return a function that calls a program without a serialised derivative, and cannot be differentiated."""

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
    """Return ["cpu"] if `jax_default_device` is a CPU, else None: JAX's export ignores this setting."""
    device: Any = jax.config.jax_default_device  # type: ignore[attr-defined]  # set at run time
    platform = device if isinstance(device, str) else getattr(device, "platform", None)
    return ["cpu"] if platform == "cpu" else None


class _EveryTarget(list[Any]):
    """The safety checks that the user disables, and the checks of all handlers registered at the time of iteration.

    Lowering registers the handlers that the program calls, and JAX iterates over the list after lowering.
    `_with_targets` then keeps only the checks of these handlers.
    """

    def __iter__(self) -> Iterator[Any]:
        return itertools.chain(super().__iter__(), _checks(registered_targets()))


def _checks(names: Iterable[str]) -> list[Any]:
    from jax.export import DisabledSafetyCheck

    return [DisabledSafetyCheck.custom_call(name) for name in dict.fromkeys(names)]


def _with_targets(exported: Any, checks: Sequence[Any], known: Sequence[StoredTarget] = ()) -> Exported:
    """Return *exported* with its targets, registered here or *known*; disable only *checks* and the targets' checks."""
    # The names of handlers are searched in MLIR's bytecode, which has a table of unescaped strings, each with a zero
    # byte at its end. The text of the module would contain every constant, and would escape non-ASCII names.
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
            "program with another backend (use_backend), or pass a recipe to ensure_registered in the backend's code."
        )
    return StoredTarget(name, platform, recipe())


def _check_flatbuffers(asked_by: str) -> None:
    try:
        importlib.import_module("flatbuffers")
    except ModuleNotFoundError as error:
        from xlakernel.command.install import install_command

        raise MissingDependencyError(
            f"{asked_by}: JAX writes and reads exported programs with flatbuffers, which is not installed. "
            f"Install it with `{install_command('core', 'export')}`."
        ) from error
