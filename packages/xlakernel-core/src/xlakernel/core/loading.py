"""The targets of an exported program that is loaded: what they need, whether that is allowed, and their making."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax

from .artifact import Target
from .errors import ArgumentError, ExportError, MissingDependencyError
from .ffi.reference import decode_pickle, digest_of, is_allowed, is_module_name
from .ffi.registry import check_loaded, is_registered, register_loaded
from .missing import missing_package

_RECIPE_MODULE = re.compile(r"xlakernel\.(?!core\.|command\.)\w+\._(\w+_)?export")
_REFERENCES = frozenset({"kernel", "function", "arrays", "stream"})
_DIGEST = re.compile("sha256:[0-9a-f]{64}")

# XLA's name of a platform → JAX's; the others are equal.
_JAX_PLATFORMS = {"CUDA": "cuda", "ROCM": "rocm"}


@dataclasses.dataclass(frozen=True)
class Needs:
    """What is needed to make a target again.

    Attributes:
      modules: the modules that are imported, besides those of xlakernel.
      pickles: the kernels that are unpickled: digest → name.
    """

    modules: frozenset[str]
    pickles: Mapping[str, str]

    @classmethod
    def of(cls, target: Target) -> Needs:
        """Return those of a target, from the fields of its recipe that backends read.

        Raises:
          ExportError: if its recipe is malformed.
        """
        if not _RECIPE_MODULE.fullmatch(target.recipe.module):
            raise _malformed(
                target,
                f"is to be made by the module {target.recipe.module!r}, which is not one of xlakernel's modules that "
                "make kernels",
            )
        data = target.recipe.data
        imports = data.get("imports", [])
        if not (isinstance(imports, list) and all(map(is_module_name, imports))):
            raise _malformed(target, f"has the imports {imports!r:.200}, which is not a list of names of modules")
        modules, pickles = set(imports), {}
        for key in _REFERENCES & data.keys():
            field = data[key]
            if isinstance(field, dict) and field.keys() == {"pickle"} and key == "kernel":
                name = f"the kernel {data.get('name')}"
                pickles[digest_of(decode_pickle(name, field["pickle"]))] = name
            elif isinstance(field, dict):
                if field.keys() != {"module", "qualname"} or not all(isinstance(text, str) for text in field.values()):
                    raise _malformed(target, f"has the {key} {field!r:.200}, which does not lead to one")
                modules.add(field["module"])
            elif not (key != "kernel" and (field is None or isinstance(field, str))):
                raise _malformed(target, f"has the {key} {field!r:.200}, which does not lead to one")
        return cls(frozenset(modules), pickles)


def _malformed(target: Target, what: str) -> ExportError:
    return ExportError(
        f"deserialize: {target.name!r} {what}. The program was not written by xlakernel.core.export; do not load it."
    )


def read_allow(allow: Any) -> frozenset[str] | None:
    """Return what a user allows: names of modules, and digests of pickles; None: everything.

    Raises:
      ArgumentError: if *allow* is something else.
    """
    if allow is None:
        return None
    expected = '"sha256:" and 64 digits of 0-9a-f, as the error of a refused program lists them'
    given = isinstance(allow, Iterable) and not isinstance(allow, (str, bytes))
    items: list[Any] = list(allow) if given else [None]
    if not all(isinstance(item, str) for item in items):
        raise ArgumentError(
            f"deserialize: allow is {allow!r}; expected a collection of strings, each the name of a module or "
            f"{expected}, or None for everything."
        )
    for item in items:
        if not (is_module_name(item) or _DIGEST.fullmatch(item)):
            raise ArgumentError(
                f"deserialize: allow has {item!r}; expected the name of a module, with dots for what is in a package, "
                f"or {expected}."
            )
    return frozenset(items)


def check_allowed(targets: Iterable[Target], allowed: frozenset[str] | None) -> None:
    """Raise `ExportError` unless all that the targets need is *allowed*, which `ffi.reference.allowing` was given."""
    if allowed is None:
        return
    missing: dict[str, str] = {}
    for target in targets:
        needs = Needs.of(target)
        missing |= {module: f"import {module}" for module in needs.modules}
        missing |= {digest: f"unpickle {name} ({digest})" for digest, name in needs.pickles.items()}
    missing = {key: step for key, step in sorted(missing.items()) if not is_allowed(key)}
    if missing:
        raise ExportError(
            f"deserialize: to load the program is to {', '.join(missing.values())}, which allow= does not name. "
            f"Nothing was imported or unpickled. If you trust that, pass allow={sorted({*allowed, *missing})}."
        )


def on_platforms_here(targets: Iterable[Target]) -> list[Target]:
    """Return those whose platform is here."""
    return [target for target in targets if _is_here(target.platform)]


def make(targets: Iterable[Target]) -> None:
    """Make those targets that are not registered, after all of them were compared with what was exported.

    Raises:
      ExportError: if one is another one here, or was another one in a program before; or its recipe is malformed.
      MissingDependencyError: if the package of its backend is not installed.
    """
    targets = list(targets)
    for target in targets:
        check_loaded(target.name, target.platform, target.recipe)
    missing = [target for target in targets if not is_registered(target.name, target.platform)]
    ordered = sorted(missing, key=lambda target: bool(Needs.of(target).pickles))
    builders = [(target, _well_formed(target, functools.partial(_prepare, target))) for target in ordered]
    for target, build in builders:
        register = functools.partial(register_loaded, target.name, target.platform, target.recipe, build)
        _well_formed(target, register)


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
    try:
        backend = importlib.import_module(target.recipe.module)
    except ModuleNotFoundError as error:
        package = target.recipe.module.split(".")[1]
        if error.name != f"xlakernel.{package}":
            raise
        raise missing_package(f"deserialize: {target.name!r}", package) from error
    build: Callable[[], None] = backend.prepare(target.name, target.recipe.data)
    return build
