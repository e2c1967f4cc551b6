"""The targets of an exported program that is loaded: what they need, whether that is allowed, and their making."""

from __future__ import annotations

import base64
import binascii
import dataclasses
import functools
import hashlib
import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax

from .artifact import Target
from .errors import ArgumentError, ExportError, MissingDependencyError
from .ffi.registry import is_registered
from .missing import missing_package

_DIGEST = "sha256:"

# XLA's name of a platform → JAX's; the others are equal.
_JAX_PLATFORMS = {"CUDA": "cuda", "ROCM": "rocm"}


@dataclasses.dataclass(frozen=True)
class Needs:
    """What is needed to make a target again.

    Attributes:
      modules: the modules that are imported, besides those of xlakernel.
      pickles: the kernels that are unpickled: name → ``"sha256:..."`` of the pickle.
    """

    modules: frozenset[str]
    pickles: Mapping[str, str]

    @classmethod
    def of(cls, target: Target) -> Needs:
        """Return those of a target.

        Raises:
          ExportError: if its recipe is malformed.
        """
        modules: set[str] = set()
        pickles: dict[str, str] = {}
        data = target.recipe.data
        # Whatever the backend: references and pickles are found at the top of a recipe, and nowhere else.
        for value in data.values():
            if isinstance(value, Mapping) and "pickle" in value:
                pickles[str(data.get("name"))] = _DIGEST + hashlib.sha256(_pickle(target, value["pickle"])).hexdigest()
            elif isinstance(value, Mapping) and "module" in value:
                modules.add(str(value["module"]))
        imports = data.get("imports", ())
        modules.update(map(str, imports if isinstance(imports, list) else ()))
        return cls(frozenset(modules), pickles)


def check_allowed(targets: Iterable[Target], allow: Any) -> None:
    """Raise `ExportError` unless all that the targets need is allowed.

    Args:
      targets: what is to be made.
      allow: names of modules, which stand for all below them too, and digests of pickles; None: everything.

    Raises:
      ArgumentError: if *allow* is something else.
    """
    if allow is None:
        return
    if isinstance(allow, (str, bytes)) or not all(isinstance(item, str) for item in _items(allow)):
        raise ArgumentError(
            f"deserialize: allow is {allow!r}; expected a collection of strings, each the name of a module or "
            f'"{_DIGEST}..." of a pickled kernel, or None for everything.'
        )
    allowed = frozenset(allow)
    missing: dict[str, str] = {}
    for target in targets:
        needs = Needs.of(target)
        missing |= {module: f"import {module}" for module in needs.modules if not _is_below(module, allowed)}
        missing |= {
            digest: f"unpickle the kernel {name} ({digest})"
            for name, digest in needs.pickles.items()
            if digest not in allowed
        }
    if missing:
        raise ExportError(
            f"deserialize: to load the program is to {', '.join(missing[key] for key in sorted(missing))}, which "
            "allow= does not name. Nothing was imported or unpickled. If you trust that, pass "
            f"allow={sorted({*allowed, *missing})}."
        )


def _items(allow: Any) -> Iterator[Any]:
    try:
        yield from allow
    except TypeError:
        yield None


def _is_below(module: str, allowed: frozenset[str]) -> bool:
    parts = module.split(".")
    return any(".".join(parts[:count]) in allowed for count in range(1, len(parts) + 1))


def _pickle(target: Target, text: Any) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (TypeError, ValueError, binascii.Error) as error:
        raise ExportError(f"deserialize: the recipe of {target.name!r} has a pickle that is none: {error}.") from error


def missing_here(targets: Iterable[Target]) -> list[Target]:
    """Return those that are not registered and whose platform is here."""
    return [t for t in targets if not is_registered(t.name, t.platform) and _is_here(t.platform)]


def make(targets: Sequence[Target]) -> None:
    """Make targets, after all of them were compared with what was exported.

    Raises:
      ExportError: if one is another one here, or its recipe is malformed.
      MissingDependencyError: if the package of its backend is not installed.
    """
    ordered = sorted(targets, key=lambda target: bool(Needs.of(target).pickles))
    builders = [(target, _well_formed(target, functools.partial(_prepare, target))) for target in ordered]
    for target, build in builders:
        _well_formed(target, build)


def _well_formed(target: Target, step: Callable[[], Any]) -> Any:
    """Run a step of making *target*, whose recipe may hold anything."""
    try:
        return step()
    except (ExportError, MissingDependencyError):
        raise
    except Exception as error:
        raise ExportError(
            f"deserialize: {target.name!r} cannot be made from its recipe: {type(error).__name__}: {error}. Load the "
            "program where it was exported, to see whether it is damaged, and export it again."
        ) from error


def _is_here(platform: str) -> bool:
    if platform == "cpu":
        return True
    try:
        return bool(jax.devices(_JAX_PLATFORMS.get(platform, platform)))
    except RuntimeError:  # JAX knows no such devices
        return False


def _prepare(target: Target) -> Callable[[], None]:
    """Compare what *target* is made of with what was exported, and return what makes it."""
    parts = target.recipe.module.split(".")
    if parts[0] != "xlakernel" or len(parts) < 2:
        raise ExportError(
            f"deserialize: {target.name!r} is to be made by the module {target.recipe.module!r}, which is not one of "
            "xlakernel's. The program was not written by xlakernel.core.export; do not load it."
        )
    try:
        backend = importlib.import_module(target.recipe.module)
    except ModuleNotFoundError as error:
        package = ".".join(parts[:2])
        if error.name != package:
            raise
        raise missing_package(f"deserialize: {target.name!r}", parts[1]) from error
    build: Callable[[], None] = backend.prepare(target.name, target.recipe.data)
    return build
