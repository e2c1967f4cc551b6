"""Check that every module of a package installed from its wheel imports with the declared dependencies alone.

Run it in the environment with the wheel: ``check_isolation.py PACKAGE [EXTRA]``.
"""

from __future__ import annotations

import importlib
import importlib.metadata as metadata
import re
import sys
import sysconfig
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from imports import find_imports, module_name

RULES: dict[str, dict[str, Any]] = tomllib.loads(Path(__file__).with_name("rooms.toml").read_text("utf-8"))
# Packages of the namespace without a distribution of their own, each with the package that ships it.
BESIDE = {other: package for package, rule in RULES.items() for other in rule.get("beside", [])}
# Libraries whose version another library pins: a dependency on the latter counts as declaring them.
BROUGHT = {"jax": {"jaxlib", "ml-dtypes"}, "numba": {"llvmlite"}, "numba-cuda": {"numba"}}

# Distributions of imports that have another name, for libraries that may not be installed.
OWNERS = {"warp": ["warp-lang"]}


def normal(name: str) -> str:
    """Return a distribution's name, normalized as in PEP 503."""
    return re.sub(r"[-_.]+", "-", name).lower()


def declared(distribution: str) -> set[str]:
    """Return the dependencies of *distribution*, in all its extras, and of the siblings that it requires."""
    names = {normal(distribution)}
    for requirement in metadata.requires(distribution) or []:
        name = normal(re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0])
        if name in names:
            continue
        names |= {name} | BROUGHT.get(name, set())
        if name.startswith("xlakernel-") and "extra ==" not in requirement:
            names |= declared(name)
    return names


def closed_rooms(package: str, extra: str | None) -> list[str]:
    """Return the rooms whose extra is not installed."""
    rooms = RULES[package].get("rooms", {})
    return [room for room, rule in rooms.items() if rule.get("extra") not in (None, extra)]


def undeclared(paths: list[Path], root: Path, allowed: set[str], optional: set[str]) -> Iterator[str]:
    """Yield the imports of undeclared distributions; imports within functions may also use those in *optional*."""
    owners = metadata.packages_distributions()
    for path in paths:
        for found in find_imports(path, root):
            top, *rest = found.target.split(".")
            if top in sys.stdlib_module_names or (top in optional and not found.at_import):
                continue
            if top == "xlakernel":
                needed = {f"xlakernel-{BESIDE.get(rest[0], rest[0])}"}
            else:
                # A library that is not installed here must be declared under its import name, or under that of its
                # part of a namespace: cuda.bindings comes from cuda-bindings.
                needed = {normal(name) for name in owners.get(top, OWNERS.get(top, [top, "-".join([top, *rest[:1]])]))}
            if not needed & allowed:
                where = f"{path.relative_to(root)}:{found.line}"
                yield f"{where}: {found.target} comes from {sorted(needed)}, which is not declared"


def main(package: str, extra: str | None = None) -> None:
    """Import every module of *package*, then compare its imports with its declared dependencies."""
    distribution = f"xlakernel-{package}"
    root = Path(sysconfig.get_path("purelib"))
    folders = [root / "xlakernel" / name for name in (package, *RULES[package].get("beside", []))]
    for folder in folders:
        if not folder.is_dir():
            sys.exit(f"{folder} does not exist: {distribution} is not installed from its wheel")
    paths = [path for folder in folders for path in sorted(folder.rglob("*.py"))]
    closed = tuple(f"xlakernel.{package}.{room}." for room in closed_rooms(package, extra))
    names = [module_name(path, root) for path in paths]
    names = [name for name in names if not name.endswith(".__main__")]
    opened = [name for name in names if not f"{name}.".startswith(closed)]
    for name in opened:
        importlib.import_module(name)
    if lines := list(undeclared(paths, root, declared(distribution), set(RULES[package].get("optional", [])))):
        sys.exit("\n".join(lines))
    shut = f", {len(names) - len(opened)} skipped that need other extras" if closed else ""
    label = f"{distribution}[{extra}]" if extra else distribution
    print(f"{label} {metadata.version(distribution)}: {len(opened)} modules imported{shut}")


if __name__ == "__main__":
    main(*sys.argv[1:])
