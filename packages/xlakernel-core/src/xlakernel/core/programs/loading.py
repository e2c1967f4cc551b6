"""Registration of the targets of a loaded program, and the modules and pickles that this needs."""

from __future__ import annotations

import functools
import importlib
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax

from ..errors import ExportError, MissingDependencyError
from ..ffi.registry import check_loaded, is_registered, register_loaded
from ..interrupts import is_raised_by_handler
from ..missing import missing_package
from .allowed import decode_pickle, is_module_name
from .artifact import StoredTarget

_RECIPE_MODULE = re.compile(r"xlakernel\.(?!core\.|command\.)\w+\._(\w+_)?export")
_REFERENCES = frozenset({"kernel", "function", "arrays", "stream"})

# XLA's name of a platform → JAX's name; the names of other platforms are equal.
_JAX_PLATFORMS = {"CUDA": "cuda", "ROCM": "rocm"}


def imports_and_pickles(target: StoredTarget) -> dict[str, str]:
    """Return the imports and pickles that a target needs, except the module of its backend, for `check_allowed`.

    Returns:
      ``{key: description}``; a key is the name of a module, or ``"sha256:..."`` for a pickle.

    Raises:
      ExportError: if a field of the target's recipe that names a module or holds a pickle is malformed.
    """
    if not _RECIPE_MODULE.fullmatch(target.recipe.module):
        raise _malformed(
            target,
            f"has a recipe for the module {target.recipe.module!r}, which is not one of xlakernel's modules that make "
            "kernels",
        )
    data = target.recipe.data
    imports = data.get("imports", [])
    if not (isinstance(imports, list) and all(map(is_module_name, imports))):
        raise _malformed(target, f"has the imports {imports!r:.200}, which is not a list of names of modules")
    found = {module: f"import {module}" for module in imports}
    for key in _REFERENCES & data.keys():
        match data[key]:
            case {"pickle": text, **rest} if key == "kernel" and not rest:
                found |= decode_pickle(f"the kernel {data.get('name')}", text)[1]
            case {"module": str(module), "qualname": str(_), **rest} if not rest:
                found[module] = f"import {module}"
            case None | str() if key != "kernel":
                pass
            case field:
                raise _malformed(target, f"has the {key} {field!r:.200}, which is not a valid reference")
    return found


def _malformed(target: StoredTarget, what: str) -> ExportError:
    return ExportError(
        f"deserialize: {target.name!r} {what}. The program was not written by xlakernel.core.export; do not load it."
    )


def of_platforms_here(targets: Iterable[StoredTarget]) -> list[StoredTarget]:
    """Return the targets for platforms of this machine."""
    return [target for target in targets if _is_here(target.platform)]


def prepare(targets: Sequence[StoredTarget]) -> Callable[[], None]:
    """Check for each unregistered target that its kernel equals the exported kernel.

    Returns:
      A function that compiles the kernels and registers the targets.

    Raises:
      ExportError: if a kernel has changed, a recipe is malformed, or a program that was loaded before has another
        recipe under the same name.
      MissingDependencyError: if the package of a backend is not installed.
    """
    for target in targets:
        check_loaded(target.name, target.platform, target.recipe)
    unregistered = [target for target in targets if not is_registered(target.name, target.platform)]
    # Targets with pickles come last: opening a pickle may run any code.
    ordered = sorted(
        unregistered, key=lambda target: any(key.startswith("sha256:") for key in imports_and_pickles(target))
    )
    builders = [(target, _run_step(target, functools.partial(_prepare, target))) for target in ordered]

    def make() -> None:
        for target, build in builders:
            register = functools.partial(register_loaded, target.name, target.platform, target.recipe, build)
            _run_step(target, register)

    return make


def _run_step(target: StoredTarget, step: Callable[[], Any]) -> Any:
    """Run a step of making *target*. The recipe may contain anything, so any error becomes an `ExportError`."""
    try:
        return step()
    except (ExportError, MissingDependencyError):
        raise
    except Exception as error:
        if is_raised_by_handler(error):
            raise
        raise ExportError(
            f"deserialize: {target.name!r} cannot be made from its recipe: {type(error).__name__}: {error}. If the "
            "program cannot be loaded on the machine that exported it either, it is damaged: export it again."
        ) from error


def _is_here(platform: str) -> bool:
    if platform == "cpu":
        return True
    try:
        return bool(jax.devices(_JAX_PLATFORMS.get(platform, platform)))
    except RuntimeError:  # JAX has no such platform
        return False


def _prepare(target: StoredTarget) -> Callable[[], None]:
    """Compare the kernel of *target* with the exported one, and return a function that makes the target."""
    try:
        backend = importlib.import_module(target.recipe.module)
    except ModuleNotFoundError as error:
        package = target.recipe.module.split(".")[1]
        if error.name != f"xlakernel.{package}":
            raise
        raise missing_package(f"deserialize: {target.name!r}", package) from error
    build: Callable[[], None] = backend.prepare(target.name, target.recipe.data)
    return build
