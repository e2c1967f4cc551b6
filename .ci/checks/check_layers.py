"""Check imports for violations of rooms.toml, cycles of files, heavy imports and private JAX, and the namespace."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

from imports import Import, find_imports, module_name

CHECKS = Path(__file__).parent
PACKAGES = CHECKS.parents[1] / "packages"
RULES: dict[str, dict[str, Any]] = tomllib.loads((CHECKS / "rooms.toml").read_text("utf-8"))


# Packages of the namespace that another package's distribution ships, for its own use.
BESIDE = {other for rule in RULES.values() for other in rule.get("beside", [])}


def room_of(package: str, module: str) -> dict[str, Any] | None:
    """Return the rule of the room that contains *module*, or None."""
    for room, rule in RULES[package].get("rooms", {}).items():
        if f"{module}.".startswith(f"xlakernel.{package}.{room}."):
            return rule
    return None


def inner_module(package: str, found: Import) -> str | None:
    """Return the module of *package* that *found* imports although the facade does not list it, or None."""
    if not found.reaches(f"xlakernel.{package}") or "facade" not in RULES[package]:
        return None
    module = found.target.removeprefix(f"xlakernel.{package}").lstrip(".").partition(".")[0]
    folder = PACKAGES / f"xlakernel-{package}/src/xlakernel" / package
    is_module = bool(module) and (folder.joinpath(f"{module}.py").exists() or folder.joinpath(module).is_dir())
    return f"xlakernel.{package}.{module}" if is_module and module not in RULES[package]["facade"] else None


def broken_arrows(package: str, path: Path, root: Path) -> Iterator[tuple[Import, str]]:
    """Yield the imports of one file that the rules forbid, each with the rule that it breaks."""
    rule, room = RULES[package], room_of(package, module_name(path, root))
    allowed = {package, *rule["siblings"], *(room or {}).get("siblings", [])}
    beside = set(rule.get("beside", []))
    for found in find_imports(path, root):
        for other in (RULES.keys() | BESIDE) - allowed - beside:
            if found.reaches(f"xlakernel.{other}"):
                yield found, f"only {sorted(allowed)} may be imported from xlakernel here"
        for other in allowed - {package}:
            if hidden := inner_module(other, found):
                facade = RULES[other]["facade"]
                yield found, f"{hidden} is internal to its package, of which only {facade} may be imported here"
        for heavy in rule.get("heavy", []):
            if room is None and found.at_import and found.reaches(heavy):
                rooms = sorted(rule["rooms"])
                yield found, f"only the rooms {rooms} may import {heavy} at module level"
        if found.reaches("jax._src") and path.name != "_compat.py":
            yield found, "private JAX belongs in _compat.py"


def circle(root: Path) -> list[str]:
    """Return the files of one import cycle, or an empty list. Each imports the one before it.

    Imports within functions and under ``TYPE_CHECKING`` count as well.
    """
    files = {module_name(path, root): path for path in root.rglob("*.py")}
    needs = {
        name: {next(filter(files.get, (found.target, found.target.rpartition(".")[0])), name) for found in imports}
        for name, imports in ((name, find_imports(path, root)) for name, path in files.items())
    }
    try:
        TopologicalSorter({name: found - {name} for name, found in needs.items()}).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def problems() -> Iterator[str]:
    """Yield one line for each violation in the packages."""
    folders = {path.name.removeprefix("xlakernel-"): path for path in PACKAGES.glob("xlakernel-*")}
    if folders.keys() != RULES.keys():
        yield f"rooms.toml has {sorted(RULES)}, packages/ has {sorted(folders)}"
    for package, folder in sorted(folders.items()):
        root = folder / "src"
        if (root / "xlakernel/__init__.py").exists():
            yield f"{root}/xlakernel/__init__.py: xlakernel is a namespace that five packages share"
        for room in RULES[package].get("rooms", {}):
            inside = root.joinpath("xlakernel", package, *room.split("."))
            if not inside.is_dir() and not inside.with_suffix(".py").exists():
                yield f"{inside} does not exist, but rooms.toml has a room of this name"
        if found_circle := circle(root):
            yield f"xlakernel-{package}: import cycle: {' → '.join(reversed(found_circle))}"
        for path in sorted(root.rglob("*.py")):
            for found, why in broken_arrows(package, path, root):
                where = path.relative_to(PACKAGES.parent)
                yield f"{where}:{found.line}: imports {found.target}: {why}"


if __name__ == "__main__":
    if lines := list(problems()):
        sys.exit("\n".join([*lines, f"{len(lines)} violations"]))
    print(f"the imports of {len(RULES)} packages follow rooms.toml")
