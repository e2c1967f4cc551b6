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
BY_NAME = (griffe.ParameterKind.positional_or_keyword, griffe.ParameterKind.keyword_only)
Holder = griffe.Module | griffe.Class | griffe.Alias


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
    broken |= set(unseen(before, after))
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
    return set(public_members(module))


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


def public_members(holder: Holder) -> dict[str, griffe.Object | griffe.Alias]:
    """Return what is public in a module or class, by its name in full."""
    found: dict[str, griffe.Object | griffe.Alias] = {}
    members = holder.members if holder.is_module else holder.all_members
    for name, member in members.items():
        if member.is_public:
            found[f"{holder.path}.{name}"] = member
            # What comes from another distribution cannot be looked into, and is not ours to keep.
            with contextlib.suppress(griffe.AliasResolutionError):
                if member.is_module or member.is_class:
                    found |= public_members(member)
    return found


def unseen(before: griffe.Module, after: griffe.Module) -> Iterator[str]:
    """Yield what breaks in names that both offer, and Griffe does not report.

    It takes a parameter for kept where ``*args`` or ``**kwargs`` swallows it, and the bases of a class if there are as
    many as before. Whether a method is one of the class, it does not compare.
    """
    new = public_members(after)
    for name, old in public_members(before).items():
        with contextlib.suppress(griffe.AliasResolutionError):
            if name not in new or new[name].kind is not old.kind:
                continue
            if old.is_class:
                gone = bases(old) - bases(new[name])
                yield from (f"{name}: base class {base} was removed" for base in gone)
            elif old.is_function:
                kept = {parameter.name for parameter in new[name].parameters}
                gone = [parameter.name for parameter in old.parameters if parameter.name not in kept]
                by_name = [one for one in gone if old.parameters[one].kind in BY_NAME]
                yield from (f"{old.canonical_path}({one}): parameter was removed" for one in by_name)
                if bound(old) != bound(new[name]):
                    yield f"{name}: is bound to something else, as {bound(new[name])}"


def bases(one: griffe.Object | griffe.Alias) -> set[str]:
    """Return the names of a class's bases and of theirs, as far as they are ours, without private ones."""
    names = {str(base).rpartition(".")[2] for base in one.bases}
    return {name for name in names if not name.startswith("_")}.union(*map(bases, one.resolved_bases))


def bound(function: griffe.Object | griffe.Alias) -> str:
    """Return what a function is called on."""
    return next((kind for kind in ("classmethod", "staticmethod") if kind in function.labels), "function")


def explain(breakage: griffe.Breakage) -> str:
    """Return one line on a change: the name, the parameter if it is about one, and what happened."""
    about = breakage.new_value if breakage.old_value is None else breakage.old_value
    parameter = f"({about.name})" if isinstance(about, griffe.Parameter) else ""
    return f"{breakage.obj.path}{parameter}: {breakage.kind.value.lower()}"
