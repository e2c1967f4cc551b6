"""Compare what a package offers with what it offered in its last release.

A package offers what its public modules list in ``__all__``, with all that a listed module or class holds under a
public name. Its siblings rely on more: what they import from it must stay too, since a published sibling accepts every
version of the package within its bounds.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import griffe
from imports import find_imports
from tree import Tree

REMOVED = griffe.BreakageKind.OBJECT_REMOVED


@dataclass(frozen=True)
class Changes:
    """What became of the names that a package offers."""

    broken: list[str]  # each with what happened to it
    added: list[str]


def compare(old: Tree, new: Tree, package: str) -> Changes:
    """Return what changed in *package*."""
    before, after, relied = load(old, package), load(new, package), relied_on(old, package)
    # A name that only siblings used is new where it becomes public.
    added = offered(after, set()) - offered(before, set())
    removed = offered(before, relied) - offered(after, relied)
    # Griffe compares what is marked as public, by now all that anybody relies on. To it a name that is no longer listed
    # is still there, so what is gone is found above.
    changed = [one for one in griffe.find_breaking_changes(before, after) if one.kind is not REMOVED]
    broken = {f"{name}: no longer offered" for name in removed} | {explain(one) for one in changed}
    return Changes(sorted(broken), sorted(added))


def relied_on(tree: Tree, package: str) -> set[str]:
    """Return what the siblings import from the package."""
    found = set()
    for sibling in tree.names():
        if sibling == package:
            continue
        source = tree.folder(sibling) / "src"
        for path in sorted(source.rglob("*.py")):
            found |= {one.target for one in find_imports(path, source) if one.reaches(f"xlakernel.{package}")}
    return found


def load(tree: Tree, package: str) -> griffe.Module:
    """Read a package without importing it."""
    source: Path = tree.folder(package) / "src"
    module = griffe.load(f"xlakernel.{package}", search_paths=[source], allow_inspection=False)
    assert isinstance(module, griffe.Module)
    return module


def offered(module: griffe.Module, relied: set[str]) -> set[str]:
    """Mark as public what the package offers, and what is *relied* on; return the names of both."""
    mark(module, relied, whole=False)
    return set(public_names(module))


def mark(module: griffe.Module, relied: set[str], *, whole: bool) -> bool:
    """Say of each member whether it is public, and return whether one is; *whole* is a module that another lists."""
    private = any(part.startswith("_") for part in module.path.split("."))
    listed = {str(name) for name in module.exports or ()}
    for name, member in module.members.items():
        named = member.path in relied or (name in listed and not private)
        if not member.is_alias and member.is_module:
            named = mark(member, relied, whole=named)
        elif whole and module.exports is None and not name.startswith("_"):
            named = named or not member.is_alias
        member.public = named
    return whole or any(member.public for member in module.members.values())


def public_names(holder: griffe.Module | griffe.Class | griffe.Alias) -> Iterator[str]:
    """Yield the public names in a module or class, in full."""
    members = holder.members if holder.is_module else holder.all_members
    for name, member in members.items():
        if member.is_public:
            path = f"{holder.path}.{name}"
            yield path
            # What comes from another distribution cannot be looked into, and is not ours to keep.
            with contextlib.suppress(griffe.AliasResolutionError):
                if member.is_module or member.is_class:
                    yield from public_names(member)


def explain(breakage: griffe.Breakage) -> str:
    """Return one line on a change: the name, the parameter if it is about one, and what happened."""
    about = breakage.new_value if breakage.old_value is None else breakage.old_value
    parameter = f"({about.name})" if isinstance(about, griffe.Parameter) else ""
    return f"{breakage.obj.path}{parameter}: {breakage.kind.value.lower()}"
