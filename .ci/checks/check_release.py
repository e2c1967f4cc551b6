"""Check that one package can be tagged as it stands: ``check_release.py PACKAGE [--tag TAG]``.

Needs the library ``packaging``, which comes with nox.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

PACKAGES = Path(__file__).parents[2] / "packages"
PREFIX = "xlakernel-"


def names() -> list[str]:
    """Return the short names of the packages in the tree."""
    return sorted(path.name.removeprefix(PREFIX) for path in PACKAGES.glob(f"{PREFIX}*"))


def version_of(package: str) -> str:
    """Return the version that the package's source says."""
    about = PACKAGES / f"{PREFIX}{package}/src/xlakernel/{package}/__about__.py"
    found = re.search(r'^__version__ = "(.+)"$', about.read_text("utf-8"), re.MULTILINE)
    if not found:
        sys.exit(f'{about} has no line of the form: __version__ = "1.2.3"')
    return found[1]


def tag_of(package: str) -> str:
    """Return the tag that releases the package's version."""
    return f"{PREFIX}{package}-v{version_of(package)}"


def git(*args: str) -> str:
    """Return what a git command in this repository prints."""
    command = ["git", "-C", str(PACKAGES), *args]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def sibling_bounds(package: str) -> dict[str, SpecifierSet]:
    """Return the versions of each sibling that the package accepts, over all its extras."""
    path = PACKAGES / f"{PREFIX}{package}/pyproject.toml"
    project: dict[str, Any] = tomllib.loads(path.read_text("utf-8"))["project"]
    extras = project.get("optional-dependencies", {}).values()
    bounds: dict[str, SpecifierSet] = {}
    for requirement in map(Requirement, chain(project["dependencies"], *extras)):
        other = requirement.name.removeprefix(PREFIX)
        if requirement.name.startswith(PREFIX) and other != package:
            bounds[other] = bounds.get(other, SpecifierSet()) & requirement.specifier
    return bounds


def changelog_problems(package: str) -> Iterator[str]:
    """Yield what the changelog lacks for the package's version."""
    path = PACKAGES / f"{PREFIX}{package}/CHANGELOG.md"
    sections = re.split(r"^## ", path.read_text("utf-8"), flags=re.MULTILINE)
    section = next((s for s in sections if s.startswith(f"{version_of(package)} (")), None)
    if section is None:
        yield f"{path.name} has no section `## {version_of(package)} (YYYY-MM-DD)`"
    elif not re.match(r"\S+ \(\d{4}-\d\d-\d\d\)\n", section):
        yield f"{path.name} must give the day: `## {version_of(package)} (YYYY-MM-DD)`"
    elif not re.search(r"^- ", section, re.MULTILINE):
        yield f"{path.name} says nothing about {version_of(package)}"


def sibling_problems(package: str) -> Iterator[str]:
    """Yield the bounds, of this package and on it, that the versions in the tree do not meet."""
    for user in names():
        for used, bounds in sibling_bounds(user).items():
            if package not in (user, used):
                continue
            operators = {bound.operator for bound in bounds}
            if not {">=", "<"} <= operators:
                yield f"{PREFIX}{user} must bound {PREFIX}{used} on both sides, not {str(bounds)!r}"
            if not bounds.contains(Version(version_of(used)), prereleases=True):
                yield f"{PREFIX}{user} wants {PREFIX}{used} {bounds}; here is {version_of(used)}"


def problems(package: str, tag: str | None) -> Iterator[str]:
    """Yield every reason why the package cannot be released."""
    if changed := git("status", "--porcelain"):
        yield f"the tree is not clean:\n{changed}"
    if tag is None and git("tag", "--list", tag_of(package)):
        yield f"{tag_of(package)} exists already: raise __version__ first"
    if tag not in (None, tag_of(package)):
        yield f"the tag is {tag}, but the tree holds {tag_of(package)}"
    yield from changelog_problems(package)
    yield from sibling_problems(package)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="check_release.py", allow_abbrev=False)
    parser.add_argument("package", choices=names())
    parser.add_argument("--tag", help="the tag that asked for this release, if it exists already")
    parser.add_argument("--print", action="store_true", help="check nothing, print how to tag it")
    options = parser.parse_args()
    name = tag_of(options.package)
    if options.print:
        print(f"To release it:\n\n  git tag -a {name} -m {name}\n  git push origin {name}")
    elif lines := list(problems(options.package, options.tag)):
        sys.exit("\n".join(lines))
    else:
        print(f"{name} can be tagged, if the sessions pass")
