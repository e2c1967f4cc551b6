"""Check one package that was installed from its wheel: all of it imports, on what it declares.

Runs in the environment that holds the wheel: ``check_isolation.py PACKAGE [EXTRA]``.
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
# The package whose distribution brings another one of the namespace.
BESIDE = {other: package for package, rule in RULES.items() for other in rule.get("beside", [])}
# Libraries that another one ties to itself, release by release: to need it is to declare them.
BROUGHT = {"jax": {"jaxlib", "ml-dtypes"}, "numba": {"llvmlite"}, "numba-cuda": {"numba"}}

# Where an import is named otherwise than its distribution, for one that is not installed.
OWNERS = {"warp": ["warp-lang"]}


def normal(name: str) -> str:
    """Return a distribution's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def declared(distribution: str) -> set[str]:
    """Return what *distribution* and the siblings that it needs ask for, in any extra."""
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
    """Yield the imports of installed distributions that the package does not declare; functions may have *optional*."""
    owners = metadata.packages_distributions()
    for path in paths:
        for found in find_imports(path, root):
            top, *rest = found.target.split(".")
            if top in sys.stdlib_module_names or (top in optional and not found.at_import):
                continue
            if top == "xlakernel":
                needed = {f"xlakernel-{BESIDE.get(rest[0], rest[0])}"}
            else:
                # What is not installed here must at least be declared under its own name, or under that of its part
                # of a namespace: cuda.bindings comes from cuda-bindings.
                needed = {normal(name) for name in owners.get(top, OWNERS.get(top, [top, "-".join([top, *rest[:1]])]))}
            if not needed & allowed:
                where = f"{path.relative_to(root)}:{found.line}"
                yield f"{where}: {found.target} comes from {sorted(needed)}, which is not declared"


def main(package: str, extra: str | None = None) -> None:
    """Import every module of *package*, then compare what it imports with what it declares."""
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
    shut = f", {len(names) - len(opened)} left to other extras" if closed else ""
    label = f"{distribution}[{extra}]" if extra else distribution
    print(f"{label} {metadata.version(distribution)}: {len(opened)} modules imported{shut}")


if __name__ == "__main__":
    main(*sys.argv[1:])
