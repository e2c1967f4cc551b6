"""Check that a package is ready to be tagged for a release: ``check_release.py PACKAGE [--tag TAG] [--dry-run]``.

Requires the libraries ``packaging`` and ``griffelib``. A dry run fails only for problems that no commit on main may
have; it prints those that block a release alone.
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
    """Results of the checks of one package."""

    wrong: list[str] = field(default_factory=list)
    not_yet: list[str] = field(default_factory=list)  # problems that block a release, but no other commit
    notes: list[str] = field(default_factory=list)


def examine(tree: Tree, package: str, tag: str | None) -> Findings:
    """Check a package for a release. *tag* is the release's tag if it exists already, else None."""
    findings = Findings()
    look_at_git(tree, package, tag, findings)
    look_at_changelog(tree, package, findings)
    look_at_version(tree, package, tag, findings)
    findings.wrong += sibling_problems(tree, package)
    return findings


def look_at_git(tree: Tree, package: str, tag: str | None, findings: Findings) -> None:
    """Add the reasons why the state of the checkout blocks a release."""
    if changed := tree.git_lines("status", "--porcelain"):
        findings.not_yet.append("\n".join(["the tree is not clean:", *changed]))
    if tree.git_lines("rev-parse", "--is-shallow-repository") == ["true"]:
        findings.not_yet.append("the clone is shallow, so earlier releases may be missing: run git fetch --unshallow")
    if tag is None and tree.git_lines("tag", "--list", tree.tag(package)):
        findings.not_yet.append(f"{tree.tag(package)} exists already: raise __version__ first")
    if tag not in (None, tree.tag(package)):
        findings.wrong.append(f"the tag is {tag}, but the tree holds {tree.tag(package)}")


def look_at_changelog(tree: Tree, package: str, findings: Findings) -> None:
    """Add the problems of the changelog's section for the package's version."""
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
    """Add the changes since the last release, and a problem if the version is too low for them."""
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
    # A release candidate is compared by its final version: 0.2.0rc1 may contain any change that 0.2.0 may.
    if Version(version.base_version) < needed:
        # Before the version is raised, main already contains changes for the next release.
        rows = findings.not_yet if version == released else findings.wrong
        rows.append(f"after {name} this must be {needed} or higher, not {version}")


def last_release(tree: Tree, package: str, tag: str | None) -> tuple[str, Version] | None:
    """Return the highest final release that this commit descends from, other than *tag*."""
    prefix = f"{PREFIX}{package}-v"
    found = []
    for name in tree.git_lines("tag", "--list", f"{prefix}*", "--merged", "HEAD"):
        try:
            version = Version(name.removeprefix(prefix))
        except InvalidVersion:
            continue  # a tag that does not name a release
        if name != tag and not version.is_prerelease:
            found.append((version, name))
    return (max(found)[1], max(found)[0]) if found else None


def changes_since(tree: Tree, package: str, name: str) -> Changes:
    """Return the changes of the package's interface since the tag *name*."""
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(fileobj=io.BytesIO(tree.git("archive", "--format=tar", name, "packages"))) as archive:
            archive.extractall(folder, filter="data")
        return compare(Tree(Path(folder)), tree, package)


def lowest_version(last: Version, changes: Changes) -> Version:
    """Return the lowest version that may follow *last*, by the rule in RELEASING.md."""
    major, minor, patch = last.major, last.minor, last.micro
    if changes.broken:
        return Version(f"{major + 1}.0.0" if major else f"0.{minor + 1}.0")
    if changes.added and major:
        return Version(f"{major}.{minor + 1}.0")
    return Version(f"{major}.{minor}.{patch + 1}")


def sibling_problems(tree: Tree, package: str) -> Iterator[str]:
    """Yield the version bounds between this package and its siblings that the tree does not satisfy."""
    for user in tree.names():
        for used, bounds in tree.bounds(user).items():
            if package not in (user, used):
                continue
            operators = {bound.operator for bound in bounds}
            if not {">=", "<"} <= operators:
                yield f"{PREFIX}{user} must bound {PREFIX}{used} on both sides, not {str(bounds)!r}"
            if not bounds.contains(Version(tree.version(used)), prereleases=True):
                yield f"{PREFIX}{user} requires {PREFIX}{used} {bounds}; the tree has {tree.version(used)}"


def main() -> None:
    """Print the findings, and exit with an error if the package cannot be released."""
    parser = argparse.ArgumentParser(prog="check_release.py", allow_abbrev=False)
    parser.add_argument("package")
    parser.add_argument("--tag", help="the tag of this release, if it exists already")
    parser.add_argument("--dry-run", action="store_true", help="only print problems that block a release alone")
    parser.add_argument("--print", action="store_true", help="print the commands that tag the release, without checks")
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
            print(f"{name}: blocks a release: {line}")
    if refused := findings.wrong + ([] if options.dry_run else findings.not_yet):
        sys.exit("\n".join(f"{name}: {line}" for line in refused))
    print(f"{name}: {'no problem for main' if options.dry_run else 'ready to be tagged, if the sessions pass'}")


if __name__ == "__main__":
    main()
