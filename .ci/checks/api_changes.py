"""Compare the interface of a package with that of its last release.

The interface consists of the names that public modules list in ``__all__``, and of the public members of listed modules
and classes. Names that a sibling package imports belong to it too, since a published sibling accepts every version of
the package within its bounds.
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
    """Differences between two versions of a package's interface."""

    broken: list[str]  # each as the name and the change
    added: list[str]


def compare(old: Tree, new: Tree, package: str) -> Changes:
    """Return the changes of *package* from *old* to *new*."""
    before, after, relied = load(old, package), load(new, package), relied_on(old, package)
    # A name that only siblings imported before counts as added once it is public.
    added = offered(after, set()) - offered(before, set())
    removed = offered(before, relied) - offered(after, relied)
    # Griffe compares the members marked as public, which now include those that siblings import. It does not report a
    # name that is defined but no longer listed, so its removals are replaced by the ones found above.
    changed = [one for one in griffe.find_breaking_changes(before, after) if one.kind is not REMOVED]
    broken = {f"{name}: no longer public" for name in removed} | {explain(one) for one in changed}
    broken |= set(unseen(before, after))
    return Changes(sorted(broken), sorted(added))


def relied_on(tree: Tree, package: str) -> set[str]:
    """Return the full names that sibling packages import from the package."""
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
    """Mark the package's interface and the *relied* names as public, and return the names of both."""
    mark(module, relied, whole=False)
    return set(public_members(module))


def mark(module: griffe.Module, relied: set[str], *, whole: bool) -> bool:
    """Set ``public`` of each member, and return True if one is public; *whole*: another module lists this one."""
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
    """Return the public members of a module or class by full name."""
    found: dict[str, griffe.Object | griffe.Alias] = {}
    members = holder.members if holder.is_module else holder.all_members
    for name, member in members.items():
        if member.is_public:
            found[f"{holder.path}.{name}"] = member
            # Griffe cannot resolve an alias to another distribution, whose interface is not checked here.
            with contextlib.suppress(griffe.AliasResolutionError):
                if member.is_module or member.is_class:
                    found |= public_members(member)
    return found


def unseen(before: griffe.Module, after: griffe.Module) -> Iterator[str]:
    """Yield the breaking changes of names in both versions that Griffe does not report.

    Griffe reports neither a removed parameter if ``*args`` or ``**kwargs`` accepts it, nor changed bases of a class if
    their number is the same, nor a method that becomes or ceases to be a class method or static method.
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
                    yield f"{name}: is now a {bound(new[name])}"


def bases(one: griffe.Object | griffe.Alias) -> set[str]:
    """Return the public names of a class's bases, and of their bases as far as they belong to the package."""
    names = {str(base).rpartition(".")[2] for base in one.bases}
    return {name for name in names if not name.startswith("_")}.union(*map(bases, one.resolved_bases))


def bound(function: griffe.Object | griffe.Alias) -> str:
    """Return the kind of a function: ``"classmethod"``, ``"staticmethod"`` or ``"function"``."""
    return next((kind for kind in ("classmethod", "staticmethod") if kind in function.labels), "function")


def explain(breakage: griffe.Breakage) -> str:
    """Return one line on a change: the name, the parameter if it is about one, and what happened."""
    about = breakage.new_value if breakage.old_value is None else breakage.old_value
    parameter = f"({about.name})" if isinstance(about, griffe.Parameter) else ""
    return f"{breakage.obj.path}{parameter}: {breakage.kind.value.lower()}"
