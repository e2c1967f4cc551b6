"""Check that one package can be tagged as it stands: ``check_release.py PACKAGE [--tag TAG] [--dry-run]``.

Needs the libraries ``packaging`` and ``griffelib``. A dry run refuses what no commit on main may have; what must hold
only on the day of a release it says without refusing.
"""

from __future__ import annotations

import argparse
import io
import re
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from api_changes import Changes, compare
from packaging.version import InvalidVersion, Version
from tree import PREFIX, Tree


@dataclass
class Findings:
    """What is to be said of a package before its release."""

    wrong: list[str] = field(default_factory=list)
    not_yet: list[str] = field(default_factory=list)  # wrong on the day of a release, and nowhere else
    notes: list[str] = field(default_factory=list)


def examine(tree: Tree, package: str, tag: str | None) -> Findings:
    """Return every reason why the package cannot be released, for *tag* if that exists already."""
    findings = Findings()
    look_at_git(tree, package, tag, findings)
    look_at_changelog(tree, package, findings)
    look_at_version(tree, package, tag, findings)
    findings.wrong += sibling_problems(tree, package)
    return findings


def look_at_git(tree: Tree, package: str, tag: str | None, findings: Findings) -> None:
    """Find what the state of the checkout keeps from being released."""
    if changed := tree.git_lines("status", "--porcelain"):
        findings.not_yet.append("\n".join(["the tree is not clean:", *changed]))
    if tree.git_lines("rev-parse", "--is-shallow-repository") == ["true"]:
        findings.not_yet.append("the clone is shallow: earlier releases may be missing, get them with --unshallow")
    if tag is None and tree.git_lines("tag", "--list", tree.tag(package)):
        findings.not_yet.append(f"{tree.tag(package)} exists already: raise __version__ first")
    if tag not in (None, tree.tag(package)):
        findings.wrong.append(f"the tag is {tag}, but the tree holds {tree.tag(package)}")


def look_at_changelog(tree: Tree, package: str, findings: Findings) -> None:
    """Find what the changelog lacks for the package's version."""
    path, version = tree.folder(package) / "CHANGELOG.md", tree.version(package)
    sections = re.split(r"^## ", path.read_text("utf-8"), flags=re.MULTILINE)
    section = next((s for s in sections if s.startswith(f"{version} (")), None)
    if section is None:
        findings.wrong.append(f"{path.name} has no section `## {version} (YYYY-MM-DD)`")
        return
    if not re.search(r"^- ", section, re.MULTILINE):
        findings.wrong.append(f"{path.name} says nothing about {version}")
    if section.startswith(f"{version} (unreleased)\n"):
        findings.not_yet.append(f"{path.name} must give the day: `## {version} (YYYY-MM-DD)`")
    elif not re.match(r"\S+ \(\d{4}-\d\d-\d\d\)\n", section):
        heading = section.partition("\n")[0]
        findings.wrong.append(f"{path.name} has `## {heading}`, neither (unreleased) nor a day (YYYY-MM-DD)")


def look_at_version(tree: Tree, package: str, tag: str | None, findings: Findings) -> None:
    """Find whether the version fits what changed since the last release."""
    last = last_release(tree, package, tag)
    if last is None:
        findings.notes.append(f"{PREFIX}{package} has no earlier release: there is no interface to compare with")
        return
    name, released = last
    version = Version(tree.version(package))
    if version < released:
        findings.wrong.append(f"{version} is below {name}")
        return
    changes = changes_since(tree, package, name)
    needed = lowest_version(released, changes)
    lines = [f"{PREFIX}{package} since {name}: {len(changes.broken)} broken, {len(changes.added)} added"]
    lines += [f"  broken  {line}" for line in changes.broken]
    lines += [f"  added   {line}" for line in changes.added]
    findings.notes.append("\n".join(lines))
    # The number of a final release counts: 0.2.0rc1 may have all that 0.2.0 may have.
    if Version(version.base_version) < needed:
        # Until the version is raised, the tree holds what the next release will have.
        rows = findings.not_yet if version == released else findings.wrong
        rows.append(f"after {name} this must be {needed} or higher, not {version}")


def last_release(tree: Tree, package: str, tag: str | None) -> tuple[str, Version] | None:
    """Return the highest final release, but for *tag*, that this commit descends from."""
    prefix = f"{PREFIX}{package}-v"
    found = []
    for name in tree.git_lines("tag", "--list", f"{prefix}*", "--merged", "HEAD"):
        try:
            version = Version(name.removeprefix(prefix))
        except InvalidVersion:
            continue  # somebody's tag, which is not the one of a release
        if name != tag and not version.is_prerelease:
            found.append((version, name))
    return (max(found)[1], max(found)[0]) if found else None


def changes_since(tree: Tree, package: str, name: str) -> Changes:
    """Return what changed in the package since a tag."""
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(fileobj=io.BytesIO(tree.git("archive", "--format=tar", name, "packages"))) as archive:
            archive.extractall(folder, filter="data")
        return compare(Tree(Path(folder)), tree, package)


def lowest_version(last: Version, changes: Changes) -> Version:
    """Return the lowest version that may follow *last*: the rule of RELEASING.md."""
    major, minor, patch = last.major, last.minor, last.micro
    if changes.broken:
        return Version(f"{major + 1}.0.0" if major else f"0.{minor + 1}.0")
    if changes.added and major:
        return Version(f"{major}.{minor + 1}.0")
    return Version(f"{major}.{minor}.{patch + 1}")


def sibling_problems(tree: Tree, package: str) -> Iterator[str]:
    """Yield the bounds, of this package and on it, that the versions in the tree do not meet."""
    for user in tree.names():
        for used, bounds in tree.bounds(user).items():
            if package not in (user, used):
                continue
            operators = {bound.operator for bound in bounds}
            if not {">=", "<"} <= operators:
                yield f"{PREFIX}{user} must bound {PREFIX}{used} on both sides, not {str(bounds)!r}"
            if not bounds.contains(Version(tree.version(used)), prereleases=True):
                yield f"{PREFIX}{user} wants {PREFIX}{used} {bounds}; here is {tree.version(used)}"


def main() -> None:
    """Say what is found, and refuse what is wrong."""
    parser = argparse.ArgumentParser(prog="check_release.py", allow_abbrev=False)
    parser.add_argument("package")
    parser.add_argument("--tag", help="the tag that asked for this release, if it exists already")
    parser.add_argument("--dry-run", action="store_true", help="say, and do not refuse, what only a release must have")
    parser.add_argument("--print", action="store_true", help="check nothing, print how to tag it")
    parser.add_argument("--root", type=Path, default=Path(__file__).parents[2], help="the repository")
    options = parser.parse_args()
    tree = Tree(options.root)
    if options.package not in tree.names():
        parser.error(f"there is no package {options.package!r}; there are {tree.names()}")
    name = tree.tag(options.package)
    if options.print:
        print(f"To release it:\n\n  git tag -a {name} -m {name}\n  git push origin {name}")
        return
    findings = examine(tree, options.package, options.tag)
    for note in findings.notes:
        print(note)
    if options.dry_run:
        for line in findings.not_yet:
            print(f"{name}: a release would be refused, as {line}")
    if refused := findings.wrong + ([] if options.dry_run else findings.not_yet):
        sys.exit("\n".join(f"{name}: {line}" for line in refused))
    print(f"{name}: {'nothing that main may not have' if options.dry_run else 'can be tagged, if the sessions pass'}")


if __name__ == "__main__":
    main()
